"""Intervening: promote, delay, reprioritise, edit, discard, cancel, bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.errors import JobNotFound, WrongState
from penstock.core.job import DeathReason, details_of
from penstock.core.lifecycle import Arrow, State
from penstock.engine.jobs.update import AddLog, ClearLog, EditData, MoveJob
from tests.support.engines import ack, claim, claim_all, claim_job, fail, move, push, renew, state, stored

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def test_a_promoted_job_is_ready_at_once(engine: Engine) -> None:
    job = await push(engine, delay=60_000)
    await move(engine, job, Arrow.PROMOTE)
    assert (await claim_job(engine)).id == job.id


async def test_a_rescheduled_job_is_due_at_its_new_time(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine, delay=60_000)
    await move(engine, job, Arrow.RESCHEDULE, 1_000)
    await clock.advance(1_000)
    assert (await claim_job(engine)).id == job.id
    await ack(engine, job)
    later = await push(engine, delay=1_000)
    await move(engine, later, Arrow.RESCHEDULE, 60_000)
    await clock.advance(59_999)
    assert await claim(engine) is None


async def test_a_postponed_job_leaves_its_worker_without_costing_an_attempt(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    await move(engine, job, Arrow.POSTPONE, 5_000)
    assert isinstance(await renew(engine, job), WrongState)
    await clock.advance(5_000)
    assert (await claim_job(engine)).attempts == 0


async def test_a_new_priority_moves_a_job_in_line(engine: Engine) -> None:
    first, second = [await push(engine) for _ in range(2)]
    await move(engine, second, Arrow.REPRIORITIZE, 5)
    assert [job.id for job in await claim_all(engine)] == [second.id, first.id]


@pytest.mark.parametrize("active", [False, True])
async def test_an_edit_replaces_the_payload_and_keeps_the_options(engine: Engine, active: bool) -> None:
    job = await push(engine, data=b"old", options=b'{"tags":["x"]}')
    if active:
        await claim_job(engine)
    await engine.run(EditData("default", job.id, b"brand new"))
    found = await engine.store.job_get("default", job.id)
    assert found is not None
    assert (found[1].data, found[1].options, found[0].size) == (b"brand new", b'{"tags":["x"]}', 9)


async def test_an_edit_of_a_finished_job_is_refused_and_changes_nothing(engine: Engine) -> None:
    job = await push(engine, data=b"old")
    await claim_job(engine)
    await ack(engine, job)
    with pytest.raises(WrongState):
        await engine.run(EditData("default", job.id, b"brand new"))
    found = await engine.store.job_get("default", job.id)
    assert found is not None
    assert (found[1].data, found[0].size) == (b"old", 3)


@pytest.mark.parametrize("start", ["waiting", "delayed", "active"])
async def test_a_discarded_job_is_dead_with_its_reason(engine: Engine, start: str) -> None:
    job = await push(engine, delay=1_000 if start == "delayed" else 0)
    if start == "active":
        await claim_job(engine)
    await move(engine, job, Arrow.DISCARD)
    found = await stored(engine, job)
    assert found is not None
    assert (State(found.state), details_of(found).reason) == (State.DEAD, DeathReason.DISCARDED)


@pytest.mark.parametrize("start", ["waiting", "delayed", "active"])
async def test_a_cancelled_job_is_gone_and_its_worker_hears_so(engine: Engine, start: str) -> None:
    job = await push(engine, delay=1_000 if start == "delayed" else 0)
    if start == "active":
        await claim_job(engine)
    await move(engine, job, Arrow.CANCEL)
    assert await stored(engine, job) is None
    assert isinstance(await ack(engine, job), JobNotFound)


async def test_a_revived_job_starts_over_with_its_id(engine: Engine) -> None:
    job = await push(engine, max_attempts=1)
    await claim_job(engine)
    await fail(engine, job)
    await move(engine, job, Arrow.REVIVE)
    again = await claim_job(engine)
    assert (again.id, again.attempts, again.created_at) == (job.id, 0, job.created_at)


async def test_a_replayed_job_runs_again_and_its_old_result_is_gone(engine: Engine) -> None:
    job = await push(engine)
    await claim_job(engine)
    await ack(engine, job, b"1")
    await move(engine, job, Arrow.REPLAY)
    assert await engine.store.result_get(job.id) is None
    assert (await claim_job(engine)).id == job.id


async def test_a_job_cannot_come_back_to_life_while_another_has_its_unique_key(engine: Engine) -> None:
    job = await push(engine, unique_key="k", max_attempts=1)
    await claim_job(engine)
    await fail(engine, job)
    other = await push(engine, unique_key="k")
    with pytest.raises(WrongState, match="Another unfinished job has this job's uniqueKey"):
        await move(engine, job, Arrow.REVIVE)
    assert await state(engine, job) is State.DEAD
    await move(engine, other, Arrow.CANCEL)
    await move(engine, job, Arrow.REVIVE)
    assert await state(engine, job) is State.WAITING


async def test_moves_of_unknown_jobs_and_of_other_namespaces_are_refused(engine: Engine) -> None:
    job = await push(engine)
    for namespace, ref in (("default", 1), ("default", "nope"), ("other", job.id)):
        with pytest.raises(JobNotFound):
            await engine.run(MoveJob(namespace, ref, Arrow.CANCEL))


async def test_logs_are_kept_and_cleared(engine: Engine) -> None:
    job = await push(engine)
    for number in range(105):
        await engine.run(AddLog("default", job.id, "info", f"line {number}"))
    lines = await engine.store.log_get(job.id)
    assert (len(lines), lines[0].message, lines[-1].message) == (100, "line 5", "line 104")
    await engine.run(ClearLog("default", job.id))
    assert await engine.store.log_get(job.id) == []
    with pytest.raises(JobNotFound):
        await engine.run(AddLog("default", 1, "info", "x"))


async def test_a_job_is_dropped_when_its_lifetime_ends_unless_it_is_being_worked_on(
    engine: Engine, clock: ManualClock
) -> None:
    working = await push(engine, ttl=5_000)
    await claim_job(engine)
    waiting, delayed = await push(engine, ttl=5_000), await push(engine, ttl=5_000, delay=60_000)
    await clock.advance(4_999)
    assert await state(engine, waiting) is State.WAITING
    await clock.advance(1)
    assert [await state(engine, job) for job in (working, waiting, delayed)] == [State.ACTIVE, State.NOWHERE, State.NOWHERE]
    assert await ack(engine, working) is None
    assert engine.store.totals().dead == 0
