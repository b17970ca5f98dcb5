"""Counters of the messages door, and the metrics that are built from them at a scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from penstock.doors.queue_counters import QueueCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from penstock.core.queue import QueueKey

_COUNTERS: Final = (
    ("published", "Messages published."),
    ("consumed", "Messages handed to consumers."),
    ("acked", "Messages acknowledged."),
    ("nacked", "Messages that were nacked."),
    ("dlq_routed", "Messages that became dead letters."),
)


class MessageCount:
    """Counters of the messages of one queue, since the server started."""

    __slots__ = tuple(name for name, _ in _COUNTERS)

    def __init__(self) -> None:
        self.published = self.consumed = self.acked = self.nacked = self.dlq_routed = 0


class MessageCounters(QueueCounters[MessageCount], Collector):
    """Counters per queue, as metrics with the names of EpochQ."""

    def __init__(self, exists: Callable[[QueueKey], object]) -> None:
        super().__init__(MessageCount, exists)

    def note_dead(self, queue: QueueKey) -> None:
        """Count a message that became a dead letter."""
        self.of(queue).dlq_routed += 1

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        self.forget_gone()
        for name, text in _COUNTERS:
            family = CounterMetricFamily(f"epochq_messages_{name}_total", text, labels=("namespace", "queue"))
            for queue, count in self.counts.items():
                family.add_metric(queue, getattr(count, name))
            yield family
