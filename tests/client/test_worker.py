"""The worker against a real server: results, failures, heartbeats, cancelling, stopping, dying."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import (
    ApiError,
    Client,
    Fail,
    JobCancelled,
    JobContext,
    Retry,
    Worker,
    _cancellations,
    _clock,
    _execute,
    _sanitize,
    _stack,
    _worker_loop,
    current_job,
)
from penstock.core import limits
from tests.client.proxy import ForgetfulProxy
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 30


@contextlib.contextmanager
def working(client: Client | str, queues: str | list[str], handler: Any, **options: Any) -> Iterator[Worker]:
    """Run a worker in a thread, and stop it."""
    worker = Worker(client, queues, handler, **{"wait": 1, "stop_timeout": 5, **options})
    troubles: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            troubles.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield worker
    finally:
        if not worker._stopped:
            worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert not troubles


def until(condition: Callable[[], object]) -> None:
    """Look again and again until something is so."""
    for _ in range(PATIENCE_S * 100):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to pass")


def work(job: JobContext) -> Any:
    if job.data == "bad":
        raise ValueError("cannot work on this")
    assert current_job() is job
    return {"got": job.data, "attempt": job.attempt, "last": job.is_last_attempt, "queue": job.queue}


async def work_async(job: JobContext) -> Any:
    await asyncio.sleep(0)
    return work(job)


@pytest.mark.parametrize("handler", [work, work_async])
def test_results_and_failures(client: Client, queue: str, handler: Any) -> None:
    ids = client.jobs.push_many(queue, ["a", "b"])
    bad = client.jobs.push(queue, "bad", max_attempts=1)
    with working(client, queue, handler) as worker:
        assert [client.jobs.wait(each, PATIENCE_S).result["got"] for each in ids] == ["a", "b"]
        assert not client.jobs.wait(bad, PATIENCE_S).completed
        until(lambda: (worker.processed, worker.failed) == (2, 1))
    assert client.jobs.result(ids[0]) == {"got": "a", "attempt": 1, "last": False, "queue": queue}
    dead = client.jobs.get(bad)
    assert (dead.state, dead.error) == ("failed", "ValueError: cannot work on this")
    assert dead.stacktrace is not None
    assert dead.stacktrace[0] == "Traceback (most recent call last):"
    assert dead.stacktrace[-2:] == [
        '    raise ValueError("cannot work on this")',
        "ValueError: cannot work on this",
    ]


@pytest.mark.parametrize("coroutine", [False, True])
def test_thousands_of_jobs_are_done_once(client: Client, queue: str, coroutine: bool) -> None:
    seen: list[int] = []

    def note(job: JobContext) -> None:
        seen.append(job.data)

    async def note_async(job: JobContext) -> None:
        seen.append(job.data)

    client.jobs.push_many(queue, range(3000))
    with working(client, queue, note_async if coroutine else note) as worker:
        until(lambda: worker.processed == 3000)
    assert sorted(seen) == list(range(3000))
    assert client.queues.counts(queue).completed == 3000


def test_how_a_handler_says_what_to_do(client: Client, queue: str) -> None:
    def handle(job: JobContext) -> str:
        if job.data == "final":
            raise Fail("no use")
        if job.attempt == 1:
            raise Retry("not yet", after=0 if job.data == "soon" else 3600)
        return "at last"

    soon, late, final = client.jobs.push_many(queue, ["soon", "late", "final"], backoff=600, max_attempts=2)
    with working(client, queue, handle):
        assert client.jobs.wait(soon, PATIENCE_S).result == "at last"
        until(lambda: client.jobs.state(final) == "failed")
        until(lambda: client.jobs.state(late) == "delayed")
    assert client.jobs.get(final).error == "no use"
    assert (client.jobs.get(final).attempts, client.jobs.get(late).error) == (1, "not yet")


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Odd(Retry):
    def __init__(self) -> None:
        """Forget what a Retry has."""


RAISED: dict[str, tuple[BaseException, str, str]] = {
    "negative": (
        Retry("not yet", after=-0.5),
        "delayed",
        "not yet (Retry was raised wrongly, so the job's backoff decides: after",
    ),
    "text": (Retry("x", after="5"), "delayed", "x (Retry was raised wrongly"),  # type: ignore[arg-type]
    "endless": (Retry("x", after=float("inf")), "delayed", "x (Retry was raised wrongly"),
    "huge": (Retry("x", after=10**400), "delayed", "x (Retry was raised wrongly"),
    "ten years": (Retry("x", after=10 * 365 * 86_400), "delayed", "x (Retry requested more than a year"),
    "odd": (Odd(), "delayed", "Odd"),
    "mute": (Mute(), "delayed", "Mute: (its text is not available: __str__ raised ZeroDivisionError)"),
    "long": (ValueError("x" * 30_000_000), "delayed", "ValueError: xxx"),
    "many lines": (ValueError("x\n" * 1_000_000), "delayed", "ValueError: x\nx"),
    "no text": (FileNotFoundError(2, "no file", "f\udcff\0"), "delayed", "FileNotFoundError: [Errno 2] no file: 'f"),
    "final": (Fail("x\udcff\0"), "failed", "x??"),
}


@pytest.mark.parametrize("coroutine", [False, True])
def test_nothing_that_is_raised_takes_a_worker_down(client: Client, queue: str, coroutine: bool) -> None:
    def handle(job: JobContext) -> str:
        if job.data in RAISED:
            raise RAISED[job.data][0]
        return "well"

    async def handle_async(job: JobContext) -> str:
        return handle(job)

    ids = client.jobs.push_many(queue, RAISED, backoff=600, max_attempts=2)
    with working(client, queue, handle_async if coroutine else handle, concurrency=1):
        for job_id, (_, state, error) in zip(ids, RAISED.values(), strict=True):
            until(lambda job_id=job_id, state=state: client.jobs.state(job_id) == state)  # type: ignore[misc]
            assert str(client.jobs.get(job_id).error).startswith(error)
        assert client.jobs.wait(client.jobs.push(queue, "good"), PATIENCE_S).result == "well"
    year = client.jobs.get(ids[list(RAISED).index("ten years")])
    assert (year.run_at - year.created_at) // 86_400_000 == 365


SAID: dict[str, tuple[Callable[[JobContext], None], type[Exception] | None]] = {
    "object": (lambda job: job.log(object()), TypeError),  # type: ignore[arg-type]
    "level": (lambda job: job.log("x", "loud"), ValueError),  # type: ignore[arg-type]
    "percent": (lambda job: job.progress("half"), TypeError),  # type: ignore[arg-type]
    "no number": (lambda job: job.progress(float("nan")), ValueError),
    "message": (lambda job: job.progress(5, object()), TypeError),  # type: ignore[arg-type]
    "surrogate": (lambda job: job.log("x\udcff\0"), None),
    "long": (lambda job: job.log("x" * 20_000_000), None),
    "fraction": (lambda job: job.progress(33.3, "y" * 5000), None),
    "far": (lambda job: job.progress(10**400), None),
}


def test_what_cannot_be_said_is_refused_where_it_is_said(client: Client, queue: str) -> None:
    def handle(job: JobContext) -> str:
        say, error = SAID[job.data]
        if error is None:
            say(job)
        else:
            with pytest.raises(error):
                say(job)
        return "well"

    ids = dict(zip(SAID, client.jobs.push_many(queue, SAID), strict=True))
    with working(client, queue, handle):
        assert {name: client.jobs.wait(each, PATIENCE_S).result for name, each in ids.items()} == dict.fromkeys(SAID, "well")
    assert [line.message for line in client.jobs.logs(ids["surrogate"])] == ["x??"]
    assert [len(line.message) for line in client.jobs.logs(ids["long"])] == [65_536]
    assert (client.jobs.get_progress(ids["fraction"]).progress, client.jobs.get_progress(ids["far"]).progress) == (33, 100)


def test_a_report_that_cannot_be_sent_is_not_worth_a_worker(client: Client, queue: str) -> None:
    def handle(job: JobContext) -> str:
        job._progress = (5, object())  # type: ignore[assignment]
        job.log("after it")
        return "well"

    job_id = client.jobs.push(queue, 1)
    with working(client, queue, handle):
        assert client.jobs.wait(job_id, PATIENCE_S).result == "well"
    assert [line.message for line in client.jobs.logs(job_id)] == ["after it"]


def test_the_sdk_knows_the_limits_of_the_server() -> None:
    assert limits.delay_ms_max == _execute.RETRY_MS_MAX
    assert (limits.error_chars_max, limits.log_message_chars_max) == (_sanitize.ERROR_CHARS_MAX, _sanitize.LOG_CHARS_MAX)
    assert (limits.stack_lines, limits.stack_chars_max) == (_stack.STACK_LINES, _sanitize.STACK_CHARS_MAX)
    assert limits.ids_max >= _cancellations.JOBS_MAX
    assert limits.claim_wait_ms_max >= _cancellations.WAIT_S * 1000
    assert limits.progress_message_chars_max == _sanitize.PROGRESS_CHARS_MAX


def test_a_failed_attempt_is_logged(client: Client, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    job_id = client.jobs.push(queue, "bad", max_attempts=1)
    with working(client, queue, work):
        until(lambda: client.jobs.state(job_id) == "failed")
    (record,) = [record for record in caplog.records if "failed" in record.message]
    lines = record.message.split("\n")
    assert (record.levelname, lines[0]) == (
        "WARNING",
        f"{queue}: attempt 1 of 1 failed, job {job_id}: ValueError: cannot work on this",
    )
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-2:] == ['    raise ValueError("cannot work on this")', "ValueError: cannot work on this"]


def test_a_result_that_is_too_large_does_not_spoil_the_others(client: Client, queue: str) -> None:
    started = threading.Barrier(5)

    def handle(job: JobContext) -> str:
        started.wait(PATIENCE_S)
        return "x" * int(job.data)

    ids = client.jobs.push_many(queue, [11_000_000, 9_000_000, 9_000_000, 1, 1])
    with working(client, queue, handle):
        assert [len(client.jobs.wait(each, PATIENCE_S).result) for each in ids[1:]] == [9_000_000, 9_000_000, 1, 1]
        missing = client.jobs.wait(ids[0], PATIENCE_S).result
    assert "it has 11000002 bytes as JSON" in missing["penstock:result_missing"]


def test_progress_and_logs_arrive_before_the_end(client: Client, queue: str) -> None:
    def handle(job: JobContext) -> None:
        for percent in range(0, 101, 10):
            job.progress(percent, f"{percent} %")
        for number in range(5):
            job.log(f"line {number}", "warn")

    ids = client.jobs.push_many(queue, range(40))
    with working(client, queue, handle) as worker:
        until(lambda: worker.processed == 40)
    for job_id in ids:
        assert client.jobs.get_progress(job_id).message == "100 %"
        assert [line.message for line in client.jobs.logs(job_id)] == [f"line {number}" for number in range(5)]


@pytest.mark.parametrize("busy", [False, True])
def test_a_handler_cannot_starve_heartbeats(client: Client, server: ServerProcess, queue: str, busy: bool) -> None:
    release, begun = threading.Event(), threading.Event()
    beats: list[bytes] = []

    def count(request: bytes) -> bool:
        if begun.is_set() and request.startswith(b"POST /jobs/heartbeat-batch "):
            beats.append(request)
        return False

    async def rude(job: JobContext) -> str:
        begun.set()
        release.wait(PATIENCE_S)  # blocks the whole loop in which coroutines run
        return "kept"

    def compute(job: JobContext) -> str:
        begun.set()
        while not release.is_set():
            sum(range(1000))
        return "kept"

    job_id = client.jobs.push(queue, "x")
    with (
        ForgetfulProxy(server.port, count) as proxy,
        working(proxy.url, queue, compute if busy else rude, heartbeat=0.05),
    ):
        assert begun.wait(PATIENCE_S)
        until(lambda: len(beats) >= 4)
        release.set()
        assert client.jobs.wait(job_id, PATIENCE_S).result == "kept"
    assert client.jobs.get(job_id).stall_count == 0


def test_a_handler_that_is_told_to_stop(client: Client, queue: str) -> None:
    told: list[str] = []
    begun = threading.Barrier(3)

    def in_a_thread(job: JobContext) -> None:
        begun.wait(PATIENCE_S)
        until(lambda: job.cancelled)
        told.append("thread")
        with pytest.raises(JobCancelled):
            job.log("too late")
        job.progress(1)

    async def in_the_loop(job: JobContext) -> None:
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("coroutine")
            raise

    one, two = client.jobs.push(queue, "x"), client.jobs.push(f"{queue}-async", "x")
    with (
        working(client, queue, in_a_thread, heartbeat=0.05) as first,
        working(client, f"{queue}-async", in_the_loop, heartbeat=0.05) as second,
    ):
        begun.wait(PATIENCE_S)
        client.jobs.cancel(one)
        client.jobs.cancel(two)
        until(lambda: len(told) == 2)
    assert sorted(told) == ["coroutine", "thread"]
    assert (first.processed, first.failed, second.processed, second.failed) == (0, 0, 0, 0)


def test_stopping_finishes_what_runs_and_gives_back_the_rest(client: Client, queue: str) -> None:
    begun, release = threading.Event(), threading.Event()

    def handle(job: JobContext) -> str:
        begun.set()
        release.wait(PATIENCE_S)
        return "done"

    ids = client.jobs.push_many(queue, range(3))
    with working(client, [queue], handle, concurrency=1) as worker:
        assert begun.wait(PATIENCE_S)
        worker.stop()
        until(lambda: client.queues.counts(queue).waiting == 2)
        release.set()
    assert client.jobs.result(ids[0]) == "done"
    assert [client.jobs.get(each).attempts for each in ids] == [0, 0, 0]
    assert client.queues.counts(queue).waiting == 2


def test_who_does_not_end_in_time_loses_its_job(client: Client, queue: str) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    async def stubborn(job: JobContext) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    job_id = client.jobs.push(queue, "x")
    with working(client, queue, stubborn, stop_timeout=0.05):
        assert begun.wait(PATIENCE_S)
    assert cancelled.is_set()
    job = client.jobs.get(job_id)
    assert (job.state, job.attempts) == ("waiting", 0)


def test_the_second_stop_does_not_wait(client: Client, queue: str) -> None:
    begun, release = threading.Event(), threading.Event()

    def deaf(job: JobContext) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    job_id = client.jobs.push(queue, "x")
    with working(client, queue, deaf, stop_timeout=1000) as worker:
        assert begun.wait(PATIENCE_S)
        worker.stop()
        worker.stop()
        until(lambda: client.jobs.state(job_id) == "waiting")
    release.set()
    assert client.jobs.get(job_id).attempts == 0


@pytest.mark.parametrize("queues", [1, 3])
def test_stopping_loses_no_job_where_the_server_does_not_see_the_worker_hang_up(
    client: Client, server: ServerProcess, queue: str, queues: int
) -> None:
    """What a worker gives back when it stops must not be leased to a pull of its own that the server still knows."""
    begun, release = threading.Event(), threading.Event()

    def deaf(job: JobContext) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    names = [queue, *(f"{queue}-{number}" for number in range(1, queues))]
    job_id = client.jobs.push(queue, "x")
    with server.client() as http, ForgetfulProxy(server.port, lambda _: False) as proxy:
        with working(proxy.url, names, deaf, wait=30, concurrency=3) as worker:
            assert begun.wait(PATIENCE_S)
            until(lambda: http.get("/stats").json()["collections"]["waitingCallers"] >= queues)
            worker.stop()
            worker.stop()
        counts = client.queues.counts(queue)
        job = client.jobs.get(job_id)
    release.set()
    assert (counts.waiting, counts.active, job.attempts) == (1, 0, 0)


def test_what_was_taken_ahead_is_given_back_when_jobs_turn_out_slow(client: Client, queue: str) -> None:
    release = threading.Event()

    def handle(job: JobContext) -> None:
        if job.data == "slow":
            release.wait(PATIENCE_S)

    client.jobs.push_many(queue, ["quick"] * 2000 + ["slow"] * 400)
    with working(client, queue, handle, concurrency=5, heartbeat=0.1) as worker:
        until(lambda: worker.processed == 2000)
        until(lambda: client.queues.counts(queue).waiting >= 390)
        release.set()
        until(lambda: worker.processed == 2400)
    assert client.queues.counts(queue).completed == 2400


def test_several_queues(client: Client, queue: str) -> None:
    names = [f"{queue}-{letter}" for letter in "abc"]
    ids = [client.jobs.push(name, name) for name in names for _ in range(10)]
    with working(client, names, work) as worker:
        until(lambda: worker.processed == 30)
        until(lambda: len(client.workers.all(names[2])) == 1)
    assert all(client.jobs.state(each) == "completed" for each in ids)
    assert client.workers.all(names[2]) == []


def test_several_queues_and_few_hands(client: Client, queue: str) -> None:
    """A worker has no more in hand than it works on; what it cannot begin, others get."""
    names = [f"{queue}-{letter}" for letter in "abcde"]
    release, begun = threading.Event(), threading.Event()
    seen: list[str] = []

    def hold(job: JobContext) -> None:
        begun.set()
        release.wait(PATIENCE_S)
        seen.append(job.queue)

    def left() -> int:
        return sum(client.queues.counts(name).waiting for name in names)

    with working(client, names, hold, concurrency=1, prefetch=0) as worker:
        until(
            lambda: worker._worker_loop._begun and len(worker._worker_loop._watchers) == 5
        )  # it is idle, and waits for all of them
        for name in names:
            client.jobs.push_many(name, range(10))
        assert begun.wait(PATIENCE_S)
        until(lambda: left() == 49)
        with working(client, names, work, concurrency=1) as other:
            until(lambda: other.processed == 49)
        assert worker._worker_loop._hand.count == 1
        for name in names:
            client.jobs.push_many(name, range(5))
        release.set()
        until(lambda: worker.processed == 26)
    # Each has its turn: none is emptied before the others have begun.
    assert len(set(seen[:6])) == 5


def test_one_busy_queue_gets_all_hands(client: Client, queue: str) -> None:
    names = [f"{queue}-{letter}" for letter in "abcde"]
    all_at_once = threading.Barrier(10)

    def meet(job: JobContext) -> None:
        all_at_once.wait(PATIENCE_S)

    with working(client, names, meet, concurrency=10) as worker:
        client.jobs.push_many(names[3], range(10))
        until(lambda: worker.processed == 10)


def test_a_worker_survives_lost_answers(server: ServerProcess, client: Client, queue: str) -> None:
    """Every seventh answer is lost: all jobs are done, and what ran twice had lost its pull or its acknowledgement."""
    numbers = iter(range(10**9))
    client.jobs.push_many(queue, range(200), stall_timeout=0.3, max_attempts=100)
    client.queues.set_stall_config(queue, max_stalls=100, grace_period=0)
    with ForgetfulProxy(server.port, lambda _: next(numbers) % 7 == 6) as proxy:
        with working(proxy.url, queue, work, prefetch=0, lease=0.3):
            until(lambda: client.queues.counts(queue).completed == 200)
        assert proxy.lost


def test_a_worker_that_is_refused_says_so(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "good"}) as server:
        with pytest.raises(ApiError) as refused:
            Worker(Client(server.url, token="bad"), "q", work).run()
        assert refused.value.is_unauthorized


def test_a_worker_waits_for_a_server_that_is_away(tmp_path: Path, queue: str) -> None:
    server = ServerProcess(tmp_path / "data").start()
    with Client(server.url) as client, working(server.url, queue, work) as worker:
        client.jobs.push(queue, 1)
        until(lambda: worker.processed == 1)
        server.kill()
        server = ServerProcess(tmp_path / "data", port=server.port).start()
        client.jobs.push(queue, 2)
        until(lambda: worker.processed == 2)
    server.stop()


@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_finished_work_is_held_until_the_server_is_back(
    tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    """However long that takes: the SDK's clock goes ahead by an hour with each look at it."""
    begun, release, tries = threading.Event(), threading.Event(), threading.Semaphore(0)
    calls: list[int] = []

    def handle(job: JobContext) -> str:
        calls.append(job.attempt)
        begun.set()
        release.wait(PATIENCE_S)
        if outcome == "failed":
            raise ValueError("not today")
        return "kept"

    hours = iter(range(0, 10**9, 3600))

    def steady() -> float:
        tries.release()
        return float(next(hours))

    server = ServerProcess(tmp_path / "data").start()
    with Client(server.url) as client:
        job_id = client.jobs.push(queue, 1, backoff=600)
        with working(server.url, queue, handle):
            assert begun.wait(PATIENCE_S)
            server.kill()
            monkeypatch.setattr(_clock, "steady", steady)
            release.set()
            for _ in range(12):
                assert tries.acquire(timeout=PATIENCE_S)
            monkeypatch.undo()
            server = ServerProcess(tmp_path / "data", port=server.port).start()
            until(lambda: client.jobs.state(job_id) == ("completed" if outcome == "done" else "delayed"))
        assert client.jobs.get(job_id).attempts == (0 if outcome == "done" else 1)
    server.stop()
    assert calls == [1]


