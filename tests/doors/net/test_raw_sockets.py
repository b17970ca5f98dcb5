"""Last words, over real sockets: why a connection is closed, and that the system watches over silent ones."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.doors.jobs.event_hub import EventHub
from penstock.doors.jobs.session import JobsSession
from penstock.doors.jobs.websocket import SocketDoor
from penstock.doors.net.raw_sockets import CHECK_EVERY_MS, RawSockets, keep_listener_alive
from penstock.doors.websocket import Closing, close_frame
from tests.support.engines import push
from tests.support.tcp import all_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


class Pair:
    """A connection of which this process has both ends, as it is when Granian serves us."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.server, address = listener.accept()
        self.client.settimeout(10)
        self.client_name = f"{address[0]}:{address[1]}"
        self.port: int = self.server.getsockname()[1]
        self.name = f"{self.client_name} {self.port}"

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    opened = Pair()
    yield opened
    opened.close()


async def test_words_reach_the_client_they_are_meant_for(pair: Pair, clock: ManualClock) -> None:
    links, other = RawSockets(clock), Pair()
    assert await links.say(pair.name, b"first")
    assert await links.say(other.name, b"second", over=True)
    assert pair.client.recv(100) == b"first"
    assert other.client.recv(100) == b"second"
    assert other.client.recv(100) == b"", "nothing comes after it"
    other.close()
    third = asyncio.ensure_future(links.say(other.name, b"third"))
    await clock.advance(CHECK_EVERY_MS)
    assert await third is False, "the connection is closed: no copy of its socket is left open"


async def test_sockets_are_looked_through_once_a_second_at_most(pair: Pair, clock: ManualClock) -> None:
    links = RawSockets(clock)
    assert await links.say(pair.name, b"found")
    late, later = Pair(), Pair()
    saying = [asyncio.ensure_future(links.say(each.name, b"found too")) for each in (late, later)]
    await clock.advance(CHECK_EVERY_MS - 1)
    assert not any(each.done() for each in saying)
    assert await links.say(pair.name, b"again"), "who is known already does not wait"
    await clock.advance(1)
    assert await asyncio.gather(*saying) == [True, True]
    for each in (late, later):
        each.close()


async def test_who_has_no_room_is_told_nothing(pair: Pair, clock: ManualClock) -> None:
    pair.server.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            pair.server.send(b"x" * 65_536)
    assert not await RawSockets(clock).say(pair.name, b"word")


async def test_the_system_is_told_to_watch_over_all_connections_of_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert keep_listener_alive(listener.getsockname()[1]) == 1
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0] as accepted:
            option = accepted.getsockopt
            assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle, pause, count = (
                option(socket.IPPROTO_TCP, each) for each in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert (idle, idle + pause * count) == (limits.keepalive_s, limits.gone_s)
            assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == limits.gone_s * 1_000
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


# WebSockets that end by the clock.


class Served:
    """A WebSocket as Granian hands it over: the connection is real, what is sent and received is not."""

    def __init__(self, engine: Engine, pair: Pair, *, tokens: tuple[str, ...] = (), stuck: bool = False) -> None:
        self.sent: list[str] = []
        self.slow: list[asyncio.Future[None]] = []
        self.stuck = stuck
        self.closed: list[int | None] = []
        clock, table = engine.clock, all_commands(engine)
        authenticator = Authenticator(clock, tokens)
        self.door = SocketDoor(
            clock,
            EventHub(engine.feed, clock),
            authenticator,
            lambda identity, namespace, _client, _admit: JobsSession(
                table, authenticator, identity=identity, namespace=namespace
            ),
            store=engine.store,
            raw_sockets=RawSockets(clock),
        )
        scope: Any = SimpleNamespace(path="/ws", headers={}, http_version="1.1", scheme="http")
        scope.client, scope.server = pair.client_name, f"127.0.0.1:{pair.port}"
        proto: Any = SimpleNamespace(accept=self._accept, close=self.closed.append)
        self.serving = asyncio.ensure_future(self.door.serve(scope, proto, "127.0.0.1"))

    async def _accept(self) -> Any:
        return SimpleNamespace(receive=self._receive, send_str=self._send)

    async def _receive(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def _send(self, message: str) -> None:
        if self.stuck:
            self.slow.append(asyncio.get_running_loop().create_future())
            await self.slow[-1]
        self.sent.append(message)


async def test_who_shows_no_token_in_time_is_told_so(engine: Engine, clock: ManualClock, pair: Pair) -> None:
    served = Served(engine, pair, tokens=("secret",))
    await clock.advance(limits.auth_wait_ms_max - 1)
    assert not served.serving.done()
    await clock.advance(1)
    await served.serving
    assert served.sent == ['{"ok":false,"error":"Not authenticated","code":"unauthorized"}']
    assert pair.client.recv(100) == close_frame(Closing.NOT_ALLOWED) == b"\x88\x13\x03\xf0Not authenticated"


async def test_who_only_listens_is_never_cut_off(engine: Engine, clock: ManualClock, pair: Pair) -> None:
    served = Served(engine, pair)
    await clock.advance(5 * limits.reader_stuck_ms_max)
    assert len(served.door) == 1
    await push(engine)
    await yield_to_loop()
    assert len(served.sent) == 1
    await served.door.close()
    await served.serving
    assert pair.client.recv(100) == close_frame(Closing.GOING_AWAY)
    assert served.closed == [1001]


async def test_who_takes_nothing_is_cut_off_and_who_is_slow_is_not(engine: Engine, clock: ManualClock, pair: Pair) -> None:
    served = Served(engine, pair, stuck=True)
    await yield_to_loop()
    for _ in range(4):
        await push(engine)
        await yield_to_loop()
    for _ in range(2):  # one message in a minute and a half: slow, and alive
        await clock.advance(limits.reader_stuck_ms_max * 3 // 4)
        served.slow[-1].set_result(None)
        await yield_to_loop()
    assert len(served.door) == 1
    assert len(served.sent) == 2
    await clock.advance(2 * limits.reader_stuck_ms_max)
    await served.serving
    assert len(served.door) == 0
    assert pair.client.recv(100) == b"", "a message may be half sent, so there is no close frame"
