"""Answers that get lost, servers that go away, servers that are busy: tried again, and never done twice."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.client import (
    ApiError,
    AsyncClient,
    Client,
    Conflict,
    ConnectionFailed,
    Job,
    JobOptions,
    LeaseLost,
    NewJob,
    UnexpectedReply,
    _clock,
)
from penstock.client._sync import transport
from tests.client.proxy import Answer, ForgetfulProxy, StubServer, first
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_push_whose_answer_was_lost_makes_one_job(server: ServerProcess, client: Client, queue: str) -> None:
    with ForgetfulProxy(server.port, first(3, b"POST /queues")) as proxy, Client(proxy.url) as unlucky:
        job_id = unlucky.jobs.push(queue, "once")
        assert proxy.lost == 3
        ids = unlucky.jobs.push_many(queue, ["a", "b"])
    assert client.queues.counts(queue).waiting == 3
    assert [job.id for job in client.queues.jobs(queue)] == [job_id, *ids]


@pytest.mark.parametrize("forgotten", ["remove_on_complete", "remove_on_fail"])
def test_a_push_that_the_server_forgets_is_not_sent_twice(
    server: ServerProcess, client: Client, queue: str, forgotten: str
) -> None:
    """It may have been done and deleted by the time it is sent again: then there would be a second one."""
    options: JobOptions = {"remove_on_complete": True} if forgotten == "remove_on_complete" else {"remove_on_fail": True}
    with ForgetfulProxy(server.port, first(2, b"POST /queues")) as proxy, Client(proxy.url) as unlucky:
        for push in (
            lambda: unlucky.jobs.push(queue, "once", **options),
            lambda: unlucky.jobs.push_many(queue, ["kept", NewJob("once", **options)]),
        ):
            with pytest.raises(ConnectionFailed, match="outcome is unknown") as unknown:
                push()
            assert unknown.value.outcome_unknown
        assert proxy.lost == 2
        unlucky.jobs.push(queue, "once", **options)
    assert client.queues.counts(queue).waiting == 4


FORKED = """
import os
from penstock.client import _clock

_clock.now_ms = lambda: 0
for _ in range(2):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, _clock.fresh_name().encode())
        os._exit(0)
    os.wait()
    print(os.read(read, 100).decode())
print(_clock.fresh_name())
"""


def test_forked_processes_make_names_of_their_own() -> None:
    """Jobs and messages of the same name are one: forked at the same time, processes would lose each other's."""
    names = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True).stdout.split()
    assert len(set(names)) == 3


@pytest.mark.anyio
async def test_the_same_for_coroutines(server: ServerProcess, client: Client, queue: str) -> None:
    with ForgetfulProxy(server.port, first(2, b"POST /queues")) as proxy:
        async with AsyncClient(proxy.url) as unlucky:
            await unlucky.jobs.push(queue, "once")
        assert proxy.lost == 2
    assert client.queues.counts(queue).waiting == 1


def test_an_ack_whose_answer_was_lost_is_done(server: ServerProcess, client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "x")
    with ForgetfulProxy(server.port, first(1, b"POST /jobs/")) as proxy, Client(proxy.url) as unlucky:
        job = unlucky.jobs.pull(queue)
        assert job is not None
        unlucky.jobs.ack(job, "done")
        assert proxy.lost == 1
    assert client.jobs.result(job_id) == "done"


def test_a_failure_whose_answer_was_lost_counts_once(server: ServerProcess, client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "x", backoff=0)
    with ForgetfulProxy(server.port, first(1, b"POST /jobs/")) as proxy, Client(proxy.url) as unlucky:
        job = unlucky.jobs.pull(queue)
        assert job is not None
        unlucky.jobs.fail(job, "broken")
    assert client.jobs.get(job_id).attempts == 1


def test_a_removal_whose_answer_was_lost_is_done(server: ServerProcess, client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "x")
    with ForgetfulProxy(server.port, first(1, b"DELETE /jobs/")) as proxy, Client(proxy.url) as unlucky:
        unlucky.jobs.cancel(job_id)
        assert proxy.lost == 1
    assert client.jobs.state(job_id) == "unknown"