def test_a_worker_ends_even_if_the_server_is_away(tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_worker_loop, "LAST_S", 0.2)
    begun, release = threading.Event(), threading.Event()

    def handle(job: JobContext) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    server = ServerProcess(tmp_path / "data").start()
    with Client(server.url) as client:
        client.jobs.push(queue, 1)
        with working(server.url, queue, handle, stop_timeout=0.3):
            assert begun.wait(PATIENCE_S)
            server.kill()
            release.set()


def test_a_handler_that_exits_fails_and_a_loop_that_breaks_is_told(
    client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(job: JobContext) -> None:
        sys.exit("enough")

    async def leave_too(job: JobContext) -> None:
        sys.exit("enough")

    for handler in (leave, leave_too):
        job_id = client.jobs.push(queue, 1, max_attempts=1)
        with working(client, queue, handler):
            until(lambda job_id=job_id: client.jobs.state(job_id) == "failed")  # type: ignore[misc]
        assert client.jobs.get(job_id).error == "SystemExit: enough"

    async def broken(*_args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(_worker_loop.WorkerLoop, "_renew", broken)
    client.jobs.push(queue, 1)
    with pytest.raises(ZeroDivisionError):
        Worker(client, queue, lambda job: until(lambda: job.cancelled), heartbeat=0.05, stop_timeout=0.1).run()


def test_a_worker_that_is_made_wrong(client: Client) -> None:
    with pytest.raises(ValueError, match="at least one queue"):
        Worker(client, [], work)
    with pytest.raises(TypeError, match="needs a handler"):
        Worker(client, "q")
    with pytest.raises(ValueError, match="concurrency"):
        Worker(client, "q", work, concurrency=0)


@pytest.mark.anyio
async def test_serve_in_a_loop_of_ones_own(client: Client, queue: str) -> None:
    loop = asyncio.get_running_loop()

    async def handle(job: JobContext) -> bool:
        return asyncio.get_running_loop() is loop

    job_id = client.jobs.push(queue, "x")
    serving = asyncio.create_task(Worker(client, queue, handle, wait=1).serve())
    assert (await asyncio.to_thread(client.jobs.wait, job_id, PATIENCE_S)).result is True
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


SCRIPT = """
import sys, threading
from penstock.client import Worker

def handle(job):
    print("begun", flush=True)
    if job.attempt == 1 and job.data == "block":
        sys.stdin.readline()
    return "done"

Worker(sys.argv[1], sys.argv[2], handle, lease=1, wait=1, name="script").run()
print("ended", flush=True)
"""


def script(server: ServerProcess, queue: str) -> subprocess.Popen[str]:
    """Start a worker in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, server.url, queue]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_job_of_a_killed_worker_comes_again(server: ServerProcess, client: Client, queue: str) -> None:
    client.queues.set_stall_config(queue, grace_period=0)
    job_id = client.jobs.push(queue, "block")
    with script(server, queue) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.kill()
    with working(client, queue, work):
        assert client.jobs.wait(job_id, PATIENCE_S).result["attempt"] == 2


def test_sigterm_finishes_what_runs(server: ServerProcess, client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "block")
    with script(server, queue) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        until(lambda: client.jobs.pull(queue) is None)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(PATIENCE_S) == 0
    assert client.jobs.result(job_id) == "done"
