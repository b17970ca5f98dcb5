"""What a store promises about who is next: priority, place in line, groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def test_higher_priority_goes_first_then_the_smaller_position(bench: Workbench) -> None:
    (a,) = await bench.put(priority=1, position=10)
    (b,) = await bench.put(priority=5, position=20)
    (c,) = await bench.put(priority=5, position=-3)
    (d,) = await bench.put(priority=-2, position=1)
    assert await bench.ready() == [c.id, b.id, a.id, d.id]
    assert await bench.ready(limit=2) == [c.id, b.id]


async def test_only_waiting_jobs_of_the_queue_are_ready(bench: Workbench) -> None:
    (waiting,) = await bench.put()
    for state in (State.DELAYED, State.ACTIVE, State.COMPLETED, State.DEAD):
        await bench.put(state=state)
    await bench.put(queue=QueueKey("default", "other"))
    assert await bench.ready() == [waiting.id]


async def test_the_order_survives_a_restart(bench: Workbench) -> None:
    jobs = [*(await bench.put(count=3)), *(await bench.put(count=2, priority=7))]
    expected = [job.id for job in [*jobs[3:], *jobs[:3]]]
    await bench.restart()
    assert await bench.ready() == expected


async def test_of_a_group_only_the_first_is_ready(bench: Workbench) -> None:
    a, b, _ = await bench.put(count=3, group_id="g")
    (free,) = await bench.put()
    (other,) = await bench.put(group_id="h")
    assert await bench.ready() == [a.id, free.id, other.id]
    await bench.step(a, Arrow.CLAIM, 1_000)
    assert await bench.ready() == [free.id, other.id]
    await bench.step(a, Arrow.COMPLETE)
    assert await bench.ready() == [b.id, free.id, other.id]


async def test_a_more_urgent_job_of_a_group_takes_the_place_of_the_first(bench: Workbench) -> None:
    (slow,) = await bench.put(group_id="g")
    (urgent,) = await bench.put(group_id="g", priority=9)
    assert await bench.ready() == [urgent.id]
    await bench.step(slow, Arrow.REPRIORITIZE, 10)
    assert await bench.ready() == [slow.id]


@pytest.mark.parametrize("arrow", [Arrow.CANCEL, Arrow.DISCARD, Arrow.EXPIRE])
async def test_whatever_takes_the_first_of_a_group_away_lets_the_next_forward(bench: Workbench, arrow: Arrow) -> None:
    first, second = await bench.put(count=2, group_id="g")
    await bench.step(first, arrow)
    assert await bench.ready() == [second.id]


@pytest.mark.parametrize("arrow", [Arrow.STALL, Arrow.RELEASE, Arrow.RETRY_NOW])
async def test_a_grouped_job_that_comes_back_lines_up_again(bench: Workbench, arrow: Arrow) -> None:
    first, second = await bench.put(count=2, group_id="g")
    await bench.step(first, Arrow.CLAIM, 1_000)
    await bench.step(first, arrow)
    assert await bench.ready() == ([second.id] if arrow is Arrow.RETRY_NOW else [first.id])


async def test_groups_survive_a_restart(bench: Workbench) -> None:
    first, second = await bench.put(count=2, group_id="g")
    await bench.step(first, Arrow.CLAIM, 1_000)
    await bench.restart()
    assert await bench.ready() == []
    await bench.step(first, Arrow.COMPLETE)
    assert await bench.ready() == [second.id]


async def test_groups_of_two_queues_are_two_groups(bench: Workbench) -> None:
    other = QueueKey("default", "other")
    (a,) = await bench.put(group_id="g")
    (b,) = await bench.put(queue=other, group_id="g")
    await bench.step(a, Arrow.CLAIM, 1_000)
    assert await bench.ready() == []
    assert await bench.ready(queue=other) == [b.id]
