"""Paths, query strings and header lists that are made to be expensive: each costs the server no more than a plain request."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import h2.config
import h2.connection
import h2.events
import httpx2
import pytest

from penstock.core import limits
from tests.security.measure import cpu_s
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LISTENERS = ("batches", "messages", "topics")
#: As long as the HTTP server underneath takes a request line.
LONG = 60_000
REQUESTS = 20
#: How much more an attack may cost than as many plain requests. Before, one request cost more than a thousand of these.
FACTOR = 15


class Target:
    """A server with all its HTTP listeners."""

    def __init__(self, server: ServerProcess, ports: dict[str, int]) -> None:
        self.server = server
        self.ports = {"http": server.port, **ports}

    def ask(self, listener: str, method: str, path: str, headers: str = "") -> tuple[int, dict[str, str], bytes]:
        """Send a request as it is, which no client would do for us, and read the answer."""
        with socket.create_connection(("127.0.0.1", self.ports[listener]), timeout=60) as link:
            link.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
            answer = b""
            while chunk := link.recv(65_536):
                answer += chunk
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:]), body

    def cost(self, ask: Callable[[], Any], times: int = REQUESTS) -> float:
        """Return how long the server computes, in seconds, while something is asked that often."""
        before = cpu_s(self.server.pid)
        for _ in range(times):
            ask()
        return cpu_s(self.server.pid) - before


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    ports = {name: free_port() for name in LISTENERS}
    args = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
    with ServerProcess(tmp_path_factory.mktemp("routing") / "data", *args) as server:
        yield Target(server, ports)


PATHS = {
    "slashes": "/jobs/custom" + "/" * LONG,
    "segments": "/jobs" + "/x" * (LONG // 2),
    "suffix": "/bulk/snapshots" + "/parts" * (LONG // 6),
    "encoded": "/jobs/custom" + "%2F" * (LONG // 3),
    "as many as allowed": "/jobs/custom" + "/" * (limits.path_segments_max - 2),
    "as long as allowed": "/jobs/custom/" + "x" * (limits.path_chars_max - 13),
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_a_path_of_many_segments_costs_no_more_than_a_short_one(target: Target, path: str) -> None:
    for listener in target.ports:
        plain = target.cost(lambda: target.ask(listener, "GET", "/no/such/route"), 10 * REQUESTS) / 10  # noqa: B023
        attack = target.cost(lambda: target.ask(listener, "PATCH", path))  # noqa: B023
        assert attack <= FACTOR * max(plain, 0.01), listener


@pytest.mark.parametrize("listener", ["http", *LISTENERS])
@pytest.mark.parametrize("path", ["/jobs/custom" + "/" * LONG, "/" + "x" * LONG], ids=["segments", "characters"])
def test_a_path_that_is_too_long_is_refused_with_414(target: Target, listener: str, path: str) -> None:
    status, headers, body = target.ask(listener, "POST", path, "Content-Length: 0\r\n")
    assert (status, headers["penstock-error"]) == (414, "target_too_long")
    assert b"too long" in body or b"too many segments" in body


def test_a_websocket_path_or_query_string_that_is_too_long_is_refused_with_414(target: Target) -> None:
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "A" * 22 + "==\r\n"
    )
    for listener, path in (
        ("http", "/ws/queues/" + "x" * LONG),
        ("http", "/namespaces" + "/" * LONG),
        ("messages", "/namespaces" + "/" * LONG),
        ("messages", "/namespaces/a/queues/b/ws?" + "a=&" * (LONG // 3)),
    ):
        status, headers, _ = target.ask(listener, "GET", path, upgrade)
        assert (status, headers["penstock-error"]) == (414, "target_too_long"), path[:30]


def test_an_id_of_slashes_alone_still_works(target: Target) -> None:
    name = "/" * limits.key_chars_max
    with target.server.client() as client:
        assert client.post("/queues/slashes/jobs", json={"data": 1, "jobId": name}).json()["id"] == name
        assert client.get(f"/jobs/custom/{quote(name, safe='')}").json()["job"]["id"] == name
        assert client.get(f"/jobs/{quote(name, safe='')}/state").json()["state"] == "waiting"


def test_a_query_string_that_is_too_long_or_has_too_many_parameters_is_refused(target: Target) -> None:
    status, headers, _ = target.ask("http", "GET", "/queues/q/jobs/list?state=" + "x" * LONG)
    assert (status, headers["penstock-error"]) == (414, "target_too_long")
    status, headers, body = target.ask("http", "GET", "/queues/q/jobs/list?" + "&".join(["limit=1"] * 300))
    assert (status, headers["penstock-error"]) == (400, "invalid_input")
    assert json.loads(body)["error"] == "The query string has too many parameters (max 256)"


def test_forwarded_addresses_without_end_cost_no_more_than_a_few(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("forwarded") / "data"
    with ServerProcess(data, env={"RATE_LIMIT_MAX_REQUESTS": "1000000"}) as server:
        target = Target(server, {})
        many = "X-Forwarded-For: " + ",".join(["127.0.0.1"] * 10_000) + "\r\n"
        plain = target.cost(lambda: target.ask("http", "GET", "/ping"), 10 * REQUESTS) / 10
        attack = target.cost(lambda: target.ask("http", "GET", "/ping", many))
        assert attack <= FACTOR * max(plain, 0.01)


def test_the_rate_limit_counts_before_anything_is_looked_at(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("paced") / "data"
    with ServerProcess(data, env={"RATE_LIMIT_MAX_REQUESTS": "3", "AUTH_TOKENS": "a-long-secret-token"}) as server:
        target = Target(server, {})
        assert target.ask("http", "GET", "/" + "x" * LONG)[0] == 414
        assert target.ask("http", "GET", "/queues")[0] == 401
        assert target.ask("http", "PATCH", "/no/such/route")[0] == 401
        for method, path in (("GET", "/queues"), ("PATCH", "/no/such/route"), ("POST", "/enqueue")):
            status, headers, _ = target.ask("http", method, path)
            assert (status, headers["penstock-error"]) == (429, "rate_limited"), path
        assert target.ask("http", "POST", "/health")[0] == 429
        for method in ("GET", "HEAD"):
            assert target.ask("http", method, "/health")[0] == 200  # a probe is always answered


@pytest.mark.parametrize(("lines", "answers"), [(10, {"200"}), (40, {"431"}), (500, {"431", "terminated"})])
def test_a_header_list_over_http2_is_bounded(target: Target, lines: int, answers: set[str]) -> None:
    """A few bytes name a header of 4 kB again and again: 2 MB of headers come from 6 kB."""
    http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    with socket.create_connection(("127.0.0.1", target.server.port), timeout=30) as link:
        http.initiate_connection()
        head = [(":method", "GET"), (":path", "/ping"), (":authority", "localhost"), (":scheme", "http")]
        http.send_headers(1, [*head, *[("x-large", "x" * 4_000)] * lines], end_stream=True)
        link.sendall(http.data_to_send())
        answer = ""
        while not answer:
            received = link.recv(65_536)
            assert received, "the connection was closed without an answer"
            for event in http.receive_data(received):
                if isinstance(event, h2.events.ResponseReceived):
                    answer = str(dict[Any, Any](event.headers)[":status"])
                elif isinstance(event, h2.events.ConnectionTerminated):
                    answer = "terminated"
    assert answer in answers
    assert httpx2.get(f"{target.server.url}/ping", trust_env=False).status_code == 200
