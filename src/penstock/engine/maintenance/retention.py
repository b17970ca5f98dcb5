"""Retention: removes completed jobs and journal blocks that are too many or too old."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.lifecycle import State
from penstock.core.time_slices import Pauses
from penstock.engine.command import Command
from penstock.engine.maintenance.service import PeriodicService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.retention import Retention
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class RetentionService(PeriodicService):
    """Removes completed jobs and journal blocks that are too many or too old."""

    every_ms = 5_000

    async def run_once(self) -> None:
        """Trim every queue and the journal."""
        engine, keep = self._engine, self._engine.retention
        if not engine.leads:
            return
        pauses = Pauses()
        for key in [queue.key for queue in engine.store.queues()]:
            await pauses.pause()
            queue = engine.store.queue_find(key)
            if queue is None:  # removed while others were trimmed
                continue
            completed = engine.store.counts(queue).completed
            if completed > keep.completed_max:
                await self.forget(queue, State.COMPLETED, limit=completed - keep.completed_max)
            if completed:
                await self.forget(queue, State.COMPLETED, before_ms=engine.clock.now_ms() - keep.completed_age_ms)
        while self.goes_on() and await engine.run(TrimJournal(keep)) == limits.slice_jobs_max:
            pass


class TrimJournal(Command[int]):
    """Drop some of the oldest journal blocks; answers how many."""

    __slots__ = ("keep",)

    def __init__(self, keep: Retention) -> None:
        self.keep = keep


async def trim_journal(_engine: EngineContext, work: UnitOfWork, commands: Sequence[TrimJournal]) -> None:
    """Apply a batch of trims."""
    for command in commands:
        before = work.now_ms - command.keep.journal_age_ms
        count = await work.tx.journal_trim(before, command.keep.journal_bytes_max, limits.slice_jobs_max)
        work.answer(command, count)
