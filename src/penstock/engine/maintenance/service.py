"""Housekeeping: what is kept, for how long, and getting out of trouble by itself.

Each keeper is a small service with the same life: ``start``, ``stop``, and ``run_once``, which does a bounded piece of work
and can be called by a test without any time passing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import structlog

from penstock.core import limits
from penstock.core.errors import PenstockError, WrongState
from penstock.core.job import details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command
from penstock.engine.jobs.dead_letters import is_free
from penstock.engine.jobs.update import follow
from penstock.engine.queues.admin import move_many
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Alarm
    from penstock.core.job import Job
    from penstock.core.queue import DlqConfig, Queue, QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.unit_of_work import UnitOfWork

log = structlog.get_logger("penstock.keeper")

_BEGINNING = Place(0, 0)


class Retention(msgspec.Struct, frozen=True):
    """What is kept of the past. Whichever limit is reached first removes the oldest."""

    completed_max: int = 50_000  #: completed jobs per queue, with their results
    completed_age_ms: int = 7 * limits.DAY_MS
    journal_bytes_max: int = 256 * limits.MEBIBYTE
    journal_age_ms: int = 7 * limits.DAY_MS


class PeriodicService:
    """Base of the services. ``every_ms`` is the pause between two rounds."""

    every_ms = 5_000

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = True
        self._stopping = False
        self._woken = False  #: somebody said that there is something to do; for those that look before they end a round

    def start(self) -> None:
        """Begin; starting twice is fine."""
        if self._stopped:
            self._stopped = self._stopping = False
            self._book()

    async def stop(self) -> None:
        """End after the slice under way; stopping twice, or before starting, is fine."""
        self._stopped = self._stopping = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Have a round now, or once more after the one under way."""
        self._woken = True
        if not self._stopped and self._task is None:
            if self._alarm is not None:
                self._alarm.cancel()
            self._ring()

    async def run_once(self) -> None:
        """Do one round."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        """Tell whether a round under way may go on; a stop need not wait for all of it."""
        return not self._stopping

    async def forget(self, queue: Queue, state: State, *, limit: int | None = None, before_ms: int | None = None) -> None:
        """Forget finished jobs of a queue, oldest first."""
        await move_many(
            self._engine,
            queue.key,
            Arrow.FORGET,
            states=(state,),
            limit=limit,
            before_ms=before_ms,
            goes_on=self.goes_on,
        )

    def _book(self) -> None:
        clock = self._engine.clock
        self._alarm = clock.call_at(clock.steady_ms() + self.every_ms, self._ring)

    def _ring(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._round(), name=f"penstock-{type(self).__name__}")

    async def _round(self) -> None:
        try:
            await self.run_once()
        except PenstockError as error:
            log.warning(
                "housekeeping was interrupted and goes on in the next round", keeper=type(self).__name__, error=str(error)
            )
        except Exception:
            log.exception("housekeeping failed", keeper=type(self).__name__)
        self._task = None
        if not self._stopped:
            self._book()


class StoreRecovery(PeriodicService):
    """Gets the store out of trouble: looks for free space, or opens the files again."""

    every_ms = 1_000

    async def run_once(self) -> None:
        """Heal the store if it needs it."""
        status = self._engine.store.status()
        was_in_trouble = status.error is not None
        if (was_in_trouble or status.reserve_short) and await self._engine.store.heal() and was_in_trouble:
            self._engine.healed()


class Membership(PeriodicService):
    """On a store that other servers use too: shows them that this one lives, and looks for what nobody told us of.

    A wake-up can be lost with the connection that carries it, and a job is passed over while a server holds it that dies.
    """

    every_ms = 1_000

    async def run_once(self) -> None:
        """Keep our number, take the lead if nobody has it, and look at every line."""
        engine = self._engine
        status = engine.store.status()
        if status.error is not None and not status.full:  # where there is no room left, the rest goes on as far as it can
            engine.take_lead(None)
        else:
            await engine.store.keep_node()
            engine.ids.use(node=engine.store.node)
            asked_at = engine.clock.steady_ms()
            engine.take_lead(await engine.store.lead("housekeeping", limits.lead_ms), asked_at + limits.lead_ms)
            engine.room.nudge_all()
            engine.timer.arm()


class ClockMarker(PeriodicService):
    """On a store of our own: writes down how much time has been counted, while there are leases that go by it.

    After a new start of the machine it goes on from there.
    """

    every_ms = 10_000

    async def run_once(self) -> None:
        """Save a mark if there are leases."""
        if self._engine.store.horizon.lapse_ms is not None and self._engine.store.status().error is None:
            await self._engine.run(MarkClock())


class RetentionService(PeriodicService):
    """Forgets completed jobs and journal blocks that are too many or too old."""

    every_ms = 5_000

    async def run_once(self) -> None:
        """Trim every queue and the journal."""
        engine, keep = self._engine, self._engine.retention
        if not engine.leads:
            return
        for queue in engine.store.queues():
            completed = engine.store.counts(queue).completed
            if completed > keep.completed_max:
                await self.forget(queue, State.COMPLETED, limit=completed - keep.completed_max)
            if completed:
                await self.forget(queue, State.COMPLETED, before_ms=engine.clock.now_ms() - keep.completed_age_ms)
        while self.goes_on() and await engine.run(TrimJournal(keep)) == limits.slice_jobs_max:
            pass


class DeadLetterService(PeriodicService):
    """Looks after dead jobs, as each queue's dead-letter settings say: forgets them, or has them tried again."""

    every_ms = 5_000

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: Up to which place among the dead a queue was looked at, and with which settings.
        self._seen: dict[QueueKey, tuple[DlqConfig, Place]] = {}

    async def run_once(self) -> None:
        """Go through every queue that has dead jobs."""
        if not self._engine.leads:
            return
        dead = [queue for queue in self._engine.store.queues() if self._engine.store.counts(queue).dead]
        self._seen = {queue.key: self._seen[queue.key] for queue in dead if queue.key in self._seen}
        for queue in dead:
            await self._forget_dead(queue)
            if queue.settings.dlq.auto_retry:
                await self._revive(queue)

    async def _forget_dead(self, queue: Queue) -> None:
        rule, dead = queue.settings.dlq, self._engine.store.counts(queue).dead
        if dead > rule.max_entries:
            await self.forget(queue, State.DEAD, limit=dead - rule.max_entries)
        if rule.max_age is not None:
            await self.forget(queue, State.DEAD, before_ms=self._engine.clock.now_ms() - rule.max_age)

    async def _revive(self, queue: Queue) -> None:
        engine, rule = self._engine, queue.settings.dlq
        seen_with, place = self._seen.get(queue.key, (rule, _BEGINNING))
        if seen_with != rule:
            place = _BEGINNING
        rested = engine.clock.now_ms() - rule.auto_retry_interval + 1
        resume = None
        while self.goes_on():
            chosen = Selection(queue, State.DEAD, limits.slice_jobs_max, engine.highest_id(), rested, place)
            page = await engine.store.job_select(chosen)
            if not page:
                break
            waiting = await engine.run(AutoRevive(queue.key, [each.id for each in page]))
            if waiting and resume is None:
                # One that waits for its unique key is looked at again in the next round, and everything behind it.
                resume = next(Place(each.at, each.id - 1) for each in page if each.id in waiting)
            place = page[-1]
        self._seen[queue.key] = (rule, resume or place)


