"""The number of jobs of a queue that may be claimed now: pause, concurrency and rate limit.

The store keeps the state of a rate limit, so that the limit holds for all servers that share the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits

if TYPE_CHECKING:
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.unit_of_work import UnitOfWork


class TokenBucket:
    """Allows ``limit`` jobs per ``window_ms``, and as many at once after a window without any.

    ``tokens``: how many are allowed at the steady moment ``at_ms``. ``ends_ms``: the steady moment from which there is
    no limit.
    """

    __slots__ = ("at_ms", "ends_ms", "limit", "tokens", "window_ms")

    def __init__(
        self,
        limit: int,
        steady_ms: int,
        tokens: float | None = None,
        window_ms: int = limits.SECOND_MS,
        ends_ms: int | None = None,
    ) -> None:
        self.limit = limit
        self.window_ms = window_ms
        self.tokens = float(limit) if tokens is None else tokens
        self.at_ms = steady_ms
        self.ends_ms = ends_ms

    def available(self, steady_ms: int) -> int:
        """Return how many jobs are allowed now."""
        passed_ms = max(0, steady_ms - self.at_ms)
        self.tokens = min(float(self.limit), self.tokens + passed_ms * self.limit / self.window_ms)
        self.at_ms = max(self.at_ms, steady_ms)
        return int(self.tokens)

    def take(self, count: int) -> None:
        """Take tokens for that many jobs."""
        self.tokens -= count

    def next_ms(self, steady_ms: int) -> int:
        """Return the steady moment at which at least one job is allowed."""
        missing = max(0.0, 1.0 - self.tokens)
        at_ms = steady_ms + int(missing * self.window_ms / self.limit) + 1
        return at_ms if self.ends_ms is None else min(at_ms, self.ends_ms)


class Allowance(NamedTuple):
    """How many jobs may be claimed from a queue within a transaction, and the bucket that counts them, if there is one."""

    jobs: int
    bucket: TokenBucket | None = None

    def again_at(self, steady_ms: int) -> int | None:
        """Return the steady moment from which the rate limit allows more; None if it does not hold the queue back."""
        if self.bucket is None or self.bucket.available(steady_ms) > 0:
            return None
        return self.bucket.next_ms(steady_ms)


_NOTHING = Allowance(0)


async def load_bucket(work: UnitOfWork, queue: Queue) -> TokenBucket | None:
    """Return the state of the rate limit of a queue; None if it has no rate limit, or the limit has ended."""
    settings = queue.settings
    if settings.rate_limit is None:
        return None
    ends_ms = None
    if settings.rate_limit_until is not None:
        left_ms = settings.rate_limit_until - work.now_ms
        if left_ms <= 0:
            return None
        ends_ms = work.steady_ms + left_ms
    tokens, at_ms = await work.tx.bucket_load(queue) or (None, work.steady_ms)
    return TokenBucket(settings.rate_limit, at_ms, tokens, settings.rate_window_ms, ends_ms)


class QueueLimits:
    """The limits of the queues of one engine."""

    def __init__(self) -> None:
        self._hit_published_ms: dict[QueueKey, int] = {}  #: when an event about an empty bucket was last published

    async def allowance(self, work: UnitOfWork, queue: Queue) -> Allowance:
        """Return what may be claimed from a queue within this transaction."""
        settings = queue.settings
        if settings.paused:
            return _NOTHING
        allowed = limits.claim_batch_jobs_max
        if settings.concurrency is not None:
            allowed = min(allowed, settings.concurrency - await work.tx.count_active(queue))
        bucket = None if settings.rate_limit is None else await load_bucket(work, queue)
        if bucket is None:
            return Allowance(max(0, allowed))
        return Allowance(max(0, min(allowed, bucket.available(work.steady_ms))), bucket)

    @staticmethod
    async def claimed(work: UnitOfWork, queue: Queue, allowance: Allowance, count: int) -> None:
        """Count jobs that were claimed."""
        if allowance.bucket is not None and count:
            allowance.bucket.take(count)
            await work.tx.bucket_save(queue, allowance.bucket.tokens, allowance.bucket.at_ms)

    def forget(self, queue: QueueKey) -> None:
        """Remove the entry of a queue that was removed."""
        self._hit_published_ms.pop(queue, None)

    def is_hit_due(self, work: UnitOfWork, queue: Queue, allowance: Allowance) -> bool:
        """Return whether the rate limit holds a queue back and an event about it is due: at most one per second."""
        if allowance.again_at(work.steady_ms) is None:
            return False
        published = self._hit_published_ms.get(queue.key)
        return published is None or work.steady_ms - published >= limits.SECOND_MS

    def note_hit(self, work: UnitOfWork, queue: Queue) -> None:
        """Record that such an event is published."""
        self._hit_published_ms[queue.key] = work.steady_ms
