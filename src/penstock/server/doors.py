"""Builds all doors of a server, and its listeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.access.allowed_hosts import AllowedHosts
from penstock.access.cross_origin import Origins
from penstock.access.rate_limit import ClientAddress, SlidingWindow
from penstock.core import limits
from penstock.core.clock import pause
from penstock.doors.batches.handlers import BatchesDoor
from penstock.doors.batches.metrics import BatchCounters, BatchesMetrics
from penstock.doors.bulk.endpoints import BulkEndpoints
from penstock.doors.bulk.groups import GroupHandlers
from penstock.doors.bulk.metrics import GroupMetrics
from penstock.doors.bulk.stages import StageHandlers
from penstock.doors.http.app import HttpApp, not_found
from penstock.doors.http.errors import body_of
from penstock.doors.http.openapi import OpenApi
from penstock.doors.insights.handlers import InsightHandlers
from penstock.doors.jobs import commands
from penstock.doors.jobs.client_commands import (
    client_job_commands,
    client_queue_commands,
    limit_commands,
)
from penstock.doors.jobs.command_call import CommandTable
from penstock.doors.jobs.commands import cron_commands, flow_commands, webhook_commands, worker_commands
from penstock.doors.jobs.crons import CronHandlers
from penstock.doors.jobs.dead_letter_commands import DeadLetters, dead_letter_commands
from penstock.doors.jobs.event_hub import EventHub
from penstock.doors.jobs.flow_push import flow_push_commands
from penstock.doors.jobs.group_commands import group_commands
from penstock.doors.jobs.job_handlers import JobHandlers
from penstock.doors.jobs.lease_handlers import LeaseHandlers
from penstock.doors.jobs.metric_commands import metric_commands
from penstock.doors.jobs.monitors import Monitors, Thresholds
from penstock.doors.jobs.queue_events import event_commands
from penstock.doors.jobs.queues import QueueHandlers
from penstock.doors.jobs.session import JobsSession
from penstock.doors.jobs.sse import StreamHandlers
from penstock.doors.jobs.summary_commands import summary_commands
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.jobs.webhooks import WebhookHandlers
from penstock.doors.jobs.websocket import SocketDoor
from penstock.doors.jobs.workers import WorkerHandlers
from penstock.doors.messages.handlers import MessagesDoor, stray_among
from penstock.doors.messages.metrics import MessageCounters
from penstock.doors.messages.push_dispatcher import PushDispatcher, PushRules
from penstock.doors.messages.queue_registry import MessageDefaults, QueueRegistry
from penstock.doors.messages.request_metrics import RequestCounters
from penstock.doors.messages.stats import MessageStats
from penstock.doors.messages.subscriptions import SubscriptionHandlers
from penstock.doors.messages.websocket import PATH as CONSUMERS_PATH
from penstock.doors.messages.websocket import Consumers
from penstock.doors.messages.wire import error_body as message_error_body
from penstock.doors.net.connection_monitor import ConnectionMonitor, connections_max
from penstock.doors.net.raw_sockets import RawSockets, ends_of
from penstock.doors.ops.health import Connections, OpsHandlers, Readiness, Uptime
from penstock.doors.ops.keys import KeyHandlers
from penstock.doors.ops.lag import LoopLag
from penstock.doors.ops.metrics import Metrics
from penstock.doors.ops.shards import ShardHandlers
from penstock.doors.permissions import with_rights
from penstock.doors.resp.listener import RespListener
from penstock.doors.topics.handlers import TopicsDoor
from penstock.doors.topics.subscriber import Subscribers
from penstock.engine.bulk.consumer_groups import ConsumerGroups
from penstock.engine.bulk.staged_writes import StagedWrites
from penstock.outbound.dispatcher import WebhookDispatcher
from penstock.outbound.guard import Guard
from penstock.outbound.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.api_keys import ApiKeys
    from penstock.access.authenticator import Authenticator
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.doors.http.request import Bodies
    from penstock.doors.http.route import Handler, Route
    from penstock.engine.sharding.engine import AnyEngine


log = structlog.get_logger("penstock")


class Doors:
    """All ways in and out of one engine. ``clock``: this process's own; the engine's may be that of a database."""

    def __init__(
        self, config: Config, engine: AnyEngine, gate: Authenticator, guard: Guard, keys: ApiKeys, *, clock: Clock
    ) -> None:
        self._config, self._clock, self._gate, self._share = config, clock, gate, engine.share
        self._bodies: list[Bodies] = []
        self.readiness = Readiness()
        uptime = Uptime(engine.clock)
        sender = Sender(engine.clock, guard)
        self.post_offices = _start_post_offices(engine, sender)
        self.workers = engine.workers
        self.hub = hub = EventHub(engine.feed, engine.clock, engine.share)
        self._links = RawSockets(engine.clock, tls=config.tls_cert_file is not None)
        self._window = self._new_window()
        self._origins = _origins(config, gate)
        metrics = Metrics(engine, uptime, self.workers, hub)
        self.monitor = _monitor(config, clock, metrics, self._links)
        self.ops = OpsHandlers(
            engine, self.readiness, metrics, uptime, self.connections, keeps_apart=lambda: gate.keeps_apart
        )
        tally = BatchCounters(engine.store.queue_find)
        metrics.add(BatchesMetrics(tally, engine))
        self._batches = BatchesDoor(engine, tally, config.batches_max_retries)
        self.bulk, (self.groups, self.stages) = BulkEndpoints(config, engine), _start_bulk(engine, metrics)
        self.subscribers = Subscribers(engine, config.topics_lease_ms)
        self._topics = TopicsDoor(
            engine, self.subscribers, self._links, window=self._window, address=ClientAddress(config.trusted_proxies)
        )
        message_tally = MessageCounters(engine.store.queue_find)
        metrics.add(message_tally)
        for each in engine.engines:
            each.signals.job_died.subscribe(message_tally.note_dead)
        self._requests = RequestCounters(engine.clock)
        metrics.add(self._requests, LoopLag(clock))
        places = QueueRegistry(engine, _message_rules(config))
        push_guard = Guard(config.push_allowed_hosts)
        push_rules = PushRules(config.push_retry_delays_ms, config.push_timeout_ms)
        self._subscriptions = SubscriptionHandlers(engine, places, push_guard)
        push_sender = Sender(engine.clock, push_guard, timeout_ms=push_rules.timeout_ms)
        self.push = PushDispatcher(engine, places, message_tally, push_sender, push_rules)
        self.push.start()
        self._consumers = Consumers(
            engine,
            places,
            message_tally,
            gate,
            links=self._links,
            window=self._window,
            handshakes=self._requests.of("GET", CONSUMERS_PATH),
        )
        self._messages = MessagesDoor(engine, places, message_tally, self._consumers.settling)
        self._message_stats = MessageStats(engine.store, places, uptime, f"node-{engine.store.journals[0].node}")
        jobs, queues = JobHandlers(engine), QueueHandlers(engine)
        crons, webhooks = CronHandlers(engine), WebhookHandlers(engine, guard)
        workers = WorkerHandlers(engine, self.workers, self.groups)
        self._streams = StreamHandlers(engine, hub)
        self.commands = table = CommandTable(
            engine,
            commands.job_commands(jobs),
            commands.queue_commands(queues),
            commands.ops_commands(self.ops),
            commands.session_commands(),
            client_job_commands(jobs),
            client_queue_commands(queues),
            limit_commands(queues),
            dead_letter_commands(queues),
            flow_commands(jobs),
            flow_push_commands(jobs),
            event_commands(),
            summary_commands(queues),
            metric_commands(self.ops, queues),
            group_commands(queues),
            cron_commands(crons),
            webhook_commands(webhooks),
            worker_commands(workers),
        )
        self._sockets = SocketDoor(
            engine.clock,
            hub,
            self._gate,
            lambda identity, namespace, client: JobsSession(
                table, self._gate, identity=identity, namespace=namespace, window=self._window, client=client
            ),
            store=engine.store,
            links=self._links,
            shares=engine.shares,
        )
        self.resp = RespListener(self.subscribers, self._gate, window=self._window)
        self.tcp = TcpListener(table, self._gate, engine.clock, hub=hub, window=self._window)
        main = with_rights(
            [
                *jobs.routes(),
                *LeaseHandlers(engine).routes(),
                *queues.routes(),
                *DeadLetters(queues).routes(),
                *crons.routes(),
                *webhooks.routes(),
                *workers.routes(),
                *self._streams.routes(),
                *self._batches.routes(),
                *self._topics.routes(),
                *self._requests.counted(
                    [*self._messages.routes(), *self._subscriptions.routes(), *self._message_stats.routes()]
                ),
                *self.ops.routes(),
                *self.ops.prometheus_routes("/prometheus", asks=config.metrics_auth),
                *self.bulk.routes(),
                *InsightHandlers(engine, self.bulk.office, self.groups, config.lake).routes(),
                *ShardHandlers(engine).routes(),
                *KeyHandlers(keys, gate).routes(),
                *GroupHandlers(engine, self.groups, self.bulk.office).routes(),
                *StageHandlers(engine, self.stages, self.bulk.office).routes(),
            ]
        )
        main += OpenApi(list(main)).routes()
        self._topics.reserved = frozenset(route.path.split("/")[1] for route in main) | {"ws"}
        own_messages = [*self._messages.routes(), *self._subscriptions.routes(), *self._message_stats.own_routes()]
        #: What may be asked for, by listener.
        self.routes: dict[str, list[Route]] = {
            "http": main,
            "metrics": self.ops.prometheus_routes("/metrics", "/prometheus", asks=config.metrics_auth),
            "batches": with_rights(self._batches.own_routes()),
            "topics": with_rights(self._topics.own_routes()),
            "messages": self._requests.counted(
                [*with_rights(own_messages), *self.ops.prometheus_routes("/metrics", asks=config.metrics_auth is not False)]
            ),
        }
        thresholds = Thresholds(
            config.queue_idle_threshold_ms, config.queue_size_threshold, config.memory_warning_mb, config.storage_warning_mb
        )
        Monitors(engine, hub, uptime, self.workers, thresholds, connections=self.connections, crons=engine.store.cron_count)

    def connections(self) -> Connections:
        """Count the connections that stay."""
        return Connections(
            tcp=len(self.tcp.connections),
            ws=len(self._sockets) + len(self._consumers),
            sse=len(self._streams),
            resp=len(self.resp.connections),
        )

    def app(self) -> HttpApp:
        """Return what answers on the main listener."""
        return self._app(self.routes["http"], self._window, websocket=self._serve_websocket)

    async def _serve_websocket(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        door = self._consumers if scope.path.startswith("/namespaces/") else self._sockets
        await door.serve(scope, proto, client)

    def metrics_app(self) -> HttpApp:
        """Return what answers on the listener for Prometheus."""
        return self._app(self.routes["metrics"], self._new_window())  # who asks a lot can still look at the figures

    def batches_app(self) -> HttpApp:
        """Return what answers on the listener of the batches door."""
        return self._app(self.routes["batches"], self._window, plain_errors=True)

    def topics_app(self) -> HttpApp:
        """Return what answers on the listener of the topics door."""
        return self._app(self.routes["topics"], self._window, stray=self._topics.stray)

    def messages_app(self) -> HttpApp:
        """Return what answers on the listener of the messages door."""
        routes = self.routes["messages"]
        return self._app(
            routes,
            self._window,
            websocket=self._consumers.serve,
            stray=stray_among(routes),
            error_body=message_error_body,
        )

    async def end_streams(self) -> None:
        """End the connections that stay: the listener would not wait for them."""
        self._topics.end_streams()
        parts = (self._sockets, self._consumers, self._streams, self.subscribers, self.bulk.office.processes)
        await asyncio.gather(*(part.close() for part in parts))

    async def cut_half_sent(self) -> None:
        """Give requests whose bodies have not arrived yet a moment more, and then cut them off."""
        await pause(self._clock, limits.half_sent_ms_max)
        for bodies in self._bodies:
            bodies.stopping = True
        connections = {ends_of(scope) for bodies in self._bodies for scope in bodies.arriving.values()}
        for ends in connections:
            await self._links.stop_reading(ends)
        if connections:
            log.warning("requests that had not arrived were cut off", connections=len(connections))

    def hush(self) -> None:
        """Take no more messages for those who are given them as they come: they would ask again and again."""
        self.stages.send_everybody_home()
        self.subscribers.stop()
        self._consumers.hush()
        self.push.hush()

    def _new_window(self) -> SlidingWindow | None:
        config = self._config
        if config.rate_limit_max_requests is None:
            return None
        return SlidingWindow(
            self._clock,
            window_ms=config.rate_limit_window_ms,
            requests_max=config.rate_limit_max_requests,
            cleanup_ms=config.rate_limit_cleanup_ms,
        )

    def _app(
        self,
        routes: list[Route],
        window: SlidingWindow | None,
        *,
        websocket: Callable[[Scope, RSGIWebsocketProtocol, str], Awaitable[None]] | None = None,
        plain_errors: bool = False,
        stray: Handler = not_found,
        error_body: Callable[[PenstockError], bytes] = body_of,
    ) -> HttpApp:
        config = self._config
        app = HttpApp(
            routes,
            self._gate,
            clock=self._clock,
            origins=self._origins,
            window=window,
            address=ClientAddress(config.trusted_proxies),
            links=self._links,
            share=self._share,
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


def _origins(config: Config, gate: Authenticator) -> Origins:
    listening = (config.http, config.metrics, config.batches, config.topics, config.messages)
    hosts = AllowedHosts([each.host for each in listening if each is not None], config.allowed_hosts)
    return Origins(gate, hosts, ClientAddress(config.trusted_proxies), allow_origin=config.cors_allow_origin)


def _monitor(config: Config, clock: Clock, metrics: Metrics, links: RawSockets) -> ConnectionMonitor:
    monitor = ConnectionMonitor(
        clock, most=config.http_connections_max or connections_max(), idle_ms=config.http_idle_timeout_ms
    )
    metrics.add(monitor)
    links.arriving = monitor.arriving
    links.answers = monitor.answers
    return monitor


def _start_post_offices(engine: AnyEngine, sender: Sender) -> list[WebhookDispatcher]:
    offices = [WebhookDispatcher(each, sender) for each in engine.engines]
    for office in offices:
        office.start()
    return offices


def _start_bulk(engine: AnyEngine, metrics: Metrics) -> tuple[ConsumerGroups, StagedWrites]:
    groups, stages = ConsumerGroups(engine), StagedWrites(engine)
    metrics.add_seen(GroupMetrics(groups, engine.clock))
    groups.start()
    stages.start()
    return groups, stages


def _message_rules(config: Config) -> MessageDefaults:
    return MessageDefaults(
        visibility_timeout_ms=config.messages_visibility_timeout_ms,
        max_messages=config.messages_max,
        max_retries=max(1, config.messages_max_retries),
        max_batch_size=config.messages_batch_max,
        default_batch_size=config.messages_batch_default,
        message_bytes_max=config.messages_max_size_kb * 1024,
        schedule_ahead_ms=config.messages_schedule_ahead,
        retention_ms=config.messages_retention,
        auto_create=config.messages_auto_create,
    )
