"""Whole queues: emptied, cleaned, destroyed, brought back, in slices and without touching what came later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core import limits
from penstock.core.errors import PartlyDone, StorageFailed
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey, StateCounts
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack
from penstock.engine.queues import admin
from penstock.store.sqlite import SqliteStore
from tests.support.engines import QUEUE, ack, claim_all, claim_job, fail, push, push_many, state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine
    from penstock.store.contract import Place, Selection

pytestmark = pytest.mark.anyio

MANY = 3 * limits.slice_jobs_max + 7


async def test_a_drain_removes_waiting_and_delayed_jobs_and_leaves_active_ones(engine: Engine) -> None:
    await push_many(engine, MANY)
    await push(engine, delay=1_000)
    working = await claim_job(engine)
    assert await admin.drain(engine, QUEUE) == MANY
    assert engine.store.totals() == StateCounts(active=1)
    assert await ack(engine, working) is None
    assert await admin.drain(engine, QUEUE) == 0
    assert await admin.drain(engine, QueueKey("default", "unknown")) == 0


async def test_jobs_pushed_during_a_drain_survive_it(engine: Engine) -> None:
    await push_many(engine, MANY)
    draining = asyncio.ensure_future(admin.drain(engine, QUEUE))
    await asyncio.sleep(0)
    late = await push(engine)
    assert await draining == MANY
    assert await state(engine, late) is State.WAITING


async def test_other_work_goes_on_between_the_slices(engine: Engine) -> None:
    await push_many(engine, MANY)
    draining = asyncio.ensure_future(admin.drain(engine, QUEUE))
    await asyncio.sleep(0)
    await push(engine, queue=QueueKey("default", "other"))
    assert not draining.done()
    await draining


async def test_a_clean_removes_what_is_older_than_the_grace(engine: Engine, clock: ManualClock) -> None:
    old = await push_many(engine, 3)
    await clock.advance(10_000)
    young = await push(engine)
    states = (State.WAITING, State.DELAYED)
    assert await admin.clean(engine, QUEUE, 20_000, states, 100) == []
    assert [job.id for job in await admin.clean(engine, QUEUE, 5_000, states, 2)] == [job.id for job in old[:2]]
    assert [job.id for job in await admin.clean(engine, QUEUE, 5_000, states, 100)] == [old[2].id]
    assert [job.id for job in await admin.clean(engine, QUEUE, 0, states, 100)] == [young.id]


async def test_a_clean_of_finished_jobs_counts_from_when_they_finished(engine: Engine, clock: ManualClock) -> None:
    done = await push(engine)
    await clock.advance(10_000)
    await claim_job(engine)
    await ack(engine, done)
    assert await admin.clean(engine, QUEUE, 5_000, (State.COMPLETED,), 100) == []
    await clock.advance(6_000)
    assert [job.id for job in await admin.clean(engine, QUEUE, 5_000, (State.COMPLETED,), 100)] == [done.id]


@pytest.mark.parametrize("remove", [admin.obliterate, admin.empty])
async def test_a_job_that_fails_while_its_queue_is_emptied_is_removed_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Engine, QueueKey], Awaitable[int]]
) -> None:
    await push(engine, backoff=1_000)
    working = await claim_job(engine)
    select = engine.store.job_select

    async def select_late(selection: Selection) -> list[Place]:
        if selection.state == State.ACTIVE:  # it is delayed again, after those that are delayed were gone through
            await fail(engine, working)
            await push(engine)  # and another comes, which is none of the removal's business
        return await select(selection)

    monkeypatch.setattr(engine.store, "job_select", select_late)
    assert await remove(engine, QUEUE) == 1
    assert engine.store.totals() == StateCounts(waiting=1)


async def test_an_obliterated_queue_is_gone_with_everything(engine: Engine) -> None:
    await push_many(engine, 5)
    working, done = await claim_all(engine, 2)
    await ack(engine, done)
    await push(engine, delay=5_000)
    assert await admin.obliterate(engine, QUEUE) == 6
    assert engine.store.queue_find(QUEUE) is None
    assert engine.store.totals() == StateCounts()
    assert await ack(engine, working) is not None
    await push(engine)
    assert engine.store.totals() == StateCounts(waiting=1)


async def test_many_delayed_jobs_are_promoted_earliest_first(engine: Engine) -> None:
    jobs = [await push(engine, delay=delay) for delay in (3_000, 1_000, 2_000)]
    assert await admin.move_many(engine, QUEUE, Arrow.PROMOTE, limit=2) == 2
    assert [job.id for job in await claim_all(engine)] == [jobs[1].id, jobs[2].id]
    assert await admin.move_many(engine, QUEUE, Arrow.PROMOTE) == 1


async def test_all_dead_jobs_are_revived_except_those_whose_unique_key_is_taken(engine: Engine) -> None:
    for number in range(MANY):
        await push(engine, max_attempts=1, unique_key=f"k{number}" if number % 100 == 0 else None)
    for job in await claim_all(engine, MANY):
        await fail(engine, job)
    taken = [await push(engine, unique_key=f"k{number}") for number in range(0, MANY, 100)]
    assert await admin.revive(engine, QUEUE) == MANY - len(taken)
    assert engine.store.totals() == StateCounts(waiting=MANY, dead=len(taken))


async def test_who_revives_at_the_same_time_as_others_finds_those_they_have_left(engine: Engine) -> None:
    await push_many(engine, 20, max_attempts=1)
    for job in await claim_all(engine, 20):
        await fail(engine, job)
    revived = await asyncio.gather(*(admin.revive(engine, QUEUE, 5) for _ in range(5)))
    assert sorted(revived) == [0, 5, 5, 5, 5]
    assert engine.store.totals() == StateCounts(waiting=20)


async def test_a_purge_removes_dead_jobs_only(engine: Engine) -> None:
    for job in [await push(engine, max_attempts=1) for _ in range(3)]:
        await claim_job(engine)
        await fail(engine, job)
    await push(engine)
    assert await admin.purge(engine, QUEUE) == 3
    assert engine.store.totals() == StateCounts(waiting=1)


async def test_completed_jobs_are_replayed(engine: Engine) -> None:
    for job in await push_many(engine, 3):
        await claim_job(engine)
        await ack(engine, job)
    assert await admin.move_many(engine, QUEUE, Arrow.REPLAY) == 3
    assert engine.store.totals() == StateCounts(waiting=3)


@pytest.mark.parametrize("arrow", [Arrow.REPLAY, Arrow.REVIVE, Arrow.PROMOTE])
async def test_what_comes_back_and_ends_again_meanwhile_is_not_brought_back_for_ever(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, arrow: Arrow
) -> None:
    monkeypatch.setattr(limits, "select_jobs_max", 300)  # so that it looks for jobs again and again
    jobs = await push_many(
        engine, MANY, max_attempts=1 if arrow is Arrow.REVIVE else 3, delay=60_000 * (arrow is Arrow.PROMOTE)
    )
    if arrow is not Arrow.PROMOTE:
        while claimed := await claim_all(engine):
            holds = [LeaseRef(job.id, job.token) for job in claimed]
            await engine.run(_ending(arrow, holds))
    deliveries = 0

    async def work() -> None:
        """End everything at once, in the way that leads back to where it came from."""
        nonlocal deliveries
        while deliveries <= 2 * len(jobs):
            claimed = await claim_all(engine, wait_ms=60_000)
            deliveries += len(claimed)
            clock.jump_wall(1)
            await engine.run(_ending(arrow, [LeaseRef(job.id, job.token) for job in claimed]))

    working = asyncio.ensure_future(work())
    assert await admin.move_many(engine, QUEUE, arrow) == len(jobs)
    assert deliveries <= len(jobs)
    working.cancel()


def _ending(arrow: Arrow, holds: list[LeaseRef]) -> Ack | Nack:
    if arrow is Arrow.REPLAY:
        return Ack("default", holds, [None] * len(holds))
    return Nack("default", holds, "again")


async def test_a_clean_without_a_grace_removes_the_oldest_whatever_their_priority(engine: Engine) -> None:
    jobs = [await push(engine, priority=priority) for priority in (1, 9, 5)]
    removed = await admin.clean(engine, QUEUE, 0, (State.WAITING,), 2)
    assert [job.id for job in removed] == [job.id for job in jobs[:2]]


async def test_what_is_interrupted_says_how_far_it_got(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await push_many(engine, MANY)
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda command: run(command) if engine.store.totals().waiting > 900 else _broken())
    with pytest.raises(PartlyDone, match=r"Interrupted after \d+ jobs, the others are unchanged: Storage failed") as raised:
        await admin.drain(engine, QUEUE)
    done = int(str(raised.value).split()[2])
    assert engine.store.totals() == StateCounts(waiting=MANY - done)


async def _broken() -> None:
    raise StorageFailed


async def test_a_queue_that_is_gone_leaves_nothing_behind_in_memory(engine: Engine) -> None:
    await push(engine)
    await engine.run(
        admin.Configure(QUEUE, EventKind.RATELIMIT_SET, lambda old: msgspec.structs.replace(old, rate_limit=5), None)
    )
    await claim_job(engine)
    assert isinstance(engine.store, SqliteStore)
    assert engine.store.catalog.buckets
    await admin.obliterate(engine, QUEUE)
    assert not engine.store.catalog.buckets
    assert engine.store.queues() == []
