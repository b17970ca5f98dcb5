"""WebSockets, over a client we did not write: events by subscription, the older form, commands, tokens, limits."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.doors.api import Api
from tests.doors.listen import ear
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"AUTH_TOKENS": "secret", "CORS_ALLOW_ORIGIN": "https://dash.example"}
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env=env) as running:
        yield running


def test_the_counts_that_arrive_last_are_the_counts_there_are(server: ServerProcess, api: Api) -> None:
    with ear(server, "queue:counts", path=f"/ws/queues/{api.queue}") as events:
        api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": n} for n in range(50)]})
        for _ in range(20):
            api.pull()
        assert events.until("queue:counts", waiting=30, active=20)
        assert len(events.skipped) < 20, "counts are told at a bounded pace"


def test_without_a_subscription_the_older_form_arrives(server: ServerProcess, api: Api) -> None:
    with ear(server, path=f"/ws/queues/{api.queue}") as events:
        job = api.active()
        api.ok("POST", f"/jobs/{job}/fail", {"error": "broken"})
        api.ok("POST", "{q}/pause")
        heard = [events.receive() for _ in range(5)]
        assert [each["eventType"] for each in heard] == ["pushed", "pulled", "failed", "retried", "paused"]
        assert all(each["queue"] == api.queue and isinstance(each["timestamp"], int) for each in heard)
        assert {each["jobId"] for each in heard[:4]} == {job}
        assert heard[2]["error"] == "broken"


def test_a_subscription_is_cumulative_and_can_be_taken_back(server: ServerProcess, api: Api) -> None:
    with ear(server, path=f"/ws/queues/{api.queue}") as events:
        assert events.ask("Unsubscribe") == {"ok": True, "subscribed": []}
        api.push()
        assert events.receive()["eventType"] == "pushed"
        assert events.ask("Subscribe", events=["job:pushed"], reqId="1") == {
            "ok": True, "subscribed": ["job:pushed"], "reqId": "1",
        }  # fmt: skip
        assert events.ask("Subscribe", events=["dlq:*"])["subscribed"] == ["job:pushed", "dlq:*"]
        no_lists: tuple[Any, ...] = ([], None, "job:*")
        for no_list in no_lists:
            reply = events.ask("Subscribe", events=no_list)
            assert reply == {"ok": False, "error": "events must be a non-empty array"}
        wrong = ["job:completed", "nonsense", "job:nonsense"]
        assert events.ask("Subscribe", events=wrong) == {"ok": False, "error": "Invalid: nonsense, job:nonsense"}
        assert events.ask("Unsubscribe", events=["job:pushed"])["subscribed"] == ["dlq:*"]
        api.push()
        assert events.ask("Unsubscribe", events=[]) == {"ok": True, "subscribed": []}
        api.ok("DELETE", f"/jobs/{api.push()}")
        assert events.ask("Ping")["data"]["pong"] is True
        assert events.skipped == [], "nothing arrives any more, not even in the older form"


def test_what_is_not_a_command_is_refused(server: ServerProcess) -> None:
    with ear(server) as events:
        for text, error in (("{", "Invalid JSON"), ("[1]", "Invalid command"), ('{"reqId":"7"}', "Invalid command")):
            events.socket.send(text)
            assert events.receive()["error"] == error
        assert events.ask("Nonsense", reqId=5) == {"ok": False, "error": "Unknown command: Nonsense", "reqId": 5}
        events.socket.send(json.dumps({"cmd": "x" * (1 << 20)}))
        assert events.receive()["error"] == "Message too large (max 1MB)"
        with pytest.raises(ConnectionClosed):
            events.socket.recv(timeout=20)


def test_namespaces_are_kept_apart(server: ServerProcess, api: Api) -> None:
    other = {"X-Namespace": "elsewhere"}
    with (
        ear(server, "job:pushed", path=f"/ws/queues/{api.queue}") as mine,
        ear(server, "job:pushed", path=f"/ws/queues/{api.queue}", additional_headers=other) as theirs,
    ):
        job = api.push()
        reply = api.http.post(f"/queues/{api.queue}/jobs", json={"data": 1}, headers=other)
        assert theirs.until("job:pushed")["jobId"] == reply.json()["id"]
        assert mine.until("job:pushed")["jobId"] == job
        assert mine.ask("Ping")["ok"]
        assert theirs.ask("Ping")["ok"]
        assert mine.skipped == theirs.skipped == []
    with pytest.raises(InvalidStatus) as refused, ear(server, additional_headers={"X-Namespace": "no good"}):
        pass
    assert refused.value.response.status_code == 400


def test_another_queue_is_not_heard(server: ServerProcess, api: Api) -> None:
    other = Api(api.http, f"{api.queue}-other")
    with ear(server, "*", path=f"/ws/queues/{api.queue}") as events:
        other.push()
        job = api.push()
        assert events.until("job:pushed")["jobId"] == job
        assert all(each["data"].get("queue") in (api.queue, None) for each in events.skipped)


@pytest.mark.parametrize("path", ["/", "/wss", "/ws/", "/ws/queues/", "/events"])
def test_there_is_no_websocket_elsewhere(server: ServerProcess, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, ear(server, path=path):
        pass
    assert refused.value.response.status_code == 404


def test_who_is_cut_off_is_noticed(server: ServerProcess, api: Api) -> None:
    with ear(server) as events:
        before = api.http.get("/health").json()["connections"]["ws"]
        events.socket.socket.close()
        while api.http.get("/health").json()["connections"]["ws"] >= before:
            pass  # it is noticed as soon as the system tells


def test_who_does_not_read_replies_is_not_read_either(server: ServerProcess, api: Api) -> None:
    """Replies are never thrown away, so whoever does not take them cannot have more of them made."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.sendall(
            b"GET /ws/queues/quiet HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert raw.recv(4_096).startswith(b"HTTP/1.1 101")
        command = json.dumps({"cmd": "Nonsense", "reqId": "x" * 60_000}).encode()
        frame = b"\x81\xfe" + len(command).to_bytes(2) + bytes(4) + command
        raw.settimeout(3)
        with pytest.raises(TimeoutError):
            for _ in range(2_000):
                raw.sendall(frame)
    assert api.http.get("/health").status_code == 200


