"""Prometheus metrics, built from plain counters at each scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from penstock.engine.stats import BUCKETS_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric
    from prometheus_client.registry import Collector

    from penstock.doors.jobs.event_hub import EventHub
    from penstock.doors.ops.health import Uptime
    from penstock.engine.api import EngineApi
    from penstock.engine.stats import Histogram
    from penstock.engine.worker_registry import WorkerRegistry

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: Queues beyond this number have no metrics of their own; the number of omitted queues is a metric itself.
QUEUES_MAX: Final = 1_000

__all__ = ["CONTENT_TYPE", "CONTENT_TYPE_LATEST", "Metrics"]


class UpdatedSource(Protocol):
    """A source of metrics that must be updated before each scrape."""

    async def update(self) -> None:
        """Update the figures."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""


class Metrics:
    """Renders the metrics of the engine and its store."""

    def __init__(self, engine: EngineApi, uptime: Uptime, workers: WorkerRegistry, hub: EventHub) -> None:
        self._engine = engine
        self._workers = workers
        self._hub = hub
        self._uptime = uptime
        self._updated: list[UpdatedSource] = []
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, *more: Collector) -> None:
        """Add sources of metrics."""
        for each in more:
            self._registry.register(each)

    def add_updated(self, more: UpdatedSource) -> None:
        """Add a source of metrics that is updated before each scrape."""
        self.add(more)
        self._updated.append(more)

    async def render(self) -> bytes:
        """Return the text for Prometheus."""
        for source in self._updated:
            await source.update()
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._jobs()
        yield from self._webhooks()
        yield from self._work()
        yield from self._queues()
        yield from self._registered()

    def _registered(self) -> Iterator[Metric]:
        workers = self._workers
        yield GaugeMetricFamily("bunqueue_workers_total", "Workers that are registered.", len(workers))
        yield GaugeMetricFamily("bunqueue_workers_active", "Workers that sent a heartbeat lately.", workers.active)
        yield CounterMetricFamily("bunqueue_workers_processed_total", "Jobs that workers reported done.", workers.processed)
        yield CounterMetricFamily("bunqueue_workers_failed_total", "Jobs that workers reported failed.", workers.failed)
        yield CounterMetricFamily("penstock_events_missed_total", "Events slow readers had no room for.", self._hub.missed)

    def _jobs(self) -> Iterator[Metric]:
        totals, stats = self._engine.store.totals(), self._engine.stats
        for name, value in (
            ("waiting", totals.waiting),
            ("delayed", totals.delayed),
            ("active", totals.active),
            ("completed", totals.completed),
            ("dlq", totals.dead),
        ):
            yield GaugeMetricFamily(f"bunqueue_jobs_{name}", f"Jobs now in state {name}.", value)
        for name, value in (
            ("pushed", stats.pushed),
            ("pulled", stats.pulled),
            ("completed", stats.completed),
            ("failed", stats.failed),
        ):
            yield CounterMetricFamily(f"bunqueue_jobs_{name}_total", f"Jobs {name} since the server started.", value)
        crons = self._engine.store.cron_count()
        yield GaugeMetricFamily("bunqueue_cron_jobs_total", "Cron jobs now, over all namespaces.", crons)
        yield GaugeMetricFamily("bunqueue_uptime_seconds", "Time since the server started.", self._uptime.seconds())

    def _webhooks(self) -> Iterator[Metric]:
        webhooks = self._engine.store.webhook_list()
        enabled = sum(webhook.enabled for webhook in webhooks)
        yield GaugeMetricFamily("bunqueue_webhooks_total", "Webhooks that are registered.", len(webhooks))
        yield GaugeMetricFamily("bunqueue_webhooks_enabled", "Webhooks that are enabled.", enabled)

    def _work(self) -> Iterator[Metric]:
        engine, stats = self._engine, self._engine.stats
        yield _histogram("bunqueue_push_duration_ms", "Time from a push to its answer.", stats.push_time)
        yield _histogram(
            "bunqueue_pull_duration_ms", "Time from a pull to its answer, waiting not counted.", stats.pull_time
        )
        yield _histogram("bunqueue_ack_duration_ms", "Time from an ack to its answer.", stats.ack_time)
        yield _histogram("penstock_commit_duration_ms", "Time a transaction took.", stats.batch_time)
        yield _histogram("penstock_fsync_duration_ms", "Time an fsync took.", stats.sync_time)
        yield CounterMetricFamily("penstock_commands_total", "Commands applied.", stats.commands)
        yield CounterMetricFamily("penstock_transactions_total", "Transactions committed.", stats.batches)
        yield GaugeMetricFamily("penstock_waiting_callers", "Callers that wait for a job.", engine.waiting_callers)
        yield GaugeMetricFamily("penstock_waiting_for_ends", "Callers that wait for a job to end.", engine.waiting_for_ends)
        status = engine.store.status()
        yield GaugeMetricFamily("penstock_store_bytes", "Size of the store on disk.", engine.store.size_bytes())
        yield GaugeMetricFamily(
            "penstock_store_full", "1 while the disk is full; with several shards, while all are.", int(status.full)
        )
        yield GaugeMetricFamily("penstock_store_writable", "0 while the store refuses writes.", int(status.writable))
        shards = GaugeMetricFamily("penstock_shard_up", "0 while a shard refuses writes.", labels=["shard"])
        full = GaugeMetricFamily("penstock_shard_full", "1 while a shard has no room.", labels=["shard"])
        for number, each in enumerate(engine.engines):
            shards.add_metric([str(number)], int(each.store.status().writable))
            full.add_metric([str(number)], int(each.store.status().full))
        yield shards
        yield full
        yield from self._fast_path()
        yield GaugeMetricFamily("penstock_jobs_quarantined", "Jobs whose stored row is damaged.", status.quarantined)

    def _fast_path(self) -> Iterator[Metric]:
        engines = [(str(number), each) for number, each in enumerate(self._engine.engines)]
        if all(each.ready_cache is None and each.buffer is None for _, each in engines):
            return
        up = GaugeMetricFamily("penstock_redis_up", "0 while Redis is not used.", labels=["shard"])
        handed_out = CounterMetricFamily("penstock_fast_jobs_total", "Jobs handed out from ready lists.", labels=["shard"])
        buffered = GaugeMetricFamily("penstock_buffer_jobs", "Jobs in the enqueue buffer, not stored yet.", labels=["shard"])
        for number, each in engines:
            if each.ready_cache is not None:
                up.add_metric([number], int(each.ready_cache.is_reachable))
                handed_out.add_metric([number], each.ready_cache.jobs_handed_out)
            if each.buffer is not None:
                buffered.add_metric([number], each.buffer.jobs)
        yield up
        yield handed_out
        yield buffered

    def _queues(self) -> Iterator[Metric]:
        store = self._engine.store
        families = {
            state: GaugeMetricFamily(f"bunqueue_queue_jobs_{state}", f"Jobs of a queue that are {state}.", labels=["queue"])
            for state in ("waiting", "delayed", "active", "dlq")
        }
        queues = store.queues()
        for queue in queues[:QUEUES_MAX]:
            counts = store.counts(queue)
            name = queue.key.name if queue.key.namespace == "default" else f"{queue.key.namespace}/{queue.key.name}"
            for state, value in (
                ("waiting", counts.waiting),
                ("delayed", counts.delayed),
                ("active", counts.active),
                ("dlq", counts.dead),
            ):
                families[state].add_metric([name], value)
        yield from families.values()
        omitted = max(0, len(queues) - QUEUES_MAX)
        yield GaugeMetricFamily("penstock_queues_omitted", "Queues without metrics of their own.", omitted)


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound, count in zip((*map(str, BUCKETS_MS), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_ms)
