"""What a store promises about time: what is due is found, earliest first, and the horizon never hides anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.lifecycle import Arrow, State

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def test_due_jobs_are_found_earliest_first(bench: Workbench) -> None:
    now = bench.now_ms
    (late,) = await bench.put(state=State.DELAYED, run_at=now + 20)
    (soon,) = await bench.put(state=State.DELAYED, run_at=now + 10)
    await bench.put(state=State.DELAYED, run_at=now + 1_000)
    await bench.put(run_at=now - 5)
    assert bench.store.horizon.due_ms == now + 10
    async with bench.transaction() as tx:
        assert await tx.job_due(now + 9, 10) == []
        assert [job.id for job in await tx.job_due(now + 20, 1)] == [soon.id]
        assert [job.id for job in await tx.job_due(now + 20, 10)] == [soon.id, late.id]


async def test_lapsed_leases_are_found(bench: Workbench) -> None:
    steady = bench.steady_ms
    (a,) = await bench.put(state=State.ACTIVE, lease_until=steady + 10)
    await bench.put(state=State.ACTIVE, lease_until=steady + 50)
    await bench.put(state=State.ACTIVE, lease_until=None)
    assert bench.store.horizon.lease_expiry_ms == steady + 10
    async with bench.transaction() as tx:
        assert await tx.job_lease_expired(steady + 9, 10) == []
        assert [job.id for job in await tx.job_lease_expired(steady + 10, 10)] == [a.id]


async def test_ended_lifetimes_are_found_among_jobs_that_nobody_has_taken(bench: Workbench) -> None:
    now = bench.now_ms
    expected: list[JobRecord] = []
    for state in State:
        if state is not State.NOWHERE:
            jobs = await bench.put(state=state, expires_at=now + 10, run_at=now + 1_000)
            expected += jobs if state in (State.WAITING, State.DELAYED, State.WAITING_CHILDREN) else []
    await bench.put(expires_at=now + 11)
    assert bench.store.horizon.job_expiry_ms == now + 10
    async with bench.transaction() as tx:
        assert await tx.job_expired(now + 9, 10) == []
        assert {job.id for job in await tx.job_expired(now + 10, 10)} == {job.id for job in expected}


async def test_the_horizon_is_a_lower_bound_that_catches_up(bench: Workbench) -> None:
    now = bench.now_ms
    (first,) = await bench.put(state=State.DELAYED, run_at=now + 10)
    await bench.put(state=State.DELAYED, run_at=now + 500)
    await bench.step(first, Arrow.CANCEL)
    due = bench.store.horizon.due_ms
    assert due is not None
    assert due <= now + 500
    async with bench.transaction() as tx:
        assert await tx.job_due(now + 10, 10) == []
    assert bench.store.horizon.due_ms == now + 500


async def test_the_horizon_survives_a_restart_and_a_rollback(bench: Workbench) -> None:
    now = bench.now_ms
    (job,) = await bench.put(state=State.DELAYED, run_at=now + 10)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.job_due(now + 10, 10)
            await tx.job_remove([(job, job.state, job.token)])
            raise RuntimeError
    assert bench.store.horizon.due_ms == now + 10
    await bench.restart()
    assert bench.store.horizon.due_ms == now + 10


async def test_nothing_booked_is_an_empty_horizon(bench: Workbench) -> None:
    await bench.put()
    horizon = bench.store.horizon
    assert (horizon.due_ms, horizon.job_expiry_ms, horizon.lease_expiry_ms) == (None, None, None)
