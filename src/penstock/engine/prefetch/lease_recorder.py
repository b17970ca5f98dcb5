"""Leases of jobs that are on ready lists, or were handed out from them: which worker has each job, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import FastPathFailed
from penstock.engine.maintenance.service import PeriodicService
from penstock.engine.prefetch.commands import MarkLeasesRecorded, Reclaim, RecordLeases

if TYPE_CHECKING:
    from penstock.engine.prefetch.context import CacheContext


class LeaseRecorder(PeriodicService):
    """Records the leases of jobs that were handed out, takes back unused lists, and releases the jobs of lost generations."""

    every_ms = 500

    def __init__(self, path: CacheContext) -> None:
        super().__init__(path.engine)
        self._path = path

    async def run_once(self) -> None:
        """Do one round."""
        await self.note(-limits.fast_note_ms)
        engine = self._engine
        status = engine.store.status()
        if status.error is not None and not status.full:
            return
        if engine.leads:
            while self.goes_on() and await engine.run(Reclaim()) >= limits.slice_jobs_max:
                pass
        try:
            await self._path.take_back_idle()
        except FastPathFailed:
            self._path.failed()

    def hurry(self, generation: int) -> None:
        """Record at once what was handed out in generations before this one. Then record that this is done."""
        self._path.start(self._note_all(generation), "penstock-hurry")

    async def _note_all(self, generation: int) -> None:
        await self.note(limits.HOUR_MS)
        await self._engine.run(MarkLeasesRecorded(generation))

    async def note(self, beyond_ms: int) -> None:
        """Record all leases that were handed out up to a moment: now, plus ``beyond_ms`` (negative: earlier)."""
        leases = self._path.unconfirmed_leases
        while some := leases.older_than(self._engine.clock.steady_ms() + beyond_ms, limits.slice_jobs_max):
            await self._engine.run(RecordLeases(some))
            for token in some:
                leases.forget(token)
