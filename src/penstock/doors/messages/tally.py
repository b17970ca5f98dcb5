"""What went through the messages door, and the metrics that are made of it when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from penstock.core import limits
from penstock.core.queue import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

#: Where queues are counted that came when there were too many already.
OTHERS: Final = QueueKey("", "")
_COUNTERS: Final = (
    ("published", "Messages published."),
    ("consumed", "Messages handed to consumers."),
    ("acked", "Messages acknowledged."),
    ("nacked", "Messages given back."),
    ("dlq_routed", "Messages that became dead letters."),
)


class MessageCount:
    """What was done with the messages of one queue since the server started."""

    __slots__ = tuple(name for name, _ in _COUNTERS)

    def __init__(self) -> None:
        self.published = self.consumed = self.acked = self.nacked = self.dlq_routed = 0


class MessageTally(Collector):
    """Counts per queue, as metrics under the names of the original."""

    def __init__(self) -> None:
        self._queues: dict[QueueKey, MessageCount] = {}

    def note_dead(self, queue: QueueKey) -> None:
        """Count a message of a queue that became a dead letter."""
        self.of(queue).dlq_routed += 1

    def of(self, queue: QueueKey) -> MessageCount:
        """Return the count of a queue that something was done with."""
        count = self._queues.get(queue)
        if count is None:
            if len(self._queues) >= limits.counted_topics_max:
                queue = OTHERS
            count = self._queues.setdefault(queue, MessageCount())
        return count

    def describe(self) -> list[Metric]:
        """Tell the registry nothing in advance, so that it does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Produce all metrics."""
        for name, text in _COUNTERS:
            family = CounterMetricFamily(f"epochq_messages_{name}_total", text, labels=("namespace", "queue"))
            for queue, count in self._queues.items():
                family.add_metric(queue, getattr(count, name))
            yield family
