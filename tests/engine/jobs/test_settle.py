"""What workers say: only who holds the latest lease is heard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.errors import JobNotFound, StaleLease, WrongState
from penstock.core.events import EventKind
from penstock.core.job import DeathReason, JobFlag, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import StallConfig, StateCounts
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack, Release, ReportProgress
from penstock.engine.jobs.update import MoveJob
from penstock.engine.queues.admin import Configure
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push, push_many, renew, state, stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import ManualClock
    from penstock.core.queue import QueueKey
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def test_an_ack_completes_and_keeps_the_result_byte_for_byte(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    assert await ack(engine, job, b'{ "a" : 1 }') is None
    assert await state(engine, job) is State.COMPLETED
    assert await engine.store.result_get(job.id) == b'{ "a" : 1 }'


async def test_the_queue_of_a_job_is_reported_for_settled_jobs_only(engine: Engine) -> None:
    (held, waiting) = await push_many(engine, 2)
    await claim_job(engine)
    settled: list[QueueKey] = []
    holds = [LeaseRef(held.id), LeaseRef(waiting.id)]
    outcomes = await engine.run(Ack("default", holds, [None, None], when_settled=settled.append))
    assert [outcome is None for outcome in outcomes] == [True, False]
    assert settled == [QUEUE]


async def test_an_ack_needs_an_active_job(engine: Engine) -> None:
    job = await push(engine)
    assert isinstance(await ack(engine, job), WrongState)
    await claim_job(engine)
    assert await ack(engine, job) is None
    assert isinstance(await ack(engine, job), WrongState)
    (outcome,) = await engine.run(Ack("default", [LeaseRef(12345)], [None]))
    assert isinstance(outcome, JobNotFound)
    (outcome,) = await engine.run(Ack("other", [LeaseRef(job.id)], [None]))
    assert isinstance(outcome, JobNotFound)


@pytest.mark.parametrize("verb", ["ack", "fail", "renew"])
async def test_a_stale_token_changes_nothing_and_the_new_holders_counts(
    engine: Engine, clock: ManualClock, verb: str
) -> None:
    job = await push(engine)
    old = (await claim_job(engine, lease_ms=1_000)).token
    await clock.advance(1_000)
    new = (await claim_job(engine)).token
    verbs: dict[str, Callable[..., Awaitable[object]]] = {"ack": ack, "fail": fail, "renew": renew}
    say = verbs[verb]
    before = await stored(engine, job)
    assert isinstance(await say(engine, job, token=old), StaleLease)
    assert isinstance(await say(engine, job, token=-1), StaleLease)
    assert await stored(engine, job) == before
    assert await say(engine, job, token=new) is None


async def test_a_batch_of_acks_judges_each_by_itself(engine: Engine) -> None:
    await push_many(engine, 3)
    a, b, c = await claim_all(engine)
    outcomes = await engine.run(
        Ack(
            "default",
            [LeaseRef(a.id), LeaseRef(999), LeaseRef(b.id, -1), LeaseRef(c.id), LeaseRef(a.id)],
            [b"1", None, None, b"3", b"again"],
        )
    )
    kinds = [None if outcome is None else type(outcome) for outcome in outcomes]
    assert kinds == [None, JobNotFound, StaleLease, None, WrongState]
    assert await engine.store.result_get(a.id) == b"1"


async def test_remove_on_complete_leaves_nothing(engine: Engine) -> None:
    job = await push(engine, flags=JobFlag.REMOVE_ON_COMPLETE)
    await claim_job(engine)
    assert await ack(engine, job, b"1") is None
    assert await stored(engine, job) is None
    assert await engine.store.result_get(job.id) is None
    assert engine.store.totals() == StateCounts()
    assert engine.stats.completed == 1


async def test_a_failed_job_waits_longer_each_time_and_is_dead_after_its_attempts(
    engine: Engine, clock: ManualClock
) -> None:
    job = await push(engine, backoff=1_000, max_attempts=3)
    for wait in (1_000, 2_000):
        await claim_job(engine)
        assert await fail(engine, job, f"after {wait}") is None
        found = await stored(engine, job)
        assert found is not None
        assert (State(found.state), found.run_at) == (State.DELAYED, clock.now_ms() + wait)
        assert details_of(found).error == f"after {wait}"
        await clock.advance(wait)
    await claim_job(engine)
    await fail(engine, job, "for good")
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), found.attempts) == (State.DEAD, 3)
    assert (details_of(found).error, details_of(found).reason) == ("for good", DeathReason.MAX_ATTEMPTS)


async def test_a_failure_for_good_is_dead_at_once(engine: Engine) -> None:
    await push(engine, max_attempts=10)
    job = await claim_job(engine)
    assert await engine.run(Nack("default", [LeaseRef(job.id, job.token)], "no use", final=True)) == [None]
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), found.attempts) == (State.DEAD, 1)
    assert details_of(found).reason == DeathReason.UNRECOVERABLE


async def test_a_long_error_is_cut_not_refused(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    assert await fail(engine, job, "x" * 1_000_000) is None
    found = await stored(engine, job)
    assert found is not None
    assert len(details_of(found).error or "") == 65_536


async def test_remove_on_fail_deletes_after_the_last_attempt(engine: Engine) -> None:
    job = await push(engine, max_attempts=1, flags=JobFlag.REMOVE_ON_FAIL)
    await claim_job(engine)
    await fail(engine, job)
    assert await stored(engine, job) is None


async def test_a_silent_worker_loses_its_job_after_its_lease_and_no_earlier(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    await clock.advance(29_999)
    assert await state(engine, job) is State.ACTIVE
    await clock.advance(1)
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), found.attempts, found.stalls) == (State.WAITING, 1, 1)


async def test_heartbeats_keep_a_job_with_and_without_a_token(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    token = (await claim_job(engine)).token
    for shown in (token, None) * 5:
        await clock.advance(25_000)
        assert await renew(engine, job, token=shown) is None
    assert await state(engine, job) is State.ACTIVE


async def test_an_extension_counts_from_now(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    assert await renew(engine, job, 100_000) is None
    await clock.advance(99_999)
    assert await state(engine, job) is State.ACTIVE
    await clock.advance(1)
    assert await state(engine, job) is State.WAITING


async def test_progress_is_kept_and_counts_as_a_heartbeat(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    await clock.advance(20_000)
    assert await engine.run(ReportProgress("default", [LeaseRef(job.id)], 40, "on it")) == [None]
    await clock.advance(20_000)
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), found.progress, details_of(found).progress_message) == (State.ACTIVE, 40, "on it")


async def test_a_job_that_stalls_too_often_is_dead_exactly_once(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, max_attempts=10)
    for _ in range(3):
        assert (await claim_job(engine)).id == job.id
        await clock.advance(30_000)
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), found.stalls) == (State.DEAD, 3)
    assert details_of(found).reason == DeathReason.STALLED
    assert await claim(engine) is None


async def test_a_worker_that_always_dies_gets_the_job_max_attempts_times(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, max_attempts=2)
    deliveries = 0
    while await claim(engine) is not None:
        deliveries += 1
        await clock.advance(30_000)
    assert deliveries == 2
    assert await state(engine, job) is State.DEAD


async def test_a_timeout_ends_a_job_however_lively_its_worker(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, timeout=10_000, max_attempts=1)
    await claim_job(engine)
    for _ in range(4):
        await clock.advance(2_400)
        assert await renew(engine, job) is None
    await clock.advance(400)
    found = await stored(engine, job)
    assert found is not None
    assert State(found.state) is State.DEAD
    assert (details_of(found).error, details_of(found).reason) == ("Job timeout exceeded", DeathReason.TIMEOUT)


async def test_a_release_gives_the_job_back_at_its_old_place_at_no_cost(engine: Engine) -> None:
    first, second = await push_many(engine, 2)
    await claim_all(engine)
    assert await engine.run(Release("default", [LeaseRef(second.id), LeaseRef(first.id)])) == [None, None]
    again = await claim_all(engine)
    assert [(job.id, job.attempts, job.stalls) for job in again] == [(first.id, 0, 0), (second.id, 0, 0)]


async def test_a_heartbeat_in_the_moment_the_lease_ends_is_heard_first(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine, lease_ms=29_500)
    await clock.advance(29_000)
    engine.timer.stop()  # so that the heartbeat and the end of the lease meet in one batch
    await clock.advance(500)
    assert await renew(engine, job) is None
    assert await state(engine, job) is State.ACTIVE


async def test_after_a_long_silence_of_the_server_itself_heartbeats_get_a_chance(engine: Engine, clock: ManualClock) -> None:
    alive, silent = await push_many(engine, 2)
    await claim_all(engine)
    await engine.stop_services()
    await clock.advance(45_000)  # as if the process had been suspended
    engine.start()
    await push(engine)  # the first thing that happens afterwards does not judge the leases yet
    assert await state(engine, silent) is State.ACTIVE
    assert await renew(engine, alive) is None
    await clock.advance(2_000)
    assert await state(engine, alive) is State.ACTIVE
    assert await state(engine, silent) is State.WAITING


async def test_a_jump_of_the_wall_clock_ends_no_lease_and_prolongs_none(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    clock.jump_wall(+3_600_000)
    await clock.advance(29_000)
    assert await state(engine, job) is State.ACTIVE
    clock.jump_wall(-7_200_000)
    await clock.advance(1_000)
    assert await state(engine, job) is State.WAITING


async def test_a_failure_report_for_a_cancelled_job_is_too_late(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    await move(engine, job, Arrow.CANCEL)
    (outcome,) = await engine.run(Nack("default", [LeaseRef(job.id)], "late"))
    assert isinstance(outcome, JobNotFound)


async def test_a_heartbeat_never_shortens_a_longer_extension(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine, lease_ms=1_000)
    assert await renew(engine, job, 600_000) is None
    assert await renew(engine, job) is None
    await engine.run(ReportProgress("default", [LeaseRef(job.id)], 50, None))
    await clock.advance(500_000)
    assert await ack(engine, job) is None


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_timeout_takes_an_attempt_and_is_no_stall(engine: Engine, clock: ManualClock, enabled: bool) -> None:
    await engine.run(
        Configure(
            QUEUE,
            EventKind.CONFIG_STALL_CHANGED,
            lambda old: msgspec.structs.replace(old, stall=StallConfig(enabled=enabled, max_stalls=2)),
        )
    )
    job = await push(engine, timeout=1_000, max_attempts=5)
    for attempt in range(1, 6):
        await claim_job(engine)
        await clock.advance(1_000)
        found = await stored(engine, job)
        assert found is not None
        assert found.attempts == attempt
        assert State(found.state) is (State.WAITING if attempt < 5 else State.DEAD)
    assert found is not None
    assert details_of(found).reason == DeathReason.TIMEOUT


async def test_every_silence_of_the_server_gives_heartbeats_a_chance(engine: Engine, clock: ManualClock) -> None:
    for _ in range(2):
        job = await push(engine)
        await claim_job(engine)
        await engine.stop_services()
        await clock.advance(45_000)
        engine.start()
        assert await renew(engine, job) is None
        await clock.advance(2_000)
        assert await ack(engine, job) is None


async def test_an_ack_and_a_replay_in_one_batch_leave_no_result_behind(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    acked = engine.run(Ack("default", [LeaseRef(job.id)], [b"old"]))
    replayed = engine.run(MoveJob("default", job.id, Arrow.REPLAY))
    await asyncio.gather(acked, replayed)
    assert await state(engine, job) is State.WAITING
    assert await engine.store.result_get(job.id) is None
    await claim_job(engine)
    assert await ack(engine, job) is None
    assert await engine.store.result_get(job.id) is None


@pytest.mark.parametrize("arrow", [Arrow.REVIVE, Arrow.REPLAY])
async def test_a_job_that_is_brought_back_does_not_expire_at_once(engine: Engine, clock: ManualClock, arrow: Arrow) -> None:
    job = await push(engine, ttl=1_000, max_attempts=1)
    await claim_job(engine)
    assert await (fail if arrow is Arrow.REVIVE else ack)(engine, job) is None
    await clock.advance(5_000)
    await move(engine, job, arrow)
    await clock.advance(5_000)
    assert (await claim_job(engine)).id == job.id
