"""What subscribers give back: to the front, to the back, or after a while; and leases that count against nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import JobNotFound, StaleLease
from penstock.core.job import JobFlag, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import StallConfig
from penstock.engine.jobs.settle import LeaseRef, Requeue
from tests.support.engines import QUEUE, claim_all, claim_job, push, push_many, state, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine
    from penstock.engine.jobs.settle import ItemOutcome

pytestmark = pytest.mark.anyio


async def put_back(engine: Engine, arrow: Arrow, *jobs: JobRecord, delay_ms: int = 0) -> Sequence[ItemOutcome]:
    return await engine.run(Requeue(QUEUE.namespace, [LeaseRef(job.id, job.token) for job in jobs], arrow, delay_ms))


async def order(engine: Engine) -> list[int]:
    return [job.id for job in await claim_all(engine)]


async def test_to_the_front(engine: Engine) -> None:
    one, two, three = await push_many(engine, 3)
    held = await claim_all(engine, 2)
    assert await put_back(engine, Arrow.RETURN, held[0]) == [None]
    assert await put_back(engine, Arrow.RETURN, held[1]) == [None]
    assert await order(engine) == [two.id, one.id, three.id], "who came back last is first"


async def test_who_comes_back_together_keeps_its_order(engine: Engine) -> None:
    one, two, three, four = await push_many(engine, 4)
    held = await claim_all(engine, 3)
    await put_back(engine, Arrow.RETURN, held[1], held[0], held[2], held[0])
    assert await order(engine) == [one.id, two.id, three.id, four.id]


async def test_to_the_back(engine: Engine) -> None:
    one, two, three = await push_many(engine, 3)
    (held,) = await claim_all(engine, 1)
    await put_back(engine, Arrow.SEND_BACK, held)
    later = await push(engine)
    assert await order(engine) == [two.id, three.id, one.id, later.id]


async def test_after_a_while_in_front_the_last_one_first(engine: Engine, clock: ManualClock) -> None:
    jobs = await push_many(engine, 4)
    held = await claim_all(engine, 3)
    for job in held:  # in one millisecond, so that the clock does not tell them apart
        await put_back(engine, Arrow.SNOOZE, job, delay_ms=1_000)
    await clock.advance(999)
    assert await state(engine, held[0]) is State.DELAYED
    await clock.advance(1)
    assert await order(engine) == [jobs[2].id, jobs[1].id, jobs[0].id, jobs[3].id]


async def test_how_often_it_was_put_off_is_counted(engine: Engine, clock: ManualClock) -> None:
    await push(engine)
    for times in range(3):
        job = await claim_job(engine)
        assert details_of(job).dacks == times
        await put_back(engine, Arrow.SNOOZE, job, delay_ms=10)
        await clock.advance(10)
    job = await claim_job(engine)
    await put_back(engine, Arrow.SEND_BACK, job)
    job = await claim_job(engine)
    assert (details_of(job).dacks, job.attempts) == (3, 0)


async def test_only_who_holds_it_can_give_it_back(engine: Engine, clock: ManualClock) -> None:
    await push(engine, flags=JobFlag.UNCOUNTED)
    old = await claim_job(engine, lease_ms=1_000)
    stale = LeaseRef(old.id, old.token)
    await clock.advance(1_000)
    new = await claim_job(engine)
    for arrow in (Arrow.RETURN, Arrow.SEND_BACK, Arrow.SNOOZE):
        (outcome,) = await engine.run(Requeue(QUEUE.namespace, [stale], arrow))
        assert isinstance(outcome, StaleLease)
    found = await stored(engine, new)
    assert found is not None
    assert found.token == new.token
    (outcome,) = await engine.run(Requeue(QUEUE.namespace, [LeaseRef(12345)], Arrow.RETURN))
    assert isinstance(outcome, JobNotFound)


async def test_a_lease_that_runs_out_is_not_counted_against_a_message(engine: Engine, clock: ManualClock) -> None:
    first = await push(engine, flags=JobFlag.UNCOUNTED)
    second = await push(engine, flags=JobFlag.UNCOUNTED)
    for _ in range(StallConfig().max_stalls + first.max_attempts):
        assert (await claim_job(engine, lease_ms=1_000)).id == first.id
        await clock.advance(1_000)
    job = await stored(engine, first)
    assert job is not None
    assert (State(job.state), job.attempts, job.stalls) == (State.WAITING, 0, 0)
    assert await order(engine) == [first.id, second.id], "at its old place"
