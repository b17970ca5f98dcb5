"""The rate limit per address, at every door: exactly what is promised passes, and the wait that is told is the true one."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx2
import pytest

from tests.support.ports import free_port
from tests.support.resp import RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LISTENERS = ("batches", "messages", "topics")


class Paced:
    """A server that allows 5 requests in any 3 s, by a clock that stands still until it is moved."""

    def __init__(self, tmp_path: Path) -> None:
        self._pace = tmp_path / "pace"
        self.now = 1_800_000_000_000
        self.move(0)
        self.ports = {name: free_port() for name in LISTENERS}
        args = [word for name, port in self.ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
        env = {"RATE_LIMIT_MAX_REQUESTS": "5", "RATE_LIMIT_WINDOW_MS": "3s", "PACE_FILE": str(self._pace)}
        self.server = ServerProcess(tmp_path / "data", *args, env=env, launcher=("-m", "tests.support.paced_server"))

    def move(self, ms: int) -> None:
        self.now += ms
        later = self._pace.with_suffix(".new")
        later.write_text(str(self.now), encoding="utf-8")
        later.rename(self._pace)  # the server never reads half a number

    def get(self, listener: str, path: str, address: str = "") -> httpx2.Response:
        port = self.ports.get(listener, self.server.port)
        headers = {"x-forwarded-for": address} if address else {}
        return httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers, trust_env=False, timeout=30)


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Paced]:
    made = Paced(tmp_path_factory.mktemp("paced"))
    with made.server:
        yield made


@pytest.mark.parametrize(
    ("listener", "path", "status"),
    [
        ("main", "/queues", 200),
        ("main", "/no-such-route", 404),
        ("batches", "/topics?namespace=default", 200),
        ("messages", "/namespaces", 200),
        ("topics", "/no-such-route", 405),
    ],
)
def test_exactly_what_is_promised_passes(paced: Paced, listener: str, path: str, status: int) -> None:
    paced.move(3_000)
    for pause in (3_300, 3_000, 4_000, 3_001):  # bursts that keep the limit
        assert [paced.get(listener, path).status_code for _ in range(5)] == [status] * 5
        paced.move(pause)
    assert [paced.get(listener, path).status_code for _ in range(5)] == [status] * 5
    refused = paced.get(listener, path)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert refused.headers["penstock-error"] == "rate_limited"
    paced.move(2_999)
    refused = paced.get(listener, path)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    paced.move(1)  # what was refused did not count
    assert paced.get(listener, path).status_code == status


@pytest.mark.parametrize("listener", ["main", "messages"])
def test_addresses_of_one_network_with_ipv6_are_one_client(paced: Paced, listener: str) -> None:
    path = "/queues" if listener == "main" else "/namespaces"
    paced.move(3_000)
    of_one = [paced.get(listener, path, f"2001:db8:1:2:{number:x}::1").status_code for number in range(7)]
    assert of_one == [200] * 5 + [429] * 2
    assert paced.get(listener, path, "2001:db8:1:3::1").status_code == 200
    mapped = [paced.get(listener, path, each).status_code for each in ("192.0.2.1", "::ffff:192.0.2.1") * 3]
    assert mapped == [200] * 5 + [429]
    assert paced.get(listener, path, "192.0.2.2").status_code == 200


def test_the_next_request_passes_when_retry_after_is_over(paced: Paced) -> None:
    paced.move(3_000)
    for _ in range(5):
        assert paced.get("main", "/queues").status_code == 200
        paced.move(170)
    for _ in range(10):
        refused = paced.get("main", "/queues")
        while refused.status_code == 200:
            refused = paced.get("main", "/queues")
        paced.move(int(refused.headers["retry-after"]) * 1_000)
        assert paced.get("main", "/queues").status_code == 200


def _over_tcp(paced: Paced, hold: ExitStack) -> Callable[[], bool]:
    client = hold.enter_context(TcpClient(paced.server.tcp_port))
    return lambda: client.call("Ping")["ok"] is True


def _over_resp(paced: Paced, hold: ExitStack) -> Callable[[], bool]:
    client = hold.enter_context(RespClient(paced.server.resp_port))
    return lambda: client.call("PING") == b"pong"


@pytest.mark.parametrize("connect", [_over_tcp, _over_resp])
def test_commands_pass_by_the_same_rule(paced: Paced, connect: Callable[[Paced, ExitStack], Callable[[], bool]]) -> None:
    paced.move(3_000)
    with ExitStack() as hold:
        passes = connect(paced, hold)
        for _ in range(4):
            assert [passes() for _ in range(6)] == [True] * 5 + [False]
            paced.move(2_999)
            assert not passes()
            paced.move(1)
