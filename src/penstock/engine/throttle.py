"""How many jobs of a queue may be claimed right now: pause, concurrency and rate limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits

if TYPE_CHECKING:
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.work import Work


class TokenBucket:
    """Lets ``per_second`` things through each second, and as many at once after a quiet second."""

    __slots__ = ("_at_ms", "_tokens", "per_second")

    def __init__(self, per_second: int, steady_ms: int) -> None:
        self.per_second = per_second
        self._tokens = float(per_second)
        self._at_ms = steady_ms

    def available(self, steady_ms: int) -> int:
        """Return how many may pass now."""
        self._tokens = min(float(self.per_second), self._tokens + (steady_ms - self._at_ms) * self.per_second / 1000)
        self._at_ms = steady_ms
        return int(self._tokens)

    def take(self, count: int) -> None:
        """Let that many through."""
        self._tokens -= count

    def next_ms(self, steady_ms: int) -> int:
        """Return the steady moment at which at least one may pass."""
        missing = max(0.0, 1.0 - self._tokens)
        return steady_ms + int(missing * 1000 / self.per_second) + 1


class Throttle:
    """Keeps a bucket for each queue that has a rate limit."""

    def __init__(self) -> None:
        self._buckets: dict[QueueKey, TokenBucket] = {}
        self._hit_told_ms: dict[QueueKey, int] = {}  #: of queues with a bucket: when it was last told that it is empty

    def allowance(self, work: Work, queue: Queue) -> int:
        """Return how many jobs may be claimed from a queue within this transaction."""
        settings = queue.settings
        if settings.paused:
            return 0
        allowed = limits.claim_batch_jobs_max
        if settings.concurrency is not None:
            allowed = min(allowed, settings.concurrency - work.tx.counts(queue).active)
        bucket = self._bucket(work, queue)
        if bucket is not None:
            allowed = min(allowed, bucket.available(work.steady_ms))
        return max(0, allowed)

    def claimed(self, queue: Queue, count: int) -> None:
        """Count jobs that were claimed, once that is committed."""
        bucket = self._buckets.get(queue.key)
        if bucket is not None:
            bucket.take(count)

    def forget(self, queue: QueueKey) -> None:
        """Forget a queue that is gone."""
        self._buckets.pop(queue, None)
        self._hit_told_ms.pop(queue, None)

    def again_at(self, work: Work, queue: Queue) -> int | None:
        """Return the steady moment from which the rate limit allows more; None if it is not what holds the queue back."""
        bucket = self._bucket(work, queue)
        if bucket is None or queue.settings.paused or bucket.available(work.steady_ms) > 0:
            return None
        return bucket.next_ms(work.steady_ms)

    def tells_hit(self, work: Work, queue: Queue) -> bool:
        """Tell whether the rate limit holds a queue back and this should be told: at most once a second."""
        if self.again_at(work, queue) is None:
            return False
        told = self._hit_told_ms.get(queue.key)
        if told is not None and work.steady_ms - told < limits.SECOND_MS:
            return False
        self._hit_told_ms[queue.key] = work.steady_ms
        return True

    def _bucket(self, work: Work, queue: Queue) -> TokenBucket | None:
        limit = queue.settings.rate_limit
        bucket = self._buckets.get(queue.key)
        if limit is None:
            if bucket is not None:
                self.forget(queue.key)
            return None
        if bucket is None or bucket.per_second != limit:
            bucket = self._buckets[queue.key] = TokenBucket(limit, work.steady_ms)
        return bucket