def test_what_must_not_be_done_twice_is_not(server: ServerProcess, client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "x")
    with ForgetfulProxy(server.port, first(1, b"POST /jobs/")) as proxy, Client(proxy.url) as unlucky:
        with pytest.raises(ConnectionFailed) as unknown:
            unlucky.jobs.log(job_id, "a line")
        assert unknown.value.outcome_unknown
    assert len(client.jobs.logs(job_id)) == 1


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_gets_each_job_once(tmp_path: Path) -> None:
    """Four threads push while the server is killed and started three times: each job is there, once."""
    data, port = tmp_path / "data", free_port()
    server = ServerProcess(data, port=port).start()
    pushed: list[str] = []
    enough = threading.Event()

    def push(number: int) -> None:
        with Client(server.url, retry_for=120, connect_timeout=120) as client:
            count = 0
            while not enough.is_set():
                client.jobs.push("q", [number, count])
                pushed.append(f"{number}-{count}")
                count += 1

    with ThreadPoolExecutor(4) as threads:
        working = [threads.submit(push, number) for number in range(4)]
        for round_ in range(1, 4):
            while len(pushed) < 60 * round_:
                threading.Event().wait(0.01)
            server.kill()
            server = ServerProcess(data, port=port).start()
        enough.set()
        for each in working:
            each.result()
    with Client(server.url) as client:
        there = ["{}-{}".format(*job.data) for job in client.queues.jobs("q", limit=10_000)]
    server.stop()
    assert sorted(there) == sorted(pushed)


def test_nobody_there() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retry_for=0.2) as client:
        with pytest.raises(ConnectionFailed) as failed:
            client.jobs.state("x")
        assert not failed.value.outcome_unknown


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    busy = Answer(status, b'{"error": "busy"}', "Retry-After: 0\r\npenstock-error: rate_limited\r\n")
    with StubServer(busy, busy, Answer(200, b'{"id": "7"}')) as stub, Client(stub.url) as client:
        assert client.jobs.push("q", 1) == "7"
        bodies = {request.body for request in stub.requests}
        assert len(stub.requests) == 3
        assert len(bodies) == 1  # with the same name each time
    with StubServer(busy) as stub, Client(stub.url, retry_for=0) as client:
        with pytest.raises(ApiError) as refused:
            client.jobs.push("q", 1)
        assert (refused.value.status, refused.value.is_temporary) == (status, True)
        assert refused.value.is_rate_limited == (status == 429)
        assert len(stub.requests) == 1


def test_an_unknown_outcome_is_asked_again_only_where_that_does_no_harm() -> None:
    unknown = Answer(500, b'{"error": "disk"}', "penstock-error: outcome_unknown\r\n")
    with StubServer(unknown, Answer(200, b'{"id": "7"}')) as stub, Client(stub.url) as client:
        assert client.jobs.push("q", 1) == "7"
    with StubServer(unknown) as stub, Client(stub.url) as client:
        with pytest.raises(ApiError) as refused:
            client.jobs.log("x", "line")
        assert refused.value.outcome_unknown
        assert len(stub.requests) == 1


def test_errors_say_what_they_are() -> None:
    cases = [
        (Answer(409, b'{"error": "exists"}'), Conflict, "is_conflict"),
        (Answer(410, b'{"error": "gone"}'), LeaseLost, None),
        (Answer(401, b'{"error": "who"}'), ApiError, "is_unauthorized"),
        (Answer(403, b"<html>no</html>"), ApiError, "is_unauthorized"),
    ]
    for answer, kind, true in cases:
        with StubServer(answer) as stub, Client(stub.url) as client, pytest.raises(kind) as raised:
            client.jobs.state("x")
        assert raised.value.status == answer.status
        assert true is None or getattr(raised.value, true)
    with StubServer(Answer(200, b"<html>")) as stub, Client(stub.url) as client, pytest.raises(UnexpectedReply):
        client.jobs.state("x")


