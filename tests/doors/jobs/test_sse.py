"""Server-sent events, over a client we did not write: the contract's example, replay across the seam, limits and ends."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.clock import ManualClock
from penstock.doors.jobs.reader_lag import ReaderLag
from tests.doors.api import Api
from tests.doors.listen import StreamEar, stream
from tests.support import stores
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_the_example_of_the_contract_works(api: Api) -> None:
    with stream(api.http, "/events") as events:
        job = api.completed()
        heard: list[Any] = []
        while len(heard) < 3:
            number, data = events.event()
            assert number
            if data["queue"] == api.queue:
                heard.append(data)
        assert [(each["eventType"], each["jobId"]) for each in heard] == [
            ("pushed", job), ("pulled", job), ("completed", job),
        ]  # fmt: skip


def test_a_stream_of_a_queue_has_nothing_of_others(api: Api) -> None:
    with stream(api.http, f"/events/queues/{api.queue}") as events:
        Api(api.http, f"{api.queue}-other").push()
        api.http.post(f"/queues/{api.queue}/jobs", json={"data": 1}, headers={"X-Namespace": "elsewhere"})
        job = api.push()
        assert events.event()[1]["jobId"] == job


def test_the_typed_form_names_its_events(api: Api) -> None:
    with stream(api.http, f"/events/queues/{api.queue}", params={"format": "typed"}) as events:
        job = api.push()
        created = events.message()
        while created["event"] == "server:started":  # the server of the tests may be young
            created = events.message()
        pushed = events.message()
        assert (created["event"], pushed["event"]) == ("queue:created", "job:pushed")
        assert f'"jobId":"{job}"' in pushed["data"]


@pytest.mark.parametrize("way", ["header", "query"])
def test_what_was_missed_is_replayed(api: Api, way: str) -> None:
    path = f"/events/queues/{api.queue}"
    with stream(api.http, path) as events:
        first = api.push()
        seen, data = events.event()
        assert data["jobId"] == first
    missed = [api.push() for _ in range(5)]
    options: Any = {"headers": {"Last-Event-ID": str(seen)}} if way == "header" else {"params": {"lastEventId": str(seen)}}
    with stream(api.http, path, **options) as events:
        assert [events.event()[1]["jobId"] for _ in missed] == missed
        last = api.push()
        assert events.event()[1]["jobId"] == last


@pytest.mark.parametrize("last", ["nonsense", "-1", "99999999999999999", "1" * 40])
def test_a_number_that_was_never_given_is_no_trouble(api: Api, last: str) -> None:
    with stream(api.http, f"/events/queues/{api.queue}", headers={"Last-Event-ID": last}):
        pass
    api.push()


@pytest.mark.parametrize("path", ["/events", "/events/queues/q"])
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("ids=foo", "ids must be one of: marked, plain"),
        ("format=foo", "format must be one of: legacy, typed"),
        ("lastEventId=foo", "lastEventId must be the id of an event, such as 17, or 0 for all that are kept"),
        ("lastEventId=-1", "lastEventId must be the id of an event, such as 17, or 0 for all that are kept"),
    ],
)
def test_a_wrong_parameter_is_refused(api: Api, path: str, query: str, error: str) -> None:
    assert api.refused("GET", f"{path}?{query}") == (400, error)


def test_nothing_is_lost_or_repeated_at_the_seam(server: ServerProcess, api: Api) -> None:
    """Readers join again and again, from the beginning, while jobs flow: each sees every job once, in order."""
    stop = threading.Event()
    pushed: list[str] = []

    def produce() -> None:
        with server.client() as client:
            mine = Api(client, api.queue)
            while not stop.is_set() or len(pushed) < 500:
                pushed.extend(mine.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1}] * 3})["ids"])

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(8):
            with server.client() as client, stream(client, f"/events/queues/{api.queue}?lastEventId=0") as events:
                target = len(pushed) + 150
                heard = [events.event() for _ in range(target)]
                numbers = [number for number, _ in heard]
                assert numbers == sorted(set(numbers))  # type: ignore[type-var]
                ids = [data["jobId"] for _, data in heard]
                assert len(set(ids)) == target
    finally:
        stop.set()
        producer.join()
    with stream(api.http, f"/events/queues/{api.queue}?lastEventId=0") as events:
        assert [events.event()[1]["jobId"] for _ in pushed] == pushed


def test_a_replay_goes_on_after_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as running, running.client() as client:
        Api(client, "q").push()
    with ServerProcess(tmp_path / "data") as running, running.client() as client, running.client() as other:
        job = Api(other, "q").push()
        with stream(client, "/events", headers={"Last-Event-ID": "0"}) as events:
            assert [events.event()[1]["eventType"] for _ in range(2)] == ["pushed", "pushed"]
            assert Api(other, "q").pull()
            assert events.event()[1]["eventType"] == "pulled"
        assert job


def forget(data: Path, before: int) -> None:
    """Shorten the journal, as a server that has run for long does."""
    with closing(sqlite3.connect(data / "penstock.db")) as db:
        db.execute("delete from journal where seq < ?", (before,))
        db.commit()


@pytest.mark.skipif(stores.chosen() != "sqlite", reason="shortens the journal in the file")
@pytest.mark.parametrize("form", ["legacy", "typed"])
def test_who_was_away_for_too_long_is_told_so(tmp_path: Path, form: str) -> None:
    with ServerProcess(tmp_path / "data") as running, running.client() as client:
        jobs = [Api(client, "q").push() for _ in range(5)]  # the first makes two events: there is a new queue
    forget(tmp_path / "data", before=5)
    with ServerProcess(tmp_path / "data") as running, running.client() as client:

        def come_back(last: int) -> StreamEar:
            return stack.enter_context(stream(client, "/events", params={"lastEventId": last, "format": form}))

        with ExitStack() as stack:
            for last in (1, 3, 10**15):  # too old, just too old, and of another history
                events = come_back(last)
                missed = events.message()
                assert missed["event"] == "events:missed"
                replaced = {} if last < 5 else {"reason": "history_replaced"}
                assert json.loads(missed["data"]) == {"lastEventId": last, "firstEventId": 5} | replaced
                assert "id" not in missed
                assert [events.event()[1]["jobId"] for _ in range(2)] == jobs[3:]
            for last in (4, 0):  # nothing is missing; the oldest there is was asked for
                assert come_back(last).event()[0] == (5,)


def test_a_slow_reader_is_cut_off_and_can_come_back(server: ServerProcess, api: Api) -> None:
    text = "x" * 60_000
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.sendall(f"GET /events/queues/{api.queue} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert slow.recv(10)
        for _ in range(60):
            jobs = api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, "maxAttempts": 1}] * 10})["ids"]
            api.ok("POST", "{q}/jobs/pull-batch", {"count": 10})
            for job in jobs:
                api.ok("POST", f"/jobs/{job}/fail", {"error": text})
            if api.http.get("/health").json()["connections"]["sse"] == 0:
                break
        assert api.http.get("/health").json()["connections"]["sse"] == 0


def test_the_send_queues_of_the_system_are_read_rightly(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100007F:1A86 0200007F:C350 01 00000A00:00000000 00:00000000 00000000     0        0 1\n"
    )
    queues = ReaderLag(ManualClock(), (table,))
    assert queues.waiting("127.0.0.2:50000") == 0xA00
    assert queues.waiting("127.0.0.2:50001") == 0
    assert queues.waiting("nobody") == 0


def test_there_is_a_limit_of_streams_and_a_shutdown_ends_them_all(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as running, ExitStack() as stack:
        sockets = []
        for _ in range(1_000):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.settimeout(20)
            assert b"200 OK" in client.recv(4_096)
            sockets.append(client)
        with running.client() as http:
            refused = http.get("/events")
            assert (refused.status_code, refused.text) == (503, "Too many SSE connections")
            assert http.get("/health").json()["connections"]["sse"] == 1_000
            sockets.pop().close()
            while http.get("/health").json()["connections"]["sse"] == 1_000:
                time.sleep(0.01)  # it is noticed as soon as the system tells
            assert http.head("/events").status_code == 200
        assert running.stop() == 0
        for client in sockets:
            received = b""
            while chunk := client.recv(4_096):
                received += chunk
            assert received.endswith(b"0\r\n\r\n"), "the stream has a proper end"


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "secret"}) as running, running.client() as client:
        assert client.get("/events").status_code == 401
        with stream(client, headers={"Authorization": "Bearer secret"}):
            pass
