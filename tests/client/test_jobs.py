"""The jobs door through the client: every method, against a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client import ApiError, AsyncClient, Backoff, Client, LeaseLost, NewJob, NotFound, Repeat
from penstock.client.options import JobOptions
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_from_push_to_result(client: Client, queue: str) -> None:
    jobs = client.jobs
    job_id = jobs.push(queue, {"to": "ada"}, priority=7, max_attempts=5, tags=["a"])
    job = jobs.pull(queue, wait=1, lease=60, owner="me")
    assert job is not None
    assert (job.id, job.data, job.priority, job.max_attempts, job.tags, job.state) == (
        job_id,
        {"to": "ada"},
        7,
        5,
        ["a"],
        "active",
    )
    jobs.progress(job, 40, "halfway")
    assert (jobs.get_progress(job_id).progress, jobs.get_progress(job_id).message) == (40, "halfway")
    jobs.heartbeat(job)
    jobs.heartbeat(job, lease=timedelta(minutes=1))
    jobs.extend(job, 90)
    jobs.log(job_id, "one")
    jobs.log(job_id, "two", "warn")
    assert [(line.level, line.message) for line in jobs.logs(job_id)] == [("info", "one"), ("warn", "two")]
    jobs.clear_logs(job_id)
    assert jobs.logs(job_id) == []
    assert (jobs.state(job_id), jobs.result(job_id)) == ("active", None)
    assert not jobs.wait(job_id, 0).completed
    jobs.ack(job, {"sent": True})
    assert (jobs.state(job_id), jobs.result(job_id)) == ("completed", {"sent": True})
    waited = jobs.wait(job_id)
    assert (waited.completed, waited.result) == (True, {"sent": True})
    with pytest.raises(LeaseLost) as lost:
        jobs.ack(job)
    assert (lost.value.status, lost.value.code, lost.value.repeated) == (400, "refused", False)


def test_many_at_once(client: Client, queue: str) -> None:
    jobs = client.jobs
    ids = jobs.push_many(queue, [1, NewJob(2, priority=9), 3], tags=["all"])
    assert jobs.push_many(queue, []) == []
    pulled = jobs.pull_many(queue, 10)
    assert [job.data for job in pulled] == [2, 1, 3]
    assert [job.id for job in pulled] == [ids[1], ids[0], ids[2]]
    assert all(job.tags == ["all"] for job in pulled)
    assert jobs.pull_many(queue, 10) == []
    assert jobs.pull(queue) is None
    alive = jobs.heartbeat_many([*pulled, "nobody"], tokens=[*(job.token for job in pulled), None])
    assert (alive.count, [error.id for error in alive.errors]) == (3, ["nobody"])
    assert jobs.extend_many(pulled, 60) == 3
    assert jobs.extend_many(pulled) == 3
    assert jobs.release(pulled[:1]).count == 1
    batch = jobs.ack_many(pulled, ["r2", None, "r3"])
    assert (batch.count, [error.id for error in batch.errors]) == (2, [ids[1]])
    assert [jobs.result(each) for each in ids] == [None, None, "r3"]
    again = jobs.pull(queue)
    assert again is not None
    assert (again.id, again.attempts) == (ids[1], 0)
    with pytest.raises(LeaseLost):
        jobs.heartbeat_many([pulled[0]])
    with pytest.raises(ValueError, match="as many"):
        jobs.ack_many(pulled, tokens=["x"])


def test_failures_and_dead_letters(client: Client, queue: str) -> None:
    jobs, queues = client.jobs, client.queues
    job_id = jobs.push(queue, "x", backoff=Backoff(type="fixed", delay=60, max_delay=61))
    job = jobs.pull(queue)
    assert job is not None
    jobs.fail(job, "not yet", retry_in=0)
    job = jobs.pull(queue)
    assert job is not None
    assert job.attempts == 1
    jobs.fail(job, "never", final=True, stack=["line 1", "line 2"])
    (dead,) = queues.dlq(queue)
    assert (dead.id, dead.error, dead.stacktrace, dead.state) == (job_id, "never", ["line 1", "line 2"], "failed")
    assert dead.failed_at is not None
    assert queues.retry_dlq(queue, job_id) == 1
    assert jobs.state(job_id) == "waiting"
    jobs.discard(job_id)
    assert queues.retry_dlq(queue, count=5) == 1
    jobs.discard(job_id)
    assert queues.purge_dlq(queue) == 1
    with pytest.raises(NotFound) as gone:
        jobs.get(job_id)
    assert gone.value.is_not_found
    assert gone.value.code == "job_not_found"


def test_intervening(client: Client, queue: str) -> None:
    jobs = client.jobs
    job_id = jobs.push(queue, "x", delay=3600)
    jobs.update(job_id, "y")
    jobs.set_priority(job_id, 3)
    jobs.set_delay(job_id, 7200)
    job = jobs.get(job_id)
    assert (job.data, job.priority, job.state) == ("y", 3, "delayed")
    jobs.promote(job_id)
    assert jobs.pull(queue) is not None
    jobs.postpone(job_id, 3600)
    assert jobs.state(job_id) == "delayed"
    jobs.cancel(job_id)
    assert jobs.state(job_id) == "unknown"
    with pytest.raises(NotFound):
        jobs.cancel(job_id)


def test_flows(client: Client, queue: str) -> None:
    jobs = client.jobs
    children = jobs.push_many(queue, ["a", "b"])
    parent = jobs.push(f"{queue}-parents", "sum", depends_on=children)
    assert jobs.state(parent) == "waiting-children"
    jobs.ack_many(jobs.pull_many(queue, 2), [1, 2])
    assert jobs.children(parent) == dict(zip(children, (1, 2), strict=True))
    assert jobs.children(parent, limit=1, offset=1) == {children[1]: 2}
    job = jobs.pull(f"{queue}-parents", wait=10)
    assert job is not None
    assert job.id == parent


def test_a_moment_means_the_same_on_every_clock(client: Client, queue: str) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    job_id = client.jobs.push(queue, "x", run_at=later)
    assert client.jobs.get(job_id).run_at == int(later.timestamp() * 1000)
    past = client.jobs.push(queue, "x", run_at=1_000_000)
    assert client.jobs.get(past).state == "waiting"
    with pytest.raises(ValueError, match="time zone"):
        client.jobs.push(queue, "x", run_at=datetime(2030, 1, 1))  # noqa: DTZ001, that is the point


def test_every_option_has_a_place_on_the_wire(client: Client, queue: str) -> None:
    needed = client.jobs.push(queue, "needed")
    options: JobOptions = {
        "priority": 1, "delay": 1, "timeout": 2, "max_attempts": 4, "backoff": 5, "ttl": 600, "job_id": f"{queue}-own",
        "unique_key": "u", "unique_for": 7, "unique_extend": True, "unique_replace": False, "tags": ["t"], "group_id": "g",
        "lifo": True, "remove_on_complete": True, "remove_on_fail": True, "durable": True, "depends_on": [needed],
        "parent_id": needed, "children_ids": [], "fail_parent_on_failure": True, "repeat": Repeat(every=5, limit=3),
        "stall_timeout": 9, "stack_trace_limit": 3, "keep_logs": 4, "size_limit": 1000,
    }  # fmt: skip
    assert client.jobs.push(queue, "x", **options) == f"{queue}-own"
    job = client.jobs.get(f"{queue}-own")
    assert (job.timeout, job.max_attempts, job.backoff, job.ttl) == (2000, 4, 5000, 600_000)
    assert (job.group_id, job.lifo, job.depends_on, job.unique_key) == ("g", True, [needed], "u")
    assert job.repeat is not None
    assert job.repeat["every"] == 5000
    others: JobOptions = {
        "debounce_id": "d", "debounce_for": 5, "repeat": Repeat(cron="0 2 * * *", timezone="Europe/Berlin"), "run_at": 1,
        "continue_parent_on_failure": False, "ignore_dependency_on_failure": True, "remove_dependency_on_failure": False,
    }  # fmt: skip
    client.jobs.push(queue, "x", **others)
    assert set(JobOptions.__annotations__) == set(options) | set(others)
    with pytest.raises(TypeError, match="no option 'prioritty'"):
        client.jobs.push(queue, "x", prioritty=1)  # type: ignore[call-arg]


def test_a_job_of_its_own_name_is_pushed_once(client: Client, queue: str) -> None:
    assert client.jobs.push(queue, 1, job_id=f"{queue}/one?") == client.jobs.push(queue, 2, job_id=f"{queue}/one?")
    assert client.jobs.get(f"{queue}/one?").data == 1
    assert client.queues.count(queue) == 1


def test_queues(client: Client, queue: str) -> None:
    jobs, queues = client.jobs, client.queues
    jobs.push_many(queue, [1, 2, 3], priority=2)
    later = jobs.push(queue, 4, delay=3600)
    assert queue in queues.names()
    counts = queues.counts(queue)
    assert (counts.waiting, counts.delayed, counts.active, counts.waiting_children) == (3, 1, 0, 0)
    assert queues.count(queue) == 4
    assert queues.priority_counts(queue) == {2: 3, 0: 1}
    assert [job.data for job in queues.jobs(queue, "waiting", limit=2, offset=1)] == [2, 3]
    queues.pause(queue)
    assert queues.is_paused(queue)
    assert jobs.pull(queue) is None
    queues.resume(queue)
    assert not queues.is_paused(queue)
    assert queues.promote(queue, 1) == 1
    assert jobs.state(later) == "waiting"
    (done,) = jobs.pull_many(queue, 1)
    jobs.ack(done)
    assert queues.retry_completed(queue, done.id) == 1
    assert queues.clean(queue, state="waiting", limit=1).count == 1
    assert queues.drain(queue) == 3
    queues.obliterate(queue)
    assert queue not in queues.names()


def test_rules_of_queues(client: Client, queue: str) -> None:
    queues = client.queues
    assert (queues.rate_limit(queue), queues.concurrency(queue)) == (None, None)
    queues.set_rate_limit(queue, 100)
    assert queues.rate_limit(queue) == 100
    queues.clear_rate_limit(queue)
    assert queues.rate_limit(queue) is None
    queues.set_concurrency(queue, 1)
    assert queues.concurrency(queue) == 1
    client.jobs.push_many(queue, [1, 2])
    assert len(client.jobs.pull_many(queue, 2)) == 1
    queues.clear_concurrency(queue)
    queues.set_stall_config(queue, stall_interval=5, max_stalls=7, grace_period=timedelta(seconds=1))
    stall = queues.stall_config(queue)
    assert (stall.enabled, stall.stall_interval, stall.max_stalls, stall.grace_period) == (True, 5000, 7, 1000)
    queues.set_dlq_config(queue, auto_retry=True, auto_retry_interval=60, max_auto_retries=2, max_age=3600, max_entries=9)
    dlq = queues.dlq_config(queue)
    assert (dlq.auto_retry, dlq.auto_retry_interval, dlq.max_auto_retries, dlq.max_age, dlq.max_entries) == (
        True,
        60_000,
        2,
        3_600_000,
        9,
    )
    assert queues.mode(queue) == "direct"
    queues.set_mode(queue, "direct")
    with pytest.raises(ApiError) as refused:
        queues.set_rate_limit(queue, 0)
    assert (refused.value.status, refused.value.is_temporary, refused.value.is_unauthorized) == (400, False, False)


def test_crons(client: Client, queue: str) -> None:
    crons = client.crons
    cron = crons.add(
        queue, queue, {"a": 1}, schedule="0 2 * * *", timezone="Europe/Berlin", max_attempts=2, backoff=3, timeout=9
    )
    assert (cron.name, cron.schedule, cron.timezone) == (queue, "0 2 * * *", "Europe/Berlin")
    assert crons.add(queue, queue, every=60, limit=5).repeat_every == 60_000
    assert queue in [each.name for each in crons.all()]
    assert crons.get(queue).max_limit == 5
    crons.delete(queue)
    with pytest.raises(NotFound):
        crons.get(queue)


def test_webhooks(client: Client, queue: str) -> None:
    webhooks = client.webhooks
    hook = webhooks.add("https://93.184.216.34/hook", ["completed", "failed"], queue=queue, secret="s")
    webhooks.enable(hook, enabled=False)
    (found,) = [each for each in webhooks.all() if each.id == hook]
    assert (found.url, found.queue, found.enabled) == ("https://93.184.216.34/hook", queue, False)
    webhooks.remove(hook)
    with pytest.raises(NotFound):
        webhooks.remove(hook)


def test_workers(client: Client, queue: str) -> None:
    workers = client.workers
    worker_id = workers.register("me", [queue], concurrency=3, hostname="here", pid=7)
    assert workers.heartbeat(worker_id, active_jobs=1, processed=5, failed=2)
    (found,) = workers.all(queue)
    assert (found.id, found.concurrency, found.processed_jobs, found.hostname) == (worker_id, 3, 5, "here")
    workers.unregister(worker_id)
    assert not workers.heartbeat(worker_id)
    assert worker_id not in [each.id for each in workers.all()]


def test_namespaces_are_apart(server: ServerProcess, queue: str) -> None:
    with Client(server.url, namespace="one") as one, Client(server.url, namespace="two") as two:
        job_id = one.jobs.push(queue, "x")
        assert two.jobs.state(job_id) == "unknown"
        assert two.jobs.pull(queue) is None
        assert one.jobs.pull(queue) is not None


@pytest.mark.anyio
async def test_a_pull_that_waits_is_ended_by_its_id(async_client: AsyncClient, queue: str) -> None:
    pull = asyncio.create_task(async_client.jobs.pull_many(queue, 1, wait=60, wait_id=queue))
    while not await async_client.jobs.stop_waiting(queue):
        await asyncio.sleep(0.01)
    assert await pull == []


@pytest.mark.anyio
async def test_the_same_for_coroutines(async_client: AsyncClient, queue: str) -> None:
    jobs = async_client.jobs
    job_id = await jobs.push(queue, {"a": 1})
    job = await jobs.pull(queue, wait=5)
    assert job is not None
    await jobs.ack(job, [1, 2])
    assert (await jobs.wait(job_id)).result == [1, 2]
    assert (await async_client.queues.counts(queue)).completed == 1
    with pytest.raises(LeaseLost):
        await jobs.ack(job)
    assert (await async_client.health()).status


def test_what_json_cannot_say_is_refused_here(client: Client, queue: str) -> None:
    with pytest.raises(TypeError):
        client.jobs.push(queue, object())
    job_id = client.jobs.push(queue, {"when": datetime(2026, 1, 1, tzinfo=UTC), "bytes": b"x"})
    data: Any = client.jobs.get(job_id).data
    assert json.dumps(data) == '{"when": "2026-01-01T00:00:00Z", "bytes": "eA=="}'


def test_events(client: Client, queue: str) -> None:
    job_id = client.jobs.push(queue, "x")
    job = client.jobs.pull(queue)
    assert job is not None
    client.jobs.ack(job)
    seen = []
    for event in client.events.follow(queue, after="0"):
        seen.append(event)
        if event.kind == "job:completed":
            break
    assert [each.kind for each in seen if each.kind.startswith("job:")] == ["job:pushed", "job:active", "job:completed"]
    assert (seen[-1].data["jobId"], seen[-1].data["queue"]) == (job_id, queue)
    (again,) = [event for event, _ in zip(client.events.follow(queue, after=seen[-2].id), range(1), strict=False)]
    assert again.id == seen[-1].id


def test_events_go_on_after_a_restart_of_the_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    seen: list[str] = []

    def follow() -> None:
        with Client(server.url) as follower:
            for event in follower.events.follow("q", after="0"):
                if event.kind == "job:pushed":
                    seen.append(event.data["jobId"])
                if len(seen) == 2:
                    return

    with Client(server.url) as client:
        thread = threading.Thread(target=follow)
        first = client.jobs.push("q", 1)
        thread.start()
        while not seen:
            threading.Event().wait(0.01)
        server.kill()
        server = ServerProcess(tmp_path / "data", port=server.port).start()
        second = client.jobs.push("q", 2)
        thread.join(30)
    server.stop()
    assert seen == [first, second]


@pytest.mark.anyio
async def test_events_for_coroutines(async_client: AsyncClient, queue: str) -> None:
    job_id = await async_client.jobs.push(queue, 1)
    async for event in async_client.events.follow(queue, after="0"):
        if event.kind == "job:pushed":
            assert event.data["jobId"] == job_id
            break
    with pytest.raises(ApiError):
        await anext(aiter(async_client.events.follow("no such name!")))


def test_giving_back_for_later_and_asking_what_is_held(client: Client, queue: str) -> None:
    ids = client.jobs.push_many(queue, ["a", "b"])
    one, two = client.jobs.pull_many(queue, 2)
    assert client.jobs.held([one, two]).count == 2
    assert client.jobs.release([one], delay=60).count == 1
    job = client.jobs.get(ids[0])
    assert (job.state, job.attempts, job.run_at - (job.deferred_since or 0)) == ("delayed", 0, 60_000)
    batch = client.jobs.held([one, two], wait=60)
    assert (batch.count, [error.id for error in batch.errors]) == (1, [ids[0]])
