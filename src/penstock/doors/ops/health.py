"""Handlers for operators: health, statistics, memory and storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock import __version__
from penstock.access.identity import Right
from penstock.core.limits import MEBIBYTE
from penstock.doors.http.route import JSON, Plain, Route
from penstock.doors.ops.memory import (
    FullMemory,
    Heap,
    Memory,
    collect,
    read_full_memory,
    read_heap,
    read_memory,
)
from penstock.doors.ops.metrics import CONTENT_TYPE, Metrics
from penstock.doors.ops.replies import OpsReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.queue import StateCounts
    from penstock.doors.http.request import ApiRequest, Request
    from penstock.engine.api import EngineApi
    from penstock.engine.stats import Histogram


#: Rates are means over at least this time.
RATES_OVER_MS: Final = 1_000
_PROMETHEUS: Final = "all metrics in Prometheus' format, as GET /prometheus has them"


class Uptime:
    """The time since the server started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.stopwatch()

    def seconds(self) -> int:
        """Return the uptime in whole seconds."""
        return int(self._clock.stopwatch() - self._started)

    def milliseconds(self) -> int:
        """Return the uptime in whole milliseconds."""
        return int((self._clock.stopwatch() - self._started) * 1_000)


class Readiness:
    """Whether the server accepts new work: not before it is set up, and not during shutdown."""

    def __init__(self) -> None:
        self.ready = False


class QueuesView(OpsReply):
    """Jobs in each state, over all queues."""

    waiting: int
    active: int
    delayed: int
    completed: int
    dlq: int


class Connections(OpsReply):
    """Open long-lived connections."""

    tcp: int = 0
    ws: int = 0
    sse: int = 0
    resp: int = 0


class HealthReply(OpsReply):
    """The health of the server. ``status`` is healthy or degraded; memory in MiB, uptime in seconds.

    ``queues`` and ``connections`` cover all namespaces, so they are left out if there are API keys or JSON Web Tokens.
    """

    ok: bool
    status: str
    uptime: int
    version: str
    memory: Memory
    queues: QueuesView | msgspec.UnsetType = msgspec.UNSET
    connections: Connections | msgspec.UnsetType = msgspec.UNSET
    reason: str | None = None


class ReadyReply(OpsReply, omit_defaults=True):
    """Whether clients should send requests to this server.

    ``reason`` has the problem. With ready true: the disk is full and new jobs are refused, but pulls and acknowledgements
    continue, so requests should still be sent here.
    """

    ok: bool
    ready: bool
    reason: str | None = None


class Pong(OpsReply):
    """The inner part of a ping's reply."""

    pong: bool
    time: int


class PingReply(OpsReply):
    """The answer to a ping."""

    ok: bool
    data: Pong


class Totals(OpsReply):
    """Totals since the server started."""

    total_pushed: int
    total_pulled: int
    total_completed: int
    total_failed: int


class StatsView(QueuesView):
    """Jobs now, and totals since the server started. Uptime in seconds."""

    total_pushed: int
    total_pulled: int
    total_completed: int
    total_failed: int
    uptime: int


class CommandStats(OpsReply):
    """The fields in which the command ``Stats`` differs: ``uptime`` is in milliseconds, as in bunqueue's protocol."""

    failed: int
    uptime: int
    push_per_sec: float
    pull_per_sec: float


class AllMetrics(Totals):
    """The figures of the command ``Metrics``: totals since the start, mean times of pushes, pulls and acks, sizes in MiB."""

    avg_latency_ms: float
    avg_processing_ms: float
    memory_usage_mb: int
    sqlite_size_mb: float
    active_connections: int


class Collections(OpsReply):
    """The number of stored objects, by kind."""

    job_index: int
    completed_jobs: int
    processing_total: int
    queued_total: int
    temporal_index_total: int
    queues: int
    waiting_callers: int


class StatsReply(OpsReply):
    """Statistics."""

    ok: bool
    stats: StatsView
    memory: FullMemory
    collections: Collections
    partial: list[str] | msgspec.UnsetType = msgspec.UNSET  #: shards that are down, so that figures may be old


