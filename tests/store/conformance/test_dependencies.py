"""What a store promises about dependencies: who needs whom, where that stands, and that it goes with the job that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.dependencies import Dependency, JobEnd, Need, NeedCount
from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import State

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


def unfollowed(bench: Workbench) -> bool:
    return bench.store.horizon.unfollowed


def end(bench: Workbench, job: JobRecord, **more: Any) -> JobEnd:
    return JobEnd(bench.serial(), job.id, Need.DONE, **more)


async def test_open_dependencies_are_found_by_what_is_needed(bench: Workbench) -> None:
    needed, other = await bench.put(count=2)
    waiting = await bench.put(count=2, state=State.WAITING_CHILDREN)
    rows = [
        Dependency(waiting[0].id, needed.id, Need.PENDING, "a"),
        Dependency(waiting[0].id, other.id, Need.DONE, "b", b"1"),
        Dependency(waiting[1].id, needed.id, Need.FAILED, "a", None, "broken"),
        Dependency(waiting[1].id, other.id, Need.IGNORED, "b", None, "broken"),
    ]
    async with bench.transaction() as tx:
        await tx.need_add(rows)
    await bench.restart()
    async with bench.transaction() as tx:
        ends = [end(bench, needed), end(bench, other)]
        assert await tx.need_open(ends, 10) == [rows[0], rows[2]]
        assert await tx.need_open([], 10) == []
        assert await tx.need_of(waiting[0].id) == rows[:1]
    assert await bench.store.need_list(waiting[0].id) == rows[:2]
    assert await bench.store.need_list(waiting[1].id) == rows[2:]


async def test_a_dependency_that_is_settled_is_not_open_any_more(bench: Workbench) -> None:
    (needed,) = await bench.put()
    (waiting,) = await bench.put(state=State.WAITING_CHILDREN)
    row = Dependency(waiting.id, needed.id, Need.PENDING, "a")
    async with bench.transaction() as tx:
        await tx.need_add([row])
        await tx.need_save([row._replace(state=Need.DONE, result=b"7")])
        assert await tx.need_open([end(bench, needed)], 10) == []
    assert await bench.store.need_list(waiting.id) == [row._replace(state=Need.DONE, result=b"7")]


async def test_dependencies_go_with_the_job_that_waits_and_with_a_rollback(bench: Workbench) -> None:
    (needed,) = await bench.put()
    (waiting,) = await bench.put(state=State.WAITING_CHILDREN)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.need_add([Dependency(waiting.id, needed.id, Need.PENDING, "a")])
            raise RuntimeError
    assert await bench.store.need_list(waiting.id) == []
    async with bench.transaction() as tx:
        await tx.need_add([Dependency(waiting.id, needed.id, Need.PENDING, "a")])
        await tx.job_remove([(waiting, waiting.state, waiting.token)])
    assert await bench.store.need_list(waiting.id) == []


async def test_open_dependencies_are_read_in_order_in_slices_and_without_those_that_came_later(bench: Workbench) -> None:
    first, second = await bench.put(count=2)
    waiting = await bench.put(count=4, state=State.WAITING_CHILDREN)
    ended = end(bench, second), end(bench, first)
    (late,) = await bench.put(state=State.WAITING_CHILDREN)
    async with bench.transaction() as tx:
        rows = [Dependency(job.id, needed.id, Need.PENDING, "a") for needed in (second, first) for job in (*waiting, late)]
        await tx.need_add(list(reversed(rows)))
        on_second, on_first = rows[:4], rows[5:9]
        assert await tx.need_open(ended, 100) == on_second + on_first
        assert await tx.need_open(ended, 6) == on_second + on_first[:2]
        assert await tx.need_open([ended[0]._replace(after=waiting[1].id)], 1) == on_second[2:3]


async def test_dependencies_are_counted(bench: Workbench) -> None:
    needed = await bench.put(count=len(Need))
    waiting, nobody = await bench.put(count=2, state=State.WAITING_CHILDREN)
    async with bench.transaction() as tx:
        await tx.need_add([Dependency(waiting.id, job.id, need, "a") for job, need in zip(needed, Need, strict=True)])
        assert await tx.need_count([waiting.id, nobody.id]) == {
            waiting.id: NeedCount(open=2, done=1, total=len(Need)),
            nobody.id: NeedCount(0, 0, 0),
        }
        assert await tx.need_count([]) == {}


async def test_what_failed_and_is_still_needed_is_found_by_its_name_in_its_namespace(bench: Workbench) -> None:
    needed = await bench.put(count=3)
    waiting = await bench.put(count=3, state=State.WAITING_CHILDREN)
    async with bench.transaction() as tx:
        await tx.need_add(
            [
                Dependency(waiting[0].id, needed[1].id, Need.FAILED, "name"),
                Dependency(waiting[1].id, needed[1].id, Need.FAILED, "name"),
                Dependency(waiting[2].id, needed[0].id, Need.FAILED, "name"),
                Dependency(waiting[0].id, needed[2].id, Need.IGNORED, "name"),
                Dependency(waiting[1].id, needed[2].id, Need.FAILED, "other"),
            ]
        )
        assert await tx.need_find(waiting[0].namespace, "name") == [needed[0].id, needed[1].id]
        assert await tx.need_find(waiting[0].namespace + 1, "name") == []
        assert await tx.need_find(waiting[0].namespace, "nobody") == []


async def test_dependencies_are_listed_by_state_and_page_and_never_too_much_at_once(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = await bench.put(count=4)
    (waiting,) = await bench.put(state=State.WAITING_CHILDREN)
    done = [Dependency(waiting.id, job.id, Need.DONE, "a", b"1" * 40) for job in needed[:3]]
    open_ = Dependency(waiting.id, needed[3].id, Need.PENDING, "a")
    async with bench.transaction() as tx:
        await tx.need_add([*done, open_])
    store = bench.store
    assert await store.need_list(waiting.id, (Need.PENDING, Need.FAILED)) == [open_]
    assert await store.need_list(waiting.id, (Need.DONE,), 1, 1) == done[1:2]
    monkeypatch.setattr(limits, "list_bytes_max", 100)
    with pytest.raises(InvalidInput, match="limit and offset: the first 2 would fit"):
        await store.need_list(waiting.id)
    assert await store.need_list(waiting.id, limit=2) == done[:2]


async def test_ends_are_kept_in_order_until_they_are_removed_and_the_horizon_tells(bench: Workbench) -> None:
    jobs = await bench.put(count=3)
    ends = [
        end(bench, jobs[2], result=b"7"),
        JobEnd(bench.serial(), jobs[0].id, Need.FAILED, buries=True, inherited=True, error="broken"),
        JobEnd(bench.serial(), jobs[0].id, Need.IGNORED, frees=True, error="again", after=5),
    ]
    assert unfollowed(bench) is False
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.end_add(ends)
            raise RuntimeError
    assert unfollowed(bench) is False
    async with bench.transaction() as tx:
        await tx.end_add(list(reversed(ends)))
        assert await tx.end_pending([job.id for job in jobs]) == {jobs[0].id, jobs[2].id}
    assert unfollowed(bench) is True
    await bench.restart()
    assert unfollowed(bench) is True
    async with bench.transaction() as tx:
        assert await tx.end_list(10) == ends
        assert await tx.end_list(2) == ends[:2]
        await tx.end_advance(ends[1]._replace(after=9))
        await tx.end_remove([ends[0].serial])
        assert await tx.end_list(10) == [ends[1]._replace(after=9), ends[2]]
        assert await tx.end_pending([jobs[2].id]) == set()
    assert unfollowed(bench) is True
    async with bench.transaction() as tx:
        await tx.end_remove([each.serial for each in ends])
    assert unfollowed(bench) is False


async def test_ends_with_large_results_are_read_a_few_at_a_time(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "flow_bytes_batch_max", 1_000)
    jobs = await bench.put(count=3)
    ends = [end(bench, job, result=b"x" * 600) for job in jobs]
    async with bench.transaction() as tx:
        await tx.end_add(ends)
        assert await tx.end_list(10) == ends[:2]


async def test_open_dependencies_on_a_job_are_counted_up_to_a_limit(bench: Workbench) -> None:
    needed, other = await bench.put(count=2)
    waiting = await bench.put(count=4, state=State.WAITING_CHILDREN)
    states = (Need.PENDING, Need.FAILED, Need.DONE, Need.PENDING)
    async with bench.transaction() as tx:
        await tx.need_add([Dependency(job.id, needed.id, at, "a") for job, at in zip(waiting, states, strict=True)])
        assert [await tx.need_open_count(needed.id, limit) for limit in (1, 3, 10)] == [1, 3, 3]
        assert await tx.need_open_count(other.id, 10) == 0
