"""What a store promises about groups that are paused or limited: which of their jobs are ready, and when again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core.group_limits import GroupLimits
from penstock.core.lifecycle import Arrow
from penstock.core.queue import QueueKey
from tests.store.conformance.workbench import MAIL

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def limit(bench: Workbench, group: str = "g", queue: QueueKey = MAIL, **limits: Any) -> None:
    """Set the limits of a group."""
    async with bench.transaction() as tx:
        found = await tx.queue_open(queue)
        await tx.queue_save(found, msgspec.structs.replace(found.settings, limits_groups=True), found.created_at)
        await tx.group_save(found, [(group, GroupLimits(**limits))])


async def reopen(bench: Workbench, limit: int = 100) -> int | None:
    """Have time let groups go on; return when it does for the next, in ms from now."""
    async with bench.transaction() as tx:
        next_ms = await tx.group_reopen(bench.queue(), limit)
        await tx.job_ready(bench.queue(), 1)
    return None if next_ms is None else next_ms - bench.steady_ms


async def load(bench: Workbench, group: str = "g") -> GroupLimits | None:
    """Return what is set of a group."""
    async with bench.transaction() as tx:
        return await tx.group_load(bench.queue(), group)


async def test_a_paused_group_is_passed_over_until_it_is_resumed(bench: Workbench) -> None:
    first, _ = await bench.put(count=2, group_id="g", priority=9)
    (other,) = await bench.put(group_id="h")
    await limit(bench, paused=True)
    await bench.put(group_id="g", priority=10)
    assert await bench.ready() == [other.id]
    await bench.step(first, Arrow.REPRIORITIZE, 11)
    assert await bench.ready() == [other.id]
    await limit(bench, paused=False)
    assert await bench.ready() == [first.id, other.id]


async def test_as_many_of_a_group_are_ready_as_its_concurrency_leaves_free(bench: Workbench) -> None:
    await limit(bench, concurrency=3)
    jobs = await bench.put(count=5, group_id="g")
    ids = [job.id for job in jobs]
    assert await bench.ready() == ids[:3]
    await bench.step(jobs[0], Arrow.CLAIM, 1_000)
    assert await bench.ready() == ids[1:3]
    (urgent,) = await bench.put(group_id="g", priority=5)
    assert await bench.ready() == [urgent.id, ids[1]]
    await bench.step(jobs[0], Arrow.COMPLETE)
    assert await bench.ready() == [urgent.id, *ids[1:3]]
    await limit(bench)
    assert await bench.ready() == [urgent.id]


async def test_a_rate_limit_counts_claims_until_its_window_is_over(bench: Workbench) -> None:
    await limit(bench, concurrency=9, rate_limit=2, rate_window_ms=5_000)
    jobs = await bench.put(count=5, group_id="g")
    assert len(await bench.ready()) == 2
    await bench.step(jobs[0], Arrow.CLAIM, 60_000)
    await bench.clock.advance(1_000)
    await bench.step(jobs[1], Arrow.CLAIM, 60_000)
    assert await bench.ready() == []
    assert await reopen(bench) == 4_000
    await bench.clock.advance(3_999)
    assert await reopen(bench) == 1
    assert await bench.ready() == []
    await bench.clock.advance(1)
    assert await reopen(bench) is None
    assert await bench.ready() == [jobs[2].id, jobs[3].id]


async def test_a_group_that_is_held_goes_on_by_itself_and_is_forgotten(bench: Workbench) -> None:
    (job,) = await bench.put(group_id="g")
    await limit(bench, held_until=bench.steady_ms + 2_000)
    assert await bench.ready() == []
    assert await reopen(bench) == 2_000
    await bench.clock.advance(2_000)
    assert await reopen(bench) is None
    assert await bench.ready() == [job.id]
    assert await load(bench) is None


async def test_limits_of_groups_survive_a_restart(bench: Workbench) -> None:
    jobs = await bench.put(count=3, group_id="g")
    await limit(bench, concurrency=9, rate_limit=2, rate_window_ms=60_000)
    await limit(bench, "p", paused=True)
    await bench.step(jobs[0], Arrow.CLAIM, 1_000_000)
    before = await load(bench)
    assert before is not None
    assert before.taken == 1
    await bench.restart()
    assert await load(bench) == before
    assert await load(bench, "p") == GroupLimits(paused=True)
    assert await bench.ready() == [jobs[1].id]


async def test_groups_of_the_same_name_in_two_queues_have_limits_of_their_own(bench: Workbench) -> None:
    other = QueueKey("elsewhere", MAIL.name)
    await limit(bench, paused=True)
    (here,) = await bench.put(group_id="g")
    (there,) = await bench.put(queue=other, group_id="g")
    assert await bench.ready() == []
    assert await bench.ready(queue=other) == [there.id]
    await limit(bench, queue=other, paused=True)
    await limit(bench)
    assert await bench.ready() == [here.id]
    assert await bench.ready(queue=other) == []


async def test_limits_of_groups_are_listed_counted_and_forgotten_with_their_queue(bench: Workbench) -> None:
    for group in ("c", "a", "b"):
        await limit(bench, group, concurrency=2)
    await limit(bench, "b")
    async with bench.transaction() as tx:
        assert [name for name, _ in await tx.group_page(bench.queue(), "", 10)] == ["a", "c"]
        assert await tx.group_page(bench.queue(), "a", 10) == [("c", GroupLimits(concurrency=2))]
        assert await tx.groups_limited(bench.queue()) == 2
        await tx.queue_remove(bench.queue())
    await bench.put(group_id="a")
    async with bench.transaction() as tx:
        assert await tx.groups_limited(bench.queue()) == 0


async def test_only_so_many_groups_are_looked_at_again_at_once(bench: Workbench) -> None:
    for group in ("a", "b", "c"):
        await bench.put(group_id=group)
        await limit(bench, group, held_until=bench.steady_ms + 1_000)
    await bench.clock.advance(1_000)
    assert await reopen(bench, limit=2) == 0
    assert len(await bench.ready()) == 2
    assert await reopen(bench, limit=2) is None
    assert len(await bench.ready()) == 3
