"""WebSockets, over a client we did not write: events by subscription, the older form, commands, tokens, limits."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.doors.api import Api
from tests.doors.listen import Ear, ear, stream
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        assert heard[3]["prev"] == "failed"


def test_the_older_form_has_results_and_payloads(server: ServerProcess, api: Api) -> None:
    with ear(server, path=f"/ws/queues/{api.queue}") as events, ear(server, "job:*", path="/ws/queues/" + api.queue) as new:

        def heard(name: str) -> Any:
            while (message := events.receive())["eventType"] != name:
                time.sleep(0.01)
            return message

        done = api.completed({"sum": 3})
        assert heard("completed")["data"] == {"sum": 3}
        assert new.until("job:completed") == {"queue": api.queue, "jobId": done}, "never over the newer form"
        api.ok("POST", "{q}/retry-completed", {"id": done})
        assert heard("retried")["prev"] == "completed"
        api.ok("DELETE", f"/jobs/{done}")
        api.dead(data={"to": "me"})
        assert heard("failed")["data"] == {"to": "me"}
        api.completed()
        assert "data" not in heard("completed"), "there is no result"
        api.completed("x" * (1 << 20))
        assert "data" not in heard("completed"), "what is over 1 MiB is left out"


def test_a_large_bulk_push_stores_all_its_jobs(server: ServerProcess, api: Api) -> None:
    with ear(server, "queue:counts") as events:
        for jobs in ([{"data": n} for n in range(1_001)], [{"data": "x" * 7_000}] * 10):
            reply = events.ask("PUSHB", queue=api.queue, jobs=jobs)
            assert reply["ok"] is True, reply
            assert len(reply["ids"]) == len(jobs)


def test_an_empty_token_is_no_token(server: ServerProcess, api: Api) -> None:
    first, second = api.active(), api.active()
    with ear(server, "job:pushed") as events:
        assert events.ask("ACKB", ids=[first], tokens=[""])["ok"]
        assert events.ask("FAIL", id=second, token="")["ok"]
    assert (api.state(first), api.state(second)) == ("completed", "delayed")


def test_who_comes_soon_after_the_start_hears_of_it_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as running:
        with ear(running, "job:*") as events:
            assert events.ask("Subscribe", events=["server:started"])["ok"]
            started = events.until("server:started")
            assert started["version"]
            assert events.ask("Subscribe", events=["server:*"])["ok"]
            assert events.ask("Unsubscribe")["ok"]
            assert events.ask("Subscribe", events=["*"])["ok"]
            assert events.ask("Ping")["ok"]
            assert [each for each in events.skipped if each["event"].startswith("server:")] == []
        with running.client() as client, stream(client, "/events", params={"format": "typed"}) as typed:
            message = typed.message()
            assert (message["event"], json.loads(message["data"])["startedAt"]) == ("server:started", started["startedAt"])


def test_the_rate_limit_counts_requests_and_commands_together(tmp_path: Path) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "8", "RATE_LIMIT_WINDOW_MS": "3600000"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as client:
        with ear(running, "job:*") as events, TcpClient(running.tcp_port) as tcp:  # two: the handshake, and Subscribe
            for _ in range(2):
                assert client.get("/queues").status_code == 200
                assert tcp.ok("Ping")
                assert events.ask("Ping")["ok"]
            too_many = {"ok": False, "error": "Rate limit exceeded", "code": "rate_limited", "reqId": "9"}
            assert tcp.call("PUSH", queue="q", data=1, reqId="9") == too_many
            assert events.ask("Pause", queue="q", reqId="9") == too_many
            assert events.ask("Subscribe", events=["*"], reqId="9") == too_many
            events.socket.send("{")
            assert events.receive() == {"ok": False, "error": "Rate limit exceeded", "code": "rate_limited"}
        assert client.get("/queues").json()["error"] == "Rate limit exceeded"
        with pytest.raises(InvalidStatus) as refused, ear(running):
            pass
        status, error, wait = answer(refused.value)
        assert (status, error) == (429, "Rate limit exceeded")
        assert 0 < int(wait or 0) <= 3_600


def test_what_is_no_command_counts_as_one(tmp_path: Path) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "5", "RATE_LIMIT_WINDOW_MS": "3600000"}
    with ServerProcess(tmp_path / "data", env=env) as running, ear(running) as events, TcpClient(running.tcp_port) as tcp:
        for text, error in (("{", "Invalid JSON"), ("[1]", "Invalid command"), ("{}", "Invalid command")):
            events.socket.send(text)
            assert events.receive()["error"] == error
        tcp.socket.sendall(b"\0\0\0\1\xc1")
        assert tcp.read()["error"] == "Invalid command format"
        tcp.socket.sendall(b"\0\0\0\1\xc1")
        assert tcp.read()["error"] == "Rate limit exceeded"
        assert tcp.call("PUSH", queue="q", data=float("nan"), reqId=1)["error"] == "Rate limit exceeded"


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
            assert reply == {"ok": False, "error": "events must be a non-empty array", "code": "invalid_input"}
        wrong = ["job:completed", "nonsense", "job:nonsense"]
        assert events.ask("Subscribe", events=wrong) == {
            "ok": False,
            "error": "Invalid: nonsense, job:nonsense",
            "code": "invalid_input",
        }
        assert events.ask("Unsubscribe", events=["job:pushed"])["subscribed"] == ["dlq:*"]
        api.push()
        assert events.ask("Unsubscribe", events=[]) == {"ok": True, "subscribed": []}
        api.ok("DELETE", f"/jobs/{api.push()}")
        assert events.ask("Ping")["data"]["pong"] is True
        assert events.skipped == [], "nothing arrives any more, not even in the older form"


def test_what_is_not_a_command_is_refused(server: ServerProcess) -> None:
    with ear(server) as events:
        refused = ("[1]", '{"reqId":"7"}', '{"cmd":5}', '{"cmd":[]}', '{"cmd":{}}')
        for text, error in (("{", "Invalid JSON"), *((each, "Invalid command") for each in refused)):
            events.socket.send(text)
            assert events.receive()["error"] == error
        assert events.ask("Nonsense", reqId=5) == {
            "ok": False,
            "error": "Unknown command: Nonsense",
            "code": "invalid_input",
            "reqId": 5,
        }
        events.socket.send(json.dumps({"cmd": "x" * (1 << 20)}))
        assert events.receive()["error"] == "Message too large (max 1MB)"
        assert closing(events) == (1009, "Message too large (max 1MB)")


def closing(events: Ear) -> tuple[int, str]:
    """Return the code and the reason with which the server closes the connection."""
    with pytest.raises(ConnectionClosed) as closed:
        events.socket.recv(timeout=30)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


@pytest.mark.parametrize(
    "frame",
    [b"\xf1\x82\0\0\0\0ab", b"\x81\x02ab", b"\x81\x82\0\0\0\0\xff\xfe", b"\x83\x80\0\0\0\0"],
    ids=["reserved bits", "no mask", "no UTF-8", "no such kind"],
)
def test_what_is_not_a_websocket_frame_ends_the_connection(server: ServerProcess, frame: bytes) -> None:
    with ear(server) as events:
        events.socket.socket.sendall(frame)
        assert closing(events) == (1002, "Not a WebSocket frame")


def test_a_ping_is_answered_and_a_goodbye_returned(server: ServerProcess) -> None:
    with ear(server) as events:
        assert events.socket.ping().wait(timeout=20)
        events.socket.close(4_000, "my reasons")
        assert events.socket.close_code == 4_000


def test_the_system_watches_over_connections_that_are_silent(server: ServerProcess) -> None:
    """There are no pings to send, so it is the system that asks, after a minute, whether the client is still there."""
    with ear(server, "server:shutdown") as events:
        port, timer, ticks = events.socket.local_address[1], "01", ""
        while timer == "01":  # what was sent is not acknowledged yet
            time.sleep(0.01)
            lines = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()]
            between = [f"0100007F:{end:04X}" for end in (server.port, port)]
            ours = next(line for line in lines if line[1:3] == between)
            timer, _, ticks = ours[5].partition(":")
        assert timer == "02", "the timer that runs is that of keep-alive"
        assert 0 < int(ticks, 16) <= 60 * os.sysconf("SC_CLK_TCK")


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
    assert answer(refused.value)[:2] == (400, "X-Namespace contains invalid characters or is too long")


def test_commands_are_about_the_namespace_of_the_handshake(server: ServerProcess, api: Api) -> None:
    other = {"X-Namespace": "elsewhere"}
    with ear(server, additional_headers=other) as theirs, ear(server) as mine:
        job = theirs.ask("PUSH", queue=api.queue, data=1)["id"]
        assert api.http.get(f"/jobs/{job}/state").json()["state"] == "unknown"
        assert api.http.get(f"/jobs/{job}/state", headers=other).json()["state"] == "waiting"
        assert mine.ask("PULL", queue=api.queue)["job"] is None
        assert theirs.ask("PULL", queue=api.queue)["job"]["id"] == job
    pulled = api.http.get(f"/queues/{api.queue}/jobs", params={"timeout": 10_000}, headers=other).json()["job"]
    assert pulled["id"] == job, "it went back where it was taken from"


def test_payloads_pass_through_byte_for_byte(server: ServerProcess, api: Api) -> None:
    """As they do over HTTP: what number a client can read is the client's business."""
    data = '{"huge":1e999, "long":3.14159265358979323846, "text":"\\u00fc"}'
    with ear(server, path="/ws/queues/quiet") as events:
        events.socket.send(f'{{"cmd":"PUSH","queue":"{api.queue}","reqId":1e999,"data":{data}}}')
        assert events.receive()["ok"] is True
        assert data in api.http.get(f"/queues/{api.queue}/jobs").text
        api.http.post(f"/queues/{api.queue}/jobs", content='{"data":1e999}')
        events.socket.send(json.dumps({"cmd": "PULL", "queue": api.queue, "reqId": "7"}))
        reply = str(events.socket.recv(timeout=20))
        assert '"data":1e999,' in reply
        assert json.loads(reply)["reqId"] == "7"
        assert events.ask("PULL", queue=api.queue, timeout=10**999)["error"] == "timeout must be a finite number"


