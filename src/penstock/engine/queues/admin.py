"""Operations on whole queues: settings, and moving or removing many jobs at once.

An operation that may change a million jobs runs in slices, each a command of its own, so that other work is done in between.
It concerns the jobs that existed when it began. A crash in the middle leaves the remaining jobs unchanged; no job is changed
in part.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import PartlyDone, ServerError, WrongState
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State, sources
from penstock.engine.command import QueueCommand
from penstock.engine.jobs.dead_letters import is_free
from penstock.engine.jobs.update import follow
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey, QueueSettings
    from penstock.engine.api import EngineApi
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


#: All states in the order in which jobs go through them, so that jobs that move forward during a long removal are still
#: found. Jobs that wait for others come first, because the end of the others may let them continue. Jobs that move back (a
#: worker fails during the removal) are found by another pass.
_ALONG_THEIR_WAY: Final = (
    State.WAITING_CHILDREN,
    State.DELAYED,
    State.WAITING,
    State.ACTIVE,
    State.COMPLETED,
    State.DEAD,
)
#: Maximum number of passes: to escape, a job would have to be claimed and to fail once in each.
_PASSES: Final = 10


class Configure(QueueCommand[None]):
    """Change the settings of a queue. A queue that does not exist yet is created with them.

    ``change`` gets the present settings and returns the new ones, or raises an error; ``note`` is journaled with the event.
    """

    __slots__ = ("change", "event", "note")

    def __init__(
        self,
        queue: QueueKey,
        event: EventKind,
        change: Callable[[QueueSettings], QueueSettings],
        note: Callable[[QueueSettings], object] | None = None,
    ) -> None:
        super().__init__(queue)
        self.event = event
        self.change = change
        self.note = note


class MoveBatch(QueueCommand[list["JobRecord"]]):
    """Apply a transition to those of some jobs of a queue that are still in one of the given states. Answers these jobs."""

    __slots__ = ("arrow", "ids", "states")

    def __init__(self, queue: QueueKey, arrow: Arrow, states: tuple[State, ...], ids: Sequence[int]) -> None:
        super().__init__(queue)
        self.arrow = arrow
        self.states = states
        self.ids = ids

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs."""
        return [(self.queue.namespace, job_id) for job_id in self.ids]

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.ids)


class Announce(QueueCommand[None]):
    """Journal the end of an operation that ran in slices."""

    __slots__ = ("event", "note")

    def __init__(self, queue: QueueKey, event: EventKind, note: object = None) -> None:
        super().__init__(queue)
        self.event = event
        self.note = note


class RemoveQueue(QueueCommand[None]):
    """Remove a queue and its settings, if it has no jobs."""

    __slots__ = ()


async def configure(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Configure]) -> None:
    """Apply a batch of settings."""
    for command in commands:
        try:
            queue = await work.tx.queue_open(command.queue)
            settings = command.change(queue.settings)
        except ServerError as error:
            work.refuse(command, error)
            continue
        await work.tx.queue_save(queue, settings, queue.created_at)
        work.journal_queue_event(command.event, queue, None if command.note is None else command.note(settings))
        work.reconfigured.add(queue.key)
        work.ready.add(queue.number)  # a resumed queue or a higher limit may have jobs for waiting claims
        work.answer(command, None)


async def move_batch(_engine: EngineContext, work: UnitOfWork, commands: Sequence[MoveBatch]) -> None:
    """Apply a batch of slices."""
    for command in commands:
        moved: list[JobRecord] = []
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            await work.prefetch(command.ids)
            for job_id in command.ids:
                job = await work.find(command.queue.namespace, job_id)
                if job is not None and job.queue == queue.number and job.state in command.states:
                    if command.arrow is Arrow.REVIVE and not is_free(work, job):
                        continue  # a consumer has a lease of this dead job
                    with contextlib.suppress(WrongState):  # if its unique key is taken, the job stays where it is
                        await follow(work, job, command.arrow)
                        moved.append(job)
        work.answer(command, moved)


