"""Tasks: typed arguments, enqueueing, workers that run them, results."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_type

import msgspec
import pytest

from penstock.client import (
    Backoff,
    Client,
    Fail,
    Handle,
    Job,
    JobFailed,
    JobGone,
    ResultTimeout,
    Task,
    Tasks,
    Worker,
    current_job,
    task,
)
from penstock.client._backend import ServerBackend
from penstock.client.tasks import default_tasks
from tests.client.test_worker import PATIENCE_S, working

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.client.options import JobOptions
    from tests.support.server import ServerProcess


@dataclass
class Order:
    number: int
    at: datetime
    tags: list[str]


class Receipt(msgspec.Struct):
    number: int
    paid: bool


def run(tasks: Tasks) -> Any:
    """Run a worker for these tasks."""
    return working(tasks, None, None)  # type: ignore[arg-type]


def test_arguments_and_results_keep_their_types(tasks: Tasks) -> None:
    @tasks.task
    def pay(order: Order, *, times: int = 1) -> Receipt:
        """Pay."""
        assert isinstance(order, Order)
        assert order.at.tzinfo is not None
        return Receipt(order.number * times, paid=True)

    order = Order(7, datetime(2026, 1, 1, tzinfo=UTC), ["a"])
    assert pay(order) == Receipt(7, paid=True)  # called, it is what it was
    assert pay.__doc__ == "Pay."
    with run(tasks):
        handle = pay.enqueue(order, times=3)
        assert_type(handle, Handle[Receipt])
        assert handle.result(timeout=PATIENCE_S) == Receipt(21, paid=True)
    job = handle.job()
    assert job.data["args"] == {"order": {"number": 7, "at": "2026-01-01T00:00:00Z", "tags": ["a"]}, "times": 3}
    assert handle.state() == "completed"


@pytest.mark.anyio
async def test_coroutines(tasks: Tasks) -> None:
    @tasks.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    @tasks.task
    def triple(number: int) -> int:
        return number * 3

    assert_type(await double(4), int)
    assert await double(4) == 8
    serving = asyncio.create_task(Worker(tasks, wait=1).serve())
    one, two = await double.aenqueue(5), await triple.aenqueue_in(0, 5)
    assert_type(one, Handle[int])
    assert (await one.aresult(PATIENCE_S), await two.aresult(timedelta(seconds=PATIENCE_S))) == (10, 15)
    many = await double.aenqueue_many([(1,), {"number": 2}])
    assert [await each.aresult(PATIENCE_S) for each in many] == [2, 4]
    later = await double.aenqueue_at(datetime.now(UTC) + timedelta(days=1), 1)
    assert later.job().state == "delayed"
    later.cancel()
    with pytest.raises(JobGone):
        await later.aresult(1)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    await tasks.aclose()


def test_coroutines_of_several_loops(tasks: Tasks, client: Client, queue: str) -> None:
    @tasks.task
    def double(number: int) -> int:
        return number * 2

    async def enqueue(number: int) -> None:
        await double.aenqueue(number)

    async def close() -> None:
        await double.aenqueue(3)
        await tasks.aclose()

    for number in range(3):
        asyncio.run(enqueue(number))
    assert client.queues.counts(queue).waiting == 3
    assert isinstance(tasks.backend, ServerBackend)
    assert len(tasks.backend._async_clients) == 1  # those of closed loops are forgotten
    asyncio.run(close())
    assert not tasks.backend._async_clients
    gc.collect()  # a connection that was left open would be noticed
    assert client.queues.counts(queue).waiting == 4


MAIN = """
from multiprocessing import get_context
from penstock.client import Tasks

tasks = Tasks()

@tasks.task
def send() -> None: ...

def show() -> None:
    print(send.name, flush=True)

if __name__ == "__main__":
    show()
    process = get_context("spawn").Process(target=show)
    process.start()
    process.join()
