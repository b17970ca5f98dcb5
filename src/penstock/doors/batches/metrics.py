"""Counters of the batches door, and the metrics that are built from them at a scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from penstock.doors.queue_counters import QueueCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import Metric

    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi

_LABELS: Final = ("namespace", "topic")


class Count:
    """Counters of one topic, since the server started."""

    __slots__ = ("acked", "dequeued", "enqueued", "nacked")

    def __init__(self) -> None:
        self.enqueued = self.dequeued = self.acked = self.nacked = 0


class BatchCounters(QueueCounters[Count]):
    """Counters per topic."""

    def __init__(self, exists: Callable[[QueueKey], object]) -> None:
        super().__init__(Count, exists)


class BatchesMetrics(Collector):
    """The metrics of mqueue, for the topics that were used through this door."""

    def __init__(self, counters: BatchCounters, engine: EngineApi) -> None:
        self._batch_counters = counters
        self._engine = engine
        self._store = engine.store

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        self._batch_counters.forget_gone()
        yield from self._counters()
        yield from self._depths()
        health = GaugeMetricFamily("mqueue_shard_health", "1 while a shard takes writes.", labels=("shard", "type"))
        for number, shard in enumerate(self._store.journals):
            health.add_metric((str(number), shard.capabilities.name), int(shard.status().writable))
            ready_cache = self._engine.engines[number].ready_cache
            if ready_cache is not None:
                health.add_metric((str(number), "redis"), int(ready_cache.is_reachable))
        yield health

    def _counters(self) -> Iterator[Metric]:
        for name, text, attribute in (
            ("enqueue", "Messages enqueued.", "enqueued"),
            ("dequeue", "Messages dequeued.", "dequeued"),
            ("ack", "Messages acknowledged.", "acked"),
            ("nack", "Messages that were nacked.", "nacked"),
        ):
            family = CounterMetricFamily(f"mqueue_{name}_total", text, labels=_LABELS)
            for topic, count in self._batch_counters.counts.items():
                family.add_metric(topic, getattr(count, attribute))
            yield family

    def _depths(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("mqueue_ready_queue_depth", "Messages that can be dequeued now.", labels=_LABELS)
        buffered = GaugeMetricFamily(
            "mqueue_buffer_queue_depth", "Messages answered by this server and not stored yet.", labels=_LABELS
        )
        for topic in self._batch_counters.counts:
            queue = self._store.queue_find(topic)
            if queue is not None:
                engine = self._engine.of(topic)
                set_aside = 0 if engine.ready_cache is None else engine.ready_cache.depth(topic)
                ready.add_metric(topic, self._store.counts(queue).waiting + set_aside)
                buffered.add_metric(topic, 0 if engine.buffer is None else engine.buffer.depth(topic))
        yield ready
        yield buffered
