"""Claiming: lines, limits, groups, waiting without cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import abandon
from penstock.engine.queues.admin import Configure
from penstock.engine.queues.limit_status import AskLimits
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, push_many, state

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import Delivery
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def configure(engine: Engine, **changes: object) -> None:
    await engine.run(Configure(QUEUE, EventKind.QUEUE_PAUSED, lambda old: msgspec.structs.replace(old, **changes)))


def ids(delivered: list[Delivery]) -> list[int]:
    return [delivery.job.id for delivery in delivered]


async def test_an_empty_or_unknown_queue_gives_nothing_at_once(engine: Engine) -> None:
    assert await engine.run(Claim(QUEUE)) == []
    assert engine.store.queue_find(QUEUE) is None


async def test_a_claim_gives_at_most_what_it_asks_for(engine: Engine) -> None:
    jobs = await push_many(engine, 5)
    assert ids(await engine.run(Claim(QUEUE, 3))) == [job.id for job in jobs[:3]]
    assert ids(await engine.run(Claim(QUEUE, 3))) == [job.id for job in jobs[3:]]


async def test_concurrent_claims_never_share_a_job(engine: Engine) -> None:
    await push_many(engine, 100)
    claimed = await asyncio.gather(*(engine.run(Claim(QUEUE, 3)) for _ in range(50)))
    given = [job_id for delivered in claimed for job_id in ids(delivered)]
    assert len(given) == len(set(given)) == 100


async def test_a_waiting_claim_is_served_by_the_next_push(engine: Engine) -> None:
    waiting = engine.run(Claim(QUEUE, wait_ms=5_000))
    await yield_to_loop()
    assert engine.claim_waiters.size == 1
    job = await push(engine)
    assert ids(await waiting) == [job.id]
    assert engine.claim_waiters.size == 0


async def test_waiting_claims_are_served_first_come_first_served(engine: Engine) -> None:
    waiting = [engine.run(Claim(QUEUE, wait_ms=5_000)) for _ in range(3)]
    await yield_to_loop()
    jobs = await push_many(engine, 2)
    await yield_to_loop()
    assert [future.done() for future in waiting] == [True, True, False]
    assert [ids(await future) for future in waiting[:2]] == [[job.id] for job in jobs]


async def test_who_waits_already_goes_before_who_just_comes(engine: Engine) -> None:
    waiting = engine.run(Claim(QUEUE, wait_ms=5_000))
    await yield_to_loop()
    pushed, newcomer = asyncio.ensure_future(push(engine)), engine.run(Claim(QUEUE))
    assert await newcomer == []
    assert ids(await waiting) == [(await pushed).id]


async def test_a_waiting_claim_gives_up_after_its_time(engine: Engine, clock: ManualClock) -> None:
    waiting = engine.run(Claim(QUEUE, wait_ms=5_000))
    await clock.advance(4_999)
    assert not waiting.done()
    await clock.advance(1)
    assert await waiting == []
    assert engine.claim_waiters.size == 0


async def test_a_waiting_claim_is_woken_by_a_job_falling_due(engine: Engine, clock: ManualClock) -> None:
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    job = await push(engine, delay=10_000)
    await clock.advance(9_999)
    assert not waiting.done()
    await clock.advance(1)
    assert ids(await waiting) == [job.id]


async def test_a_waiting_claim_is_woken_by_a_retry_and_by_a_lapse(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, backoff=2_000)
    await claim_job(engine)
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await fail(engine, job)
    await clock.advance(2_000)
    assert ids(await waiting) == [job.id]
    again = engine.run(Claim(QUEUE, wait_ms=60_000))
    await clock.advance(30_000)
    assert ids(await again) == [job.id]


async def test_one_push_wakes_one_of_many_and_touches_no_other(engine: Engine) -> None:
    waiting = [engine.run(Claim(QUEUE, wait_ms=60_000)) for _ in range(5_000)]
    await yield_to_loop()
    assert engine.claim_waiters.size == 5_000
    batches = engine.stats.batches
    job = await push(engine)
    await yield_to_loop()
    assert sum(future.done() for future in waiting) == 1
    assert ids(await waiting[0]) == [job.id]
    assert engine.stats.batches == batches + 1


async def test_nothing_happens_while_nothing_happens(engine: Engine, clock: ManualClock) -> None:
    waiting = [engine.run(Claim(QUEUE, wait_ms=60_000)) for _ in range(5_000)]
    await yield_to_loop()
    commands = engine.stats.commands
    await clock.advance(59_999)
    assert engine.stats.commands - commands <= 20  # housekeeping, once every few seconds
    assert not any(future.done() for future in waiting)


async def test_a_caller_that_hangs_up_while_waiting_gets_nothing_and_costs_nothing(engine: Engine) -> None:
    command = Claim(QUEUE, wait_ms=60_000)
    engine.run(command)
    await yield_to_loop()
    abandon(engine, command)
    assert engine.claim_waiters.size == 0
    job = await push(engine)
    assert (await claim_job(engine)).id == job.id


async def test_a_caller_that_hangs_up_while_being_served_gives_the_job_back_at_no_cost(engine: Engine) -> None:
    job = await push(engine)
    command = Claim(QUEUE, wait_ms=60_000)
    answer = engine.run(command)
    abandon(engine, command)
    await answer
    await yield_to_loop()
    again = await claim_job(engine)
    assert (again.id, again.attempts) == (job.id, 0)


async def test_one_that_leaves_before_it_is_in_line_does_not_line_up(engine: Engine) -> None:
    command = Claim(QUEUE, wait_ms=60_000)
    answer = engine.run(command)
    abandon(engine, command)
    assert await answer == []
    assert engine.claim_waiters.size == 0


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(engine: Engine) -> None:
    job = await push(engine)
    await configure(engine, paused=True)
    assert await claim(engine) is None
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await yield_to_loop()
    await configure(engine, paused=False)
    assert ids(await waiting) == [job.id]


async def test_concurrency_limits_what_is_active_at_once(engine: Engine) -> None:
    jobs = await push_many(engine, 5)
    await configure(engine, concurrency=2)
    assert ids(await engine.run(Claim(QUEUE, 5))) == [job.id for job in jobs[:2]]
    assert await claim(engine) is None
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await yield_to_loop()
    assert not waiting.done()
    await ack(engine, jobs[0])
    assert ids(await waiting) == [jobs[2].id]


async def test_a_rate_limit_gives_so_many_a_second(engine: Engine, clock: ManualClock) -> None:
    await push_many(engine, 30)
    await configure(engine, rate_limit=10)
    assert len(await claim_all(engine)) == 10
    assert await claim(engine) is None
    await clock.advance(500)
    assert len(await claim_all(engine)) == 5
    await clock.advance(10_000)
    assert len(await claim_all(engine)) == 10


async def test_a_rate_limit_may_be_about_another_span_of_time(engine: Engine, clock: ManualClock) -> None:
    await push_many(engine, 30)
    await configure(engine, rate_limit=4, rate_window_ms=60_000)
    assert len(await claim_all(engine)) == 4
    await clock.advance(14_999)
    assert await claim(engine) is None
    await clock.advance(1)
    assert len(await claim_all(engine)) == 1
    await configure(engine, rate_limit=2, rate_window_ms=10_000)  # it begins anew
    assert len(await claim_all(engine)) == 2


async def test_a_rate_limit_that_ends_wakes_who_waits(engine: Engine, clock: ManualClock) -> None:
    await push_many(engine, 5)
    await configure(engine, rate_limit=1, rate_window_ms=limits.HOUR_MS, rate_limit_until=clock.now_ms() + 5_000)
    await claim_job(engine)
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await clock.advance(4_999)
    assert not waiting.done()
    status = await engine.run(AskLimits(QUEUE))
    assert (status.rate_limit, status.wait_ms) == (1, 1)
    await clock.advance(2)
    assert waiting.done()
    assert (await engine.run(AskLimits(QUEUE))).rate_limit is None
    assert len(await claim_all(engine)) == 3


async def test_an_empty_queue_burns_no_rate(engine: Engine) -> None:
    await push(engine)
    await configure(engine, rate_limit=2)
    await claim_job(engine)
    for _ in range(20):
        assert await claim(engine) is None
    await push(engine)
    assert await claim(engine) is not None


async def test_a_rate_limited_queue_wakes_who_waits_when_the_limit_allows(engine: Engine, clock: ManualClock) -> None:
    await push_many(engine, 3)
    await configure(engine, rate_limit=1)
    await claim_job(engine)
    waiting = [engine.run(Claim(QUEUE, wait_ms=60_000)) for _ in range(2)]
    await clock.advance(999)
    assert not waiting[0].done()
    await clock.advance(2)
    assert waiting[0].done()
    assert not waiting[1].done()
    await clock.advance(1_002)
    assert waiting[1].done()


async def test_a_group_at_its_limit_is_passed_over(engine: Engine) -> None:
    a1, a2 = [await push(engine, group_id="a") for _ in range(2)]
    b1 = await push(engine, group_id="b")
    free = await push(engine)
    assert [job.id for job in await claim_all(engine)] == [a1.id, b1.id, free.id]
    assert await claim(engine) is None
    await ack(engine, a1)
    assert (await claim_job(engine)).id == a2.id


async def test_a_waiting_claim_gets_the_next_of_a_group_when_the_first_is_done(engine: Engine) -> None:
    first, second = [await push(engine, group_id="a") for _ in range(2)]
    await claim_job(engine)
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await yield_to_loop()
    await ack(engine, first)
    assert ids(await waiting) == [second.id]


async def test_a_busy_group_of_many_costs_a_claim_nothing(engine: Engine) -> None:
    await push_many(engine, 3_000, group_id="big")
    other = await push(engine, group_id="small")
    await claim_job(engine)
    assert (await claim_job(engine)).id == other.id


async def test_a_lease_is_the_queues_stall_interval_or_what_is_asked_for(engine: Engine, clock: ManualClock) -> None:
    await push_many(engine, 2)
    job = await claim_job(engine)
    assert job.lease_until == clock.steady_ms() + 30_000
    job = await claim_job(engine, lease_ms=1_234)
    assert job.lease_until == clock.steady_ms() + 1_234


async def test_tokens_only_grow(engine: Engine) -> None:
    job = await push(engine)
    first = await claim_job(engine)
    await move(engine, job, Arrow.POSTPONE, 0)
    second = await claim_job(engine)
    assert second.token > first.token
    assert await state(engine, job) is State.ACTIVE


async def test_queues_of_other_namespaces_are_other_queues(engine: Engine) -> None:
    await push(engine, queue=QueueKey("other", "mail"))
    assert await claim(engine) is None


async def test_more_than_a_batch_can_hand_out_is_handed_out_by_the_next(engine: Engine) -> None:
    await push_many(engine, 3 * limits.claim_jobs_max)
    taken = await asyncio.gather(*(claim_all(engine, limits.claim_jobs_max) for _ in range(4)))
    assert [len(jobs) for jobs in taken] == [1_000, 1_000, 1_000, 0]


async def test_a_batch_is_bounded_in_bytes_too(engine: Engine) -> None:
    large = limits.claim_batch_bytes_max // 4
    for _ in range(6):
        await push(engine, data=b"x" * large)
    first, second, third = await asyncio.gather(*(claim_all(engine, 10) for _ in range(3)))
    assert [len(jobs) for jobs in (first, second, third)] == [4, 2, 0]


@pytest.mark.parametrize("wait_ms", [0, 5_000])
async def test_expired_jobs_in_front_hide_no_job_behind_them(engine: Engine, clock: ManualClock, wait_ms: int) -> None:
    await push_many(engine, limits.sweep_jobs_max + 5, ttl=1_000, priority=9)
    job = await push(engine)
    await engine.stop_services()  # as if the server had been down when they expired
    await clock.advance(2_000)
    assert (await claim_job(engine, wait_ms=wait_ms)).id == job.id


async def test_who_asks_while_the_server_closes_is_sent_home(engine: Engine) -> None:
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    engine.stop_waiting()
    assert await waiting == []