# Tokens and origins.


def test_a_token_in_the_handshake(guarded: ServerProcess) -> None:
    with ear(guarded, "job:*", additional_headers={"Authorization": "Bearer secret"}) as events:
        assert events.ask("Ping")["ok"] is True


def test_a_token_in_a_command(guarded: ServerProcess) -> None:
    with guarded.client(headers={"Authorization": "Bearer secret"}) as client, ear(guarded) as events:
        api = Api(client, "tokens")
        api.push()
        assert events.ask("Subscribe", events=["*"]) == {"ok": False, "error": "Not authenticated"}
        assert events.ask("Ping", reqId="1") == {"ok": False, "error": "Not authenticated", "reqId": "1"}
        assert events.ask("Auth", token="wrong") == {"ok": False, "error": "Invalid token"}
        assert events.ask("Auth", token="secret") == {"ok": True}
        assert events.skipped == [], "nothing is told before"
        job = api.push()
        assert events.receive()["jobId"] == job


def test_who_shows_no_token_is_cut_off(guarded: ServerProcess) -> None:
    with ear(guarded, additional_headers={"Authorization": "Bearer wrong"}) as events, pytest.raises(ConnectionClosed):
        events.socket.recv(timeout=30)


def test_only_the_allowed_page_may_connect(guarded: ServerProcess) -> None:
    with ear(guarded, origin="https://dash.example"):
        pass
    with pytest.raises(InvalidStatus) as refused, ear(guarded, origin="https://evil.example"):
        pass
    assert refused.value.response.status_code == 403


# Limits and ends.


def test_a_slow_reader_misses_events_and_keeps_its_connection(server: ServerProcess, api: Api) -> None:
    text = "x" * 60_000
    with ear(server, "job:failed", path=f"/ws/queues/{api.queue}", max_size=None, max_queue=1) as slow:
        missed = 0.0
        for _ in range(60):
            jobs = api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, "maxAttempts": 1}] * 10})["ids"]
            api.ok("POST", "{q}/jobs/pull-batch", {"count": 10})
            for job in jobs:
                api.ok("POST", f"/jobs/{job}/fail", {"error": text})
            missed = figure(api, "penstock_events_missed_total")
            if missed:
                break
        assert missed
        seen = 0
        slow.socket.send(json.dumps({"cmd": "Ping"}))
        while "ok" not in slow.receive():
            seen += 1
        assert seen
        job = api.dead()
        assert slow.until("job:failed", jobId=job)["error"] == "broken"


def figure(api: Api, name: str) -> float:
    lines = api.http.get("/prometheus").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def test_there_is_a_limit_of_connections_and_a_shutdown_ends_them_all(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as running, ExitStack() as stack:
        sockets = [stack.enter_context(connect(f"ws://127.0.0.1:{running.port}/ws")) for _ in range(1_000)]
        with pytest.raises(InvalidStatus) as refused, ear(running):
            pass
        assert refused.value.response.status_code == 503
        with running.client() as client:
            assert client.get("/health").json()["connections"] == {"tcp": 0, "ws": 1_000, "sse": 0}
        sockets[0].send(json.dumps({"cmd": "Subscribe", "events": ["server:*"]}))
        assert json.loads(sockets[0].recv(timeout=20))["ok"] is True
        codes: list[int] = []
        stopping = threading.Thread(target=lambda: codes.append(running.stop()))
        stopping.start()
        goodbye: Any = json.loads(sockets[0].recv(timeout=20))
        assert (goodbye["event"], goodbye["data"]) == ("server:shutdown", {"reason": "SIGTERM"})
        for each in sockets:
            with pytest.raises(ConnectionClosed):
                each.recv(timeout=20)
        stopping.join()
        assert codes == [0]
