"""Capacity limits of queues in ``buffered`` mode: jobs that are answered and not stored yet count as well.

A push that fits, as far as this server knows, is answered early. The database decides on any other push, after it has stored
everything that was answered before. So a queue never exceeds its limit, and never refuses a push for which there is room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.core.queue import QueueKey
    from penstock.engine.command import Submit
    from penstock.engine.jobs.push import Push
    from penstock.store.contract import Store


class UnstoredPushes(Protocol):
    """Pushes that are answered and not stored: see ``EnqueueBuffer``."""

    @property
    def last_number(self) -> int:
        """Number of the newest record of the log; 0 if there is none."""

    def depth(self, queue: QueueKey, /) -> int:
        """Return the number of jobs of a queue that are answered and not stored."""

    def flush(self) -> None:
        """Begin to store what is in the log."""


class BufferCapacity:
    """The capacity limits of one enqueue buffer."""

    def __init__(self, buffer: UnstoredPushes, store: Store) -> None:
        self._buffer = buffer
        self._store = store
        self._undecided: dict[QueueKey, int] = {}  #: jobs of pushes that the database is deciding on
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  #: callers that wait until a record of the log is stored

    def has_room(self, push: Push) -> bool:
        """Return whether a push certainly fits, with any outcome of the others."""
        queue = self._store.queue_find(push.queue)
        if queue is None or push.room is None:
            return push.room is None
        counts = self._store.counts(queue)
        promised = self._buffer.depth(push.queue) + self._undecided.get(push.queue, 0)
        return counts.waiting + counts.active + promised + len(push.jobs) <= push.room

    async def ask_database(self, push: Push, submit: Submit) -> Any:
        """Let the database decide on a push. Raises its error, or StorageFailed if it cannot be reached."""
        key, count = push.queue, len(push.jobs)
        self._undecided[key] = self._undecided.get(key, 0) + count
        try:
            if self._buffer.depth(key):
                await self.stored(self._buffer.last_number)
            return await submit(push)
        finally:
            self._undecided[key] -= count
            if not self._undecided[key]:
                del self._undecided[key]

    async def stored(self, number: int) -> None:
        """Wait until a record of the log, and all earlier ones, are stored. Raises StorageFailed, StorageFull, ShuttingDown."""
        self._store.check_writable(grows=True)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, waiting))
        self._buffer.flush()
        await waiting

    def advanced(self, number: int) -> None:
        """End the waits for records up to this number."""
        for needed, waiting in self._waiting:
            if needed <= number and not waiting.done():
                waiting.set_result(None)
        self._waiting = [each for each in self._waiting if not each[1].done()]

    def failed(self, error: Exception) -> None:
        """End all waits with an error, because nothing can be stored now."""
        for _, waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error)
        self._waiting = []