class MarkClock(Command[None]):
    """Write down how much time has been counted."""

    __slots__ = ()


class TrimJournal(Command[int]):
    """Drop some of the oldest journal blocks; answers how many."""

    __slots__ = ("keep",)

    def __init__(self, keep: Retention) -> None:
        self.keep = keep


class AutoRevive(Command[set[int]]):
    """Bring back some dead jobs that have rested long enough; answers which of them wait for their unique key."""

    __slots__ = ("ids", "queue")

    def __init__(self, queue: QueueKey, ids: Sequence[int]) -> None:
        self.queue = queue
        self.ids = ids


async def trim_journal(_engine: Engine, work: UnitOfWork, commands: Sequence[TrimJournal]) -> None:
    """Apply a batch of trims."""
    for command in commands:
        before = work.now_ms - command.keep.journal_age_ms
        count = await work.tx.journal_trim(before, command.keep.journal_bytes_max, limits.slice_jobs_max)
        work.answer(command, count)


async def mark_clock(_engine: Engine, work: UnitOfWork, commands: Sequence[MarkClock]) -> None:
    """Save one mark for all."""
    await work.tx.clock_mark()
    for command in commands:
        work.answer(command, None)


async def auto_revive(_engine: Engine, work: UnitOfWork, commands: Sequence[AutoRevive]) -> None:
    """Apply a batch of automatic retries."""
    for command in commands:
        waiting: set[int] = set()
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            await work.prefetch(command.ids)
            for job_id in command.ids:
                job = await work.find(command.queue.namespace, job_id)
                if job is not None and job.queue == queue.number and job.state == State.DEAD:
                    if not is_free(work, job):  # a consumer looks at it
                        waiting.add(job_id)
                        continue
                    try:
                        await _revive_once(work, job, queue.settings.dlq)
                    except WrongState:
                        waiting.add(job_id)
        work.answer(command, waiting)


async def _revive_once(work: UnitOfWork, job: Job, rule: DlqConfig) -> None:
    details = details_of(job)
    if details.auto_retries < rule.max_auto_retries:
        await follow(work, job, Arrow.REVIVE)
        details.auto_retries += 1
        put_details(job, details)
