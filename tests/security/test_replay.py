"""Many streams that replay the journal of others: bounded memory, and other clients are answered meanwhile."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.doors.listen import stream
from tests.security.measure import Bystander, cpu_s
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

ROOT = {"X-Api-Key": "root-key"}
JOBS = 100_000
STREAMS = 100
#: In MiB. One page is half a MiB as it is stored, and two are read at a time. As objects, the whole journal is about 60 MiB,
#: for each stream.
GROWTH_MB_MAX = 60


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with many events of the namespace ``busy``, and one of the namespace ``quiet``."""
    folder = tmp_path_factory.mktemp("replay")
    with ServerProcess(folder / "data", env={"EPOCHQ_AUTH_API_KEY": "root-key"}) as running:
        with running.client() as client:
            jobs: dict[str, object] = {"jobs": [{"data": {}}] * 1_000}
            for _ in range(JOBS // 1_000):
                reply = client.post("/queues/q/jobs/bulk", json=jobs, headers=ROOT | {"X-Namespace": "busy"})
                assert reply.status_code == 200, reply.text
            pushed = client.post("/queues/mine/jobs", json={"data": 1}, headers=ROOT | {"X-Namespace": "quiet"})
            assert pushed.status_code == 200
        yield running


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as opened:
        yield opened


def producer(client: httpx2.Client, namespace: str) -> str:
    body = {"namespaces": [namespace], "roles": ["produce"]}
    secret: str = client.post("/keys", json=body, headers=ROOT).json()["secret"]
    return secret


def replay(server: ServerProcess, key: str, namespace: str) -> socket.socket:
    """Open a stream that begins with the oldest event."""
    opened = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    opened.sendall(
        f"GET /events HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\nX-Namespace: {namespace}\r\n"
        "Last-Event-ID: 0\r\n\r\n".encode()
    )
    return opened


def until(opened: socket.socket, word: bytes) -> None:
    """Read until a word came."""
    text = b""
    while word not in text:
        more = opened.recv(65_536)
        assert more, f"the stream ended: {text!r}"
        text = text[-1_000:] + more


def test_replays_over_foreign_events_stay_small_and_hold_nobody_up(guarded: ServerProcess, client: httpx2.Client) -> None:
    key, quiet = producer(client, "empty"), producer(client, "quiet")
    shown = {"X-Api-Key": quiet, "X-Namespace": "quiet", "Last-Event-ID": "0"}
    rounds, before = 3, cpu_s(guarded.pid)
    for _ in range(rounds):
        with stream(client, headers=shown) as alone:
            assert alone.event()[1]["queue"] == "mine"
    one_s = max(cpu_s(guarded.pid) - before, 0.03) / rounds
    before = cpu_s(guarded.pid)
    streams: list[socket.socket] = []
    try:
        with Bystander(guarded) as other:
            streams += [replay(guarded, key, "empty") for _ in range(STREAMS)]
            with stream(client, headers=shown) as mine:
                assert mine.event()[1]["queue"] == "mine"
            # Each of them has read the whole journal when this reaches it.
            pushed = client.post("/queues/last/jobs", json={"data": 1}, headers=ROOT | {"X-Namespace": "empty"})
            assert pushed.status_code == 200
            for each in streams:
                until(each, b'"queue":"last"')
    finally:
        for each in streams:
            each.close()
    assert other.statuses <= {200}
    assert other.failures == []
    assert other.grown_mb < GROWTH_MB_MAX
    # A stream costs no more among others than it does alone, with room for the bystander and for noise.
    assert cpu_s(guarded.pid) - before < (STREAMS + 1) * one_s * 3 + 2


def test_a_client_that_does_not_read_its_replay_holds_up_no_other(guarded: ServerProcess, client: httpx2.Client) -> None:
    busy = producer(client, "busy")
    stuck: list[socket.socket] = []
    try:
        with Bystander(guarded) as other:
            stuck += [replay(guarded, busy, "busy") for _ in range(8)]
            for each in stuck:
                until(each, b'"queue":"q"')
            shown = {"X-Api-Key": busy, "X-Namespace": "busy", "Last-Event-ID": str(JOBS - 5_000)}
            with stream(client, headers=shown) as mine:
                for _ in range(5_000):
                    mine.event()
    finally:
        for each in stuck:
            each.close()
    assert other.statuses <= {200}
    assert other.grown_mb < GROWTH_MB_MAX
