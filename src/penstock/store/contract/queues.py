"""Queues: their names, settings, counts and rate limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey, QueueSettings, StateCounts


class QueueTransaction(Protocol):
    """Queues, inside of a transaction."""

    def queue_find(self, key: QueueKey) -> Queue | None:
        """Return a queue that exists and is served here."""

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        """Return a queue, created with default settings if it did not exist. Raises QueueMoving if it is on another shard.

        Raises NamespaceLimit, before anything is written, if its namespace has its maximum number of queues, unless it
        ``must`` be.
        """

    def queue_touch(self, queue: Queue) -> None:
        """Check at the commit that no other transaction has changed a queue, although no job of it is written."""

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        """Replace a queue's settings and creation time, in the store and in the object."""

    async def queue_remove(self, queue: Queue) -> None:
        """Delete a queue that has no jobs."""

    def queue_by_number(self, number: int) -> Queue:
        """Return the queue that jobs refer to by this number."""

    def namespace_number(self, name: str) -> int | None:
        """Return the number of a namespace in its jobs; None if the namespace is unknown."""

    def counts(self, queue: Queue) -> StateCounts:
        """Return the number of jobs in each state, including the changes of this transaction."""

    async def is_empty(self, queue: Queue) -> bool:
        """Return whether a queue has no jobs; the answer is exact."""

    async def count_active(self, queue: Queue) -> int:
        """Return the exact number of active jobs of a queue.

        No other transaction adds one until this one ends, because each must call this before it claims from a queue that has
        a concurrency limit.
        """

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        """Read how many jobs a rate limit had left, and when (steady ms); locked like ``count_active``. None: not used yet."""

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        """Write how many jobs a rate limit has left. Deleted with the limit or the queue."""


class QueueReads(Protocol):
    """Queues, outside of transactions."""

    def queue_find(self, key: QueueKey) -> Queue | None:
        """Return a queue that exists."""

    def queues(self) -> list[Queue]:
        """Return all queues."""

    def queues_of(self, namespace: str) -> list[Queue]:
        """Return the queues of a namespace. The cost does not grow with the queues of others."""

    def queues_subscribed(self) -> list[Queue]:
        """Return the queues that have push subscriptions, without looking at the others."""

    def queue_namespaces(self) -> list[str]:
        """Return the namespaces that have queues."""

    def queue_count(self, namespace: str | None = None) -> int:
        """Return the number of queues, of a namespace or of all, without looking at each."""

    def queue_by_number(self, number: int) -> Queue:
        """Return the queue that jobs refer to by this number."""

    def queue_of(self, job: JobRecord) -> Queue:
        """Return the queue of a job."""

    def counts(self, queue: Queue) -> StateCounts:
        """Return the number of jobs in each state."""

    def totals(self) -> StateCounts:
        """Return the number of jobs in each state, of all queues."""

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        """Count waiting and delayed jobs per priority."""

    async def prioritized_count(self, queue: Queue) -> int:
        """Count the waiting jobs with a priority above 0. The cost grows with their number, not with the queue's length."""
