"""Housekeeping: what is kept, for how long, and getting out of trouble by itself.

Each keeper is a small service with the same life: ``start``, ``stop``, and ``run_once``, which does a bounded piece of work
and can be called by a test without any time passing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import structlog

from penstock.core import limits
from penstock.core.errors import PenstockError, WrongState
from penstock.core.job import details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.admin import move_many
from penstock.engine.change import follow
from penstock.engine.command import Command
from penstock.store.contract import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Alarm
    from penstock.core.queue import DlqConfig, Queue, QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work

log = structlog.get_logger("penstock.keeper")


class Retention(msgspec.Struct, frozen=True):
    """What is kept of the past. Whichever limit is reached first removes the oldest."""

    completed_max: int = 50_000  #: completed jobs per queue, with their results
    completed_age_ms: int = 7 * limits.DAY_MS
    journal_bytes_max: int = 256 * limits.MEBIBYTE
    journal_age_ms: int = 7 * limits.DAY_MS


class Keeper:
    """Base of the services. ``every_ms`` is the pause between two rounds."""

    every_ms = 5_000

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = True

    def start(self) -> None:
        """Begin; starting twice is fine."""
        if self._stopped:
            self._stopped = False
            self._book()

    async def stop(self) -> None:
        """End after the round under way; stopping twice, or before starting, is fine."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> None:
        """Do one round."""
        raise NotImplementedError

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


class Healer(Keeper):
    """Gets the store out of trouble: looks for free space, or opens the files again."""

    every_ms = 1_000

    async def run_once(self) -> None:
        """Heal the store if it needs it."""
        if self._engine.store.status().error is not None:
            await self._engine.store.heal()
            self._engine.timer.arm()


class Archivist(Keeper):
    """Forgets completed jobs and journal blocks that are too many or too old."""

    every_ms = 5_000

    async def run_once(self) -> None:
        """Trim every queue and the journal."""
        engine, keep = self._engine, self._engine.retention
        for queue in engine.store.queues():
            completed = engine.store.counts(queue).completed
            if completed > keep.completed_max:
                await move_many(
                    engine, queue.key, Arrow.FORGET, states=(State.COMPLETED,), limit=completed - keep.completed_max
                )
            if completed:
                before = engine.clock.now_ms() - keep.completed_age_ms
                await move_many(engine, queue.key, Arrow.FORGET, states=(State.COMPLETED,), before_ms=before)
        while await engine.run(TrimJournal(keep)) == limits.slice_jobs_max:
            pass


class Undertaker(Keeper):
    """Looks after dead jobs, as each queue's dead-letter settings say: forgets them, or has them tried again."""

    every_ms = 5_000

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: Up to which moment of death a queue was looked at, and with which settings.
        self._seen: dict[QueueKey, tuple[DlqConfig, int]] = {}

    async def run_once(self) -> None:
        """Go through every queue that has dead jobs."""
        for queue in self._engine.store.queues():
            dead = self._engine.store.counts(queue).dead
            if dead:
                await self._forget(queue, dead)
                if queue.settings.dlq.auto_retry:
                    await self._revive(queue)

    async def _forget(self, queue: Queue, dead: int) -> None:
        rule = queue.settings.dlq
        if dead > rule.max_entries:
            await move_many(self._engine, queue.key, Arrow.FORGET, states=(State.DEAD,), limit=dead - rule.max_entries)
        if rule.max_age is not None:
            before = self._engine.clock.now_ms() - rule.max_age
            await move_many(self._engine, queue.key, Arrow.FORGET, states=(State.DEAD,), before_ms=before)

    async def _revive(self, queue: Queue) -> None:
        rule = queue.settings.dlq
        seen_with, since = self._seen.get(queue.key, (rule, 0))
        if seen_with != rule:
            since = 0
        resume = None
        while True:
            outcome = await self._engine.run(AutoRevive(queue.key, since))
            since = outcome.seen_until
            if resume is None:
                resume = outcome.waiting_since
            if not outcome.more:
                break
        # A job that waits for its unique key is looked at again in the next round, and everything behind it.
        self._seen[queue.key] = (rule, since if resume is None else resume)


class TrimJournal(Command[int]):
    """Drop some of the oldest journal blocks; answers how many."""

    __slots__ = ("keep",)

    def __init__(self, keep: Retention) -> None:
        self.keep = keep


class AutoRevive(Command["Revived"]):
    """Bring back dead jobs that have rested long enough, beginning with those that died at a moment or later."""

    __slots__ = ("queue", "since_ms")

    def __init__(self, queue: QueueKey, since_ms: int) -> None:
        self.queue = queue
        self.since_ms = since_ms


class Revived(NamedTuple):
    """How far it got, since when somebody waits for a unique key, and whether there may be more."""

    seen_until: int
    waiting_since: int | None
    more: bool


async def trim_journal(_engine: Engine, work: Work, commands: Sequence[TrimJournal]) -> None:
    """Apply a batch of trims."""
    for command in commands:
        before = work.now_ms - command.keep.journal_age_ms
        count = await work.tx.journal_trim(before, command.keep.journal_bytes_max, limits.slice_jobs_max)
        work.answer(command, count)


async def auto_revive(engine: Engine, work: Work, commands: Sequence[AutoRevive]) -> None:
    """Apply a batch of automatic retries."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        outcome = Revived(command.since_ms, None, more=False)
        if queue is not None:
            await work.flush()
            outcome = await _revive_rested(engine, work, queue, command.since_ms)
        work.answer(command, outcome)


async def _revive_rested(engine: Engine, work: Work, queue: Queue, since_ms: int) -> Revived:
    rule = queue.settings.dlq
    rested = work.now_ms - rule.auto_retry_interval + 1
    selection = Selection(
        queue, (State.DEAD,), limits.slice_jobs_max, engine.ids.mark(), before_ms=rested, since_ms=since_ms
    )
    found = [work.meet(job) for job in await work.tx.job_select(selection)]
    died_at = [job.finished_at or 0 for job in found]
    waiting_since = None
    for job, died in zip(found, died_at, strict=True):
        details = details_of(job)
        if details.auto_retries >= rule.max_auto_retries:
            continue
        try:
            await follow(work, job, Arrow.REVIVE)
        except WrongState:
            waiting_since = died if waiting_since is None else waiting_since
        else:
            details.auto_retries += 1
            put_details(job, details)
    last = died_at[-1] if died_at else since_ms
    return Revived(last, waiting_since, more=len(found) == limits.slice_jobs_max and last != since_ms)
