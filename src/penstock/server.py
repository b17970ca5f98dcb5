"""The composition root: the only place that knows all parts and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from penstock import __version__
from penstock.access.rate_limit import ClientAddress, SlidingWindow
from penstock.access.tokens import TokenGate
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid, PenstockError
from penstock.doors.http.app import HttpApp
from penstock.doors.http.openapi import OpenApi
from penstock.doors.http.route import Route
from penstock.doors.jobs.call import CommandTable
from penstock.doors.jobs.commands import job_commands, ops_commands, queue_commands, session_commands
from penstock.doors.jobs.crons import CronHandlers
from penstock.doors.jobs.jobs import JobHandlers
from penstock.doors.jobs.queues import QueueHandlers
from penstock.doors.jobs.tcp import TcpListener
from penstock.doors.jobs.webhooks import WebhookHandlers
from penstock.doors.ops.health import OpsHandlers, Readiness, Uptime
from penstock.doors.ops.metrics import Metrics
from penstock.engine.engine import Engine
from penstock.engine.keeper import Retention
from penstock.outbound.guard import Guard
from penstock.outbound.sender import Sender
from penstock.outbound.webhooks import PostOffice
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.config import Config, Listener

log = structlog.get_logger("penstock")

#: Connections that may be waiting to be accepted, and requests that may be under way.
BACKLOG: Final = 4_096
REQUESTS_MAX: Final = 60_000
#: A client that does not finish its headers within this time is cut off.
HEADER_TIMEOUT_MS: Final = 10_000
#: What is left of the shutdown time for closing the store.
CLOSE_RESERVE_MS: Final = 2_000


async def serve(config: Config, on_ready: Callable[[Config], None]) -> None:
    """Run the server until it is told to stop by SIGTERM or SIGINT; a second signal ends the process at once.

    ``on_ready`` is given the configuration without the listeners that could not be started.
    """
    stop = _on_signals()
    clock = SystemClock()
    _check_free(config.http, "http")
    store = await SqliteStore.open(config.data, clock, accept_loss=config.accept_loss, ballast_bytes=config.ballast_bytes)
    engine = Engine(
        store,
        clock,
        durability=config.durability,
        sync_interval_ms=config.sync_interval_ms,
        retention=Retention(config.completed_max, config.completed_age_ms, config.journal_bytes_max, config.journal_age_ms),
    )
    engine.start()
    guard = Guard(config.webhook_allowed_hosts)
    post_office = PostOffice(engine, Sender(clock, guard))
    post_office.start()
    readiness, uptime = Readiness(), Uptime(clock)
    metrics = Metrics(engine, uptime)
    ops = OpsHandlers(engine, readiness, metrics, uptime)
    jobs, queues, crons, webhooks = (
        JobHandlers(engine),
        QueueHandlers(engine),
        CronHandlers(engine),
        WebhookHandlers(engine, guard),
    )
    routes = [*jobs.routes(), *queues.routes(), *ops.routes(metrics_auth=config.metrics_auth)]
    routes += [*crons.routes(), *webhooks.routes()]
    routes += OpenApi(list(routes)).routes()
    gate = TokenGate(config.auth_tokens)
    commands = CommandTable(engine, job_commands(jobs), queue_commands(queues), ops_commands(ops), session_commands())
    listeners = [_listen(_app(config, clock, gate, routes), config.http)]
    if config.metrics is not None and _wanted(config, "metrics", config.metrics):
        scrape = [
            Route("GET", path, ops.prometheus, "Prometheus metrics", "Monitoring", public=not config.metrics_auth)
            for path in ("/metrics", "/prometheus")
        ]
        listeners.append(_listen(_app(config, clock, gate, scrape), config.metrics))
    if config.resp is not None:
        log.warning("this version has no such listener yet; it is not started", listener="resp")
    running = [asyncio.get_running_loop().create_task(listener.serve()) for listener in listeners]
    await _until_listening(config.http, running[0])
    tcp = TcpListener(commands, gate, clock)
    ops.tcp_connections = tcp.connections
    if not await _start_tcp(tcp, config):
        config = msgspec.structs.replace(config, tcp=None)
    readiness.ready = True
    log.info(
        "ready",
        version=__version__,
        http=str(config.http),
        tcp=str(config.tcp or "off"),
        data=str(config.data),
        durability=config.durability.value,
    )
    on_ready(config)

    await asyncio.wait({stop, *running}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping", reason=stop.result() if stop.done() else "a listener ended")
    ended_by_itself = not stop.done()
    readiness.ready = False
    engine.stop_waiting()
    for listener in listeners:
        listener.stop()  # type: ignore[no-untyped-call]
    reserve = min(CLOSE_RESERVE_MS, config.shutdown_timeout_ms // 5)
    timeout = (config.shutdown_timeout_ms - reserve) / 1000
    _, unfinished = await asyncio.wait([*running, asyncio.create_task(tcp.stop())], timeout=timeout)
    if unfinished:
        log.warning("some requests did not finish in time")
    await post_office.stop()
    await engine.close()
    await store.close()
    log.info("stopped")
    if ended_by_itself:
        raise PenstockError("A listener ended by itself; the log says why.")


def _app(config: Config, clock: SystemClock, gate: TokenGate, routes: list[Route]) -> HttpApp:
    window = None
    if config.rate_limit_max_requests is not None:
        window = SlidingWindow(
            clock,
            window_ms=config.rate_limit_window_ms,
            requests_max=config.rate_limit_max_requests,
            cleanup_ms=config.rate_limit_cleanup_ms,
        )
    return HttpApp(
        routes,
        gate,
        allow_origin=config.cors_allow_origin,
        window=window,
        address=ClientAddress(config.trusted_proxies),
    )


def _listen(app: HttpApp, listener: Listener) -> Granian:
    return Granian(
        app,
        address=_address(listener),
        port=listener.port,
        interface=Interfaces.RSGI,
        backlog=BACKLOG,
        backpressure=REQUESTS_MAX,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_TIMEOUT_MS),
        log_enabled=False,
    )


def _address(listener: Listener) -> str:
    """Return the IP address of a listener's host."""
    try:
        found = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigInvalid(
            f"Cannot listen on {listener}: {listener.host} is not the address of this machine ({error})."
        ) from None
    addresses = sorted({str(each[4][0]) for each in found}, key=lambda address: ":" in address)  # 127.0.0.1 before ::1
    return addresses[0]