# Hanging up.


def test_a_job_pulled_by_who_hangs_up_meanwhile_goes_back(server: ServerProcess, api: Api) -> None:
    jobs = {api.push() for _ in range(30)}
    for _ in jobs:
        with ear(server) as events:
            events.socket.send(json.dumps({"cmd": "PULL", "queue": api.queue}))
    while jobs:
        job = api.pull(timeout=10_000)
        assert job is not None, f"{len(jobs)} did not come back"
        jobs.remove(job["id"])


def test_a_job_that_comes_while_its_worker_hangs_up_goes_back(server: ServerProcess, api: Api) -> None:
    with TcpClient(server.tcp_port, api.queue) as producer:
        for number in range(30):
            with ear(server, path="/ws/queues/quiet") as events:
                events.socket.send(json.dumps({"cmd": "PULL", "queue": api.queue, "timeout": 60_000}))
                assert events.ask("Ping")["ok"]
                producer.send("PUSH", queue=api.queue, data=number)
                events.socket.socket.shutdown(socket.SHUT_RDWR)
            assert producer.read()["ok"] is True
            job = api.pull(timeout=10_000)
            assert job is not None
            assert (job["data"], job["attempts"]) == (number, 0)
            api.ok("POST", f"/jobs/{job['id']}/ack")


