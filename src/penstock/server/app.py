"""The composition root: it opens the stores, the engines, the doors and the listeners, and connects them.

The other modules of this package make these parts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from penstock import __version__
from penstock.core.clock import SystemClock
from penstock.core.errors import ServerError
from penstock.core.events import EventKind
from penstock.core.pool_shares import Shares
from penstock.doors.net.raw_sockets import keep_listener_alive
from penstock.outbound.guard import Guard
from penstock.server import listeners
from penstock.server.auth import authenticator_of, keys_for
from penstock.server.dev_cert import with_dev_cert
from penstock.server.doors import Doors
from penstock.server.storage import close_shards, open_engine, open_shards

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from granian.server.embed import Server as Granian

    from penstock.access.authenticator import Authenticator
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.engine.context import ServerContext
    from penstock.store.contract import Store
    from penstock.store.redis import RedisLink


log = structlog.get_logger("penstock")


#: The part of the shutdown time that is reserved for closing the store.
CLOSE_RESERVE_MS: Final = 2_000


class _Opened(NamedTuple):
    """The parts of a server before any listener is open."""

    config: Config
    clock: Clock
    tls: ssl.SSLContext | None
    authenticator: Authenticator
    shards: list[Store]
    engine: ServerContext
    redis_links: list[RedisLink]
    doors: Doors


async def serve(config: Config, on_ready: Callable[[Config], None]) -> None:
    """Run the server until SIGTERM or SIGINT; a second signal ends the process at once.

    ``on_ready`` is called with the configuration without the listeners that could not be started.
    """
    stop = _on_signals()
    opened = await _open(config)
    config, http = await _listen(opened)
    ends: list[asyncio.Future[Any]] = [stop, *(task for _, task in http)]
    _tell_ready(config, opened.engine, opened.doors)
    on_ready(config)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    ended_by_itself = not stop.done()
    await _stop(opened, http, reason="a listener ended" if ended_by_itself else stop.result())
    if ended_by_itself:
        raise ServerError("A listener stopped unexpectedly; the log has the reason.")


async def _open(config: Config) -> _Opened:
    """Open the stores, and build the engine and the doors."""
    clock = SystemClock()
    config = with_dev_cert(config, clock)
    tls = listeners.check_tls(config)
    guard = Guard(config.webhook_allowed_hosts)
    # Keys are fetched through a separate guard, so that look-ups for webhooks cannot delay those for keys.
    authenticator = authenticator_of(config, clock, Guard(config.webhook_allowed_hosts))
    listeners.check_free(config.http, "http")
    shards = await open_shards(config, clock)
    engine, redis_links = await open_engine(config, shards, clock)
    pool_shares = Shares(
        lambda: authenticator.separates_namespaces, percent=config.namespace_share, queues_max=config.namespace_queues_max
    )
    engine.limit_namespaces(pool_shares)
    engine.start()
    keys = await keys_for(authenticator, shards[0], clock)
    keys.pool_shares = pool_shares
    doors = Doors(config, engine, authenticator, guard, keys, clock=clock)
    return _Opened(config, clock, tls, authenticator, shards, engine, redis_links, doors)


async def _listen(opened: _Opened) -> tuple[Config, list[tuple[Granian, asyncio.Task[None]]]]:
    """Start all listeners; return the configuration without those that could not be started, and the HTTP servers."""
    config, doors, clock = opened.config, opened.doors, opened.clock
    apps = [(config.http, doors.app())]
    for name, listener, app in (
        ("metrics", config.metrics, doors.metrics_app),
        ("batches", config.batches, doors.batches_app),
        ("topics", config.topics, doors.topics_app),
        ("messages", config.messages, doors.messages_app),
    ):
        if listener is not None and listeners.wanted(config, name, listener):
            apps.append((listener, app()))
        else:
            config = msgspec.structs.replace(config, **{name: None})
    most = doors.monitor.most
    servers = [listeners.listen(app, listener, config, clock, connections_max=most) for listener, app in apps]
    running = [asyncio.get_running_loop().create_task(server.serve()) for server in servers]
    for (listener, _), task in zip(apps, running, strict=True):
        await listeners.until_listening(listener, task)
        keep_listener_alive(listener.port)
        doors.monitor.watch(listener.port)
    for name, listener, own, secure in (
        ("tcp", config.tcp, doors.tcp, opened.tls),
        ("resp", config.resp, doors.resp, opened.tls),
        ("resp_plain", config.resp_plain, doors.resp, None),
    ):
        if not await listeners.start(name, own, listener, config, secure):
            config = msgspec.structs.replace(config, **{name: None})
    return config, list(zip(servers, running, strict=True))


async def _stop(opened: _Opened, http: Sequence[tuple[Granian, asyncio.Task[None]]], *, reason: str) -> None:
    """Finish the current requests, and close everything, from the listeners to the stores."""
    doors, engine = opened.doors, opened.engine
    log.info("stopping", reason=reason)
    doors.readiness.ready = False
    doors.stop_claiming()
    engine.stop_waiting()
    engine.feed.publish_transient(EventKind.SERVER_SHUTDOWN, {"reason": reason}, opened.clock.now_ms())
    await doors.end_streams()
    for server, _ in http:
        server.stop()  # type: ignore[no-untyped-call]
    await _finish(opened.config, doors, [task for _, task in http])
    doors.monitor.stop()
    services = (*doors.webhook_dispatchers, doors.groups, doors.stages)
    await asyncio.gather(doors.bulk.close(), *(each.stop() for each in services))
    await opened.authenticator.close()
    await engine.close()
    await close_shards(opened.shards, opened.redis_links)
    log.info("stopped")


async def _finish(config: Config, doors: Doors, running: list[asyncio.Task[None]]) -> None:
    """Wait for the current requests, up to the configured time; incomplete requests are cut off sooner."""
    cutting = asyncio.create_task(doors.cut_half_sent())
    reserve = min(CLOSE_RESERVE_MS, config.shutdown_timeout_ms // 5)
    timeout = (config.shutdown_timeout_ms - reserve) / 1000
    stopping = [asyncio.create_task(each.stop()) for each in (doors.tcp, doors.resp, doors.push)]
    _, unfinished = await asyncio.wait([*running, *stopping], timeout=timeout)
    cutting.cancel()
    if unfinished:
        log.warning("some requests did not finish in time")


def _tell_ready(config: Config, engine: ServerContext, doors: Doors) -> None:
    doors.readiness.ready = True
    log.info(
        "ready",
        version=__version__,
        http=str(config.http),
        tcp=str(config.tcp or "off"),
        resp=str(config.resp or "off"),
        **({"resp_plain": str(config.resp_plain)} if config.resp_plain is not None else {}),
        data=str(config.data),
        durability=config.durability.value,
    )
    doors.hub.start({"version": __version__, "startedAt": engine.clock.now_ms()})


def _on_signals() -> asyncio.Future[str]:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()

    def stop_by(name: str) -> None:
        if stop.done():
            log.warning("second signal: exiting at once")
            os._exit(1)
        stop.set_result(name)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop_by, each.name)
    return stop
