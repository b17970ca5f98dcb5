"""Names and flows when queues have moved to other shards: jobs keep their ids, so where they are has to be found out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import JobNotFound
from penstock.core.ids import shard_of
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.engine.jobs.dependencies import CancelChildren
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob, NackById
from tests.engine.sharding.test_rebalancer import MOVES, STAYS, fleet_on, named, places, push, rebalance, within

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.sharding.engine import ShardedEngine

pytestmark = pytest.mark.anyio
__all__ = ["places"]

BACK = named(1, 2)


async def take(fleet: ShardedEngine, key: QueueKey) -> JobRecord:
    from penstock.engine.jobs.claim import Claim

    ((job, _),) = await fleet.run(Claim(key))
    return job


async def done(fleet: ShardedEngine, clock: ManualClock, job: JobRecord) -> None:
    assert await within(clock, fleet.run(Ack("default", [LeaseRef(job.id, job.token)], [b"1"]))) == [None]


async def state_of(fleet: ShardedEngine, job: JobRecord) -> State:
    found = await fleet.store.job_get("default", job.id)
    return State.NOWHERE if found is None else State(found[0].state)


async def test_a_name_is_still_given_once(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        before = {key: await push(fleet, key, job_id=f"of-{key.name}") for key in (MOVES, STAYS, BACK)}
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        for key, job in before.items():
            for where in (key, STAYS, MOVES, BACK):
                again = await within(clock, fleet.run(Push(where, [JobSpec(b"x", job_id=f"of-{key.name}")])))
                assert again[0].id == job.id
        fresh = await within(clock, fleet.run(Push(MOVES, [JobSpec(b"x", job_id="fresh")])))
        same = await within(clock, fleet.run(Push(STAYS, [JobSpec(b"y", job_id="fresh")])))
        assert same[0].id == fresh[0].id
        racing = [fleet.run(Push(key, [JobSpec(b"x", job_id="raced")])) for key in (MOVES, STAYS, BACK) * 3]
        answers = await within(clock, asyncio.gather(*racing))
        assert len({jobs[0].id for jobs in answers}) == 1


async def test_a_push_to_several_queues_finds_its_keys(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        old = await push(fleet, MOVES, job_id="key")
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        parts = [(STAYS, [JobSpec(b"1", job_id="key"), JobSpec(b"2")]), (BACK, [JobSpec(b"3")])]
        (first, plain), (third,) = await within(clock, fleet.run(PushAcross(parts, clock.now_ms())))
        assert first.id == old.id
        assert len({first.id, plain.id, third.id}) == 3


async def test_a_job_that_has_moved_can_be_depended_on(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        by_id, by_name = await push(fleet, MOVES), await push(fleet, MOVES, job_id="child")
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        assert shard_of(by_id.id) == 0
        parent = (await within(clock, fleet.run(Push(STAYS, [JobSpec(b"p", needs=(by_id.id, "child"))]))))[0]
        beside = (await within(clock, fleet.run(Push(MOVES, [JobSpec(b"p", needs=(by_id.id,))]))))[0]
        assert await state_of(fleet, parent) is State.WAITING_CHILDREN
        for child in (by_id, by_name):
            taken = await take(fleet, MOVES)
            assert taken.id == child.id
            await done(fleet, clock, taken)
        await within(clock, told(fleet))
        assert await state_of(fleet, beside) is State.WAITING
        assert await state_of(fleet, parent) is State.WAITING


async def told(fleet: ShardedEngine) -> None:
    for relayer in fleet.relayers:
        await relayer.round()


async def test_an_audit_finds_needed_jobs_where_they_are(places: list[str], clock: ManualClock) -> None:
    """A flow inside a queue has moved with it; what its jobs wait for is not taken for gone."""
    async with fleet_on(places, clock, 2) as fleet:
        child = await push(fleet, MOVES)
        parent = await push(fleet, MOVES, needs=(child.id,))
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        await clock.advance(60_000)
        for service in fleet._services:
            await within(clock, service.run_once())
        assert await state_of(fleet, parent) is State.WAITING_CHILDREN
        await done(fleet, clock, await take(fleet, MOVES))
        assert await state_of(fleet, parent) is State.WAITING


async def test_a_queue_stays_while_another_shard_waits_for_its_jobs(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        child = await push(fleet, MOVES)
        other = named(1, 1)
        parent = (await within(clock, fleet.run(Push(other, [JobSpec(b"p", needs=(child.id,))]))))[0]
    async with fleet_on(places, clock, 3) as fleet:
        await within(clock, fleet.rebalancer.begin())
        await within(clock, fleet.rebalancer.run_once())
        assert MOVES.name in (fleet.rebalancer.waiting or "")
        await done(fleet, clock, await take(fleet, MOVES))
        await within(clock, told(fleet))
        assert await state_of(fleet, parent) is State.WAITING


async def test_children_are_cancelled_where_they_are(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        child = await push(fleet, MOVES)
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        parent = (await within(clock, fleet.run(Push(STAYS, [JobSpec(b"p", needs=(child.id,))]))))[0]
        assert await within(clock, fleet.run(CancelChildren("default", parent.id))) == 1
        await within(clock, told(fleet))
        assert await state_of(fleet, child) is State.NOWHERE
        assert await state_of(fleet, parent) is State.WAITING


async def test_words_without_a_token_reach_a_job_that_has_moved(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        await push(fleet, MOVES)
        await push(fleet, MOVES)
        first, second = await take(fleet, MOVES), await take(fleet, MOVES)
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        assert await within(clock, fleet.run(AckById([ClaimedJob(MOVES, first.id)]))) == [None]
        assert await state_of(fleet, first) is State.COMPLETED
        assert await within(clock, fleet.run(NackById([ClaimedJob(MOVES, second.id, "no")]))) == [None]
        assert await state_of(fleet, second) is State.DELAYED
        (missing,) = await within(clock, fleet.run(NackById([ClaimedJob(STAYS, first.id, "no")])))
        assert isinstance(missing, JobNotFound)
