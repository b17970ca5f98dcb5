"""Pushes across queues with idempotency keys; ack and nack by id alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import InvalidInput, JobNotFound, WrongState
from penstock.core.job import IDEMPOTENCY_PREFIX, JobSpec, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.engine.jobs.push import PushAcross
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob, NackById, RenewById
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, state, stored

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

OTHER = QueueKey("default", "other")
KEY = f"{IDEMPOTENCY_PREFIX}k"


async def across(engine: Engine, *parts: tuple[QueueKey, list[JobSpec]]) -> list[list[JobRecord]]:
    return await engine.run(PushAcross(parts, engine.clock.now_ms()))


async def keyed(engine: Engine, data: bytes = b"1", queue: QueueKey = QUEUE, **options: Any) -> JobRecord:
    ((job,),) = await across(engine, (queue, [JobSpec(data, job_id=KEY, **options)]))
    return job


async def ack_by_id(engine: Engine, job_id: int, queue: QueueKey = QUEUE) -> None:
    (problem,) = await engine.run(AckById([ClaimedJob(queue, job_id)]))
    if problem is not None:
        raise problem


async def nack_by_id(engine: Engine, job_id: int, error: str | None, queue: QueueKey = QUEUE) -> None:
    (problem,) = await engine.run(NackById([ClaimedJob(queue, job_id, error)]))
    if problem is not None:
        raise problem


async def test_a_heartbeat_by_id_renews_a_lease(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine, lease_ms=1_000)
    for lease_ms, after in ((None, 900), (None, 900), (5_000, 4_900)):
        (problem,) = await engine.run(RenewById([ClaimedJob(QUEUE, job.id, None, lease_ms)]))
        assert problem is None
        await clock.advance(after)
        assert await state(engine, job) == State.ACTIVE
    await clock.advance(100)
    assert await state(engine, job) == State.WAITING
    words = [ClaimedJob(QUEUE, job.id), ClaimedJob(QUEUE, 12345), ClaimedJob(OTHER, job.id)]
    outcomes = await engine.run(RenewById(words))
    assert [each and each.code for each in outcomes] == ["wrong_state", "job_not_found", "job_not_found"]


async def test_one_push_reaches_several_queues_in_order(engine: Engine) -> None:
    first, second = await across(engine, (QUEUE, [JobSpec(b"1"), JobSpec(b"2")]), (OTHER, [JobSpec(b"3")]))
    assert [job.id for job in await claim_all(engine)] == [job.id for job in first]
    assert [job.id for job in await claim_all(engine, queue=OTHER)] == [job.id for job in second]


async def test_a_delay_counts_from_the_moment_of_asking(engine: Engine, clock: ManualClock) -> None:
    command = PushAcross([(QUEUE, [JobSpec(b"1", delay=5_000)])], clock.now_ms() - 2_000)
    ((job,),) = await engine.run(command)
    assert job.run_at == clock.now_ms() + 3_000


async def test_a_key_names_one_job_of_its_namespace(engine: Engine) -> None:
    first = await keyed(engine)
    again = await keyed(engine, queue=OTHER)
    elsewhere = await keyed(engine, queue=QueueKey("tenant", "mail"))
    assert first.id == again.id != elsewhere.id


async def test_a_job_nobody_has_seen_takes_over_what_a_repeat_says(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, b"old", delay=60_000)
    assert (await keyed(engine, b"new", priority=7, delay=5_000)).id == first.id
    job = await stored(engine, first)
    assert job is not None
    assert (job.state, job.priority, job.run_at) == (State.DELAYED, 7, clock.now_ms() + 5_000)
    await keyed(engine, b"newest")
    delivery = await claim(engine)
    assert delivery is not None
    assert (delivery.job.id, delivery.payload.data) == (first.id, b"newest")


async def test_a_repeat_that_says_the_same_writes_nothing(engine: Engine) -> None:
    await keyed(engine, delay=60_000)
    before = engine.store.journal_next
    await keyed(engine, delay=60_000)
    assert engine.store.journal_next == before


@pytest.mark.parametrize("end", ["active", "retried", "completed", "dead"])
async def test_a_job_that_was_handed_out_stays_as_it_is(engine: Engine, end: str) -> None:
    first = await keyed(engine, b"old", max_attempts=1 if end == "dead" else 3)
    await claim_job(engine)
    if end == "completed":
        await ack(engine, first)
    elif end != "active":
        await fail(engine, first)
    before = await stored(engine, first)
    assert (await keyed(engine, b"new", priority=9)).id == first.id
    assert await stored(engine, first) == before


async def test_repeats_in_one_push_and_in_one_batch_are_one_job(engine: Engine) -> None:
    twice = [JobSpec(b"1", job_id=KEY), JobSpec(b"2", job_id=KEY)]
    futures = [engine.run(PushAcross([(QUEUE, twice)], engine.clock.now_ms())) for _ in range(2)]
    ids = {job.id for future in futures for part in await future for job in part}
    assert len(ids) == 1
    (delivery,) = [await claim(engine)]
    assert delivery is not None
    assert delivery.payload.data == b"2"
    assert await claim(engine) is None


async def test_no_other_producer_may_choose_such_an_id(engine: Engine) -> None:
    await keyed(engine)
    for name in (KEY, f"{IDEMPOTENCY_PREFIX}free"):
        with pytest.raises(InvalidInput, match="must not begin with"):
            await push(engine, job_id=name)


async def test_an_ack_completes_and_may_be_repeated(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    for _ in range(2):
        await ack_by_id(engine, job.id)
        assert await state(engine, job) == State.COMPLETED
    with pytest.raises(JobNotFound, match="There is no message 12345 in this topic"):
        await ack_by_id(engine, 12345)


async def test_an_ack_of_what_nobody_has_in_hand_is_refused(engine: Engine) -> None:
    job = await push(engine)
    with pytest.raises(WrongState, match="Dequeue it first"):
        await ack_by_id(engine, job.id)
    assert await state(engine, job) == State.WAITING
    await claim_job(engine)
    await nack_by_id(engine, job.id, "broken")
    with pytest.raises(WrongState):
        await ack_by_id(engine, job.id)
    with pytest.raises(WrongState):
        await nack_by_id(engine, job.id, "broken")


async def test_a_job_of_another_queue_or_namespace_is_not_touched(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    for queue in (OTHER, QueueKey("tenant", "mail")):
        with pytest.raises(JobNotFound):
            await ack_by_id(engine, job.id, queue)
        with pytest.raises(JobNotFound):
            await nack_by_id(engine, job.id, None, queue)
    assert await state(engine, job) == State.ACTIVE


@pytest.mark.parametrize("removed", [False, True])
async def test_an_ack_after_the_end_of_the_lease_still_completes(engine: Engine, clock: ManualClock, removed: bool) -> None:
    job = await push(engine, flags=2 if removed else 0)
    await claim_job(engine, lease_ms=1_000)
    await clock.advance(1_000)
    assert await state(engine, job) == State.WAITING
    await ack_by_id(engine, job.id)
    assert await state(engine, job) == (State.NOWHERE if removed else State.COMPLETED)
    assert await claim(engine) is None


async def test_a_late_ack_counts_although_the_next_one_failed(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine, lease_ms=1_000)
    await clock.advance(1_000)
    await claim_job(engine)
    await nack_by_id(engine, job.id, "broken")
    assert await state(engine, job) == State.DELAYED
    await ack_by_id(engine, job.id)
    assert await state(engine, job) == State.COMPLETED


async def test_a_late_nack_is_noted_and_not_counted_twice(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine, lease_ms=1_000)
    await clock.advance(1_000)
    await nack_by_id(engine, job.id, "too slow")
    found = await stored(engine, job)
    assert found is not None
    assert (found.state, found.attempts, details_of(found).error) == (State.WAITING, 1, "too slow")


async def test_an_ack_from_an_earlier_life_is_refused(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, max_attempts=1)
    await claim_job(engine, lease_ms=1_000)
    await clock.advance(1_000)
    with pytest.raises(WrongState, match="dead letter queue"):
        await ack_by_id(engine, job.id)
    await move(engine, job, Arrow.REVIVE)
    with pytest.raises(WrongState):
        await ack_by_id(engine, job.id)


async def test_the_third_nack_buries(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, backoff=2_000)
    for wait_ms in (2_000, 4_000):
        await claim_job(engine)
        await nack_by_id(engine, job.id, "broken")
        await clock.advance(wait_ms - 1)
        assert await claim(engine) is None
        await clock.advance(1)
    await claim_job(engine)
    await nack_by_id(engine, job.id, "broken")
    assert await state(engine, job) == State.DEAD


async def test_of_many_each_has_an_outcome_of_its_own(engine: Engine) -> None:
    done, waiting = (await across(engine, (QUEUE, [JobSpec(b"1"), JobSpec(b"2")])))[0]
    await claim_job(engine)
    ((elsewhere,),) = await across(engine, (OTHER, [JobSpec(b"3")]))
    await claim_job(engine, queue=OTHER)
    words = [ClaimedJob(QUEUE, done.id), ClaimedJob(QUEUE, waiting.id), ClaimedJob(QUEUE, 12345), ClaimedJob(QUEUE, done.id)]
    outcomes = await engine.run(AckById([*words, ClaimedJob(OTHER, elsewhere.id)]))
    assert [each and each.code for each in outcomes] == [None, "wrong_state", "job_not_found", None, None]
    assert [await state(engine, job) for job in (done, waiting, elsewhere)] == [
        State.COMPLETED,
        State.WAITING,
        State.COMPLETED,
    ]


async def test_of_many_failures_each_has_its_own_error(engine: Engine) -> None:
    jobs = (await across(engine, (QUEUE, [JobSpec(b"1"), JobSpec(b"2")])))[0]
    assert len(await claim_all(engine)) == 2
    words = [ClaimedJob(QUEUE, job.id, f"error {number}") for number, job in enumerate(jobs)]
    outcomes = await engine.run(NackById([words[0], ClaimedJob(QUEUE, 12345, "gone"), words[1]]))
    assert [each and each.code for each in outcomes] == [None, "job_not_found", None]
    for number, job in enumerate(jobs):
        found = await stored(engine, job)
        assert found is not None
        assert (found.state, details_of(found).error) == (State.DELAYED, f"error {number}")
