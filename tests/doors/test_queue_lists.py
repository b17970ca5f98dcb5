"""Lists of queues: their order, and what happens to queues that are removed while a list is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core import limits
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.core.time_slices import at_once
from penstock.doors import queue_lists
from penstock.doors.jobs.queues import QueueHandlers
from penstock.engine.jobs.push import Push
from penstock.engine.queues import admin

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


class Asker:
    """A request that records whether it became large."""

    is_large = False

    async def become_large(self) -> None:
        self.is_large = True


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=3)), st.sampled_from([1, 2, 7, 1_000]))
def test_long_lists_are_sorted_like_short_ones(monkeypatch: pytest.MonkeyPatch, names: list[str], at_a_time: int) -> None:
    monkeypatch.setattr(limits, "sorted_at_once", at_a_time)
    monkeypatch.setattr(limits, "queues_at_once", 3)
    assert at_once(queue_lists.sorted_steps(names)) == sorted(names)
    assert at_once(queue_lists.sorted_steps(names, len)) == sorted(names, key=len)


@pytest.mark.parametrize(("queues", "is_large"), [(limits.queues_at_once, False), (limits.queues_at_once + 1, True)])
async def test_a_list_of_many_queues_is_a_large_request(queues: int, is_large: bool) -> None:
    def steps() -> Generator[None, None, str]:
        yield
        return "done"

    asker = Asker()
    assert await queue_lists.listed(asker, queues, steps()) == "done"
    assert asker.is_large is is_large


async def test_a_queue_that_is_removed_while_a_summary_is_made_is_left_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "queues_at_once", 1)
    for name in "abcd":
        await engine.run(Push(QueueKey("default", name), [JobSpec(b"{}")]))
    steps = QueueHandlers(engine)._summary_steps("default")
    names = at_once(queue_lists.name_steps(engine.store, "default", queue_lists.has_jobs))
    assert names == ["a", "b", "c", "d"]
    for _ in names * 2:  # the names are known, and the counts are read next
        next(steps)
    await admin.obliterate(engine, QueueKey("default", "c"))
    assert [each.name for each in at_once(steps)] == ["a", "b", "d"]
