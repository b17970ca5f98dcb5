"""The composition root: the only place that knows all parts and puts them together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from granian.constants import Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian

from penstock import __version__
from penstock.access.rate_limit import ClientAddress, SlidingWindow
from penstock.access.tokens import TokenGate
from penstock.core.clock import SystemClock
from penstock.core.errors import ConfigInvalid, PenstockError
from penstock.core.events import EventKind
from penstock.doors.http.app import HttpApp
from penstock.doors.http.openapi import OpenApi
from penstock.doors.http.route import Route
from penstock.doors.jobs.baresession import BareSession
from penstock.doors.jobs.hub import Hub
from penstock.doors.jobs.jobs import JobHandlers
from penstock.doors.jobs.queues import QueueHandlers
from penstock.doors.jobs.sockets import SocketDoor
from penstock.doors.jobs.streams import StreamHandlers
from penstock.doors.jobs.watch import Thresholds, Watch
from penstock.doors.jobs.workers import WorkerHandlers
from penstock.doors.ops.health import Connections, OpsHandlers, Readiness, Uptime
from penstock.doors.ops.metrics import Metrics
from penstock.engine.engine import Engine
from penstock.engine.keeper import Retention
from penstock.engine.workers import Workers
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


async def serve(config: Config, on_ready: Callable[[], None]) -> None:
    """Run the server until it is told to stop by SIGTERM or SIGINT; a second signal ends the process at once."""
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
    readiness, uptime = Readiness(), Uptime(clock)
    gate = TokenGate(config.auth_tokens)
    live = _live(config, engine, gate, uptime)
    metrics = Metrics(engine, uptime, live.workers, live.hub)
    ops = OpsHandlers(engine, readiness, metrics, uptime, live.connections)
    routes = [*JobHandlers(engine).routes(), *QueueHandlers(engine).routes(), *ops.routes(metrics_auth=config.metrics_auth)]
    routes += [*WorkerHandlers(engine, live.workers).routes(), *live.streams.routes()]
    routes += OpenApi(list(routes)).routes()
    listeners = [_listen(_app(config, clock, gate, routes, live.sockets), config.http)]
    if config.metrics is not None and _wanted(config, "metrics", config.metrics):
        scrape = [
            Route("GET", path, ops.prometheus, "Prometheus metrics", "Monitoring", public=not config.metrics_auth)
            for path in ("/metrics", "/prometheus")
        ]
        listeners.append(_listen(_app(config, clock, gate, scrape), config.metrics))
    for name in ("tcp", "resp"):
        if getattr(config, name) is not None:
            log.warning("this version has no such listener yet; it is not started", listener=name)
    running = [asyncio.get_running_loop().create_task(listener.serve()) for listener in listeners]
    await _until_listening(config.http, running[0])
    readiness.ready = True
    log.info("ready", version=__version__, http=str(config.http), data=str(config.data), durability=config.durability.value)
    on_ready()
    engine.feed.pass_on(EventKind.SERVER_STARTED, {"version": __version__, "startedAt": clock.now_ms()}, clock.now_ms())

    await asyncio.wait({stop, *running}, return_when=asyncio.FIRST_COMPLETED)
    reason = stop.result() if stop.done() else "a listener ended"
    log.info("stopping", reason=reason)
    ended_by_itself = not stop.done()
    readiness.ready = False
    engine.stop_waiting()
    engine.feed.pass_on(EventKind.SERVER_SHUTDOWN, {"reason": reason}, clock.now_ms())
    await live.close()
    for listener in listeners:
        listener.stop()  # type: ignore[no-untyped-call]
    reserve = min(CLOSE_RESERVE_MS, config.shutdown_timeout_ms // 5)
    timeout = (config.shutdown_timeout_ms - reserve) / 1000
    _, unfinished = await asyncio.wait(running, timeout=timeout)
    if unfinished:
        log.warning("some requests did not finish in time")
    await engine.close()
    await store.close()
    log.info("stopped")
    if ended_by_itself:
        raise PenstockError("A listener ended by itself; the log says why.")


class _Live(NamedTuple):
    """What has to do with connections that stay."""

    workers: Workers
    hub: Hub
    streams: StreamHandlers
    sockets: SocketDoor

    def connections(self) -> Connections:
        return Connections(ws=len(self.sockets), sse=len(self.streams))

    async def close(self) -> None:
        """End the connections that stay: the listener would not wait for them."""
        await asyncio.gather(self.sockets.close(), self.streams.close())
        self.workers.close()


def _live(config: Config, engine: Engine, gate: TokenGate, uptime: Uptime) -> _Live:
    clock, hub = engine.clock, Hub(engine.feed)
    sockets = SocketDoor(
        clock,
        hub,
        gate,
        lambda authenticated: BareSession(gate, clock, authenticated=authenticated),
        allow_origin=config.cors_allow_origin,
    )
    workers = Workers(
        clock, engine.feed, timeout_ms=config.worker_timeout_ms, overload_ms=config.worker_overload_threshold_ms
    )
    live = _Live(workers, hub, StreamHandlers(engine, hub), sockets)
    thresholds = Thresholds(
        config.queue_idle_threshold_ms, config.queue_size_threshold, config.memory_warning_mb, config.storage_warning_mb
    )
    Watch(engine, hub, uptime, workers, thresholds, connections=live.connections)
    return live


def _app(
    config: Config, clock: SystemClock, gate: TokenGate, routes: list[Route], sockets: SocketDoor | None = None
) -> HttpApp:
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
        websocket=None if sockets is None else sockets.serve,
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
