"""What went through the batches door, and the metrics that are made of it when somebody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.core import limits
from penstock.core.queue import QueueKey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.engine.fleet import AnyEngine

#: Where topics are counted that came when there were too many already.
OTHERS: Final = QueueKey("", "")
_LABELS: Final = ("namespace", "topic")


class Count:
    """What was done with one topic since the server started."""

    __slots__ = ("acked", "dequeued", "enqueued", "nacked")

    def __init__(self) -> None:
        self.enqueued = self.dequeued = self.acked = self.nacked = 0


class Tally:
    """Counts per topic."""

    def __init__(self) -> None:
        self.topics: dict[QueueKey, Count] = {}

    def of(self, topic: QueueKey) -> Count:
        """Return the count of a topic that something was done with."""
        count = self.topics.get(topic)
        if count is None:
            if len(self.topics) >= limits.counted_topics_max:
                topic = OTHERS
            count = self.topics.setdefault(topic, Count())
        return count


class BatchesMetrics(Collector):
    """The metrics mqueue has, of the topics this door was asked about."""

    def __init__(self, tally: Tally, engine: AnyEngine) -> None:
        self._tally = tally
        self._engine = engine
        self._store = engine.store

    def describe(self) -> list[Metric]:
        """Tell the registry nothing in advance, so that it does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Produce all metrics."""
        yield from self._counters()
        yield from self._depths()
        health = GaugeMetricFamily("mqueue_shard_health", "1 while a shard takes writes.", labels=("shard", "type"))
        for number, shard in enumerate(self._store.journals):
            health.add_metric((str(number), shard.capabilities.name), int(shard.status().writable))
            fast = self._engine.engines[number].fast
            if fast is not None:
                health.add_metric((str(number), "redis"), int(not fast.lists.link.breaker.is_open))
        yield health

    def _counters(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("enqueue", "Messages enqueued.", "enqueued"),
            ("dequeue", "Messages dequeued.", "dequeued"),
            ("ack", "Messages acknowledged.", "acked"),
            ("nack", "Messages given back as failed.", "nacked"),
        ):
            family = CounterMetricFamily(f"mqueue_{name}_total", text, labels=_LABELS)
            for topic, count in self._tally.topics.items():
                family.add_metric(topic, getattr(count, attribute))
            yield family

    def _depths(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("mqueue_ready_queue_depth", "Messages that can be dequeued now.", labels=_LABELS)
        buffered = GaugeMetricFamily(
            "mqueue_buffer_queue_depth", "Messages answered by this server and not stored yet.", labels=_LABELS
        )
        for topic in self._tally.topics:
            queue = self._store.queue_find(topic)
            if queue is not None:
                engine = self._engine.of(topic)
                set_aside = 0 if engine.fast is None else engine.fast.depth(topic)
                ready.add_metric(topic, self._store.counts(queue).waiting + set_aside)
                buffered.add_metric(topic, 0 if engine.buffer is None else engine.buffer.depth(topic))
        yield ready
        yield buffered
