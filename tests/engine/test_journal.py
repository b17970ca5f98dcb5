"""The journal: every transition is told once, in order, with what it needs to be understood alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.events import FIELDS, EventKind
from penstock.core.job import Dedup
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.engine.jobs.settle import LeaseRef, Nack, Release, ReportProgress, Requeue
from penstock.engine.queues import admin
from tests.support.engines import QUEUE, ack, claim_job, fail, move, push

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def told(engine: Engine) -> list[tuple[str, dict[str, Any]]]:
    """Read the whole journal, with named fields."""
    found = []
    for block in await engine.store.journal_read(1, 10_000):
        for kind, queue, job, custom_id, *fields in block.events:
            kind = EventKind(int(str(kind)))
            named = dict(zip(FIELDS[kind], fields, strict=True))
            assert block.queues[int(str(queue))] == QUEUE
            found.append((kind.wire_name, {"job": job, "custom_id": custom_id, **named}))
    return found


async def names(engine: Engine) -> list[str]:
    return [name for name, _ in await told(engine)]


async def test_the_life_of_a_job_is_told_step_by_step(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, data=b"12345", job_id="order-1", priority=3)
    await clock.advance(10)
    await claim_job(engine)
    await engine.run(ReportProgress("default", [LeaseRef(job.id)], 50, "half"))
    await fail(engine, job, "oops")
    await clock.advance(1_000)
    await claim_job(engine)
    await clock.advance(5)
    await ack(engine, job)
    events = await told(engine)
    assert [name for name, _ in events] == [
        "queue:created", "job:pushed", "job:active", "job:progress", "job:failed", "job:retried", "job:waiting", "job:active",
        "job:completed",
    ]  # fmt: skip
    fields = dict(events)
    assert fields["job:pushed"] == {
        "job": job.id, "custom_id": "order-1", "priority": 3, "run_at": job.run_at, "size": 5
    }  # fmt: skip
    assert fields["job:failed"]["error"] == "oops"
    assert fields["job:progress"] == {"job": job.id, "custom_id": "order-1", "progress": 50, "message": "half"}
    assert fields["job:completed"] == {
        "job": job.id, "custom_id": "order-1", "attempts": 1, "created_at": job.created_at,
        "run_at": job.created_at + 1_010, "started_at": job.created_at + 1_010, "size": 5,
    }  # fmt: skip


async def test_a_death_tells_its_error_and_its_reason(engine: Engine) -> None:
    job = await push(engine, max_attempts=1)
    await claim_job(engine)
    await fail(engine, job, "oops")
    fields = dict(await told(engine))
    assert fields["job:failed"]["error"] == "oops"
    assert fields["dlq:added"]["reason"] == "max_attempts_exceeded"


async def test_a_lapse_is_told(engine: Engine, clock: ManualClock) -> None:
    await push(engine)
    await claim_job(engine)
    await clock.advance(30_000)
    assert (await told(engine))[-1][0] == "job:stalled"
    assert (await told(engine))[-1][1]["error"] == "Job stalled 1 times"


async def test_an_attempt_that_ends_tells_when_it_was_due_whatever_comes_next(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, delay=500, max_attempts=9, backoff=2_000)
    start = job.created_at
    due = [start + 500]
    await clock.advance(700)
    await claim_job(engine)
    await clock.advance(40)
    await fail(engine, job)  # tried again in 2 s
    due.append(start + 2_740)
    await clock.advance(2_100)
    await claim_job(engine)
    await clock.advance(10)
    (outcome,) = await engine.run(Nack("default", [LeaseRef(job.id)], "broken", delay_ms=0))  # tried again at once
    assert outcome is None
    due.append(start + 2_850)
    await clock.advance(50)
    await claim_job(engine)
    await clock.advance(30_000)  # its lease ends, and it is due again
    due.append(start + 32_900)
    await clock.advance(100)
    await claim_job(engine)
    await engine.run(Requeue("default", [LeaseRef(job.id)], Arrow.SEND_BACK))
    due.append(start + 33_000)
    await clock.advance(1)
    await claim_job(engine)
    await engine.run(Release("default", [LeaseRef(job.id)]))  # not begun: it has been due all the time
    due.append(start + 33_000)
    await clock.advance(1)
    await claim_job(engine)
    await fail(engine, job)
    events = await told(engine)
    ended = [fields["due_at"] for name, fields in events if name in ("job:failed", "job:stalled", "job:released")]
    assert ended == due
    # What comes next is told as before.
    assert [fields["run_at"] for name, fields in events if name == "job:retried"] == [
        start + 2_740, start + 2_850, start + 33_002 + 16_000
    ]  # fmt: skip


async def test_what_is_removed_in_bulk_is_told_job_by_job_and_as_a_whole(engine: Engine) -> None:
    for _ in range(2):
        await push(engine)
    await admin.drain(engine, QUEUE)
    events = await told(engine)
    assert [name for name, _ in events[-3:]] == ["job:removed", "job:removed", "queue:drained"]
    assert events[-2][1]["reason"] == "drain"
    assert events[-1][1]["count"] == 2


async def test_a_removal_tells_whether_the_job_was_finished_and_a_retry_whether_it_failed(
    engine: Engine, clock: ManualClock
) -> None:
    job = await push(engine)
    await push(engine)
    await claim_job(engine)
    await fail(engine, job, "oops")
    await clock.advance(1_000)
    await claim_job(engine)
    await claim_job(engine)
    await ack(engine, job)
    await move(engine, job, Arrow.REPLAY)
    retries = [fields["attempts"] for name, fields in await told(engine) if name == "job:retried"]
    assert retries == [1, 0]
    await claim_job(engine)
    await ack(engine, job)
    await admin.clean(engine, QUEUE, 0, (State.COMPLETED,), 10)
    await admin.obliterate(engine, QUEUE)
    removals = [fields for name, fields in await told(engine) if name == "job:removed"]
    assert [(each["reason"], each["finished_at"] is None) for each in removals] == [("clean", False), ("obliterate", True)]


@pytest.mark.parametrize(
    ("arrow", "event"),
    [
        (Arrow.PROMOTE, "job:promoted"),
        (Arrow.RESCHEDULE, "job:delay-changed"),
        (Arrow.REPRIORITIZE, "job:priority-changed"),
        (Arrow.DISCARD, "dlq:added"),
        (Arrow.CANCEL, "job:removed"),
    ],
)
async def test_interventions_are_told(engine: Engine, arrow: Arrow, event: str) -> None:
    job = await push(engine, delay=60_000)
    await move(engine, job, arrow, 5)
    assert (await names(engine))[-1] == event


async def test_a_push_whose_unique_key_another_job_has_is_told_with_the_id_of_that_job(engine: Engine) -> None:
    job = await push(engine, job_id="order-1", unique_key="a")
    await push(engine, unique_key="a")
    await push(engine, job_id="order-2", unique_key="a")
    event = ("job:duplicated", {"job": job.id, "custom_id": "order-1"})
    assert (await told(engine))[2:] == [event, event]
    await push(engine, job_id="order-1", unique_key="a")  # found by its own id
    await push(engine, unique_key="a", dedup=Dedup(ttl=1_000, extend=True))
    assert (await names(engine))[2:] == ["job:duplicated"] * 2
    await push(engine, unique_key="a", dedup=Dedup(replace=True))
    assert (await names(engine))[4:] == ["job:data-updated", "job:waiting"]


async def test_a_refused_command_tells_nothing(engine: Engine) -> None:
    job = await push(engine)
    before = await names(engine)
    await ack(engine, job)
    assert await names(engine) == before


async def test_heartbeats_and_empty_pulls_write_nothing(engine: Engine, store: Any) -> None:
    from tests.support.engines import claim, renew

    job = await push(engine)
    await claim_job(engine)
    before = store.journal_next
    await renew(engine, job)
    await claim(engine)
    await claim(engine, queue=QueueKey("default", "unknown"))
    assert store.journal_next == before


async def test_an_obliterated_queue_is_named_in_its_last_event(engine: Engine) -> None:
    await push(engine)
    await admin.obliterate(engine, QUEUE)
    assert (await names(engine))[-2:] == ["queue:obliterated", "queue:removed"]
