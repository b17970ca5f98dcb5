"""Alerts for jobs that may not be held any more: which are set for which jobs, and what wakes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import JournalBlock

#: How the holder of a job ends it. It knows that without being told.
_BY_HOLDER: Final = frozenset((Arrow.COMPLETE, Arrow.COMPLETE_REMOVE, Arrow.BURY, Arrow.BURY_REMOVE))
#: Events of other servers after which a job may not be held any more.
_ENDS: Final = frozenset(kind.value for kind in (EventKind.JOB_REMOVED, EventKind.JOB_DISCARDED, EventKind.DLQ_ADDED))


class LossAlert:
    """Woken when one of the jobs it is set for may not be held any more. Belongs to one request; ``close`` it."""

    def __init__(self) -> None:
        self.is_over = False  #: its time is over, or the server is closing
        self.is_closed = False  #: its client is gone: a question that is applied later sets it for nothing
        self._event = asyncio.Event()
        self._set_in: set[tuple[LeaseWaiters, int]] = set()

    def wake(self) -> None:
        """Have the request look again."""
        self._event.set()

    def end(self) -> None:
        """Have the request look for the last time."""
        self.is_over = True
        self.wake()

    async def wait(self) -> None:
        """Wait until it is woken; the next wait begins anew."""
        await self._event.wait()
        self._event.clear()

    def set_for(self, jobs: LeaseWaiters, job_id: int) -> None:
        """Note where it is set."""
        self._set_in.add((jobs, job_id))

    def close(self) -> None:
        """Be woken no more."""
        self.is_closed = True
        for jobs, job_id in self._set_in:
            jobs.remove(job_id, self)
        self._set_in.clear()


class LeaseWaiters:
    """Of one engine: which alerts are set for which jobs."""

    def __init__(self) -> None:
        self._alerts: dict[int, set[LossAlert]] = {}

    @property
    def has_room(self) -> bool:
        """Whether more jobs can be waited for."""
        return len(self._alerts) < limits.held_jobs_waited_for_max

    def add(self, job_id: int, alert: LossAlert) -> None:
        """Set an alert for a job."""
        self._alerts.setdefault(job_id, set()).add(alert)
        alert.set_for(self, job_id)

    def remove(self, job_id: int, alert: LossAlert) -> None:
        """Take it back."""
        alerts = self._alerts.get(job_id)
        if alerts is not None:
            alerts.discard(alert)
            if not alerts:
                del self._alerts[job_id]

    def answered(self, work: UnitOfWork) -> None:
        """Wake those whose jobs a batch has ended, unless their holder did."""
        if self._alerts:
            for job, arrow in work.ended:
                if arrow not in _BY_HOLDER:
                    self._wake(job.id)

    def heard(self, blocks: Sequence[JournalBlock]) -> None:
        """Wake those whose jobs another server may have ended."""
        if self._alerts:
            for block in blocks:
                for event in block.events:
                    if event[0] in _ENDS:
                        self._wake(event[2])

    def wake_all(self, *, over: bool = False) -> None:
        """Have everybody look again. ``over``: for the last time, because the server is closing."""
        for alert in {alert for alerts in self._alerts.values() for alert in alerts}:
            alert.is_over = alert.is_over or over
            alert.wake()

    def _wake(self, job_id: int) -> None:
        for alert in self._alerts.get(job_id, ()):
            alert.wake()
