"""How requests of the messages door were answered, and the metrics that are made of it when somebody asks."""

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
    """How the requests of one route were answered since the server started."""

    __slots__ = ("_clock", "seconds", "statuses")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.statuses: dict[int, int] = {}
        self.seconds = 0.0

    def watch(self, proto: AnswerWriter) -> AnswerWriter:
        """Return what a request is answered through that begins now."""
        return _Watched(proto, self, self.begin())

    def begin(self) -> float:
        """Return the moment a request begins at."""
        return self._clock.stopwatch()

    def count(self, status: int, since: float) -> None:
        """Count the answer to a request that began at a moment."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds += self._clock.stopwatch() - since


class _Watched:
    """Passes an answer on, and has it counted."""

    __slots__ = ("_count", "_proto", "_since")

    def __init__(self, proto: AnswerWriter, count: RouteCount, since: float) -> None:
        self._proto = proto
        self._count = count
        self._since = since

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._proto.response_bytes(status, headers, body)
        self._count.count(status, self._since)


class RequestCounters(Collector):
    """Counts per route, as metrics under the names of the original. A path is the route's, so there are no more than routes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._routes: dict[tuple[str, str], RouteCount] = {}

    def of(self, method: str, path: str) -> RouteCount:
        """Return the count of a route."""
        return self._routes.setdefault((method, path), RouteCount(self._clock))

    def counted(self, routes: list[Route]) -> list[Route]:
        """Return routes whose requests are counted."""
        return [route._replace(meter=self.of(route.method, route.path)) for route in routes]

    def describe(self) -> list[Metric]:
        """Tell the registry nothing in advance, so that it does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Produce all metrics."""
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
