"""What is done to whole queues: settings, and moving or removing many jobs at once.

Whatever may touch a million jobs is done in slices, each a command of its own, so that other work goes on between them. It
concerns the jobs that were there when it began; a crash in the middle leaves the rest untouched, never half a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import WrongState
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State, sources
from penstock.engine.change import follow
from penstock.engine.command import Command
from penstock.store.contract import Selection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.job import Job
    from penstock.core.queue import QueueKey, QueueSettings
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work


class Configure(Command[None]):
    """Change the settings of a queue; one that does not exist yet gets them for later.

    ``change`` is given the settings as they are and returns them as they shall be; ``note`` is journaled with the event.
    """

    __slots__ = ("change", "event", "note", "queue")

    def __init__(
        self,
        queue: QueueKey,
        event: EventKind,
        change: Callable[[QueueSettings], QueueSettings],
        note: Callable[[QueueSettings], object] | None = None,
    ) -> None:
        self.queue = queue
        self.event = event
        self.change = change
        self.note = note


class Slice(Command["SliceOutcome"]):
    """Take a bounded number of a queue's jobs along one arrow."""

    __slots__ = ("arrow", "before_ms", "limit", "queue", "skip", "states", "up_to_id")

    def __init__(
        self,
        queue: QueueKey,
        arrow: Arrow,
        states: tuple[State, ...],
        *,
        limit: int,
        up_to_id: int,
        before_ms: int | None = None,
        skip: frozenset[int] = frozenset(),
    ) -> None:
        self.queue = queue
        self.arrow = arrow
        self.states = states
        self.limit = limit
        self.up_to_id = up_to_id
        self.before_ms = before_ms
        self.skip = skip


class SliceOutcome(NamedTuple):
    """What a slice did: the jobs moved, those that could not be, and whether there may be more."""

    moved: list[Job]
    refused: frozenset[int]
    more: bool


class Announce(Command[None]):
    """Journal the end of something that was done in slices."""

    __slots__ = ("event", "note", "queue")

    def __init__(self, queue: QueueKey, event: EventKind, note: object = None) -> None:
        self.queue = queue
        self.event = event
        self.note = note


class Forget(Command[None]):
    """Forget a queue and its settings, if it has no jobs."""

    __slots__ = ("queue",)

    def __init__(self, queue: QueueKey) -> None:
        self.queue = queue


async def configure(_engine: Engine, work: Work, commands: Sequence[Configure]) -> None:
    """Apply a batch of settings."""
    for command in commands:
        queue = await work.tx.queue_open(command.queue)
        settings = command.change(queue.settings)
        await work.tx.queue_save(queue, settings, queue.created_at)
        work.tell(command.event, queue, None if command.note is None else command.note(settings))
        work.ready.add(queue.number)  # a resumed queue or a higher limit may have something for those who wait
        work.answer(command, None)


async def slice_(_engine: Engine, work: Work, commands: Sequence[Slice]) -> None:
    """Apply a batch of slices."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is None:
            work.answer(command, SliceOutcome([], frozenset(), more=False))
            continue
        await work.flush()
        limit = min(command.limit, limits.slice_jobs_max)
        selection = Selection(
            queue, command.states, limit + len(command.skip), command.up_to_id, before_ms=command.before_ms
        )
        found = await work.tx.job_select(selection)
        moved: list[Job] = []
        refused = set(command.skip)
        for job in [work.meet(job) for job in found if job.id not in command.skip][:limit]:
            try:
                await follow(work, job, command.arrow)
                moved.append(job)
            except WrongState:
                refused.add(job.id)
        work.answer(command, SliceOutcome(moved, frozenset(refused), more=len(found) >= selection.limit))


async def announce(_engine: Engine, work: Work, commands: Sequence[Announce]) -> None:
    """Apply a batch of announcements."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.tell(command.event, queue, command.note)
        work.answer(command, None)


async def forget(_engine: Engine, work: Work, commands: Sequence[Forget]) -> None:
    """Apply a batch of forgotten queues."""
    await work.flush()
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.tell(EventKind.QUEUE_OBLITERATED, queue)
            counts = work.tx.counts(queue)
            if not any(counts.of(state) for state in State if state is not State.NOWHERE):
                work.tell(EventKind.QUEUE_REMOVED, queue)
                work.ready.discard(queue.number)
                await work.tx.queue_remove(queue)
        work.answer(command, None)


# The long ones, made of slices.


async def move_many(
    engine: Engine,
    queue: QueueKey,
    arrow: Arrow,
    *,
    states: tuple[State, ...] | None = None,
    limit: int | None = None,
    before_ms: int | None = None,
    moved: Callable[[list[Job]], None] | None = None,
) -> int:
    """Take many jobs of a queue along an arrow, slice by slice; return how many. ``moved`` sees the jobs of each slice."""
    up_to_id = engine.ids.mark()
    count = 0
    skip: frozenset[int] = frozenset()
    while limit is None or count < limit:
        room = limits.slice_jobs_max if limit is None else limit - count
        outcome = await engine.run(
            Slice(queue, arrow, states or sources(arrow), limit=room, up_to_id=up_to_id, before_ms=before_ms, skip=skip)
        )
        count += len(outcome.moved)
        skip = outcome.refused
        if moved is not None:
            moved(outcome.moved)
        if not outcome.more:
            break
    return count


async def drain(engine: Engine, queue: QueueKey) -> int:
    """Remove all waiting and delayed jobs."""
    count = await move_many(engine, queue, Arrow.DRAIN)
    await engine.run(Announce(queue, EventKind.QUEUE_DRAINED, count))
    return count


async def clean(engine: Engine, queue: QueueKey, grace_ms: int, states: tuple[State, ...], limit: int) -> list[Job]:
    """Remove up to ``limit`` jobs older than a grace period, and return them."""
    before = engine.clock.now_ms() - grace_ms if grace_ms > 0 else None
    removed: list[Job] = []
    await move_many(engine, queue, Arrow.CLEAN, states=states, limit=limit, before_ms=before, moved=removed.extend)
    await engine.run(Announce(queue, EventKind.QUEUE_CLEANED, len(removed)))
    return removed


async def obliterate(engine: Engine, queue: QueueKey) -> int:
    """Remove a queue with everything in it."""
    count = await move_many(engine, queue, Arrow.OBLITERATE)
    await engine.run(Forget(queue))
    return count


async def revive(engine: Engine, queue: QueueKey) -> int:
    """Bring all dead jobs back to the queue."""
    count = await move_many(engine, queue, Arrow.REVIVE)
    await engine.run(Announce(queue, EventKind.DLQ_RETRY_ALL, count))
    return count


async def purge(engine: Engine, queue: QueueKey) -> int:
    """Remove all dead jobs."""
    count = await move_many(engine, queue, Arrow.PURGE)
    await engine.run(Announce(queue, EventKind.DLQ_PURGED, count))
    return count
