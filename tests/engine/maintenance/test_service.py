"""Housekeeping: what is kept, for how long, and dead letters that are tried again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core import limits
from penstock.core.durability import Durability
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import DlqConfig, StateCounts
from penstock.core.retention import Retention
from penstock.engine.engine import Engine
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack
from penstock.engine.maintenance.dead_letter_service import DeadLetterService
from penstock.engine.maintenance.retention import RetentionService
from penstock.engine.maintenance.service import PeriodicService
from penstock.engine.queues import admin
from penstock.engine.queues.admin import Configure
from tests.support.engines import QUEUE, ack, claim_all, fail, move, push, push_many, state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


@pytest.fixture
async def engine(store: SqliteStore, clock: ManualClock) -> AsyncIterator[Engine]:
    keep = Retention(completed_max=10, completed_age_ms=60_000, journal_bytes_max=1 << 40, journal_age_ms=60_000)
    running = Engine(store, clock, durability=Durability.NEVER, retention=keep)
    yield running
    await running.close()


async def complete(engine: Engine, count: int) -> list[JobRecord]:
    await push_many(engine, count)
    jobs = await claim_all(engine, count)
    for job in jobs:
        await ack(engine, job, b"1")
    return jobs


async def bury(engine: Engine, count: int) -> list[JobRecord]:
    await push_many(engine, count, max_attempts=1)
    jobs = await claim_all(engine, count)
    for job in jobs:
        await fail(engine, job)
    return jobs


async def dlq(engine: Engine, **rule: object) -> None:
    await engine.run(
        Configure(
            QUEUE,
            EventKind.CONFIG_DLQ_CHANGED,
            lambda old: msgspec.structs.replace(old, dlq=msgspec.structs.replace(DlqConfig(), **rule)),
        )
    )


async def test_the_newest_completed_jobs_are_kept(engine: Engine) -> None:
    jobs = await complete(engine, 15)
    await RetentionService(engine).run_once()
    assert engine.store.totals() == StateCounts(completed=10)
    assert await state(engine, jobs[4]) is State.NOWHERE
    assert await engine.store.result_get(jobs[4].id) is None
    assert await engine.store.result_get(jobs[5].id) == b"1"


async def test_old_completed_jobs_are_forgotten(engine: Engine, clock: ManualClock) -> None:
    await complete(engine, 2)
    await clock.advance(60_001)
    (young,) = await complete(engine, 1)
    await RetentionService(engine).run_once()
    assert engine.store.totals() == StateCounts(completed=1)
    assert await state(engine, young) is State.COMPLETED


@pytest.mark.parametrize("service", [RetentionService, DeadLetterService])
async def test_a_queue_that_is_obliterated_during_a_round_does_not_stop_it(
    engine: Engine, service: type[PeriodicService], monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [QUEUE._replace(name=name) for name in ("first", "gone", "last")]
    for queue in queues:
        await push_many(engine, 2, queue=queue, max_attempts=1)
        done, broken = await claim_all(engine, queue=queue)
        await ack(engine, done, b"1")
        await fail(engine, broken)
    trimmed: list[QueueKey] = []

    async def forget(_self: PeriodicService, queue: Queue, _state: State, **_limits: int | None) -> None:
        if queue.key not in trimmed:
            trimmed.append(queue.key)
        if engine.store.queue_find(queues[1]) is not None:
            await admin.obliterate(engine, queues[1])

    monkeypatch.setattr(PeriodicService, "forget", forget)
    await service(engine).run_once()
    assert trimmed == [queues[0], queues[2]]


async def test_the_old_journal_is_forgotten(engine: Engine, clock: ManualClock) -> None:
    await complete(engine, 3)
    await clock.advance(60_001)
    await push(engine)
    await RetentionService(engine).run_once()
    blocks = await engine.store.journal_read(1, 100)
    assert all(block.at >= clock.now_ms() - 60_000 for block in blocks)
    assert blocks


async def test_dead_jobs_beyond_the_limit_go_oldest_first(engine: Engine) -> None:
    jobs = await bury(engine, 5)
    await dlq(engine, max_entries=2)
    await DeadLetterService(engine).run_once()
    assert [await state(engine, job) for job in jobs] == [State.NOWHERE] * 3 + [State.DEAD] * 2


async def test_dead_jobs_are_forgotten_after_their_age_unless_kept_for_ever(engine: Engine, clock: ManualClock) -> None:
    await bury(engine, 2)
    await dlq(engine, max_age=None)
    await clock.advance(10_000)
    await DeadLetterService(engine).run_once()
    assert engine.store.totals().dead == 2
    await dlq(engine, max_age=5_000)
    await DeadLetterService(engine).run_once()
    assert engine.store.totals().dead == 0


async def test_dead_jobs_are_tried_again_so_many_times(engine: Engine, clock: ManualClock) -> None:
    (job,) = await bury(engine, 1)
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000, max_auto_retries=2)
    service = DeadLetterService(engine)
    for _ in range(2):
        await clock.advance(999)
        await service.run_once()
        assert await state(engine, job) is State.DEAD
        await clock.advance(1)
        await service.run_once()
        assert await state(engine, job) is State.WAITING
        await claim_all(engine)
        await fail(engine, job)
    await clock.advance(10_000)
    await service.run_once()
    assert await state(engine, job) is State.DEAD


async def test_jobs_that_cannot_be_tried_again_do_not_hide_those_behind_them(engine: Engine, clock: ManualClock) -> None:
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000, max_auto_retries=0)
    await bury(engine, 3)
    await clock.advance(1_000)
    service = DeadLetterService(engine)
    await service.run_once()
    assert engine.store.totals().dead == 3
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000, max_auto_retries=1)
    await service.run_once()
    assert engine.store.totals() == StateCounts(waiting=3)


async def test_a_dead_job_whose_unique_key_is_taken_waits_for_it(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, max_attempts=1, unique_key="k")
    await claim_all(engine)
    await fail(engine, job)
    other = await push(engine, unique_key="k")
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000)
    await clock.advance(1_000)
    service = DeadLetterService(engine)
    await service.run_once()
    assert await state(engine, job) is State.DEAD
    await move(engine, other, Arrow.CANCEL)
    await service.run_once()
    assert await state(engine, job) is State.WAITING


async def test_services_run_by_themselves_and_can_be_stopped_twice(engine: Engine, clock: ManualClock) -> None:
    await complete(engine, 15)
    engine.start()
    engine.start()
    await clock.advance(5_000)
    assert engine.store.totals() == StateCounts(completed=10)
    await engine.stop_services()
    await engine.stop_services()


async def test_many_that_died_together_and_are_exhausted_do_not_hide_those_behind_them(
    engine: Engine, clock: ManualClock
) -> None:
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000, max_auto_retries=0)
    await push_many(engine, limits.slice_jobs_max + 20, max_attempts=1)
    exhausted = await claim_all(engine, limits.claim_jobs_max)
    await engine.run(Nack("default", [LeaseRef(job.id) for job in exhausted], "broken"))  # all in one millisecond
    (behind,) = await bury(engine, 1)
    await clock.advance(2_000)
    service = DeadLetterService(engine)
    await service.run_once()
    await dlq(engine, auto_retry=True, auto_retry_interval=1_000, max_auto_retries=1)
    await service.run_once()
    assert await state(engine, behind) is State.WAITING
    assert engine.store.totals().dead == 0


async def test_a_round_is_not_finished_when_the_server_closes(engine: Engine) -> None:
    await push_many(engine, 2_000)
    for _ in range(2):
        jobs = await claim_all(engine, 1_000)
        await engine.run(Ack("default", [LeaseRef(job.id) for job in jobs], [None] * len(jobs)))
    archivist = RetentionService(engine)
    archivist.start()
    round_ = asyncio.ensure_future(archivist.run_once())
    await asyncio.sleep(0)
    await archivist.stop()
    await round_
    assert engine.store.totals().completed > 10
