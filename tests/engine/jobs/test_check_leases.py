"""Asking which jobs are still held, and being woken when one is not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.errors import JobNotFound, StaleLease, TooMany, WrongState
from penstock.core.lifecycle import Arrow
from penstock.doors.jobs.lease_handlers import LeaseHandlers
from penstock.engine.jobs.check_leases import CheckLeases
from penstock.engine.jobs.loss_alerts import LossAlert
from penstock.engine.jobs.settle import LeaseRef, Release
from tests.support.engines import ack, claim_job, fail, move, push, renew

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def held(engine: Engine, *, custom_id: str | None = None, attempts: int = 3) -> JobRecord:
    await push(engine, job_id=custom_id, max_attempts=attempts)
    return await claim_job(engine)


async def ask(engine: Engine, alert: LossAlert, *jobs: JobRecord) -> list[type | None]:
    holds = [LeaseRef(job.custom_id or job.id, job.token) for job in jobs]
    return [None if each is None else type(each) for each in await engine.run(CheckLeases("default", holds, alert))]


@pytest.mark.parametrize("arrow", [Arrow.CANCEL, Arrow.DISCARD])
async def test_an_alert_is_woken_when_a_job_is_taken_away(engine: Engine, arrow: Arrow) -> None:
    alert = LossAlert()
    jobs = [await held(engine), await held(engine, custom_id="own")]
    assert await ask(engine, alert, *jobs) == [None, None]
    assert not alert._event.is_set()
    await move(engine, jobs[1], arrow)
    await alert.wait()
    assert (await ask(engine, alert, *jobs))[1] is (JobNotFound if arrow is Arrow.CANCEL else WrongState)
    alert.close()
    assert not engine.loss_alerts._alerts


async def test_what_the_holder_does_wakes_nobody(engine: Engine, clock: ManualClock) -> None:
    alert = LossAlert()
    jobs = [await held(engine, attempts=attempts) for attempts in (1, 1, 3, 3)]
    assert await ask(engine, alert, *jobs) == [None] * 4
    await ack(engine, jobs[0], token=jobs[0].token)
    await fail(engine, jobs[1], token=jobs[1].token)
    await fail(engine, jobs[2], token=jobs[2].token)
    await renew(engine, jobs[3], token=jobs[3].token)
    assert not alert._event.is_set()
    assert await ask(engine, alert, *jobs) == [WrongState, WrongState, WrongState, None]
    alert.close()


async def test_the_lease_of_another_is_not_held(engine: Engine) -> None:
    alert = LossAlert()
    job = await held(engine)
    await engine.run(Release("default", [LeaseRef(job.id, job.token)]))
    again = await claim_job(engine)
    assert await ask(engine, alert, again) == [None]
    again.token -= 1
    assert await ask(engine, alert, again) == [StaleLease]
    alert.close()


async def test_a_server_that_closes_wakes_all(engine: Engine) -> None:
    alert = LossAlert()
    assert await ask(engine, alert, await held(engine)) == [None]
    engine.stop_waiting()
    await alert.wait()
    assert alert.is_over
    alert.close()


async def test_there_is_a_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    alert = LossAlert()
    job = await held(engine)
    assert await ask(engine, alert, job) == [None]
    monkeypatch.setattr(limits, "held_jobs_waited_for_max", 1)
    with pytest.raises(TooMany, match="A heartbeat reports"):
        await ask(engine, alert, job)
    alert.close()
    assert await ask(engine, alert, job) == [None]
    alert.close()


async def test_a_wait_ends_with_its_alarm_even_if_that_rings_early(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers of an event loop may ring a moment before the clock shows their time, and each rings once."""
    job = await held(engine)
    call_at = clock.call_at
    monkeypatch.setattr(clock, "call_at", lambda at, callback: call_at(at - 1, callback))
    holds = [LeaseRef(job.id, job.token)]
    waiting = asyncio.create_task(LeaseHandlers(engine)._lost("default", [str(job.id)], holds, 1_000))
    while not engine.loss_alerts._alerts:
        await asyncio.sleep(0)
    await clock.advance(999)
    async with asyncio.timeout(10):
        assert await waiting == []


async def test_a_client_that_hangs_up_before_its_question_is_applied_leaves_nothing_behind(engine: Engine) -> None:
    job = await held(engine)
    holds = [LeaseRef(job.id, job.token)]
    waiting = asyncio.create_task(LeaseHandlers(engine)._lost("default", [str(job.id)], holds, 1_000))
    await asyncio.sleep(0)  # it has asked, and is not answered yet
    assert not engine.loss_alerts._alerts
    waiting.cancel()
    await asyncio.wait([waiting])
    await renew(engine, job, token=job.token)
    assert not engine.loss_alerts._alerts