def _check_free(listener: Listener, name: str) -> None:
    """Raise ConfigInvalid if somebody else listens there."""
    address = _address(listener)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, listener.port))
        except OSError as error:
            raise ConfigInvalid(
                f"Cannot listen on {listener}: {os.strerror(error.errno or 0)}. Stop what listens there, or choose another "
                f"address with --{name}."
            ) from None


def _wanted(config: Config, name: str, listener: Listener) -> bool:
    """Tell whether a listener can be started. One that nobody asked for never keeps the server from starting."""
    try:
        _check_free(listener, name)
    except ConfigInvalid as error:
        if name in config.origins:
            raise
        log.warning("going on without a listener", listener=name, reason=str(error))
        return False
    return True


async def _start_tcp(tcp: TcpListener, config: Config) -> bool:
    """Start the TCP listener if it is wanted and possible, and tell whether it runs."""
    if config.tcp is None or not _wanted(config, "tcp", config.tcp):
        return False
    try:
        await tcp.start(_address(config.tcp), config.tcp.port, backlog=BACKLOG)
    except OSError as error:  # somebody was faster
        if "tcp" in config.origins:
            raise ConfigInvalid(f"Cannot listen on {config.tcp}: {error.strerror}.") from None
        log.warning("going on without a listener", listener="tcp", reason=str(error))
        return False
    return True


async def _until_listening(listener: Listener, running: asyncio.Task[None]) -> None:
    """Return once connections are accepted."""
    while not running.done():
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(listener.host, listener.port)
            writer.close()
            return
        await asyncio.sleep(0.01)
    running.result()


def _on_signals() -> asyncio.Future[str]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()

    def hear(name: str) -> None:
        if stop.done():
            log.warning("second signal: exiting at once")
            os._exit(1)
        stop.set_result(name)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, hear, each.name)
    return stop
