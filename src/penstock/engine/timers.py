"""The timers: delayed jobs become due, leases and times-to-live expire, and crons push new jobs.

Nothing is polled. The store has the next moment at which something is due; the timer sleeps until then, and is woken by
anything earlier. A sweep is part of every batch, after the commands of workers and before the claims. So a heartbeat that
arrives in the same moment as the end of its lease counts first, and a claim never misses a job that is already due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.job import JobFlag, details_of, put_details
from penstock.core.lifecycle import Arrow
from penstock.core.retry import after_lease_expiry
from penstock.engine.command import Command
from penstock.engine.jobs import dependencies
from penstock.engine.queues import crons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Alarm
    from penstock.core.job import JobRecord
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

#: Check this often even if nothing is due for long, because the wall clock may be set forward.
CHECK_EVERY_MS: Final = 1_000
#: A sweep that is this late means that the process was suspended or the machine overloaded, so that heartbeats may be
#: waiting unread. Leases then get some more time before they expire.
LATE_MS: Final = 1_000
LATE_GRACE_MS: Final = 2_000


class Sweep(Command[None]):
    """Cause a batch, and with it a sweep."""

    __slots__ = ()


async def answer_sweeps(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Sweep]) -> None:
    """Answer the commands. Every batch has a sweep."""
    for command in commands:
        work.answer(command, None)


class Timer:
    """Wakes the engine when something is due."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._alarm: Alarm | None = None
        self._alarm_at = 0
        self._grace_until: int | None = None
        self._stopped = True

    def start(self) -> None:
        """Start the timer."""
        self._stopped = False
        self.arm()

    def stop(self) -> None:
        """Sleep until the next start."""
        self._stopped = True
        self._disarm()

    def arm(self) -> None:
        """Sleep until the next moment at which something is due. Called after every commit."""
        if self._stopped:
            return
        engine = self._engine
        horizon = engine.store.horizon
        if (
            horizon.due_ms is None
            and horizon.job_expiry_ms is None
            and horizon.lease_expiry_ms is None
            and horizon.cron_ms is None
            and not horizon.unfollowed
        ):
            return
        steady, now = engine.clock.steady_ms(), engine.clock.now_ms()
        at = steady if horizon.unfollowed else steady + CHECK_EVERY_MS
        if horizon.due_ms is not None:
            at = min(at, steady + horizon.due_ms - now)
        if horizon.job_expiry_ms is not None:
            at = min(at, steady + horizon.job_expiry_ms - now)
        if horizon.cron_ms is not None:
            at = min(at, steady + horizon.cron_ms - now)
        if horizon.lease_expiry_ms is not None:
            at = min(at, max(horizon.lease_expiry_ms, self._grace_until or 0))
        if self._alarm is None or at < self._alarm_at:
            self._disarm()
            self._alarm_at = at
            self._alarm = engine.clock.call_at(at, self._on_alarm)

    def _disarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def set_grace(self, steady_ms: int) -> None:
        """Begin the grace period if this server is late with expiring leases; end it if no lease has to expire."""
        expiry = self._engine.store.horizon.lease_expiry_ms
        if expiry is None or expiry > steady_ms:
            self._grace_until = None
        elif self._grace_until is None and steady_ms - expiry > LATE_MS:
            self._grace_until = steady_ms + LATE_GRACE_MS

    def may_expire_leases(self, steady_ms: int) -> bool:
        """Return whether leases have to expire, and no grace period lets late heartbeats be read first."""
        expiry = self._engine.store.horizon.lease_expiry_ms
        if expiry is None or expiry > steady_ms:
            return False
        return steady_ms - expiry <= LATE_MS or (self._grace_until is not None and steady_ms >= self._grace_until)

    def has_expired_leases(self) -> bool:
        """Return whether leases have to expire: then the next batch has to be alone."""
        expiry = self._engine.store.horizon.lease_expiry_ms
        return expiry is not None and expiry <= self._engine.clock.steady_ms()

    def end_grace(self) -> None:
        """End the grace period, because all leases that had to expire did."""
        self._grace_until = None

    def _on_alarm(self) -> None:
        self._alarm = None
        horizon, clock = self._engine.store.horizon, self._engine.clock
        now, steady = clock.now_ms(), clock.steady_ms()
        self.set_grace(steady)
        if (
            horizon.unfollowed
            or (horizon.due_ms is not None and horizon.due_ms <= now)
            or (horizon.job_expiry_ms is not None and horizon.job_expiry_ms <= now)
            or (horizon.cron_ms is not None and horizon.cron_ms <= now)
            or self.may_expire_leases(steady)
        ):
            self._engine.run_in_background(Sweep())
        else:
            self.arm()


async def sweep(engine: EngineContext, work: UnitOfWork) -> None:
    """Apply everything that is due by now, a bounded number at a time. The timer continues at once with the rest."""
    await work.flush()  # so that the store includes the changes of this batch
    horizon = engine.store.horizon
    if horizon.job_expiry_ms is not None and horizon.job_expiry_ms <= work.now_ms:
        await _expire(work)
    if work.alone:  # otherwise a heartbeat that came in time may be in another batch
        engine.timer.set_grace(work.steady_ms)
        if engine.timer.may_expire_leases(work.steady_ms):
            await _expire_leases(engine, work)
    if horizon.due_ms is not None and horizon.due_ms <= work.now_ms:
        await _fall_due(work)
    if horizon.cron_ms is not None and horizon.cron_ms <= work.now_ms:
        await crons.fire(engine, work)
    if horizon.unfollowed:
        await dependencies.catch_up(engine, work)


async def _expire(work: UnitOfWork) -> None:
    for job in await work.tx.job_expired(work.now_ms, limits.sweep_jobs_max):
        work.move(work.track(job), Arrow.EXPIRE)
    await work.flush()


async def _expire_leases(engine: EngineContext, work: UnitOfWork) -> None:
    expired = await work.tx.job_lease_expired(work.steady_ms, limits.sweep_jobs_max)
    if len(expired) < limits.sweep_jobs_max:
        engine.timer.end_grace()
    for found in expired:
        job = work.track(found)
        # A job that was never started was set aside for a ready list and, as far as is known, never handed out.
        if job.started_at is None or job.flags & JobFlag.UNCOUNTED:
            work.move(job, Arrow.RELEASE)
            continue
        stall = engine.store.queue_by_number(job.queue).settings.stall
        arrow, error, reason = after_lease_expiry(job, stall.max_stalls, work.steady_ms)
        details = details_of(job)
        details.error, details.stack, details.deferred_since = error, None, None
        details.reason = None if arrow in (Arrow.STALL, Arrow.STALL_BACK) else reason
        if details.first_failed_at is None:
            details.first_failed_at = work.now_ms
        put_details(job, details)
        work.move(job, arrow, error=error, note=reason)
        work.failed += 1
    await work.flush()


async def _fall_due(work: UnitOfWork) -> None:
    due = [work.track(job) for job in await work.tx.job_due(work.now_ms, limits.sweep_jobs_max)]
    for job in sorted(due, key=_order_of_due):
        work.move(job, Arrow.DUE)
    await work.flush()


def _order_of_due(job: JobRecord) -> tuple[int, int]:
    """Return the sort key: due time, then time of the push or delay. See ``lifecycle.go_first_when_due``."""
    put_off = job.flags & JobFlag.LIFO and job.position > 0
    return job.run_at, job.position if put_off else job.id