class FakeTime:
    """The SDK's clock: time passes when a client waits, and not otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        monkeypatch.setattr(_clock, "steady", lambda: self.passed)
        monkeypatch.setattr(transport, "block", self.block)

    def block(self, seconds: float) -> None:
        self.passed += seconds


def test_a_server_that_is_away_is_given_up_after_connect_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    time, port = FakeTime(monkeypatch), free_port()
    with Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(ConnectionFailed, match=rf"cannot connect to 127\.0\.0\.1:{port} ") as failed:
            client.jobs.push("q", 1)
        assert not failed.value.outcome_unknown
        assert time.passed == pytest.approx(5)  # the last try is at the deadline, not before
    before = time.passed
    with Client(f"http://127.0.0.1:{port}", connect_timeout=60, retry_for=100) as client:
        with pytest.raises(ConnectionFailed):
            client.jobs.push("q", 1)
        assert time.passed - before == pytest.approx(60)


def test_a_server_that_went_away_is_given_up_after_connect_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of an earlier call is lost first: that the request was sent must not make it wait for longer."""
    server = ServerProcess(tmp_path / "data").start()
    with Client(server.url) as client:
        client.jobs.push("q", 1)
        server.kill()
        time = FakeTime(monkeypatch)
        with pytest.raises(ConnectionFailed, match=f"cannot connect to 127.0.0.1:{server.port} "):
            client.jobs.push("q", 1)
        assert time.passed == pytest.approx(5)


@pytest.mark.parametrize("seconds", [0.2, 1, 3])
def test_a_server_that_comes_back_just_before_the_deadline_is_reached(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The last pause ends at the deadline, whatever chance made of those before."""
    time = FakeTime(monkeypatch)
    monkeypatch.setattr(_clock, "jittered", lambda pause: pause)  # the longest pauses
    port, back = free_port(), contextlib.ExitStack()

    def block(pause: float) -> None:
        time.block(pause)
        if time.passed >= seconds - 0.001 and not stub:
            stub.append(back.enter_context(StubServer(Answer(200, b'{"id": "made"}'), port=port)))

    stub: list[StubServer] = []
    monkeypatch.setattr(transport, "block", block)
    with back, Client(f"http://127.0.0.1:{port}", connect_timeout=seconds) as client:
        assert client.jobs.push("q", 1) == "made"
    assert time.passed == pytest.approx(seconds)


def test_a_server_that_takes_no_connection_is_given_up_too() -> None:
    """A listener whose line is full does not answer to those who knock, like a machine that is switched off."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect(("127.0.0.1", port))
        with (
            Client(f"http://127.0.0.1:{port}", connect_timeout=0.3) as client,
            pytest.raises(ConnectionFailed, match=rf"cannot connect to 127\.0\.0\.1:{port} "),
        ):
            client.jobs.push("q", 1)
        for each in waiting:
            each.close()


@pytest.mark.parametrize("verb", ["pull", "ack", "publish"])
def test_what_an_unknown_outcome_means_fits_what_was_asked_for(server: ServerProcess, queue: str, verb: str) -> None:
    job = Job(id="x", queue=queue, token="y")
    asks: dict[str, tuple[Callable[[Client], object], str]] = {
        "pull": (lambda client: client.jobs.pull(queue), "leased to you. They are ready again when the lease ends"),
        "ack": (lambda client: client.jobs.ack(job), "Send it again with the same token"),
        "publish": (lambda client: client.jobs.push(queue, 1), "Push it again with the same job_id"),
    }
    ask, advice = asks[verb]
    with ForgetfulProxy(server.port, lambda _: True) as proxy, Client(proxy.url, retry_for=0) as unlucky:
        with pytest.raises(ConnectionFailed, match=advice) as unknown:
            ask(unlucky)
        assert unknown.value.outcome_unknown
