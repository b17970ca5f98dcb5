"""Statistics of the messages door: pages of queues, a summary, and the health check of EpochQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.access.identity import Right
from penstock.doors.http.body import BodyReader
from penstock.doors.http.route import Route
from penstock.doors.messages import wire

if TYPE_CHECKING:
    from penstock.core.queue import Queue
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
        queues = self._seen_by(req)
        pages = max(1, -(-len(queues) // limit))
        page = wire.number_in(query.page, 1, 1, pages)
        some = queues[(page - 1) * limit : page * limit]
        return wire.StatsPageReply([self._view(queue) for queue in some], len(queues), page, limit, pages)

    async def summary(self, req: Request) -> wire.SummaryReply:
        queues = self._seen_by(req)
        views = [self._view(queue) for queue in queues]
        return wire.SummaryReply(
            len(queues),
            len({queue.key.namespace for queue in queues}),
            sum(view.depth for view in views),
            sum(view.scheduled for view in views),
            sum(view.dlq_depth > 0 for view in views),
        )

    async def health(self, req: Request) -> wire.NodeHealthReply:
        seconds = self._uptime.seconds()
        hours, minutes = seconds // 3_600, seconds // 60 % 60
        spelled = (
            f"{hours}h{minutes}m{seconds % 60}s" if hours else f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"
        )
        return wire.NodeHealthReply("ok", self._node, len(self._seen_by(req)), spelled, seconds * 1_000, __version__)

    def _seen_by(self, req: Request) -> list[Queue]:
        may = req.identity.may
        return sorted(
            (each for each in self._registry.all() if may(each.key.namespace, Right.LOOK)), key=lambda each: each.key
        )

    def _view(self, queue: Queue) -> wire.QueueStatsReply:
        counts = self._store.counts(queue)
        namespace, name = queue.key
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