async def announce(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Announce]) -> None:
    """Apply a batch of announcements."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.journal_queue_event(command.event, queue, command.note)
        work.answer(command, None)


async def remove_queue(engine: EngineContext, work: UnitOfWork, commands: Sequence[RemoveQueue]) -> None:
    """Apply a batch of removed queues."""
    await work.flush()
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.journal_queue_event(EventKind.QUEUE_OBLITERATED, queue)
            if await work.tx.is_empty(queue):
                work.journal_queue_event(EventKind.QUEUE_REMOVED, queue)
                work.ready.discard(queue.number)
                await work.tx.queue_remove(queue)
                work.after_commit.append(partial(engine.queue_limits.forget, command.queue))
                if queue.settings.subscriptions:
                    work.after_commit.append(engine.signals.webhooks_changed.emit)
        work.answer(command, None)


# Long operations, in slices.


async def move_many(
    engine: EngineApi,
    queue: QueueKey,
    arrow: Arrow,
    *,
    states: tuple[State, ...] | None = None,
    limit: int | None = None,
    before_ms: int | None = None,
    up_to_id: int | None = None,
    moved: Callable[[list[JobRecord]], None] | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> int:
    """Apply a transition to many jobs of a queue, slice by slice, oldest first; return how many.

    ``up_to_id``: jobs made later are not changed (None: later than now). ``moved`` gets the jobs of each slice; ``goes_on``
    is called before each. Raises PartlyDone if the operation was interrupted.
    """
    count = 0
    wanted = states or sources(arrow)
    try:
        async for ids in _old_jobs(engine, queue, wanted, before_ms, up_to_id):
            left = ids
            while left and goes_on() and (limit is None or count < limit):
                some = left if limit is None else left[: limit - count]
                left = left[len(some) :]  # jobs that another operation has moved do not count
                done = await engine.run(MoveBatch(queue, arrow, wanted, some))
                count += len(done)
                if moved is not None:
                    moved(done)
            if left:
                break
    except ServerError as error:
        if count == 0:
            raise
        raise PartlyDone(f"Interrupted after {count} jobs, the others are unchanged: {error}") from error
    return count


async def _old_jobs(
    engine: EngineApi, queue: QueueKey, states: tuple[State, ...], before_ms: int | None, up_to_id: int | None
) -> AsyncIterator[list[int]]:
    """Return the jobs that are in some states now, in order, a slice at a time.

    Each place is passed once, and a job that was delivered since is left out. So a job that is retried and ends again
    meanwhile is not retried without end.
    """
    ready_cache = engine.of(queue).ready_cache
    if ready_cache is not None:
        await ready_cache.clear(queue)
    up_to_id = engine.highest_id() if up_to_id is None else up_to_id
    for state in states:
        after = Place(0, 0)
        while True:
            found = engine.store.queue_find(queue)
            if found is None or not (engine.store.capabilities.is_shared or engine.store.counts(found).of(state)):
                break
            page = await engine.store.job_select(Selection(found, state, limits.select_jobs_max, up_to_id, before_ms, after))
            for start in range(0, len(page), limits.slice_jobs_max):
                yield [place.id for place in page[start : start + limits.slice_jobs_max]]
            if len(page) < limits.select_jobs_max:
                break
            after = page[-1]


async def drain(engine: EngineApi, queue: QueueKey) -> int:
    """Remove all waiting and delayed jobs."""
    count = await move_many(engine, queue, Arrow.DRAIN)
    await engine.run(Announce(queue, EventKind.QUEUE_DRAINED, count))
    return count


async def clean(engine: EngineApi, queue: QueueKey, grace_ms: int, states: tuple[State, ...], limit: int) -> list[JobRecord]:
    """Remove up to ``limit`` jobs older than a grace period, and return them."""
    before = engine.clock.now_ms() - grace_ms if grace_ms > 0 else None
    removed: list[JobRecord] = []
    await move_many(engine, queue, Arrow.CLEAN, states=states, limit=limit, before_ms=before, moved=removed.extend)
    note = {"states": [state.value for state in states], "count": len(removed)}
    await engine.run(Announce(queue, EventKind.QUEUE_CLEANED, note))
    return removed


async def obliterate(engine: EngineApi, queue: QueueKey) -> int:
    """Remove a queue with everything in it."""
    count = await _remove_all(engine, queue)
    await engine.run(RemoveQueue(queue))
    return count


async def empty(engine: EngineApi, queue: QueueKey) -> int:
    """Remove all jobs of a queue, even those that workers hold; the queue and its settings stay."""
    count = await _remove_all(engine, queue)
    await engine.run(Announce(queue, EventKind.QUEUE_DRAINED, count))
    return count


async def _remove_all(engine: EngineApi, queue: QueueKey) -> int:
    """Remove all jobs that a queue has now, also those that workers hold, or that change in the meantime."""
    up_to_id = engine.highest_id()
    count = 0
    for number in range(_PASSES):
        removed = await move_many(engine, queue, Arrow.OBLITERATE, states=_ALONG_THEIR_WAY, up_to_id=up_to_id)
        count += removed
        if number and not removed:
            break
    return count


async def revive(engine: EngineApi, queue: QueueKey, limit: int | None = None) -> int:
    """Retry dead jobs that no consumer has leased: all of them, or the ``limit`` oldest."""
    count = await move_many(engine, queue, Arrow.REVIVE, limit=limit)
    await engine.run(Announce(queue, EventKind.DLQ_RETRY_ALL, count))
    return count


async def revive_some(engine: EngineApi, queue: QueueKey, ids: Sequence[int]) -> int:
    """Retry some dead jobs; return how many were still dead."""
    count = 0
    for start in range(0, len(ids), limits.slice_jobs_max):
        some = ids[start : start + limits.slice_jobs_max]
        done = await engine.run(MoveBatch(queue, Arrow.REVIVE, (State.DEAD,), some))
        count += len(done)
    await engine.run(Announce(queue, EventKind.DLQ_RETRY_ALL, count))
    return count


async def purge(engine: EngineApi, queue: QueueKey) -> int:
    """Remove all dead jobs."""
    count = await move_many(engine, queue, Arrow.PURGE)
    await engine.run(Announce(queue, EventKind.DLQ_PURGED, count))
    return count
