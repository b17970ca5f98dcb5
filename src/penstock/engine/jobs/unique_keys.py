"""Unique keys: which unfinished job has a key, and taking the key from that job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.job import JobRecord, unique_key_is_over
from penstock.engine.command import QueueCommand
from penstock.engine.prefetch.commands import withdraw_ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue import QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class UniqueKey(QueueCommand[JobRecord | None]):
    """Return the unfinished job that has a unique key in a queue; None if there is none.

    ``free``: the key is taken from that job, so that another job may have it. ``only``: do so only if the job has this
    id.
    """

    __slots__ = ("free", "key", "only")

    def __init__(self, queue: QueueKey, key: str, *, free: bool = False, only: int | None = None) -> None:
        super().__init__(queue)
        self.key = key
        self.free = free
        self.only = only


async def unique_key(engine: EngineContext, work: UnitOfWork, commands: Sequence[UniqueKey]) -> None:
    """Apply a batch of lookups of unique keys."""
    await work.flush_and_track()
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        found = {} if queue is None else await work.tx.job_find_unique([(queue.number, command.key)])
        holder = next((work.track(job) for job in found.values()), None)
        if holder is None or unique_key_is_over(holder, work.now_ms) or (command.only or holder.id) != holder.id:
            work.answer(command, None)
            continue
        if command.free:
            await withdraw_ready(engine, work, [holder])
            await work.flush()
            holder.unique_key = None
            await work.tx.job_rewrite([holder])
        work.answer(command, holder)
