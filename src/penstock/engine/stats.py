"""Plain counters of what the engine has done since it started. No labels, no locks: adding costs an addition."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

#: Upper bounds of the histogram buckets, in ms.
BUCKETS_MS: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)


class Histogram:
    """How long something took, in buckets."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.sum_ms = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count one or several operations that took this long."""
        ms = seconds * 1000
        self.counts[bisect_left(BUCKETS_MS, ms)] += times
        self.sum_ms += ms * times


class EngineStats:
    """Read by ``/stats``, ``/metrics`` and ``/prometheus``."""

    def __init__(self) -> None:
        self.pushed = 0
        self.pulled = 0
        self.completed = 0
        self.failed = 0  #: deliveries that failed, including stalls
        self.batches = 0
        self.commands = 0
        self.batch_time = Histogram()
        self.sync_time = Histogram()
        self.push_time = Histogram()
        self.pull_time = Histogram()
        self.ack_time = Histogram()

    def committed(self, commands: int, seconds: float) -> None:
        """Count a transaction."""
        self.batches += 1
        self.commands += commands
        self.batch_time.observe(seconds)

    def synced(self, seconds: float) -> None:
        """Count an fsync."""
        self.sync_time.observe(seconds)
