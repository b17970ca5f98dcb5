"""Pushing: order, delays, names, atomic bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import ids
from penstock.core.errors import InvalidInput
from penstock.core.job import JobFlag, JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey, StateCounts
from penstock.engine.jobs.push import Push
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, push_many, state

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def test_jobs_come_out_in_the_order_they_went_in(engine: Engine) -> None:
    pushed = await push_many(engine, 50)
    assert [job.id for job in await claim_all(engine)] == [job.id for job in pushed]


async def test_higher_priority_overtakes(engine: Engine) -> None:
    low, high, middle = [await push(engine, priority=priority) for priority in (0, 10, 5)]
    assert [job.id for job in await claim_all(engine)] == [high.id, middle.id, low.id]


async def test_last_in_first_out_goes_before_others_of_its_priority(engine: Engine) -> None:
    first = await push(engine)
    lifo_1 = await push(engine, flags=JobFlag.LIFO)
    lifo_2 = await push(engine, flags=JobFlag.LIFO)
    urgent = await push(engine, priority=1)
    assert [job.id for job in await claim_all(engine)] == [urgent.id, lifo_2.id, lifo_1.id, first.id]


async def test_a_delayed_job_is_not_claimed_early_and_blocks_nobody(engine: Engine, clock: ManualClock) -> None:
    delayed = await push(engine, delay=5_000, priority=99)
    ready = await push(engine)
    assert (await claim_job(engine)).id == ready.id
    await clock.advance(4_999)
    assert await claim(engine) is None
    await clock.advance(1)
    assert (await claim_job(engine)).id == delayed.id


async def test_delayed_jobs_line_up_in_the_order_they_fall_due(engine: Engine, clock: ManualClock) -> None:
    late = await push(engine, delay=2_000)
    early = await push(engine, delay=1_000)
    await clock.advance(1_500)
    between = await push(engine)
    await clock.advance(1_000)
    assert [job.id for job in await claim_all(engine)] == [early.id, between.id, late.id]


async def test_a_jump_of_the_wall_clock_never_makes_a_job_early_and_late_by_a_second_at_most(
    engine: Engine, clock: ManualClock
) -> None:
    job = await push(engine, delay=60_000)
    clock.jump_wall(-3_600_000)
    await clock.advance(60_000)
    assert await state(engine, job) is State.DELAYED
    clock.jump_wall(+3_600_000)
    await clock.advance(1_000)
    assert await state(engine, job) is State.WAITING


async def test_a_bulk_keeps_its_order_and_mixes_all_kinds(engine: Engine, clock: ManualClock) -> None:
    jobs = await engine.run(
        Push(
            QUEUE, [JobSpec(b"1"), JobSpec(b"2", delay=1_000), JobSpec(b"3", flags=JobFlag.LIFO), JobSpec(b"4", priority=1)]
        )
    )
    assert [job.state for job in jobs] == [State.WAITING, State.DELAYED, State.WAITING, State.WAITING]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert [job.id for job in await claim_all(engine)] == [jobs[3].id, jobs[2].id, jobs[0].id]


async def test_an_empty_bulk_is_fine_and_makes_no_queue(engine: Engine) -> None:
    assert await engine.run(Push(QUEUE, [])) == []
    queue = engine.store.queue_find(QUEUE)
    assert queue is None or queue.created_at is None


async def test_a_taken_job_id_answers_with_the_job_that_has_it_whatever_its_state(engine: Engine) -> None:
    job = await push(engine, job_id="order-1", data=b"first")
    assert (await push(engine, job_id="order-1", data=b"second")).id == job.id
    await claim_job(engine)
    assert (await push(engine, job_id="order-1")).id == job.id
    await ack(engine, job)
    assert (await push(engine, job_id="order-1")).id == job.id
    assert engine.store.totals() == StateCounts(completed=1)
    found = await engine.store.job_get("default", "order-1")
    assert found is not None
    assert found[1].data == b"first"


async def test_a_job_id_is_free_again_once_its_job_is_gone(engine: Engine) -> None:
    job = await push(engine, job_id="order-1")
    await move(engine, job, Arrow.CANCEL)
    assert (await push(engine, job_id="order-1")).id != job.id


async def test_job_ids_are_separate_per_namespace_and_shared_by_its_queues(engine: Engine) -> None:
    job = await push(engine, job_id="x")
    assert (await push(engine, queue=QueueKey("default", "other"), job_id="x")).id == job.id
    assert (await push(engine, queue=QueueKey("elsewhere", "mail"), job_id="x")).id != job.id


async def test_a_unique_key_is_held_while_queued_active_and_across_retries(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, unique_key="k")
    assert (await push(engine, unique_key="k")).id == job.id
    await claim_job(engine)
    assert (await push(engine, unique_key="k")).id == job.id
    await fail(engine, job)
    assert (await push(engine, unique_key="k")).id == job.id
    await clock.advance(1_000)
    await claim_job(engine)
    await ack(engine, job)
    assert (await push(engine, unique_key="k")).id != job.id


async def test_a_unique_key_is_per_queue(engine: Engine) -> None:
    job = await push(engine, unique_key="k")
    assert (await push(engine, queue=QueueKey("default", "other"), unique_key="k")).id != job.id


async def test_names_taken_inside_one_bulk_are_taken(engine: Engine) -> None:
    jobs = await engine.run(
        Push(
            QUEUE,
            [
                JobSpec(b"1", job_id="a"),
                JobSpec(b"2", job_id="a"),
                JobSpec(b"3", unique_key="u"),
                JobSpec(b"4", unique_key="u"),
            ],
        )
    )
    assert jobs[0].id == jobs[1].id
    assert jobs[2].id == jobs[3].id
    assert engine.store.totals().waiting == 2


async def test_an_own_id_that_looks_like_ours_is_refused_and_nothing_of_its_bulk_is_stored(engine: Engine) -> None:
    forged = ids.to_uuid(ids.IdSource().next(1_900_000_000_000))
    with pytest.raises(InvalidInput, match="jobId has the form of an id that Penstock assigns"):
        await engine.run(Push(QUEUE, [JobSpec(b"1", job_id="fine"), JobSpec(b"2", job_id=forged)]))
    assert engine.store.totals() == StateCounts()


async def test_the_id_of_an_existing_job_as_job_id_answers_with_that_job(engine: Engine) -> None:
    job = await push(engine)
    assert (await push(engine, job_id=ids.to_uuid(job.id))).id == job.id


async def test_statistics_count_what_was_stored_not_what_was_asked(engine: Engine) -> None:
    await push_many(engine, 3)
    await push(engine, job_id="x")
    await push(engine, job_id="x")
    assert engine.stats.pushed == 4
