"""Attempts that take too long, and jobs that are cancelled while they run."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import JobCancelled, JobContext, _deadlines, _worker_loop
from tests.client.test_worker import PATIENCE_S, until, working

if TYPE_CHECKING:
    from penstock.client import Client

TIMEOUT_S = 600


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker end attempts long before the server would, so that a slow machine does not decide who is first."""
    monkeypatch.setattr(_deadlines, "EARLIER_PART", 0.9998)
    monkeypatch.setattr(_deadlines, "EARLIER_S_MAX", float(TIMEOUT_S))


@pytest.mark.usefixtures("early")
def test_a_coroutine_that_takes_too_long_is_cancelled(client: Client, queue: str) -> None:
    seen: list[str] = []

    async def slow(job: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(f"{job.attempt} cancelled: {job.cancelled}")

    job_id = client.jobs.push(queue, 1, timeout=TIMEOUT_S, max_attempts=2, backoff=0)
    with working(client, queue, slow) as worker:
        until(lambda: client.jobs.state(job_id) == "failed")
        until(lambda: worker.failed == 2)
    job = client.jobs.get(job_id)
    assert seen == ["1 cancelled: True", "2 cancelled: True"]
    assert job.error == f"Job timeout exceeded: the attempt took longer than {TIMEOUT_S} s"
    assert (job.attempts, job.stall_count) == (2, 0)
    assert job.stacktrace is not None
    assert "    await asyncio.Event().wait()" in job.stacktrace


@pytest.mark.usefixtures("early")
def test_a_function_that_asks_whether_to_stop_counts_as_timed_out(client: Client, queue: str) -> None:
    def slow(job: JobContext) -> None:
        until(lambda: job.cancelled)
        job.check()

    async def slow_async(job: JobContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            job.check()

    for handler in (slow, slow_async):
        job_id = client.jobs.push(queue, 1, timeout=TIMEOUT_S, max_attempts=1)
        with working(client, queue, handler):
            until(lambda job_id=job_id: client.jobs.state(job_id) == "failed")  # type: ignore[misc]
        assert str(client.jobs.get(job_id).error).startswith("Job timeout exceeded")
        assert client.jobs.get(job_id).attempts == 1


@pytest.mark.usefixtures("early")
def test_a_thread_that_takes_too_long_is_abandoned(client: Client, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its job is tried again, and the worker goes on with another thread. What the first one returns does not count."""
    release, told = threading.Event(), threading.Event()
    attempts: list[int] = []

    def slow(job: JobContext) -> str:
        if job.data == "quick":
            return "quick"
        attempts.append(job.attempt)
        if job.attempt == 1:
            assert release.wait(PATIENCE_S)
            with pytest.raises(JobCancelled):
                job.progress(50)
            told.set()
        return f"attempt {job.attempt}"

    job_id = client.jobs.push(queue, "slow", timeout=TIMEOUT_S, backoff=0)
    with working(client, queue, slow, concurrency=1) as worker:
        assert client.jobs.wait(job_id, PATIENCE_S).result == "attempt 2"  # while the first still runs
        quick = client.jobs.push(queue, "quick")
        assert client.jobs.wait(quick, PATIENCE_S).result == "quick"
        release.set()
        assert told.wait(PATIENCE_S)
        until(lambda: not worker._worker_loop.runner._late)  # type: ignore[attr-defined]
        another = client.jobs.push(queue, "quick")
        assert client.jobs.wait(another, PATIENCE_S).result == "quick"
    assert client.jobs.result(job_id) == "attempt 2"
    assert (attempts, worker.failed, client.jobs.get(job_id).attempts) == ([1, 2], 1, 1)
    (warned,) = [message for message in caplog.messages if "failed" in message]
    assert "Its thread could not be stopped, so the next attempt may run beside it" in warned
    assert "Where its thread is (most recent call last):" in warned
    assert "    assert release.wait(PATIENCE_S)" in warned


@pytest.mark.usefixtures("early")
def test_threads_that_hang_are_not_replaced_for_ever(client: Client, queue: str, caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def hang(job: JobContext) -> str:
        if job.data == "hang":
            assert release.wait(PATIENCE_S)
        return "done"

    hanging = client.jobs.push_many(queue, ["hang"] * 4, timeout=TIMEOUT_S, max_attempts=1)
    last = client.jobs.push(queue, "last")
    with working(client, queue, hang, concurrency=2) as worker:
        until(lambda: [client.jobs.state(each) for each in hanging] == ["failed"] * 4)
        until(lambda: worker._worker_loop.runner.hung == 2)
        assert client.jobs.state(last) == "waiting"
        assert any("threads hang, and no more are started" in message for message in caplog.messages)
        release.set()
        assert client.jobs.wait(last, PATIENCE_S).result == "done"


@pytest.mark.usefixtures("early")
def test_a_job_that_was_not_begun_in_time_is_given_back(client: Client, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for a hand, so no attempt is counted."""
    monkeypatch.setattr(_worker_loop.WorkerLoop, "_wanted", lambda _self: 3)
    begun, release = threading.Event(), threading.Event()
    order: list[Any] = []

    def handle(job: JobContext) -> None:
        order.append(job.data)
        if job.data == "first":
            begun.set()
            release.wait(PATIENCE_S)

    client.jobs.push(queue, "first")
    with working(client, queue, handle, concurrency=1):
        assert begun.wait(PATIENCE_S)
        job_id = client.jobs.push(queue, "hurried", timeout=TIMEOUT_S)
        until(lambda: client.jobs.get(job_id).started_at is not None)
        first = client.jobs.get(job_id).started_at
        until(lambda: client.jobs.get(job_id).started_at != first)  # it was given back, and taken again
        release.set()
        assert client.jobs.wait(job_id, PATIENCE_S).completed
    job = client.jobs.get(job_id)
    assert (job.attempts, job.stall_count, order[0]) == (0, 0, "first")


def test_a_timeout_that_is_kept_costs_nothing(client: Client, queue: str) -> None:
    ids = client.jobs.push_many(queue, range(200), timeout=60)
    with working(client, queue, lambda job: job.data) as worker:
        until(lambda: worker.processed == 200)
    assert [client.jobs.get(each).attempts for each in ids] == [0] * 200


# Cancelling.


@pytest.mark.parametrize("verb", ["cancel", "discard"])
def test_cancelling_reaches_a_worker_without_a_heartbeat(client: Client, queue: str, verb: str) -> None:
    """Heartbeats come every 20 minutes here."""
    told: list[str] = []
    begun = threading.Barrier(3)

    def in_a_thread(job: JobContext) -> None:
        begun.wait(PATIENCE_S)
        until(lambda: job.cancelled)
        told.append("thread")
        job.check()

    async def in_the_loop(job: JobContext) -> None:
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("coroutine")
            raise

    one, two = client.jobs.push(queue, "x"), client.jobs.push(f"{queue}-async", "x")
    with (
        working(client, queue, in_a_thread, lease=3600) as first,
        working(client, f"{queue}-async", in_the_loop, lease=3600) as second,
    ):
        begun.wait(PATIENCE_S)
        for each in (one, two):
            getattr(client.jobs, verb)(each)
        until(lambda: len(told) == 2)
    assert sorted(told) == ["coroutine", "thread"]
    assert (first.processed, first.failed, second.processed, second.failed) == (0, 0, 0, 0)


def test_of_many_jobs_the_cancelled_one_stops(client: Client, queue: str) -> None:
    """Also one that began after the server was asked about the others."""
    release = threading.Event()
    cancelled: list[Any] = []

    def handle(job: JobContext) -> Any:
        until(lambda: job.cancelled or release.is_set())
        if job.cancelled:
            cancelled.append(job.data)
        return job.data

    ids = client.jobs.push_many(queue, range(5))
    with working(client, queue, handle, concurrency=20, lease=3600) as worker:
        until(lambda: client.queues.counts(queue).active == 5)
        client.jobs.cancel(ids[2])
        until(lambda: cancelled == [2])
        later = client.jobs.push(queue, "later")
        until(lambda: client.jobs.state(later) == "active")
        client.jobs.cancel(later)
        until(lambda: cancelled == [2, "later"])
        release.set()
        until(lambda: worker.processed == 4)
    assert [client.jobs.state(each) for each in ids] == ["completed", "completed", "unknown", "completed", "completed"]
