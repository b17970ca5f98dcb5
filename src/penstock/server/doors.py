"""All doors of a server, and the application on each of its listeners. ``door_parts.py`` has a builder for each door."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.access.allowed_hosts import AllowedHosts
from penstock.access.cross_origin import Origins
from penstock.access.rate_limit import ClientAddress, SlidingWindow
from penstock.core import limits
from penstock.core.clock import pause
from penstock.doors.http.app import HttpApp, not_found
from penstock.doors.http.errors import body_of
from penstock.doors.http.openapi import OpenApi
from penstock.doors.jobs.event_hub import EventHub
from penstock.doors.jobs.monitors import Monitors, Thresholds
from penstock.doors.messages.handlers import stray_among
from penstock.doors.messages.wire import error_body as message_error_body
from penstock.doors.net.connection_monitor import ConnectionMonitor, connections_max
from penstock.doors.net.raw_sockets import RawSockets, connection_key
from penstock.doors.ops.health import Connections, OpsHandlers, Readiness, Uptime
from penstock.doors.ops.keys import KeyHandlers
from penstock.doors.ops.metrics import Metrics
from penstock.doors.ops.shards import ShardHandlers
from penstock.doors.permissions import with_rights
from penstock.doors.resp.listener import RespListener
from penstock.doors.topics.handlers import TopicsDoor
from penstock.doors.topics.subscriber import Subscribers
from penstock.engine.sharding.engine import ShardedEngine
from penstock.outbound.dispatcher import WebhookDispatcher
from penstock.outbound.sender import Sender
from penstock.server.door_parts import BulkParts, DoorParts, JobsParts, MessagesParts, build_batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.api_keys import ApiKeys
    from penstock.access.authenticator import Authenticator
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.core.errors import ServerError
    from penstock.doors.http.request import Bodies
    from penstock.doors.http.route import Handler, Route
    from penstock.engine.context import ServerContext
    from penstock.outbound.guard import Guard


log = structlog.get_logger("penstock")


class Doors:
    """All doors of one engine. ``clock``: that of this process; the engine's may be that of a database."""

    def __init__(
        self,
        config: Config,
        engine: ServerContext,
        authenticator: Authenticator,
        guard: Guard,
        keys: ApiKeys,
        *,
        clock: Clock,
    ) -> None:
        self._config, self._clock, self._authenticator, self._fair_share = config, clock, authenticator, engine.fair_share
        self._bodies: list[Bodies] = []
        self.readiness = Readiness()
        uptime = Uptime(engine.clock)
        self.webhook_dispatchers = _start_webhooks(engine, guard)
        self.workers = engine.workers
        self.hub = EventHub(engine.feed, engine.clock, engine.fair_share)
        self._raw_sockets = RawSockets(engine.clock, tls=config.tls_cert_file is not None)
        self._rate_limit = self._new_rate_limit()
        self._origins = _origins(config, authenticator)
        metrics = Metrics(engine, uptime, self.workers, self.hub)
        self.monitor = _monitor(config, clock, metrics, self._raw_sockets)
        self.ops = OpsHandlers(
            engine,
            self.readiness,
            metrics,
            uptime,
            self.connections,
            separates_namespaces=lambda: authenticator.separates_namespaces,
        )
        parts = DoorParts(
            config, engine, authenticator, guard, clock, self._raw_sockets, self._rate_limit, uptime, metrics, self.hub
        )
        self._batches = build_batches(parts)
        bulk = self._bulk = BulkParts(parts)
        self.bulk, self.groups, self.stages = bulk.endpoints, bulk.groups, bulk.stages
        self.subscribers = Subscribers(engine, config.topics_lease_ms)
        self._topics = TopicsDoor(
            engine,
            self.subscribers,
            self._raw_sockets,
            rate_limit=self._rate_limit,
            address=ClientAddress(config.trusted_proxies),
        )
        self._messages = MessagesParts(parts)
        self.push, self._consumers = self._messages.push, self._messages.consumers
        self._jobs = JobsParts(parts, self.ops, self.groups)
        self.commands, self.tcp = self._jobs.commands, self._jobs.tcp
        self._sockets, self._streams = self._jobs.sockets, self._jobs.streams
        self.resp = RespListener(self.subscribers, authenticator, rate_limit=self._rate_limit)
        #: The routes of each listener.
        self.routes = self._routes(parts, keys)
        self._topics.reserved = frozenset(route.path.split("/")[1] for route in self.routes["http"]) | {"ws"}
        thresholds = Thresholds(
            config.queue_idle_threshold_ms, config.queue_size_threshold, config.memory_warning_mb, config.storage_warning_mb
        )
        crons = engine.store.cron_count
        Monitors(engine, self.hub, uptime, self.workers, thresholds, connections=self.connections, crons=crons)

    def _routes(self, parts: DoorParts, keys: ApiKeys) -> dict[str, list[Route]]:
        """Return the routes of each HTTP listener."""
        engine, asks = parts.engine, parts.config.metrics_auth
        main = with_rights(
            [
                *self._jobs.routes(),
                *self._batches.routes(),
                *self._topics.routes(),
                *self._messages.routes(),
                *self.ops.routes(),
                *self.ops.prometheus_routes("/prometheus", asks=asks),
                *self._bulk.routes(),
                *ShardHandlers(engine, engine.rebalancer if isinstance(engine, ShardedEngine) else None).routes(),
                *KeyHandlers(keys, self._authenticator).routes(),
                *self._bulk.group_routes(),
            ]
        )
        own_metrics = self.ops.prometheus_routes("/metrics", asks=asks is not False)
        return {
            "http": [*main, *OpenApi(list(main)).routes()],
            "metrics": self.ops.prometheus_routes("/metrics", "/prometheus", asks=asks),
            "batches": with_rights(self._batches.own_routes()),
            "topics": with_rights(self._topics.own_routes()),
            "messages": self._messages.own_routes(own_metrics),
        }

    def connections(self) -> Connections:
        """Return the count of the long-lived connections."""
        return Connections(
            tcp=len(self.tcp.connections),
            ws=len(self._sockets) + len(self._consumers),
            sse=len(self._streams),
            resp=len(self.resp.connections),
        )

    def app(self) -> HttpApp:
        """Return the application on the main listener."""
        return self._app(self.routes["http"], self._rate_limit, websocket=self._serve_websocket)

    async def _serve_websocket(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        door = self._consumers if scope.path.startswith("/namespaces/") else self._sockets
        await door.serve(scope, proto, client)

    def metrics_app(self) -> HttpApp:
        """Return the application on the listener for Prometheus."""
        return self._app(self.routes["metrics"], self._new_rate_limit())  # a client over its limit can still read metrics

    def batches_app(self) -> HttpApp:
        """Return the application on the listener of the batches door."""
        return self._app(self.routes["batches"], self._rate_limit, plain_errors=True)

    def topics_app(self) -> HttpApp:
        """Return the application on the listener of the topics door."""
        return self._app(self.routes["topics"], self._rate_limit, stray=self._topics.stray)

    def messages_app(self) -> HttpApp:
        """Return the application on the listener of the messages door."""
        routes = self.routes["messages"]
        return self._app(
            routes,
            self._rate_limit,
            websocket=self._consumers.serve,
            stray=stray_among(routes),
            error_body=message_error_body,
        )

    async def end_streams(self) -> None:
        """End the long-lived connections: the listener would not wait for them."""
        self._topics.end_streams()
        parts = (self._sockets, self._consumers, self._streams, self.subscribers, self.bulk.service.processes)
        await asyncio.gather(*(part.close() for part in parts))

    async def cut_half_sent(self) -> None:
        """Wait a moment for requests whose bodies have not arrived completely, and then cut them off."""
        await pause(self._clock, limits.half_sent_ms_max)
        for bodies in self._bodies:
            bodies.stopping = True
        connections = {connection_key(scope) for bodies in self._bodies for scope in bodies.arriving.values()}
        for key in connections:
            await self._raw_sockets.stop_reading(key)
        if connections:
            log.warning("requests that had not arrived completely were cut off", connections=len(connections))

    def stop_claiming(self) -> None:
        """Claim no more messages for consumers that receive them as a stream: they would send new claims again and again."""
        self.stages.answer_all_waiters()
        self.subscribers.stop()
        self._consumers.stop_claiming()
        self.push.stop_claiming()

    def _new_rate_limit(self) -> SlidingWindow | None:
        config = self._config
        if config.rate_limit_max_requests is None:
            return None
        return SlidingWindow(
            self._clock,
            window_ms=config.rate_limit_window_ms,
            requests_max=config.rate_limit_max_requests,
            cleanup_ms=config.rate_limit_cleanup_ms,
            ipv6_prefix=config.rate_limit_ipv6_prefix,
        )

    def _app(
        self,
        routes: list[Route],
        rate_limit: SlidingWindow | None,
        *,
        websocket: Callable[[Scope, RSGIWebsocketProtocol, str], Awaitable[None]] | None = None,
        plain_errors: bool = False,
        stray: Handler = not_found,
        error_body: Callable[[ServerError], bytes] = body_of,
    ) -> HttpApp:
        config = self._config
        app = HttpApp(
            routes,
            self._authenticator,
            clock=self._clock,
            origins=self._origins,
            rate_limit=rate_limit,
            address=ClientAddress(config.trusted_proxies),
            raw_sockets=self._raw_sockets,
            fair_share=self._fair_share,
            flows=self._topics.flows.of,
            answers=self.monitor.answers,
            websocket=websocket,
            plain_errors=plain_errors,
            stray=stray,
            error_body=error_body,
        )
        self._bodies.append(app.bodies)
        self.monitor.add(app)
        return app


def _origins(config: Config, authenticator: Authenticator) -> Origins:
    listening = (config.http, config.metrics, config.batches, config.topics, config.messages)
    hosts = AllowedHosts([each.host for each in listening if each is not None], config.allowed_hosts)
    return Origins(authenticator, hosts, ClientAddress(config.trusted_proxies), allow_origin=config.cors_allow_origin)


def _monitor(config: Config, clock: Clock, metrics: Metrics, raw_sockets: RawSockets) -> ConnectionMonitor:
    monitor = ConnectionMonitor(
        clock, most=config.http_connections_max or connections_max(), idle_ms=config.http_idle_timeout_ms
    )
    metrics.add(monitor)
    raw_sockets.arriving = monitor.arriving
    raw_sockets.answers = monitor.answers
    return monitor


def _start_webhooks(engine: ServerContext, guard: Guard) -> list[WebhookDispatcher]:
    """Start the delivery of webhooks for each shard."""
    sender = Sender(engine.clock, guard)
    dispatchers = [WebhookDispatcher(each, sender) for each in engine.engines]
    for dispatcher in dispatchers:
        dispatcher.start()
    return dispatchers
