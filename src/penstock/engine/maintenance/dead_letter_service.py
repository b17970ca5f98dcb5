"""Dead letters: removes old ones and retries those that their queue's settings select."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import WrongState
from penstock.core.job import details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.core.time_slices import Pauses
from penstock.engine.command import QueueCommand
from penstock.engine.jobs.dead_letters import is_free
from penstock.engine.jobs.update import follow
from penstock.engine.maintenance.service import PeriodicService
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import DlqConfig, Queue, QueueKey
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


_BEGINNING = Place(0, 0)


class DeadLetterService(PeriodicService):
    """Removes or retries dead jobs, by the dead-letter settings of each queue."""

    every_ms = 5_000

    def __init__(self, engine: EngineContext) -> None:
        super().__init__(engine)
        #: The place among the dead jobs up to which a queue was checked, and the settings at that time.
        self._seen: dict[QueueKey, tuple[DlqConfig, Place]] = {}

    async def run_once(self) -> None:
        """Check every queue that has dead jobs."""
        if not self._engine.leads:
            return
        store, pauses = self._engine.store, Pauses()
        dead: list[QueueKey] = []
        for key in [queue.key for queue in store.queues()]:
            await pauses.pause()
            queue = store.queue_find(key)
            if queue is not None and store.counts(queue).dead:
                dead.append(key)
        self._seen = {key: self._seen[key] for key in dead if key in self._seen}
        for key in dead:
            queue = self._engine.store.queue_find(key)
            if queue is None:  # removed while others were checked
                continue
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
                # A job that waits for its unique key is checked again in the next round, and so are all jobs behind it.
                resume = next(Place(each.at, each.id - 1) for each in page if each.id in waiting)
            place = page[-1]
        self._seen[queue.key] = (rule, resume or place)


class AutoRevive(QueueCommand[set[int]]):
    """Retry some jobs that have been dead for long enough; answers which of them wait for their unique key."""

    __slots__ = ("ids",)

    def __init__(self, queue: QueueKey, ids: Sequence[int]) -> None:
        super().__init__(queue)
        self.ids = ids

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.ids)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs."""
        return [(self.queue.namespace, job_id) for job_id in self.ids]


async def auto_revive(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AutoRevive]) -> None:
    """Apply a batch of automatic retries."""
    for command in commands:
        waiting: set[int] = set()
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            await work.prefetch(command.ids)
            for job_id in command.ids:
                job = await work.find(command.queue.namespace, job_id)
                if job is not None and job.queue == queue.number and job.state == State.DEAD:
                    if not is_free(work, job):  # a consumer has leased it
                        waiting.add(job_id)
                        continue
                    try:
                        await _revive_once(work, job, queue.settings.dlq)
                    except WrongState:
                        waiting.add(job_id)
        work.answer(command, waiting)


async def _revive_once(work: UnitOfWork, job: JobRecord, rule: DlqConfig) -> None:
    details = details_of(job)
    if details.auto_retries < rule.max_auto_retries:
        await follow(work, job, Arrow.REVIVE)
        details.auto_retries += 1
        put_details(job, details)
