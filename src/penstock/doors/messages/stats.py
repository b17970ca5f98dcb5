"""Statistics of the messages door: pages of queues, a summary, and the health check of EpochQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.http.route import Route
from penstock.doors.messages import wire
from penstock.doors.queue_lists import listed, slices_of, sorted_steps

if TYPE_CHECKING:
    from penstock.core.queue import Queue
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import Request
    from penstock.doors.messages.queue_registry import QueueRegistry
    from penstock.doors.ops.health import Uptime
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200
_STATS: Final = BodyReader(wire.StatsQuery)


class MessageStats:
    """One method per route. A client sees the queues of the namespaces which it may read."""

    def __init__(self, store: Store | ShardedStore, registry: QueueRegistry, uptime: Uptime, node: str) -> None:
        self._store = store
        self._registry = registry
        self._uptime = uptime
        self._node = node

    async def page(self, req: Request) -> wire.StatsPageReply:
        query = _STATS.parse_query(req)
        limit = wire.number_in(query.limit, PAGE_DEFAULT, 1, PAGE_MAX)
        seen = self._registry.seen_by(req.identity)
        return await listed(req, seen.queues, self._page_steps(seen.namespaces, query.page, limit))

    def _page_steps(self, seen: list[str], number: str, limit: int) -> Steps[wire.StatsPageReply]:
        found = yield from self._registry.steps((yield from sorted_steps(seen)))
        total = sum(map(len, found))
        pages = max(1, -(-total // limit))
        page = wire.number_in(number, 1, 1, pages)
        start, end, begun = (page - 1) * limit, page * limit, 0
        views: list[wire.QueueStatsReply] = []
        for queues in found:
            if begun < end and begun + len(queues) > start:  # only these need to be sorted
                in_order = yield from sorted_steps(queues, lambda queue: queue.key.name)
                views += filter(None, map(self._view, in_order[max(0, start - begun) : end - begun]))
            begun += len(queues)
            yield
        return wire.StatsPageReply(views, total, page, limit, pages)

    async def summary(self, req: Request) -> wire.SummaryReply:
        seen = self._registry.seen_by(req.identity)
        return await listed(req, seen.queues, self._summary_steps(seen.namespaces))

    def _summary_steps(self, seen: list[str]) -> Steps[wire.SummaryReply]:
        found = yield from self._registry.steps(seen)
        sums = wire.SummaryReply(sum(map(len, found)), sum(map(bool, found)), 0, 0, 0)
        for queues in found:
            for some in slices_of(queues):
                for view in filter(None, map(self._view, some)):
                    sums.total_depth += view.depth
                    sums.total_scheduled += view.scheduled
                    sums.dlq_alerts += view.dlq_depth > 0
                yield
        return sums

    async def health(self, req: Request) -> wire.NodeHealthReply:
        seconds = self._uptime.seconds()
        hours, minutes = seconds // 3_600, seconds // 60 % 60
        spelled = (
            f"{hours}h{minutes}m{seconds % 60}s" if hours else f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
        )
        # In slices, but not as a large request: a health check does not wait for those.
        found = await in_slices(self._registry.steps(self._registry.seen_by(req.identity).namespaces))
        return wire.NodeHealthReply("ok", self._node, sum(map(len, found)), spelled, seconds * 1_000, __version__)

    def _view(self, queue: Queue) -> wire.QueueStatsReply | None:
        """Return what is shown of a queue; None if it was removed since the last step."""
        namespace, name = queue.key
        found = self._store.queue_find(queue.key)
        if found is None:
            return None
        counts = self._store.counts(found)
        depth = counts.waiting + counts.active
        return wire.QueueStatsReply(
            namespace, name, f"{namespace}/{name}", counts.waiting, counts.active, counts.delayed, depth, counts.dead
        )

    def routes(self) -> list[Route]:
        """Return the routes of the main listener, where ``/health`` is the server's own health check."""
        tag = "Messages"
        routes = [
            Route("GET", "/api/stats", self.page, "Queues, a page at a time", tag, wire.StatsPageReply, query=_STATS),
            Route("GET", "/api/stats/summary", self.summary, "All queues together", tag, wire.SummaryReply),
        ]
        return [route._replace(asks=True) for route in routes]

    def own_routes(self) -> list[Route]:
        """Return the routes of this door's own listener."""
        return [
            *self.routes(),
            Route("GET", "/health", self.health, "Health check", "Messages", wire.NodeHealthReply, asks=True),
        ]
