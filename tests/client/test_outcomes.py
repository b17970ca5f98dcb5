"""What a worker tells about an attempt: where it failed, why a result is missing, and what it gives back for another worker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import JobContext, ResultMissing, Tasks, _unknown_tasks
from penstock.client._execute import Failed
from penstock.client._stack import last_lines, stack_of
from penstock.client._unknown_tasks import UnknownTaskPolicy
from penstock.client.models import Job
from tests.client.test_tasks import run
from tests.client.test_worker import PATIENCE_S, until, working

if TYPE_CHECKING:
    from penstock.client import Client
    from tests.support.server import ServerProcess


# Where it failed.


def deep(levels: int) -> None:
    if levels:
        deep(levels - 1)
    else:
        raise KeyError("the line that raised")


@pytest.mark.parametrize("limit", [None, 2, 4, 100])
def test_a_dead_letter_has_the_last_frames_and_none_of_penstock(tasks: Tasks, client: Client, limit: int | None) -> None:
    @tasks.task(max_attempts=1)
    def fails() -> None:
        deep(20)

    @tasks.task(max_attempts=1)
    async def fails_too() -> None:
        deep(20)

    options: dict[str, Any] = {} if limit is None else {"stack_trace_limit": limit}
    with run(tasks):
        handles = [each.options(**options).enqueue() for each in (fails, fails_too)]
        until(lambda: all(handle.state() == "failed" for handle in handles))
    for handle in handles:
        stack = handle.job().stacktrace
        assert stack is not None
        assert len(stack) <= (limit or 10)
        assert stack[0] == "Traceback (most recent call last):"
        assert stack[-1] == "KeyError: 'the line that raised'"
        if limit != 2:
            assert stack[-2] == '    raise KeyError("the line that raised")'
            assert "in deep" in stack[-3]
        assert not any("penstock/client" in line for line in stack)
        (dead,) = [job for job in client.queues.dlq(tasks.queue) if job.id == handle.id]
        assert dead.stacktrace == stack


def test_frames_of_penstock_at_the_end_are_left_out_too() -> None:
    context = JobContext(Job(id="x", queue="q"), lambda _: None)
    with pytest.raises(TypeError, match="percent must be a number") as wrong:
        context.progress("half")  # type: ignore[arg-type]
    assert stack_of(wrong.value)[-2].startswith('    context.progress("half")')


def test_what_is_left_of_a_stack_fits() -> None:
    stack = ["Traceback (most recent call last):", *(f"    {number} " + "x" * 990 for number in range(200)), "KeyError"]
    kept = last_lines(stack, 1_000)
    assert sum(map(len, kept)) <= 65_536
    assert (kept[0], kept[-1]) == (stack[0], stack[-1])
    assert last_lines(stack, 0) == []
    assert last_lines(stack, 1) == ["KeyError"]


# Results.


class Odd:
    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("cannot be dumped")


def nested(levels: int) -> Any:
    return [] if not levels else [nested(levels - 1)]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (
            object(),
            "The result of type object was not kept: The value cannot be encoded as JSON: a object cannot be encoded as JSON",
        ),
        ({"a": [1, {2, 3j}]}, "a complex cannot be encoded as JSON"),
        (Odd(), "The result of type Odd was not kept: cannot be dumped"),
        ("\udcff", "surrogates not allowed"),
        (nested(100), "The result was not kept, because the server refused it: "),
        ("x" * 10_000_000, "it has 10000002 bytes as JSON"),
    ],
    ids=["object", "complex", "odd", "surrogate", "nested", "large"],
)
@pytest.mark.parametrize("coroutine", [False, True])
def test_a_result_that_cannot_be_kept_does_not_run_the_task_again(
    tasks: Tasks, client: Client, result: Any, reason: str, coroutine: bool
) -> None:
    runs: list[int] = []

    def produce() -> Any:
        runs.append(1)
        return result

    async def produce_async() -> Any:
        return produce()

    task = tasks.task(backoff=0)(produce_async if coroutine else produce)
    with run(tasks) as worker:
        handle = task.enqueue()
        with pytest.raises(ResultMissing) as missing:
            handle.result(PATIENCE_S)
        until(lambda: worker.processed == 1)
    assert reason in missing.value.reason
    assert missing.value.job_id == handle.id
    job = handle.job()
    assert (job.state, job.attempts, runs) == ("completed", 0, [1])
    assert client.jobs.result(handle.id) == {"penstock:result_missing": missing.value.reason}


# Tasks that a worker does not have.


def test_a_task_that_this_worker_does_not_have_is_given_back(
    tasks: Tasks, client: Client, server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    @tasks.task(name="known")
    def known() -> None: ...

    job_id = client.jobs.push(tasks.queue, {"task": "newer", "args": {}}, max_attempts=1)
    odd = client.jobs.push(tasks.queue, {"what": 5}, max_attempts=1)
    with run(tasks):
        until(lambda: client.jobs.get(job_id).deferred_since is not None)
        until(lambda: client.jobs.get(odd).deferred_since is not None)
        (warned,) = [message for message in caplog.messages if message.startswith("newer: this worker does not have")]
        assert f"Job {job_id} is released, and is ready again in 1 s. No attempt is counted. If no worker has it" in warned
        assert warned.endswith("within 86400 s, it is dead. This worker has: known")
        newer = Tasks(server.url, queue=tasks.queue)

        @newer.task(name="newer")
        def added() -> str:
            return "done"

        with run(newer):
            assert client.jobs.wait(job_id, PATIENCE_S).result == "done"
    job = client.jobs.get(job_id)
    assert (job.attempts, job.stall_count) == (0, 0)
    assert client.jobs.get(odd).state == "delayed"
    newer.close()


def test_two_programs_on_one_queue_lose_nothing(
    tasks: Tasks, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chance decides which program gets a job. With longer and longer releases, a job has only six tries in half a minute.
    monkeypatch.setattr(_unknown_tasks, "LONGEST_S", 1)
    other = Tasks(server.url, queue=tasks.queue)

    @tasks.task(name="one", max_attempts=1)
    def one(number: int) -> int:
        return number

    @other.task(name="two", max_attempts=1)
    async def two(number: int) -> int:
        return -number

    handles = [(one if number % 2 else two).enqueue(number) for number in range(1, 21)]
    with run(tasks), run(other):
        results = [handle.result(PATIENCE_S) for handle in handles]
    assert results == [number if number % 2 else -number for number in range(1, 21)]
    assert {handle.job().attempts for handle in handles} == {0}
    other.close()


def test_a_task_that_no_worker_has_is_dead_after_a_time(tasks: Tasks, client: Client) -> None:
    @tasks.task(name="known")
    def known() -> None: ...

    job_id = client.jobs.push(tasks.queue, {"task": "nobody", "args": {}})
    with working(tasks, None, None, unknown_task_timeout=0.5):  # type: ignore[arg-type]
        until(lambda: client.jobs.state(job_id) == "failed")
    error = str(client.jobs.get(job_id).error)
    assert error.startswith("No worker has had the task of this job (nobody) for 1 s.")
    assert error.endswith("these tasks: known")


def test_how_long_a_job_is_given_back() -> None:
    """As long as it was away already, from a second to a minute; by the server's clock, whatever ours says."""

    def away(seconds: int, timeout: float = 86_400.0) -> int | Failed:
        job = Job(id="x", queue="q", started_at=1_000_000 + seconds * 1000, deferred_since=1_000_000)
        return UnknownTaskPolicy(timeout, ["b", "a"]).decide(job, "t")

    assert [away(seconds) for seconds in (0, 1, 2, 3, 9, 31, 64, 80_000)] == [1, 1, 2, 2, 8, 16, 32, 32]
    assert UnknownTaskPolicy(10, []).decide(Job(id="x", queue="q", started_at=5), "t") == 1
    dead = away(10, 10.0)
    assert isinstance(dead, Failed)
    assert dead.final


def test_one_log_line_a_minute_for_each_task(caplog: pytest.LogCaptureFixture) -> None:
    policy = UnknownTaskPolicy(10, [])
    for number in range(100):
        policy.decide(Job(id=str(number), queue="q"), "a")
    policy.decide(Job(id="x", queue="q"), "b")
    assert [message[:2] for message in caplog.messages] == ["a:", "b:"]
    for number in range(5_000):
        policy.decide(Job(id="x", queue="q"), f"t{number}")
    assert len(policy._logged) <= 1_000


def test_a_handler_may_end_only_once() -> None:
    context = JobContext(Job(id="x", queue="q"), lambda _: None)
    firsts: list[bool] = []
    threads = [threading.Thread(target=lambda: firsts.append(context.finish())) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(firsts) == [False] * 7 + [True]
