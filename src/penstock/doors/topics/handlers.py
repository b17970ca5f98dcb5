"""Handlers of the topics door over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.access.identity import Right
from penstock.core import limits
from penstock.core.errors import RouteNotFound
from penstock.core.queue import QueueKey
from penstock.doors.http.route import Plain, Route, Stream
from penstock.doors.net.raw_sockets import connection_key
from penstock.doors.topics.backpressure import Flows
from penstock.doors.topics.http_stream import SubscriptionStream
from penstock.doors.topics.message import check_topic, new_large_message, new_message
from penstock.doors.topics.unsized_publish import publish_unsure
from penstock.engine.jobs.push import Push
from penstock.engine.queues import admin

if TYPE_CHECKING:
    from penstock.access.rate_limit import ClientAddress, SlidingWindow
    from penstock.doors.http.request import Request
    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.doors.topics.subscriber import Subscribers
    from penstock.engine.api import EngineApi

BYTES: Final = "application/octet-stream"
LINES: Final = "application/x-ndjson"
_CREATED: Final = Plain(b"", status=201)
_DONE: Final = Plain(b"")


class TopicsDoor:
    """One method per route. ``rate_limit`` limits the commands of one address in a period (None: no limit).

    ``address`` returns the address of a client, also behind a proxy.
    """

    def __init__(
        self,
        engine: EngineApi,
        subscribers: Subscribers,
        raw_sockets: RawSockets,
        *,
        rate_limit: SlidingWindow | None,
        address: ClientAddress,
    ) -> None:
        self._engine = engine
        self._subscribers = subscribers
        self._rate_limit = rate_limit
        self._address = address
        self.flows = Flows(engine.clock, raw_sockets)
        self._open: set[SubscriptionStream] = set()
        #: First path segments of other routes of the main listener. So a truncated path of theirs deletes no topic.
        self.reserved: frozenset[str] = frozenset()

    async def publish(self, req: Request, topic: str) -> Plain | Stream:
        queue = _queue(req, topic)
        body = await req.body()
        message = new_message(body) if len(body) <= limits.small_body_bytes else await new_large_message(body)
        if req.unsure:
            return await publish_unsure(self._engine, queue, message)
        await self._engine.run(Push(queue, [message]))
        return _CREATED

    async def subscribe(self, req: Request, topic: str) -> Stream:
        queue = _queue(req, topic)
        req.allow(queue.namespace, Right.SETTLE)
        subscriber = self._subscribers.subscribe(queue)
        flow = self.flows.enter(connection_key(req.scope))
        rate_limit, client = self._rate_limit, self._address.behind(req.scope)
        check_pace = None if rate_limit is None else lambda: rate_limit.check(client)
        stream = SubscriptionStream(req, subscriber, flow, self._engine.clock, check_pace)
        self._open.add(stream)

        def done() -> None:
            self._open.discard(stream)
            self.flows.leave(flow)
            self._subscribers.leave(subscriber)

        return Stream(LINES, stream.run, done)

    async def delete(self, req: Request, topic: str) -> Plain:
        await admin.empty(self._engine, _queue(req, topic))
        return _DONE

    async def delete_at_main(self, req: Request, topic: str) -> Plain:
        if topic in self.reserved:
            raise RouteNotFound
        return await self.delete(req, topic)

    def end_streams(self) -> None:
        """End all streams soon, and release the held messages."""
        for stream in list(self._open):
            stream.end()

    async def stray(self, req: Request, **_params: str) -> Plain:
        """Answer a request without a route at this door's own listener, as miniqueue does."""
        parts = req.scope.path.split("/")[1:]
        known = (len(parts) == 1 and parts[0]) or (len(parts) == 2 and parts[0] in ("publish", "subscribe") and parts[1])
        return Plain(b"", status=405) if known else Plain(b"404 page not found\n", status=404)

    def routes(self) -> list[Route]:
        """Return the routes of the main listener."""
        return [
            route._replace(handler=self.delete_at_main) if route.method == "DELETE" else route for route in self.own_routes()
        ]

    def own_routes(self) -> list[Route]:
        """Return the routes of this door's own listener."""
        tag = "Topics"
        return [
            route._replace(namespaced=True)
            for route in (
                Route("POST", "/publish/{topic}", self.publish, "Publish a message", tag, status=201, takes=BYTES),
                Route("POST", "/subscribe/{topic}", self.subscribe, "Subscribe to a topic", tag, media=LINES, takes=BYTES),
                Route("DELETE", "/{topic}", self.delete, "Remove all messages of a topic", tag),
            )
        ]


def _queue(req: Request, topic: str) -> QueueKey:
    if not topic:
        raise RouteNotFound
    return QueueKey(req.namespace(), check_topic(topic))