class MetricsReply(OpsReply):
    """Totals."""

    ok: bool
    metrics: Totals


class StorageReply(OpsReply, omit_defaults=True):
    """The state of the storage. ``error`` and ``since`` are present only if there is a problem.

    ``reserveBytes``: disk space that is reserved so that acknowledgements continue when the disk is full; left out if there
    is no reserve.
    """

    ok: bool
    disk_full: bool
    error: str | None = None
    since: int | None = None
    quarantined: int = 0
    reserve_bytes: int | None = None


class GcReply(OpsReply):
    """Memory before and after a collection."""

    ok: bool
    before: Memory
    after: Memory


class HeapReply(OpsReply):
    """Objects on the heap."""

    ok: bool
    memory: FullMemory
    heap: Heap
    collections: Collections


class OpsHandlers:
    """One method per route.

    ``separates_namespaces`` returns whether there are clients with access to some namespaces only. In that case figures over
    all namespaces are not public.
    """

    def __init__(
        self,
        engine: EngineApi,
        readiness: Readiness,
        metrics: Metrics,
        uptime: Uptime,
        connections: Callable[[], Connections] = Connections,
        *,
        separates_namespaces: Callable[[], bool] = lambda: False,
    ) -> None:
        self._separates_namespaces = separates_namespaces
        self._engine = engine
        self._connections = connections
        self._readiness = readiness
        self._metrics = metrics
        self._uptime = uptime
        self._rates = (0.0, 0.0)  #: pushes and pulls per second
        self._rates_from = (0, 0, 0)  #: uptime (ms), pushes and pulls at the last update

    async def health(self, _req: ApiRequest) -> HealthReply:
        status = self._engine.store.status()
        apart = self._separates_namespaces()
        return HealthReply(
            ok=status.writable,
            status="healthy" if status.error is None else "degraded",
            uptime=self._uptime.seconds(),
            version=__version__,
            queues=msgspec.UNSET if apart else _queues_view(self._engine.store.totals()),
            connections=msgspec.UNSET if apart else self._connections(),
            memory=read_memory(),
            reason=status.error,
        )

    async def alive(self, _req: ApiRequest) -> Plain:
        return Plain(b"OK")

    async def ready(self, _req: ApiRequest) -> Plain:
        status = self._engine.store.status()
        ready = self._readiness.ready and status.writable
        reply = ReadyReply(ok=ready, ready=ready, reason=status.error)
        return Plain(msgspec.json.encode(reply), JSON, 200 if ready else 503)

    async def ping(self, _req: ApiRequest) -> PingReply:
        return PingReply(ok=True, data=Pong(pong=True, time=self._engine.clock.now_ms()))

    async def stats(self, _req: ApiRequest) -> StatsReply:
        jobs, totals = _queues_view(self._engine.store.totals()), self._totals()
        figures = msgspec.structs.asdict(jobs) | msgspec.structs.asdict(totals)
        view = StatsView(**figures, uptime=self._uptime.seconds())
        return StatsReply(
            ok=True,
            stats=view,
            memory=read_full_memory(),
            collections=collections_of(self._engine),
            partial=self._engine.store.down() or msgspec.UNSET,
        )

    async def metrics(self, req: Request) -> MetricsReply | Plain:
        accept = req.header("accept", "")
        if "openmetrics" in accept or "text/plain" in accept:
            return await self.prometheus(req)
        return MetricsReply(ok=True, metrics=self._totals())

    async def prometheus(self, _req: ApiRequest) -> Plain:
        return Plain(await self._metrics.render(), CONTENT_TYPE)

    async def storage(self, _req: ApiRequest) -> StorageReply:
        status = self._engine.store.status()
        return StorageReply(
            ok=True,
            disk_full=status.full,
            error=status.error,
            since=status.since_ms,
            quarantined=status.quarantined,
            reserve_bytes=status.reserve_bytes,
        )

    async def collect_garbage(self, _req: ApiRequest) -> GcReply:
        before = read_memory()
        collect()
        return GcReply(ok=True, before=before, after=read_memory())

    async def heap(self, _req: ApiRequest) -> HeapReply:
        return HeapReply(ok=True, memory=read_full_memory(), heap=read_heap(), collections=collections_of(self._engine))

    def more_stats(self) -> CommandStats:
        """Return the additional fields of the command ``Stats``. Rates are means since the last update."""
        stats, now = self._engine.stats, self._uptime.milliseconds()
        at, pushed, pulled = self._rates_from
        if now - at >= RATES_OVER_MS:
            seconds = (now - at) / 1_000
            self._rates = (round((stats.pushed - pushed) / seconds, 2), round((stats.pulled - pulled) / seconds, 2))
            self._rates_from = (now, stats.pushed, stats.pulled)
        return CommandStats(stats.failed, now, *self._rates)

    def all_metrics(self) -> AllMetrics:
        """Return the reply of the command ``Metrics``."""
        stats, totals = self._engine.stats, self._totals()
        return AllMetrics(
            **msgspec.structs.asdict(totals),
            avg_latency_ms=_mean_ms(stats.push_time, stats.pull_time),
            avg_processing_ms=_mean_ms(stats.ack_time),
            memory_usage_mb=read_memory().heap_used,
            sqlite_size_mb=round(self._engine.store.size_bytes() / MEBIBYTE, 2),
            active_connections=self._connections().tcp,
        )

    def _totals(self) -> Totals:
        stats = self._engine.stats
        return Totals(stats.pushed, stats.pulled, stats.completed, stats.failed)

    def prometheus_routes(self, *paths: str, asks: bool | None) -> list[Route]:
        """Return the routes of metrics. ``asks``: they need a token (None: if clients have access to some namespaces)."""
        about = Route("GET", "", self.prometheus, "Prometheus metrics", "Monitoring", right=Right.LOOK)
        return [about._replace(path=path, public=asks is not True, of_all=asks is None) for path in paths]

    def routes(self) -> list[Route]:
        """Return the routes for operators, except metrics."""
        tag = "Monitoring"
        return [
            Route("GET", "/health", self.health, "Health check", tag, HealthReply, probe=True),
            Route("GET", "/healthz", self.alive, "Liveness probe", tag, probe=True),
            Route("GET", "/live", self.alive, "Liveness probe", tag, probe=True),
            Route("GET", "/ready", self.ready, "Readiness probe", tag, ReadyReply, probe=True, also=((503, ReadyReply),)),
            Route("GET", "/ping", self.ping, "Ping/pong", tag, PingReply),
            Route("GET", "/stats", self.stats, "Server statistics", tag, StatsReply),
            Route("GET", "/metrics", self.metrics, "Throughput metrics", tag, MetricsReply, text_too=_PROMETHEUS),
            Route("GET", "/storage", self.storage, "Storage health", tag, StorageReply),
            Route("POST", "/gc", self.collect_garbage, "Force GC + compact", tag, GcReply),
            Route("GET", "/heapstats", self.heap, "Heap statistics", tag, HeapReply),
        ]


def _mean_ms(*times: Histogram) -> float:
    """Return the mean of all measured times."""
    count = sum(sum(each.counts) for each in times)
    return round(sum(each.sum_ms for each in times) / count, 2) if count else 0.0


def _queues_view(counts: StateCounts) -> QueuesView:
    return QueuesView(counts.waiting, counts.active, counts.delayed, counts.completed, counts.dead)


def collections_of(engine: EngineApi) -> Collections:
    """Count the objects that the server stores."""
    store = engine.store
    jobs = store.totals()
    return Collections(
        job_index=jobs.waiting + jobs.delayed + jobs.active,
        completed_jobs=jobs.completed,
        processing_total=jobs.active,
        queued_total=jobs.waiting,
        temporal_index_total=jobs.delayed,
        queues=store.queue_count(),
        waiting_callers=engine.waiting_callers,
    )
