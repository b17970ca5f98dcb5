"""Waiting for a job to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import yield_to_loop
from penstock.core.errors import JobNotFound
from penstock.core.job import JobFlag
from penstock.core.lifecycle import Arrow
from penstock.engine.api import JobOutcome
from tests.support.engines import ack, claim_job, fail, move, push

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def wait(engine: Engine, job: JobRecord, timeout: int = 5_000) -> asyncio.Task[JobOutcome | None]:
    task = asyncio.ensure_future(engine.result_waiters.wait("default", job.id, timeout))
    await yield_to_loop()
    return task


@pytest.mark.parametrize("flags", [0, JobFlag.REMOVE_ON_COMPLETE])
async def test_who_waits_is_told_the_result_the_moment_there_is_one(engine: Engine, flags: int) -> None:
    job = await push(engine, flags=flags)
    waiting = [await wait(engine, job) for _ in range(3)]
    await claim_job(engine)
    await ack(engine, job, b"42")
    assert await asyncio.gather(*waiting) == [JobOutcome(completed=True, result=b"42")] * 3
    assert engine.result_waiters.size == 0


async def test_a_job_that_has_ended_is_told_at_once(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    await ack(engine, job, b"42")
    assert await engine.result_waiters.wait("default", job.id, 0) == JobOutcome(completed=True, result=b"42")


async def test_time_runs_out(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    waiting = await wait(engine, job, 5_000)
    await clock.advance(4_999)
    assert not waiting.done()
    await clock.advance(1)
    assert await waiting is None
    assert engine.result_waiters.size == 0


async def test_death_and_removal_end_the_wait_too(engine: Engine) -> None:
    dying, cancelled = await push(engine, max_attempts=1), await push(engine)
    waiting = [await wait(engine, job) for job in (dying, cancelled)]
    await claim_job(engine)
    await fail(engine, dying)
    await move(engine, cancelled, Arrow.CANCEL)
    assert await asyncio.gather(*waiting) == [JobOutcome(completed=False)] * 2
    assert await engine.result_waiters.wait("default", dying.id, 0) == JobOutcome(completed=False)


async def test_a_retry_does_not_end_the_wait(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    waiting = await wait(engine, job, 60_000)
    await claim_job(engine)
    await fail(engine, job)
    await clock.advance(1_000)
    await claim_job(engine)
    assert not waiting.done()
    await ack(engine, job)
    assert await waiting == JobOutcome(completed=True)


async def test_an_unknown_job_cannot_be_waited_for(engine: Engine) -> None:
    with pytest.raises(JobNotFound):
        await engine.result_waiters.wait("default", 1, 1_000)


async def test_who_stops_waiting_leaves_nothing_behind(engine: Engine) -> None:
    waiting = await wait(engine, await push(engine))
    waiting.cancel()
    await yield_to_loop()
    assert engine.result_waiters.size == 0
