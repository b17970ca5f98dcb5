"""A builder for each door: creates its parts, starts its background tasks, and returns its routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.doors.batches.handlers import BatchesDoor
from penstock.doors.batches.metrics import BatchCounters, BatchesMetrics
from penstock.doors.bulk.endpoints import BulkEndpoints
from penstock.doors.bulk.groups import GroupHandlers
from penstock.doors.bulk.metrics import GroupMetrics
from penstock.doors.bulk.stages import StageHandlers
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
from penstock.doors.jobs.flow_push import flow_push_commands
from penstock.doors.jobs.group_commands import group_commands
from penstock.doors.jobs.job_handlers import JobHandlers
from penstock.doors.jobs.lease_handlers import LeaseHandlers
from penstock.doors.jobs.metric_commands import metric_commands
from penstock.doors.jobs.queue_events import event_commands
from penstock.doors.jobs.queues import QueueHandlers
from penstock.doors.jobs.session import JobsSession
from penstock.doors.jobs.sse import StreamHandlers
from penstock.doors.jobs.summary_commands import summary_commands
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.jobs.webhooks import WebhookHandlers
from penstock.doors.jobs.websocket import SocketDoor
from penstock.doors.jobs.workers import WorkerHandlers
from penstock.doors.messages.handlers import MessagesDoor
from penstock.doors.messages.metrics import MessageCounters
from penstock.doors.messages.push_dispatcher import PushDispatcher, PushRules
from penstock.doors.messages.queue_registry import MessageDefaults, QueueRegistry
from penstock.doors.messages.request_metrics import RequestCounters
from penstock.doors.messages.stats import MessageStats
from penstock.doors.messages.subscriptions import SubscriptionHandlers
from penstock.doors.messages.websocket import PATH as CONSUMERS_PATH
from penstock.doors.messages.websocket import Consumers
from penstock.doors.ops.lag import LoopLag
from penstock.doors.permissions import with_rights
from penstock.engine.bulk.consumer_groups import ConsumerGroups
from penstock.engine.bulk.staged_writes import StagedWrites
from penstock.outbound.guard import Guard
from penstock.outbound.sender import Sender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.access.authenticator import Authenticator
    from penstock.access.rate_limit import SlidingWindow
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.doors.http.route import Route
    from penstock.doors.jobs.event_hub import EventHub
    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.doors.ops.health import OpsHandlers, Uptime
    from penstock.doors.ops.metrics import Metrics
    from penstock.engine.context import ServerContext


class DoorParts(NamedTuple):
    """The arguments of the builders of all doors."""

    config: Config
    engine: ServerContext
    authenticator: Authenticator
    guard: Guard  #: for the URLs of webhooks
    clock: Clock  #: of this process; the engine's may be that of a database
    raw_sockets: RawSockets
    rate_limit: SlidingWindow | None  #: rate limit of each client; None: there is none
    uptime: Uptime
    metrics: Metrics
    hub: EventHub


def build_batches(parts: DoorParts) -> BatchesDoor:
    """Return the batches door."""
    counters = BatchCounters(parts.engine.store.queue_find)
    parts.metrics.add(BatchesMetrics(counters, parts.engine))
    return BatchesDoor(parts.engine, counters, parts.config.batches_max_retries)


class BulkParts:
    """Exports, consumer groups, staged writes, and queries of the lake."""

    def __init__(self, parts: DoorParts) -> None:
        self._parts = parts
        engine = parts.engine
        self.endpoints = BulkEndpoints(parts.config, engine)
        self.groups, self.stages = ConsumerGroups(engine), StagedWrites(engine)
        parts.metrics.add_updated(GroupMetrics(self.groups, engine.clock))
        self.groups.start()
        self.stages.start()

    def routes(self) -> list[Route]:
        """Return the routes of exports and of queries of the lake."""
        service, lake = self.endpoints.service, self._parts.config.lake
        return [
            *self.endpoints.routes(),
            *InsightHandlers(self._parts.engine, service, self.groups, lake).routes(),
        ]

    def group_routes(self) -> list[Route]:
        """Return the routes of consumer groups and staged writes."""
        engine, service = self._parts.engine, self.endpoints.service
        return [
            *GroupHandlers(engine, self.groups, service).routes(),
            *StageHandlers(engine, self.stages, service).routes(),
        ]


class MessagesParts:
    """The messages door, with its two consumers: WebSockets and push subscriptions."""

    def __init__(self, parts: DoorParts) -> None:
        config, engine = parts.config, parts.engine
        counters = MessageCounters(engine.store.queue_find)
        parts.metrics.add(counters)
        for each in engine.engines:
            each.signals.job_died.subscribe(counters.note_dead)
        self._requests = RequestCounters(engine.clock)
        parts.metrics.add(self._requests, LoopLag(parts.clock))
        registry = QueueRegistry(engine, _message_rules(config))
        guard = Guard(config.push_allowed_hosts)
        rules = PushRules(config.push_retry_delays_ms, config.push_timeout_ms)
        self._subscriptions = SubscriptionHandlers(engine, registry, guard)
        sender = Sender(engine.clock, guard, timeout_ms=rules.timeout_ms)
        self.push = PushDispatcher(engine, registry, counters, sender, rules)
        self.push.start()
        self.consumers = Consumers(
            engine,
            registry,
            counters,
            parts.authenticator,
            raw_sockets=parts.raw_sockets,
            rate_limit=parts.rate_limit,
            handshakes=self._requests.of("GET", CONSUMERS_PATH),
        )
        self._door = MessagesDoor(engine, registry, counters, self.consumers.settling)
        self._stats = MessageStats(engine.store, registry, parts.uptime, f"node-{engine.store.journals[0].node}")

    def routes(self) -> list[Route]:
        """Return the routes on the main listener."""
        return self._requests.counted([*self._door.routes(), *self._subscriptions.routes(), *self._stats.routes()])

    def own_routes(self, metrics: Sequence[Route]) -> list[Route]:
        """Return the routes on the listener of this door. ``metrics``: those of Prometheus, which have separate permissions."""
        own = [*self._door.routes(), *self._subscriptions.routes(), *self._stats.own_routes()]
        return self._requests.counted([*with_rights(own), *metrics])


class JobsParts:
    """The jobs door: HTTP, WebSocket, TCP and event streams."""

    def __init__(self, parts: DoorParts, ops: OpsHandlers, groups: ConsumerGroups) -> None:
        engine, authenticator, rate_limit, hub = parts.engine, parts.authenticator, parts.rate_limit, parts.hub
        self._leases = LeaseHandlers(engine)
        self._jobs, self._queues = JobHandlers(engine), QueueHandlers(engine)
        self._crons, self._webhooks = CronHandlers(engine), WebhookHandlers(engine, parts.guard)
        self._workers = WorkerHandlers(engine, engine.workers, groups)
        self.streams = StreamHandlers(engine, hub)
        self.commands = table = self._command_table(engine, ops)
        self.sockets = SocketDoor(
            engine.clock,
            hub,
            authenticator,
            lambda identity, namespace, client, admit: JobsSession(
                table,
                authenticator,
                identity=identity,
                namespace=namespace,
                rate_limit=rate_limit,
                client=client,
                admit=admit,
            ),
            store=engine.store,
            raw_sockets=parts.raw_sockets,
            shares=engine.pool_shares,
        )
        self.tcp = TcpListener(table, authenticator, engine.clock, hub=hub, rate_limit=rate_limit)

    def _command_table(self, engine: ServerContext, ops: OpsHandlers) -> CommandTable:
        """Return the commands of the WebSocket and TCP protocols."""
        jobs, queues = self._jobs, self._queues
        return CommandTable(
            engine,
            commands.job_commands(jobs),
            commands.queue_commands(queues),
            commands.ops_commands(ops),
            commands.session_commands(),
            client_job_commands(jobs),
            client_queue_commands(queues),
            limit_commands(queues),
            dead_letter_commands(queues),
            flow_commands(jobs),
            flow_push_commands(jobs),
            event_commands(),
            summary_commands(queues),
            metric_commands(ops, queues),
            group_commands(queues),
            cron_commands(self._crons),
            webhook_commands(self._webhooks),
            worker_commands(self._workers),
        )

    def routes(self) -> list[Route]:
        """Return the routes of the HTTP API and of event streams."""
        return [
            *self._jobs.routes(),
            *self._leases.routes(),
            *self._queues.routes(),
            *DeadLetters(self._queues).routes(),
            *self._crons.routes(),
            *self._webhooks.routes(),
            *self._workers.routes(),
            *self.streams.routes(),
        ]


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
