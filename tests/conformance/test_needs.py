"""What a store promises about dependencies: who needs whom, where that stands, and that it goes with the job that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.flow import Dependency, Need
from penstock.core.lifecycle import State

if TYPE_CHECKING:
    from tests.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


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
        assert sorted(await tx.need_open([needed.id, other.id])) == [rows[0], rows[2]]
        assert await tx.need_open([]) == []
        assert await tx.need_list(waiting[0].id) == rows[:2]
    assert await bench.store.need_list(waiting[1].id) == rows[2:]


async def test_a_dependency_that_is_settled_is_not_open_any_more(bench: Workbench) -> None:
    (needed,) = await bench.put()
    (waiting,) = await bench.put(state=State.WAITING_CHILDREN)
    row = Dependency(waiting.id, needed.id, Need.PENDING, "a")
    async with bench.transaction() as tx:
        await tx.need_add([row])
        await tx.need_save([row._replace(state=Need.DONE, result=b"7")])
        assert await tx.need_open([needed.id]) == []
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