def test_an_acknowledgement_sent_just_before_hanging_up_counts(server: ServerProcess, api: Api) -> None:
    with ear(server) as events:
        job = events.ask("PUSH", queue=api.queue, data=1)["id"]
        token = events.ask("PULL", queue=api.queue)["token"]
        events.socket.send(json.dumps({"cmd": "ACK", "id": job, "token": token, "result": "done"}))
    assert api.ok("POST", f"/jobs/{job}/wait", {"timeout": 10_000})["result"] == "done"


def answer(refused: InvalidStatus) -> tuple[int, str, str | None]:
    """Return what a handshake was refused with: status, error and Retry-After."""
    response = refused.response
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.body)
    assert body.keys() == {"ok", "error"}
    assert body["ok"] is False
    return response.status_code, body["error"], response.headers.get("retry-after")


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
    assert answer(refused.value) == (404, "Not found", None)


def test_who_is_cut_off_is_noticed(server: ServerProcess, api: Api) -> None:
    with ear(server) as events:
        before = api.http.get("/health").json()["connections"]["ws"]
        events.socket.socket.close()
        while api.http.get("/health").json()["connections"]["ws"] >= before:
            time.sleep(0.01)  # it is noticed as soon as the system tells


def test_who_does_not_read_replies_is_not_read_either(server: ServerProcess, api: Api) -> None:
    """Replies are never thrown away, so whoever does not take them cannot have more of them made."""
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.sendall(
            b"GET /ws/queues/quiet HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
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
        assert events.ask("Subscribe", events=["*"]) == {"ok": False, "error": "Not authenticated", "code": "unauthorized"}
        assert events.ask("Ping", reqId="1") == {
            "ok": False,
            "error": "Not authenticated",
            "code": "unauthorized",
            "reqId": "1",
        }
        assert events.ask("Auth", token="wrong") == {"ok": False, "error": "Invalid token", "code": "unauthorized"}
        assert events.ask("Auth", token="secret") == {"ok": True}
        assert events.skipped == [], "nothing is told before"
        job = api.push()
        assert events.receive()["jobId"] == job


def test_who_shows_a_wrong_token_is_not_let_in(guarded: ServerProcess) -> None:
    for header in ("Bearer wrong", "Bearer ", "Basic c2VjcmV0"):
        with pytest.raises(InvalidStatus) as refused, ear(guarded, additional_headers={"Authorization": header}):
            pass
        assert answer(refused.value) == (401, "Unauthorized", None)


@pytest.mark.parametrize(("header", "status"), [(b"X-Namespace: \xc3\xbc", b"400"), (b"Authorization: \xc3\xbc", b"401")])
def test_a_header_that_is_not_ascii_is_not_overlooked(guarded: ServerProcess, header: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", guarded.port), timeout=20) as raw:
        raw.sendall(
            b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + header + b"\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        assert raw.recv(4_096).startswith(b"HTTP/1.1 " + status)


def test_who_shows_no_token_is_cut_off(guarded: ServerProcess) -> None:
    with ear(guarded) as events:
        assert json.loads(events.socket.recv(timeout=30)) == {
            "ok": False,
            "error": "Not authenticated",
            "code": "unauthorized",
        }
        assert closing(events) == (1008, "Not authenticated")


def test_only_the_allowed_page_may_connect(guarded: ServerProcess) -> None:
    with ear(guarded, origin="https://dash.example"):
        pass
    with pytest.raises(InvalidStatus) as refused, ear(guarded, origin="https://evil.example"):
        pass
    assert answer(refused.value)[0] == 403


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
        assert answer(refused.value) == (503, "Too many WebSocket connections", "1")
        with running.client() as client:
            assert client.get("/health").json()["connections"] == {"tcp": 0, "ws": 1_000, "sse": 0, "resp": 0}
        sockets[0].send(json.dumps({"cmd": "Subscribe", "events": ["server:shutdown"]}))
        assert json.loads(sockets[0].recv(timeout=20))["ok"] is True
        codes: list[int] = []
        stopping = threading.Thread(target=lambda: codes.append(running.stop()))
        stopping.start()
        goodbye: Any = json.loads(sockets[0].recv(timeout=20))
        assert (goodbye["event"], goodbye["data"]) == ("server:shutdown", {"reason": "SIGTERM"})
        assert {closing(Ear(each)) for each in sockets} == {(1001, "The server stops")}
        stopping.join()
        assert codes == [0]
