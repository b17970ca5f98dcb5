"""Alerts for jobs that may not be held any more: which alerts are set for which jobs, and what fires them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.events import EventKind
from penstock.core.lifecycle import COMPLETIONS, Arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import JournalBlock

#: Transitions by which the holder of a job ends it. The holder needs no alert for them.
_BY_HOLDER: Final = frozenset((*COMPLETIONS, Arrow.BURY, Arrow.BURY_REMOVE))
#: Events of other servers after which a job may not be held any more.
_ENDS: Final = frozenset(kind.value for kind in (EventKind.JOB_REMOVED, EventKind.JOB_DISCARDED, EventKind.DLQ_ADDED))


class LossAlert:
    """Fires when one of its jobs may not be held any more. An alert belongs to one request, which must ``close`` it."""

    def __init__(self) -> None:
        self.is_over = False  #: its time is over, or the server is closing
        self.is_closed = False  #: its client has left: a command that is applied later must not set it
        self._event = asyncio.Event()
        self._set_in: set[tuple[LossAlerts, int]] = set()

    def wake(self) -> None:
        """Let the request check its jobs again."""
        self._event.set()

    def end(self) -> None:
        """Let the request check its jobs for the last time."""
        self.is_over = True
        self.wake()

    async def wait(self) -> None:
        """Wait until the alert fires. The next call waits for the next time."""
        await self._event.wait()
        self._event.clear()

    def set_for(self, jobs: LossAlerts, job_id: int) -> None:
        """Record where it is set."""
        self._set_in.add((jobs, job_id))

    def close(self) -> None:
        """Remove the alert from all its jobs."""
        self.is_closed = True
        for jobs, job_id in self._set_in:
            jobs.remove(job_id, self)
        self._set_in.clear()


class LossAlerts:
    """The alerts of one engine, by job."""

    def __init__(self) -> None:
        self._alerts: dict[int, set[LossAlert]] = {}

    @property
    def has_room(self) -> bool:
        """Whether alerts can be set for more jobs."""
        return len(self._alerts) < limits.held_jobs_waited_for_max

    def add(self, job_id: int, alert: LossAlert) -> None:
        """Set an alert for a job."""
        self._alerts.setdefault(job_id, set()).add(alert)
        alert.set_for(self, job_id)

    def remove(self, job_id: int, alert: LossAlert) -> None:
        """Remove an alert from a job."""
        alerts = self._alerts.get(job_id)
        if alerts is not None:
            alerts.discard(alert)
            if not alerts:
                del self._alerts[job_id]

    def answered(self, work: UnitOfWork) -> None:
        """Fire the alerts of jobs that a batch has ended, except those that their holder ended."""
        if self._alerts:
            for job, arrow in work.ended:
                if arrow not in _BY_HOLDER:
                    self._wake(job.id)

    def remote_committed(self, blocks: Sequence[JournalBlock]) -> None:
        """Fire the alerts of jobs that another server may have ended."""
        if self._alerts:
            for block in blocks:
                for event in block.events:
                    if event[0] in _ENDS:
                        self._wake(event[2])

    def wake_all(self, *, over: bool = False) -> None:
        """Fire all alerts. ``over``: for the last time, because the server is closing."""
        for alert in {alert for alerts in self._alerts.values() for alert in alerts}:
            alert.is_over = alert.is_over or over
            alert.wake()

    def _wake(self, job_id: int) -> None:
        for alert in self._alerts.get(job_id, ()):
            alert.wake()
