"""A client we did not write: the ``bunqueue-client`` package, driving the TCP port."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from bunqueue import CommandError, CommandTimeoutError, FlowProducer, Queue, UnrecoverableError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.server import ServerProcess

_numbers = itertools.count()
WAIT_S = 30


@pytest.fixture
def queue(server: ServerProcess) -> Iterator[Any]:
    with Queue(f"bq{os.getpid()}-{next(_numbers)}", host="127.0.0.1", port=server.tcp_port) as opened:
        yield opened


@pytest.fixture
def work(server: ServerProcess, queue: Any) -> Iterator[Callable[..., Any]]:
    """Start workers on the queue; they are closed at the end."""
    workers: list[Any] = []

    def start(processor: Callable[[Any], Any], **options: Any) -> Any:
        worker = Worker(
            queue.name, processor, host="127.0.0.1", port=server.tcp_port, poll_timeout_ms=100, autorun=False, **options
        )
        worker.on("error", lambda _error: None)
        workers.append(worker)
        worker.start()
        return worker

    yield start
    for worker in workers:
        assert worker.close(WAIT_S)


class Heard:
    """Counts events of a worker, and waits for a number of them."""

    def __init__(self, count: int) -> None:
        self.items: list[Any] = []
        self._count = count
        self._enough = threading.Event()

    def __call__(self, *args: Any) -> None:
        self.items.append(args)
        if len(self.items) >= self._count:
            self._enough.set()

    def wait(self) -> list[Any]:
        assert self._enough.wait(WAIT_S), self.items
        return self.items


def test_hello_and_ping(queue: Any) -> None:
    assert queue.ping()
    assert queue.connection.hello()["protocolVersion"] == 3


def test_adding_and_looking(queue: Any) -> None:
    job = queue.add("mail", {"to": "a@b.c", "at": 1_800_000_000_000}, priority=5, tags=["x"], job_id=f"{queue.name}-own")
    found = queue.get_job(job.id)
    assert (found.id, found.name, found.priority, found.tags) == (f"{queue.name}-own", "mail", 5, ["x"])
    assert found.data == {"name": "mail", "to": "a@b.c", "at": 1_800_000_000_000}
    assert found.created_at > 1_600_000_000_000
    assert queue.get_job_by_custom_id(f"{queue.name}-own").id == job.id
    assert queue.get_job("019ce9d7-6983-7000-946f-48737be2b0f9") is None
    assert queue.get_state(job.id) == "prioritized"


def test_adding_in_bulk(queue: Any) -> None:
    ids = queue.add_bulk([{"name": "a", "data": {"n": 1}, "job_id": f"{queue.name}-1"}, {"name": "b", "delay": 60_000}])
    assert ids[0] == f"{queue.name}-1"
    assert [queue.get_state(each) for each in ids] == ["waiting", "delayed"]
    assert queue.add_bulk([{"name": "a", "job_id": f"{queue.name}-1"}]) == ids[:1]
    with pytest.raises(CommandError, match=r"jobs\[1\]: priority must be at most 1000000"):
        queue.add_bulk([{"name": "a"}, {"name": "b", "priority": 1_000_001}])


def test_listing_and_counting(queue: Any) -> None:
    waiting, delayed = queue.add("w"), queue.add("d", delay=5_000_000_000)
    assert [job.id for job in queue.get_waiting()] == [waiting.id]
    assert [job.id for job in queue.get_delayed()] == [delayed.id]
    assert {job.id for job in queue.get_jobs(["waiting", "delayed"])} == {waiting.id, delayed.id}
    assert len(queue.get_jobs(start=1, end=2)) == 1
    counts = queue.get_job_counts()
    assert (counts["waiting"], counts["delayed"], counts["active"]) == (1, 1, 0)
    assert queue.count() == 2
    assert queue.get_counts_per_priority() == {"0": 2}
    assert queue.name in queue.list_queues()


def test_a_worker_processes_and_answers(queue: Any, work: Callable[..., Any]) -> None:
    worker = work(lambda job: {"doubled": job.data["n"] * 2}, concurrency=8)
    completed = Heard(50)
    worker.on("completed", completed)
    ids = queue.add_bulk([{"name": "double", "data": {"n": n}} for n in range(50)])
    assert queue.wait_for_job(ids[49], 20_000) == {"doubled": 98}
    completed.wait()
    assert [queue.get_result(each) for each in ids] == [{"doubled": 2 * n} for n in range(50)]
    assert queue.get_job_counts()["completed"] == 50


def test_acknowledgements_in_batches(queue: Any, work: Callable[..., Any]) -> None:
    worker = work(lambda job: job.data["n"], concurrency=4, ack_batch={"max_size": 5, "max_delay_ms": 5})
    completed = Heard(20)
    worker.on("completed", completed)
    ids = queue.add_bulk([{"name": "n", "data": {"n": n}} for n in range(20)])
    completed.wait()
    assert [queue.get_result(each) for each in ids] == list(range(20))


def test_a_delayed_job_is_worked_on_when_it_is_due_and_the_worker_tells_of_it(queue: Any, work: Callable[..., Any]) -> None:
    told: list[str] = []
    completed = Heard(1)
    job = queue.add("later", {"n": 1}, delay=300)
    assert queue.get_state(job.id) == "delayed"
    worker = work(lambda job: job.update_progress(50) or "done")
    for event in ("active", "progress"):
        worker.on(event, lambda *_args, event=event: told.append(event))
    worker.on("completed", completed)
    ((finished, result, *_),) = completed.wait()
    assert (finished.id, result) == (job.id, "done")
    assert told == ["active", "progress"]
    shown = queue.get_job(job.id)
    assert shown.started_at >= shown.created_at + 300


def test_priorities_decide_the_order(queue: Any, work: Callable[..., Any]) -> None:
    for priority in (1, 10, 5):
        queue.add("p", {"p": priority}, priority=priority)
    seen = Heard(3)
    work(lambda job: seen(job.data["p"]), concurrency=1)
    assert seen.wait() == [(10,), (5,), (1,)]


def test_progress_logs_and_heartbeats(queue: Any, work: Callable[..., Any]) -> None:
    def process(job: Any) -> str:
        job.update_progress(50, "half")
        job.log("working", "info")
        job.heartbeat()
        job.extend_lock(60_000)
        assert job.get_state() == "active"
        return "ok"

    work(process)
    job = queue.add("p")
    assert queue.wait_for_job(job.id, 20_000) == "ok"
    assert queue.get_progress(job.id) == {"progress": 50, "message": "half"}
    queue.add_job_log(job.id, "more", "warn")
    assert [line["message"] for line in queue.get_job_logs(job.id)] == ["working", "more"]
    queue.clear_job_logs(job.id, keep_logs=1)
    assert [line["message"] for line in queue.get_job_logs(job.id)] == ["more"]
    queue.clear_job_logs(job.id)
    assert queue.get_job_logs(job.id) == []


def test_failures_are_retried_until_the_dead_letters_and_come_back(queue: Any, work: Callable[..., Any]) -> None:
    broken = threading.Event()
    broken.set()

    def process(job: Any) -> str:
        if broken.is_set():
            raise ValueError(f"broken {job.attempts}")
        return "mended"

    worker = work(process)
    failed = Heard(2)
    worker.on("failed", failed)
    job = queue.add("f", attempts=2, backoff=1)
    failed.wait()
    with pytest.raises(CommandError, match="failed before completion"):
        queue.wait_for_job(job.id, 20_000)
    (dead,) = queue.get_dlq()
    assert (dead["id"], dead["error"], dead["attempts"]) == (job.id, "broken 1", 2)
    broken.clear()
    assert queue.retry_dlq(job.id) == 1
    assert queue.wait_for_job(job.id, 20_000) == "mended"


def test_a_failure_for_good_goes_straight_to_the_dead_letters(queue: Any, work: Callable[..., Any]) -> None:
    def process(_job: Any) -> None:
        raise UnrecoverableError("never")

    worker = work(process)
    failed = Heard(1)
    worker.on("failed", failed)
    job = queue.add("u", attempts=10)
    failed.wait()
    assert queue.get_state(job.id) == "failed"
    queue.retry_job(job.id)
    assert queue.purge_dlq() in (0, 1)


def test_a_stack_comes_with_the_failure(queue: Any, work: Callable[..., Any]) -> None:
    def broken(_job: Any) -> None:
        raise ValueError("not today")

    failed = Heard(1)
    work(broken).on("failed", failed)
    job = queue.add("n", {}, attempts=1, stack_trace_limit=1)
    failed.wait()
    assert queue.get_job(job.id).stacktrace == ["ValueError: not today"]


def test_every_option_of_the_client_arrives(queue: Any) -> None:
    options = {
        "backoff": {"type": "fixed", "delay": 5, "maxDelay": 9}, "stall_timeout": 7_000, "stack_trace_limit": 4,
        "keep_logs": 2, "size_limit": 500, "timestamp": 1_700_000_000_000, "repeat": {"every": 60_000},
        "deduplication": {"id": "k", "ttl": 60_000, "extend": True, "replace": True}, "fail_parent_on_failure": True,
    }  # fmt: skip
    job = queue.add("n", {"v": 1}, **options)
    shown = {
        "backoff": 5, "backoffConfig": {"type": "fixed", "delay": 5, "maxDelay": 9}, "stallTimeout": 7_000,
        "stackTraceLimit": 4, "keepLogs": 2, "sizeLimit": 500, "createdAt": 1_700_000_000_000,
        "repeat": {"count": 0, "every": 60_000}, "uniqueKey": "k", "deduplicationTtl": 60_000, "deduplicationExtend": True,
        "deduplicationReplace": True, "failParentOnFailure": True,
    }  # fmt: skip
    assert shown.items() <= queue.get_job(job.id).raw.items()
    assert queue.add("n", {"v": 2}, **options).id == job.id
    assert queue.get_job(job.id).data["v"] == 2
    assert queue.add_bulk([{"name": "n", "data": {"v": 3}, "debounce": {"id": "k", "ttl": 60_000}}]) == [job.id]
    assert queue.get_job(job.id).data["v"] == 3


def test_pausing(queue: Any) -> None:
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    assert not queue.is_paused()
    queue.add("x")
    assert queue.drain() == 1
    queue.obliterate()


def test_settings(queue: Any) -> None:
    queue.set_stall_config({"enabled": False, "maxStalls": 9})
    assert queue.get_stall_config() == {"enabled": False, "stallInterval": 30_000, "maxStalls": 9, "gracePeriod": 5_000}
    queue.set_dlq_config({"autoRetry": True, "maxEntries": 7})
    config = queue.get_dlq_config()
    assert (config["autoRetry"], config["maxEntries"]) == (True, 7)
    queue.set_global_rate_limit(100)
    queue.remove_global_rate_limit()
    queue.set_global_concurrency(3)
    queue.remove_global_concurrency()
    assert queue.get_stats()["uptime"] >= 0
    assert queue.get_metrics()["totalPushed"] >= 0


def test_intervening(queue: Any) -> None:
    job = queue.add("i", delay=60_000)
    queue.change_job_delay(job.id, 5_000_000_000)
    queue.promote_job(job.id)
    queue.change_job_priority(job.id, 3)
    queue.update_job_data(job.id, {"new": 1})
    assert (queue.get_job(job.id).priority, queue.get_job(job.id).data) == (3, {"new": 1})
    with pytest.raises(CommandTimeoutError):
        queue.wait_for_job(job.id, 1)
    queue.discard(job.id)
    assert queue.retry_jobs("failed", count=1) == 1
    queue.remove(job.id)
    assert queue.get_job(job.id) is None
    queue.add("c", delay=60_000)
    assert queue.promote_jobs() == 1
    assert queue.clean(0, state="waiting") == 1


def test_a_worker_that_is_gone_gives_its_job_back(queue: Any, server: ServerProcess) -> None:
    started, go_on = threading.Event(), threading.Event()

    def process(_job: Any) -> str:
        started.set()
        assert go_on.wait(WAIT_S)
        return "done"

    job = queue.add("slow")
    worker = Worker(queue.name, process, host="127.0.0.1", port=server.tcp_port, poll_timeout_ms=100)
    assert started.wait(WAIT_S)
    worker.pause()
    assert worker.connection._sock is not None
    worker.connection._sock.shutdown(socket.SHUT_RDWR)  # as if its machine were gone
    reply = queue.connection.call({"cmd": "PULL", "queue": queue.name, "timeout": 20_000}, timeout=WAIT_S)
    assert (reply["job"]["id"], reply["job"]["attempts"]) == (job.id, 0)
    go_on.set()
    assert worker.close(WAIT_S)
    assert queue.get_state(job.id) == "active"  # what the worker says now is refused: its token is stale


def test_a_flow_runs_children_before_their_parent(queue: Any, server: ServerProcess, work: Callable[..., Any]) -> None:
    flows = FlowProducer(host="127.0.0.1", port=server.tcp_port)
    tree = {
        "name": "parent", "queueName": queue.name, "data": {"what": "sum"},
        "children": [
            {"name": "child", "queueName": queue.name, "data": {"what": 1}},
            {"name": "child", "queueName": queue.name, "data": {"what": 2}},
        ],
    }  # fmt: skip
    node = flows.add(tree)
    assert queue.get_state(node.job.id) == "waiting-children"
    done = Heard(3)
    order: list[Any] = []

    def process(job: Any) -> Any:
        order.append(job.data["what"])
        return {"did": job.data["what"]}

    work(process, concurrency=1).on("completed", done)
    done.wait()
    assert order == [1, 2, "sum"]
    values = queue.get_children_values(node.job.id)
    assert sorted(value["did"] for value in values.values()) == [1, 2]
    flows.connection.close()


def test_a_scheduler_fires_and_is_updated_listed_and_removed(queue: Any, work: Callable[..., Any]) -> None:
    fired = Heard(2)
    queue.every(f"tick-{queue.name}", 50, {"n": 1}, prevent_overlap=False)
    work(lambda job: job.data).on("completed", fired)
    fired.wait()
    queue.add_cron(f"night-{queue.name}", "0 3 * * *", {"n": 2}, tz="Europe/Berlin")
    assert queue.get_job_schedulers_count() == 2
    found = queue.get_job_scheduler(f"night-{queue.name}")
    assert (found["schedule"], found["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    for name in ("tick", "night"):
        queue.remove_job_scheduler(f"{name}-{queue.name}")
    assert queue.get_job_schedulers() == []


def test_workers_are_registered_as_long_as_they_are_there(queue: Any, work: Callable[..., Any]) -> None:
    worker = work(lambda _job: None)
    worker.wait_until_ready(WAIT_S)
    assert worker.worker_id in [each["id"] for each in queue.get_workers()]
    assert worker.close(WAIT_S)
    assert worker.worker_id not in [each["id"] for each in queue.get_workers()]


def test_webhooks_are_added_listed_and_removed(queue: Any) -> None:
    webhook = queue.add_webhook("https://example.com/hook", ["completed", "job.failed"], queue=queue.name)
    assert webhook in [each["id"] for each in queue.list_webhooks()]
    queue.set_webhook_enabled(webhook, False)
    queue.remove_webhook(webhook)
    assert webhook not in [each["id"] for each in queue.list_webhooks()]
