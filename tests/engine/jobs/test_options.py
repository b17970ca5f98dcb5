"""Options that few jobs have: unique keys for a time, and rules of a job's own for stalls, retries, stacks and logs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import limits
from penstock.core.errors import InvalidInput, WrongState
from penstock.core.events import EventKind
from penstock.core.job import BackoffType, Dedup, Details, JobFlag, JobSpec, details_of, encode_details
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import StallConfig, StateCounts
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import LeaseRef, Nack
from penstock.engine.jobs.update import AddLog, EditData
from penstock.engine.queues.admin import Configure
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, state, stored

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

LATEST = Dedup(10_000, extend=True, replace=True)


async def keyed(engine: Engine, dedup: Dedup | None = None, key: str = "k", **options: Any) -> JobRecord:
    return await push(engine, unique_key=key, dedup=dedup, **options)


def rules(**given: Any) -> dict[str, Any]:
    return {"details": encode_details(Details(**given))}


async def payload(engine: Engine, job: JobRecord) -> bytes:
    found = await engine.store.job_get("default", job.id)
    assert found is not None
    return found[1].data


# A key for a time.


@pytest.mark.parametrize("where", ["waiting", "delayed", "active", "waiting-children"])
async def test_a_key_is_free_when_its_time_is_over_though_its_job_lives(
    engine: Engine, clock: ManualClock, where: str
) -> None:
    child = await push(engine, priority=-1)
    needs = (child.id,) if where == "waiting-children" else ()
    first = await keyed(engine, Dedup(5_000), delay=60_000 if where == "delayed" else 0, needs=needs)
    if where == "active":
        assert (await claim_job(engine)).id == first.id
    await clock.advance(4_999)
    assert (await keyed(engine, Dedup(5_000))).id == first.id
    await clock.advance(1)
    second = await keyed(engine, Dedup(5_000))
    assert second.id != first.id
    assert (await keyed(engine)).id == second.id
    before, after = await stored(engine, first), await stored(engine, second)
    assert before is not None
    assert after is not None
    assert (before.unique_key, after.unique_key) == (None, "k")
    assert await state(engine, first) is State[where.upper().replace("-", "_")]


async def test_a_key_is_free_before_its_time_is_over_if_its_job_is_done(engine: Engine) -> None:
    first = await keyed(engine, Dedup(60_000))
    await claim_job(engine)
    await ack(engine, first)
    assert (await keyed(engine, Dedup(60_000))).id != first.id


async def test_the_time_of_a_key_survives_a_retry_and_a_plain_push_ends_with_it(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, Dedup(5_000), backoff=60_000)
    await claim_job(engine)
    await fail(engine, first)
    assert (await keyed(engine)).id == first.id
    await clock.advance(5_000)
    assert (await keyed(engine)).id != first.id


async def test_a_duplicate_that_extends_lets_the_time_begin_again(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, Dedup(5_000))
    for _ in range(3):
        await clock.advance(4_000)
        assert (await keyed(engine, Dedup(5_000, extend=True))).id == first.id
    await clock.advance(4_999)
    assert (await keyed(engine, Dedup(5_000))).id == first.id
    await clock.advance(1)
    assert (await keyed(engine, Dedup(5_000))).id != first.id


async def test_a_duplicate_puts_no_end_to_a_key_that_has_none(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine)
    assert (await keyed(engine, Dedup(5_000, extend=True))).id == first.id
    await clock.advance(50_000)
    assert (await keyed(engine)).id == first.id


async def test_the_job_that_lost_its_key_lives_on_and_can_come_back_from_the_dead(
    engine: Engine, clock: ManualClock
) -> None:
    first = await keyed(engine, Dedup(5_000), max_attempts=1)
    await claim_job(engine)
    await clock.advance(5_000)
    second = await keyed(engine)
    await fail(engine, first)
    await move(engine, first, Arrow.REVIVE)
    assert [job.id for job in await claim_all(engine)] == [second.id, first.id]


async def test_a_dead_job_comes_back_without_a_key_whose_time_is_over(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, Dedup(5_000), max_attempts=1)
    await claim_job(engine)
    await fail(engine, first)
    second = await keyed(engine)
    with pytest.raises(WrongState):
        await move(engine, first, Arrow.REVIVE)
    await clock.advance(5_000)
    await move(engine, first, Arrow.REVIVE)
    assert [job.id for job in await claim_all(engine)] == [second.id, first.id]


# Taking the place of another.


async def test_a_duplicate_that_replaces_makes_the_waiting_job_what_it_says_itself(
    engine: Engine, clock: ManualClock
) -> None:
    first = await keyed(engine, LATEST, data=b"old", priority=5, group_id="g", ttl=60_000, flags=JobFlag.LIFO)
    other = await push(engine)
    await clock.advance(1_000)
    again = await keyed(
        engine, LATEST, data=b"newer", max_attempts=7, backoff=5, timeout=9, ttl=2_000, flags=JobFlag.REMOVE_ON_FAIL
    )
    assert again.id == first.id
    found = await stored(engine, first)
    assert found is not None
    assert (found.priority, found.group_id, found.max_attempts, found.backoff, found.timeout) == (0, None, 7, 5, 9)
    assert (found.flags, found.size) == (JobFlag.REMOVE_ON_FAIL, 5)
    assert found.expires_at == found.created_at + 2_000 == clock.now_ms() + 2_000
    assert await payload(engine, first) == b"newer"
    assert [job.id for job in await claim_all(engine)] == [other.id, first.id]
    assert engine.store.totals() == StateCounts(active=2)
    assert engine.stats.pushed == 2


async def test_debouncing_only_the_last_of_a_burst_runs_and_only_when_it_is_over(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, Dedup(5_000, extend=True, replace=True), data=b"0", delay=5_000)
    for n in range(1, 4):
        await clock.advance(4_000)
        again = await keyed(engine, Dedup(5_000, extend=True, replace=True), data=str(n).encode(), delay=5_000)
        assert again.id == first.id
    await clock.advance(4_999)
    assert await claim(engine) is None
    await clock.advance(1)
    delivery = await claim(engine)
    assert delivery is not None
    assert (delivery.job.id, delivery.payload.data) == (first.id, b"3")
    assert await claim(engine) is None


async def test_replacing_moves_between_waiting_and_delayed(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, LATEST)
    await keyed(engine, LATEST, delay=3_000)
    assert await state(engine, first) is State.DELAYED
    await keyed(engine, LATEST)
    assert await state(engine, first) is State.WAITING
    await keyed(engine, LATEST, delay=3_000)
    await clock.advance(3_000)
    assert (await claim_job(engine)).id == first.id


async def test_a_job_that_waits_for_its_next_attempt_starts_over(engine: Engine) -> None:
    first = await keyed(engine, LATEST, backoff=60_000)
    await claim_job(engine)
    await fail(engine, first)
    await keyed(engine, LATEST, data=b"new")
    found = await claim_job(engine)
    assert (found.id, found.attempts, details_of(found).error) == (first.id, 0, None)


async def test_nobody_is_replaced_while_somebody_works_on_it(engine: Engine) -> None:
    first = await keyed(engine, LATEST, data=b"old")
    await claim_job(engine)
    assert (await keyed(engine, LATEST, data=b"new")).id == first.id
    assert await payload(engine, first) == b"old"
    assert engine.store.totals() == StateCounts(active=1)


async def test_a_replaced_job_is_still_needed_by_those_that_need_it(engine: Engine) -> None:
    child = await keyed(engine, LATEST, data=b"old")
    parent = await push(engine, needs=(child.id,))
    await keyed(engine, LATEST, data=b"new")
    await claim_job(engine)
    await ack(engine, child, b"1")
    assert await state(engine, parent) is State.WAITING


async def test_within_one_bulk_a_job_is_replaced_as_often_as_it_is_named(engine: Engine, clock: ManualClock) -> None:
    stored_before = await keyed(engine, LATEST, data=b"old", group_id="g")
    bulk = [
        JobSpec(b"1", unique_key="k", dedup=LATEST, priority=2, group_id="h"),
        JobSpec(b"a", unique_key="l", dedup=LATEST),
        JobSpec(b"2", unique_key="k", dedup=LATEST),
        JobSpec(b"b", unique_key="l", dedup=LATEST, delay=3_000, job_id="own"),
        JobSpec(b"c", unique_key="m", dedup=LATEST, delay=3_000),
        JobSpec(b"d", unique_key="m", dedup=LATEST, group_id="h"),
    ]
    jobs = await engine.run(Push(QUEUE, bulk))
    assert [job.id for job in jobs] == [stored_before.id, jobs[1].id, stored_before.id, jobs[1].id, jobs[4].id, jobs[4].id]
    assert [await payload(engine, job) for job in (jobs[0], jobs[1], jobs[4])] == [b"2", b"b", b"d"]
    assert engine.store.totals() == StateCounts(waiting=2, delayed=1)
    assert {job.id for job in await claim_all(engine)} == {jobs[0].id, jobs[4].id}
    await clock.advance(3_000)
    assert (await claim_job(engine)).id == jobs[1].id


async def test_a_job_is_replaced_after_another_push_of_its_batch_had_to_count(engine: Engine) -> None:
    """A push with room writes what came before it in the batch."""
    pushes = [
        Push(QUEUE, [JobSpec(b"1", unique_key="k", dedup=LATEST)]),
        Push(QUEUE, [JobSpec(b"2")], room=2),
        Push(QUEUE, [JobSpec(b"3", unique_key="k", dedup=LATEST)]),
    ]
    (first,), _, (again,) = await asyncio.gather(*(engine.run(each) for each in pushes))
    assert first.id == again.id
    assert await payload(engine, first) == b"3"
    assert engine.store.totals() == StateCounts(waiting=2)


async def test_within_one_bulk_the_last_wins_and_others_keep_what_they_got(engine: Engine) -> None:
    jobs = await engine.run(
        Push(
            QUEUE,
            [
                JobSpec(b"child", job_id="c"),
                JobSpec(b"1", unique_key="k", dedup=LATEST),
                JobSpec(b"2", unique_key="k", dedup=LATEST),
                JobSpec(b"parent", needs=("c",)),
                JobSpec(b"3", unique_key="k", dedup=LATEST),
                JobSpec(b"plain", unique_key="k"),
            ],
        )
    )
    assert len({job.id for job in jobs}) == 3
    assert await payload(engine, jobs[1]) == b"3"
    assert engine.store.totals() == StateCounts(waiting=2, waiting_children=1)
    for job in await claim_all(engine):
        await ack(engine, job)
    assert await state(engine, jobs[3]) is State.WAITING  # the child knew that somebody needs it


async def test_a_group_of_which_a_job_was_replaced_goes_on(engine: Engine) -> None:
    first = await keyed(engine, LATEST, group_id="g")
    second = await push(engine, group_id="g")
    await keyed(engine, LATEST, group_id="h")
    assert {job.id for job in await claim_all(engine)} == {first.id, second.id}


async def test_a_key_that_is_replaced_without_extending_keeps_its_time(engine: Engine, clock: ManualClock) -> None:
    first = await keyed(engine, Dedup(5_000), data=b"1")
    await clock.advance(3_000)
    assert (await keyed(engine, Dedup(5_000, replace=True), data=b"2")).id == first.id
    await clock.advance(2_000)
    assert (await keyed(engine, Dedup(5_000))).id != first.id


async def test_a_replacement_is_told(engine: Engine) -> None:
    await keyed(engine, LATEST)
    await keyed(engine, LATEST, priority=3, delay=100)
    blocks = await engine.store.journal_read(1, 100)
    kinds = [EventKind(event[0]) for block in blocks for event in block.events]
    assert kinds[-3:] == [EventKind.JOB_DATA_UPDATED, EventKind.JOB_PRIORITY_CHANGED, EventKind.JOB_DELAYED]


# When a producer made it.


async def test_a_delay_and_a_time_to_live_count_from_when_the_producer_made_the_job(
    engine: Engine, clock: ManualClock
) -> None:
    made = clock.now_ms() - 3_000
    late = await push(engine, timestamp=made, delay=5_000)
    at_once = await push(engine, timestamp=made, delay=2_000)
    short = await push(engine, timestamp=made, ttl=4_000)
    ahead = await push(engine, timestamp=clock.now_ms() + 60_000)
    assert {late.created_at, at_once.created_at, short.created_at} == {made}
    assert [await state(engine, job) for job in (late, at_once, ahead)] == [State.DELAYED, State.WAITING, State.WAITING]
    await clock.advance(1_000)
    assert await state(engine, short) is State.NOWHERE
    await clock.advance(1_000)
    assert await state(engine, late) is State.WAITING


async def test_what_was_over_before_it_arrived_is_never_delivered(engine: Engine, clock: ManualClock) -> None:
    await push(engine, timestamp=clock.now_ms() - 5_000, ttl=5_000)
    assert await claim(engine) is None


# Stalls.


async def test_a_job_with_a_stall_timeout_of_its_own_is_lost_by_it(engine: Engine, clock: ManualClock) -> None:
    await push(engine, **rules(stall_timeout=8_000))
    job = await claim_job(engine)
    assert job.lease_ms == 8_000
    await clock.advance(8_000)
    assert await state(engine, job) is State.WAITING


@pytest.mark.parametrize(
    ("own", "asked", "lease"),
    [(60_000, None, 60_000), (1_000, None, 5_000), (8_000, 20_000, 8_000), (60_000, 20_000, 20_000), (None, 20_000, 20_000)],
)
async def test_the_lease_is_never_shorter_than_the_grace_and_the_shorter_of_what_was_asked_for(
    engine: Engine, own: int | None, asked: int | None, lease: int
) -> None:
    await push(engine, **rules(stall_timeout=own))
    assert (await claim_job(engine, lease_ms=asked)).lease_ms == lease


async def test_a_queue_that_looks_for_no_stalls_looks_for_none(engine: Engine) -> None:
    await push(engine, **rules(stall_timeout=8_000))
    off = StallConfig(enabled=False)
    await engine.run(
        Configure(QUEUE, EventKind.CONFIG_STALL_CHANGED, lambda old: msgspec.structs.replace(old, stall=off), lambda _: None)
    )
    assert (await claim_job(engine)).lease_until is None


# Retries.


async def waits(engine: Engine, clock: ManualClock, job: JobRecord, count: int) -> list[int]:
    found = []
    for _ in range(count):
        await claim_job(engine)
        await fail(engine, job)
        failed = await stored(engine, job)
        assert failed is not None
        found.append(failed.run_at - clock.now_ms())
        await clock.advance(found[-1])
    return found


async def test_a_fixed_backoff_is_the_same_each_time(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, max_attempts=5, backoff=700, **rules(backoff_type=BackoffType.FIXED))
    assert await waits(engine, clock, job, 4) == [700, 700, 700, 700]


async def test_an_exponential_backoff_may_have_an_upper_end(engine: Engine, clock: ManualClock) -> None:
    limited = rules(backoff_type=BackoffType.EXPONENTIAL, backoff_max=3_000)
    job = await push(engine, max_attempts=6, backoff=1_000, **limited)
    assert await waits(engine, clock, job, 4) == [1_000, 2_000, 3_000, 3_000]


# Stacks.


async def stack_after(engine: Engine, stack: list[str] | None, **options: Any) -> list[str] | None:
    job = await push(engine, max_attempts=1, **options)
    await claim_job(engine)
    assert await engine.run(Nack("default", [LeaseRef(job.id)], "broken", stack=stack)) == [None]
    found = await stored(engine, job)
    assert found is not None
    return details_of(found).stack


async def test_of_a_stack_the_first_lines_are_kept(engine: Engine) -> None:
    lines = [f"line {n}" for n in range(50)]
    assert await stack_after(engine, lines) == lines[: limits.stack_lines]
    assert await stack_after(engine, lines, **rules(stack_limit=3)) == lines[:3]
    assert await stack_after(engine, lines, **rules(stack_limit=0)) == []
    assert await stack_after(engine, None) is None


async def test_a_stack_has_room_for_so_much_and_no_more(engine: Engine) -> None:
    half = "x" * (limits.stack_chars_max // 2)
    kept = await stack_after(engine, [half, half + "rest", "never"])
    assert kept == [half, half]


async def test_a_stack_belongs_to_the_failure_it_came_with(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, backoff=0)
    await claim_job(engine)
    await engine.run(Nack("default", [LeaseRef(job.id)], "broken", stack=["here"]))
    await claim_job(engine)
    await clock.advance(30_000)
    found = await stored(engine, job)
    assert found is not None
    assert (details_of(found).error, details_of(found).stack) == ("Job stalled 1 times", None)


# Logs and sizes.


@pytest.mark.parametrize(("keep", "kept"), [(None, 5), (2, 2), (0, 0), (1_000, 5)])
async def test_of_a_log_as_many_lines_are_kept_as_the_job_says(engine: Engine, keep: int | None, kept: int) -> None:
    job = await push(engine, **rules(keep_logs=keep))
    for n in range(5):
        await engine.run(AddLog("default", job.id, "info", str(n)))
    assert [entry.message for entry in await engine.store.log_get(job.id)] == [str(n) for n in range(5 - kept, 5)]


async def test_no_job_keeps_more_lines_than_there_is_room_for(engine: Engine) -> None:
    job = await push(engine, **rules(keep_logs=1_000))
    for n in range(limits.logs_per_job_max + 5):
        await engine.run(AddLog("default", job.id, "info", str(n)))
    assert len(await engine.store.log_get(job.id)) == limits.logs_per_job_max


async def test_an_edit_cannot_make_a_job_larger_than_it_may_be(engine: Engine) -> None:
    job = await push(engine, data=b"12", **rules(size_limit=3))
    await engine.run(EditData("default", job.id, b"123"))
    with pytest.raises(InvalidInput, match="sizeLimit is 3"):
        await engine.run(EditData("default", job.id, b"1234"))
    assert await payload(engine, job) == b"123"


async def test_rules_survive_what_happens_to_a_job(engine: Engine) -> None:
    job = await push(engine, backoff=0, **rules(stall_timeout=8_000, stack_limit=2))
    await claim_job(engine, owner="w1")
    await fail(engine, job)
    assert (await claim_job(engine, owner="w2")).lease_ms == 8_000


async def test_a_job_with_a_moment_of_its_own_is_due_at_that_very_moment(engine: Engine, clock: ManualClock) -> None:
    at = clock.now_ms() + 5_000
    await clock.advance(1_234)  # however long the push was on its way
    later = await push(engine, due_at=at)
    past = await push(engine, due_at=clock.now_ms() - 1)
    assert (later.run_at, await state(engine, later)) == (at, State.DELAYED)
    assert (past.run_at, await state(engine, past)) == (clock.now_ms(), State.WAITING)
    await ack(engine, await claim_job(engine))
    clock.jump_wall(-1_000)
    await clock.advance(at - clock.now_ms() - 1)
    assert await claim(engine) is None
    await clock.advance(1)
    assert (await claim_job(engine)).id == later.id
    assert await claim(engine) is None
