"""Counters of the answers of the messages door, and the metrics that are built from them at a scrape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.core.clock import Clock
    from penstock.doors.http.route import AnswerWriter, Route


class RouteCount:
    """Counters of the answers of one route, since the server started."""

    __slots__ = ("_clock", "seconds", "statuses")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.statuses: dict[int, int] = {}
        self.seconds = 0.0

    def watch(self, proto: AnswerWriter) -> AnswerWriter:
        """Return a writer that counts the answer of a request that begins now."""
        return _Watched(proto, self, self.begin())

    def begin(self) -> float:
        """Return the start time of a request."""
        return self._clock.stopwatch()

    def count(self, status: int, since: float) -> None:
        """Count the answer to a request, with its start time."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds += self._clock.stopwatch() - since


class _Watched:
    """Forwards an answer, and counts it."""

    __slots__ = ("_count", "_proto", "_since")

    def __init__(self, proto: AnswerWriter, count: RouteCount, since: float) -> None:
        self._proto = proto
        self._count = count
        self._since = since

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._proto.response_bytes(status, headers, body)
        self._count.count(status, self._since)


class RequestCounters(Collector):
    """Counters per route, as metrics with the names of EpochQ. The label is the route's path, so its values are bounded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._routes: dict[tuple[str, str], RouteCount] = {}

    def of(self, method: str, path: str) -> RouteCount:
        """Return the counters of a route."""
        return self._routes.setdefault((method, path), RouteCount(self._clock))

    def counted(self, routes: list[Route]) -> list[Route]:
        """Return the same routes, with their requests counted."""
        return [route._replace(meter=self.of(route.method, route.path)) for route in routes]

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        labels = ("method", "path")
        requests = CounterMetricFamily("epochq_http_requests_total", "Requests answered.", labels=(*labels, "status"))
        durations = SummaryMetricFamily(
            "epochq_http_request_duration_milliseconds",
            "Time from a request to its answer, waiting included.",
            labels=labels,
        )
        for route, count in self._routes.items():
            for status, times in count.statuses.items():
                requests.add_metric((*route, str(status)), times)
            if count.statuses:
                durations.add_metric(route, sum(count.statuses.values()), count.seconds * 1_000)
        yield requests
        yield durations