"""


def test_tasks_of_a_program_have_the_name_that_workers_import(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for path in (tmp_path / "mail.py", tmp_path / "shop" / "mail.py"):
        path.write_text(MAIN)
    for command, name in ((["mail.py"], "mail.send"), (["-m", "shop.mail"], "shop.mail.send")):
        said = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert said.split() == [name, name]  # in the process that multiprocessing has started, too


def test_wrong_arguments_are_refused_where_they_are_given(tasks: Tasks) -> None:
    @tasks.task
    def send(to: str, count: int = 1) -> None: ...

    for args, kwargs in (((), {}), ((5,), {}), (("a", "b"), {}), (("a",), {"cc": "b"}), (("a", 1, 2), {})):
        with pytest.raises(TypeError):
            send.enqueue(*args, **kwargs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tuples"):
        send.enqueue_many(["ada"])
    assert send.enqueue_many([]) == []
    assert send.data("ada") == {"task": send.name, "args": {"to": "ada", "count": 1}}


def test_tasks_that_cannot_be(tasks: Tasks) -> None:
    def collect(*numbers: int) -> None: ...
    def some(number: int) -> None: ...

    with pytest.raises(TypeError, match="named parameters only"):
        tasks.task(collect)
    with pytest.raises(TypeError, match="no parameter"):
        tasks.task(unique=["size"])(some)
    with pytest.raises(TypeError, match="no option"):
        tasks.task(prioritty=5)(some)  # type: ignore[call-overload]
    tasks.task(name="one")(some)
    with pytest.raises(ValueError, match="already"):
        tasks.task(name="one")(some)


def test_later(tasks: Tasks) -> None:
    @tasks.task
    def remind(who: str) -> None: ...

    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    assert remind.enqueue_at(moment, "ada").job().run_at == int(moment.timestamp() * 1000)
    job = remind.enqueue_in(timedelta(hours=1), "ada").job()
    assert (job.state, job.run_at - job.created_at) == ("delayed", 3_600_000)
    with pytest.raises(ResultTimeout):
        remind.enqueue("ada").result(timeout=0.01)


def test_options(tasks: Tasks) -> None:
    @tasks.task(queue="elsewhere", name="own-name", max_attempts=7, backoff=2, timeout=60)
    def report(month: int) -> None: ...

    job = report.options(priority=5, max_attempts=2).enqueue(5).job()
    assert (job.queue, job.data["task"], job.max_attempts, job.priority) == ("elsewhere", "own-name", 2, 5)
    assert_type(report.enqueue(5), Handle[None])
    assert report.enqueue(5).job().max_attempts == 7
    assert tasks.queues == ("elsewhere",)


def test_unique(tasks: Tasks) -> None:
    @tasks.task(unique=True)
    def index(page: int, force: bool = False) -> None: ...

    @tasks.task(unique=["page"], unique_for=3600)
    def crawl(page: int, force: bool = False) -> None: ...

    assert index.enqueue(1).id == index.enqueue(page=1).id != index.enqueue(1, force=True).id
    assert crawl.enqueue(1).id == crawl.enqueue(1, force=True).id != crawl.enqueue(2).id
    assert crawl.options(unique_key="own").enqueue(1).job().unique_key == "own"


def test_failures(tasks: Tasks) -> None:
    @tasks.task(max_attempts=2, backoff=0)
    def flaky() -> int:
        if current_job().attempt == 1:
            raise ValueError("at first")
        return 5

    @tasks.task
    def hopeless() -> None:
        raise Fail("no use")

    with run(tasks):
        assert flaky.enqueue().result(PATIENCE_S) == 5
        with pytest.raises(JobFailed, match="no use") as failed:
            hopeless.enqueue().result(PATIENCE_S)
        assert failed.value.error == "no use"


def test_a_cron_calls_a_task(tasks: Tasks, client: Client) -> None:
    called = threading.Event()

    @tasks.task
    def clean(days: int) -> None:
        called.set()

    client.crons.add(tasks.queue, tasks.queue, clean.data(7), every=3600, immediately=True)
    with run(tasks):
        assert called.wait(PATIENCE_S)
    client.crons.delete(tasks.queue)


def test_a_cron_takes_over_the_options_of_its_task(tasks: Tasks, client: Client) -> None:
    options: JobOptions = {
        "max_attempts": 7,
        "backoff": Backoff(type="fixed", delay=2),
        "timeout": 9,
        "priority": 4,
        "ttl": 600,
        "tags": ["a"],
        "group_id": "g",
        "lifo": True,
        "keep_logs": 3,
        "size_limit": 1_000,
    }

    @tasks.task(queue=f"{tasks.queue}-2", unique=["days"], **options)
    def clean(days: int = 1) -> None: ...

    def pushed(queue: str) -> Job:
        job = None
        while job is None:
            job = client.jobs.pull(queue, wait=PATIENCE_S)
        client.jobs.ack(job)
        client.crons.delete(tasks.queue)
        return job

    # By its task: the queue, too.
    client.crons.add(tasks.queue, clean, every=3600, immediately=True)
    job = pushed(clean.queue)
    enqueued = clean.enqueue().job()
    client.jobs.cancel(enqueued.id)
    for name in ("max_attempts", "backoff", "timeout", "priority", "ttl", "tags", "group_id", "lifo", "unique_key", "data"):
        assert getattr(job, name) == getattr(enqueued, name), name
    assert (job.max_attempts, job.timeout, job.ttl) == (7, 9_000, 600_000)
    # By its payload; what is given here comes first.
    client.crons.add(
        tasks.queue, tasks.queue, clean.options(priority=5).data(7), every=3600, immediately=True, max_attempts=2
    )
    job = pushed(tasks.queue)
    assert (job.max_attempts, job.priority, job.timeout, job.data["args"]) == (2, 5, 9_000, {"days": 7})
    with pytest.raises(TypeError, match="Jobs of a cron cannot have depends_on"):
        client.crons.add(tasks.queue, clean.options(depends_on=["x"]), every=3600)


def test_jobs_may_need_the_jobs_of_handles(tasks: Tasks) -> None:
    ran: list[str] = []

    @tasks.task
    def step(name: str) -> str:
        ran.append(name)
        return name

    first = step.enqueue_in(0.2, "first")
    second = step.options(depends_on=[first]).enqueue("second")
    assert second.state() == "waiting-children"
    assert second.job().depends_on == [first.id]
    with run(tasks):
        assert second.result(PATIENCE_S) == "second"
    assert ran == ["first", "second"]
    wrong: Any
    for wrong in ([5], first.id):
        with pytest.raises(TypeError, match="depends_on takes"):
            step.options(depends_on=wrong).enqueue("x")


@pytest.mark.anyio
async def test_handles_from_ids_and_for_coroutines(tasks: Tasks) -> None:
    @tasks.task
    def day() -> date:
        return date(2020, 1, 2)

    handle = await day.aenqueue()
    assert (await handle.astate(), (await handle.ajob()).id) == ("waiting", handle.id)
    with run(tasks):
        assert await day.handle(handle.id).aresult(PATIENCE_S) == date(2020, 1, 2)
        assert await tasks.handle(handle.id).aresult(PATIENCE_S) == "2020-01-02"
    other = await day.aenqueue()
    await other.acancel()
    assert await tasks.handle(other.id).astate() == "unknown"
    await tasks.aclose()


def test_current_job_is_known_only_while_one_is_worked_on() -> None:
    with pytest.raises(LookupError, match="current_job"):
        current_job()


def test_the_decorator_alone_asks_the_environment(monkeypatch: pytest.MonkeyPatch, server: ServerProcess) -> None:
    monkeypatch.setenv("PENSTOCK_URL", server.url)

    @task(queue="by-environment")
    def hello() -> None: ...

    made: Task[Any, Any, Any] = hello
    assert made.enqueue().job().queue == "by-environment"
    assert default_tasks.tasks.pop(hello.name) is hello
    default_tasks.close()
