"""WebSockets: events by subscription, and commands, over one connection.

Until its first Subscribe a client gets all job events in their older form. Every command that is not about subscriptions goes
to a session, which speaks the same commands as the TCP protocol.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from penstock.access.gate import SHOWN_IN, shown_in
from penstock.access.identity import EVERYBODY, Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, OriginRefused, PenstockError, RouteNotFound, TooMany
from penstock.doors.jobs import events
from penstock.doors.jobs.call import TextMessage
from penstock.doors.jobs.door import check_queue_name
from penstock.doors.jobs.hub import Hub, Reader
from penstock.doors.jobs.outbox import Outbox
from penstock.doors.jobs.subscription import Subscription
from penstock.doors.namespaces import namespace_in
from penstock.outbound.letter import data_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from granian._granian import RSGIWebsocketProtocol, RSGIWebsocketTransport
    from granian.rsgi import Scope

    from penstock.access.gate import Gate
    from penstock.access.identity import Identity
    from penstock.core.clock import Alarm, Clock
    from penstock.doors.jobs.events import Told
    from penstock.doors.links import Links
    from penstock.store.contract import Store
    from penstock.store.shards import ShardedStore

log = structlog.get_logger("penstock.sockets")

_encode = msgspec.json.Encoder().encode
_PREFIX: Final = "/ws/queues/"
_CLOSE = 0  #: the kind of the message that ends a connection


class Closing(IntEnum):
    """Why the server closes a connection, as the WebSocket protocol numbers it."""

    GOING_AWAY = 1001  #: the server stops
    BAD_FRAME = 1002  #: what came is not WebSocket
    NOT_ALLOWED = 1008  #: no token was shown in time, or the one that was has ended
    TOO_LARGE = 1009  #: a message was over the limit

    @property
    def reason(self) -> str:
        """Say it in words."""
        return _REASONS[self]


_REASONS: Final = {
    Closing.GOING_AWAY: "The server stops",
    Closing.BAD_FRAME: "Not a WebSocket frame",
    Closing.NOT_ALLOWED: "Not authenticated",
    Closing.TOO_LARGE: "Message too large (max 1MB)",
}


def close_frame(closing: Closing) -> bytes:
    """Return the frame that tells a client why its connection is closed."""
    body = closing.to_bytes(2) + closing.reason.encode()
    return bytes((0x88, len(body))) + body


class CommandSession(Protocol):
    """Runs the commands of one connection."""

    identity: Identity | None  #: who the client has shown to be
    namespace: str  #: whose queues and jobs it is about

    def check(self, right: Right) -> None:
        """Raise Unauthorized or Forbidden unless the client may do something."""

    def check_pace(self) -> None:
        """Count a command that is answered elsewhere. Raises RateLimited."""

    def refuse(self, error: PenstockError, message: object = None) -> dict[str, Any]:
        """Return the reply to what is no command."""

    async def handle_text(self, message: TextMessage) -> bytes:
        """Run a command and return its reply, as JSON. Never raises."""

    def hang_up(self) -> None:
        """The client is gone: whatever waits on its behalf stops waiting."""

    async def close(self) -> None:
        """The connection is gone: give back what it holds."""


class SocketDoor:
    """Answers ``/ws`` and ``/ws/queues/{queue}``.

    ``sessions`` makes a session, given who the client has shown to be (None: it has not yet), the namespace its commands are
    about, and its address; ``store`` is asked for results and payloads; ``links`` tells clients why their connections are
    closed; ``allow_origin`` is the web page that may connect from a browser (``*``: every one).
    """

    def __init__(
        self,
        clock: Clock,
        hub: Hub,
        gate: Gate,
        sessions: Callable[[Identity | None, str, str], CommandSession],
        *,
        store: Store | ShardedStore,
        links: Links,
        allow_origin: str,
    ) -> None:
        self.clock = clock
        self.store = store
        self.hub = hub
        self.links = links
        self.sessions = sessions
        self._gate = gate
        self._allow_origin = allow_origin
        self._open: set[Socket] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        """Serve one connection, which comes from an address, until it ends. Raises what its handshake is refused with."""
        namespace, queue = self._check(scope)
        identity = await self._identity(scope)
        self._check_room()  # keys may have had to be fetched
        session = self.sessions(identity, namespace, client)
        socket = Socket(self, scope, proto, session, queue=queue)
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)

    async def _identity(self, scope: Scope) -> Identity | None:
        """Return who a handshake shows; who shows nothing may do so later, with Auth. Raises Unauthorized, KeysUnavailable."""
        if self._gate.is_open:
            return EVERYBODY
        headers: Any = scope.headers
        if not any(name in headers for name in SHOWN_IN):  # one that is not ASCII is there, but unreadable
            return None
        return await self._gate.identify(shown_in(headers))

    def _check(self, scope: Scope) -> tuple[str, str]:
        """Return the namespace and the queue a handshake is about, or raise what it is refused with."""
        queue = scope.path.removeprefix(_PREFIX) if scope.path.startswith(_PREFIX) else ""
        origin = scope.headers.get("origin")
        if scope.path != "/ws" and not queue:
            raise RouteNotFound
        if origin is not None and self._allow_origin not in ("*", origin):
            raise OriginRefused
        self._check_room()
        namespace = namespace_in(scope.headers)
        if queue:
            check_queue_name(queue)
        return namespace, queue

    def _check_room(self) -> None:
        if self._closed or len(self._open) >= limits.websockets_max:
            raise TooMany("Too many WebSocket connections")

    async def close(self) -> None:
        """End all connections, after what is already on its way to them."""
        self._closed = True
        sockets = list(self._open)
        for socket in sockets:
            socket.end(Closing.GOING_AWAY)
        if sockets:
            await asyncio.wait([socket.ended for socket in sockets])


class Socket:
    """One connection."""

    def __init__(
        self,
        door: SocketDoor,
        scope: Scope,
        proto: RSGIWebsocketProtocol,
        session: CommandSession,
        *,
        queue: str,
    ) -> None:
        self._door = door
        self._clock = door.clock
        self._scope = scope
        self._proto = proto
        self._transport: RSGIWebsocketTransport | None = None
        self._session = session
        self._alarm: Alarm | None = None  #: rings when the client must have shown a token, or a new one
        self._subscription = Subscription()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing: Closing | None = None  #: what the client is told when the server closes the connection
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox: Outbox[str] = Outbox(self._clock, self._send, lambda: self.end(None))
        self._reader = Reader(events.legacy_socket, self._take, namespace=session.namespace, queue=queue)
        self._commands: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(limits.socket_commands_max)

    def end(self, closing: Closing | None) -> None:
        """Have it end soon; of several reasons the first one counts. None: the client takes nothing, so it is told nothing."""
        if not self._over.done():
            self._closing = closing
            self._over.set_result(None)

    async def run(self) -> None:
        """Serve until the client hangs up, does not show a token in time, or the server stops."""
        receiving: asyncio.Task[None] | None = None
        try:
            self._transport = await self._proto.accept()
            if self._session.identity is not None:
                self._let_in(self._session.identity)
            else:
                self._alarm = self._clock.call_at(self._clock.steady_ms() + limits.auth_wait_ms_max, self._hurry)
            receiving = asyncio.ensure_future(self._receive())
            await asyncio.wait({receiving, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._door.hub.want(self._reader, frozenset())
            if self._alarm is not None:
                self._alarm.cancel()
            await self._finish(receiving)

    async def _finish(self, receiving: asyncio.Task[None] | None) -> None:
        """Finish what has arrived, and give back what the client held: only a command that has run tells what it has taken."""
        there = self._over.done()  # then it gets what is meant for it
        if not there:
            self._outbox.close()
        self._session.hang_up()
        try:
            if self._commands:
                await asyncio.wait(self._commands)
            if there:
                await self._outbox.flush_within(limits.goodbye_ms_max)
            self._outbox.close()
            await self._session.close()
        finally:
            await self._hang_up(receiving, there=there)

    async def _hang_up(self, receiving: asyncio.Task[None] | None, *, there: bool) -> None:
        try:
            if there:
                await self._say_why()
        finally:
            self._proto.close(self._closing)
            if receiving is not None:
                receiving.cancel()
            # The connection is closed when nobody holds these any more, and that should not wait for the garbage collector.
            self._transport = None
            del self._proto
            self.ended.set_result(None)

    async def _say_why(self) -> None:
        """Tell the client why its connection is closed, unless a message is half sent: then it is just cut off."""
        links = self._door.links
        if not links.reach(self._scope):
            return
        if self._outbox.broken_off:  # the server underneath would wait for the client for as long as it pleases
            await links.say(self._scope.client, b"", over=True)
        elif self._closing is not None:
            await links.say(self._scope.client, close_frame(self._closing))

    def _hurry(self) -> None:
        """End it if the client has not shown a token, or the one it has shown is no longer good."""
        identity = self._session.identity
        if identity is not None and not identity.expired(self._clock.now_ms()):
            self._expect_end(identity)
            return
        self._reply({"ok": False, "error": Closing.NOT_ALLOWED.reason if identity is None else "The token has expired"})
        self.end(Closing.NOT_ALLOWED)

    def _let_in(self, identity: Identity) -> None:
        """The client is known: tell it what happens, as far as it may know, for as long as its token is good."""
        self._reader.namespace = self._session.namespace
        kinds = self._subscription.kinds if self._subscription.begun else events.LEGACY_KINDS
        may_look = identity.may(self._session.namespace, Right.LOOK)
        self._door.hub.want(self._reader, kinds if may_look else frozenset())
        self._expect_end(identity)

    def _expect_end(self, identity: Identity) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = None
        if identity.expires_ms is not None:  # by the wall clock, which may have been set by the time the alarm rings
            left_ms = min(identity.expires_ms - self._clock.now_ms(), limits.DAY_MS)
            self._alarm = self._clock.call_at(self._clock.steady_ms() + left_ms, self._hurry)

    # In.

    async def _receive(self) -> None:
        assert self._transport is not None
        while True:
            try:
                message = await self._transport.receive()
            except RuntimeError:  # the connection is gone, or what came is not what it should be: nobody tells which
                self.end(Closing.BAD_FRAME)
                return
            if message.kind == _CLOSE or self._over.done():
                return
            if len(message.data) > limits.message_bytes_max:
                self._reply({"ok": False, "error": Closing.TOO_LARGE.reason})
                self.end(Closing.TOO_LARGE)
                return
            await self._hear(message.data)
            await self._outbox.room()

    async def _hear(self, data: bytes | str) -> None:
        try:
            message = TextMessage(data)
        except InvalidInput as error:
            self._reply(self._session.refuse(error))
            return
        command = message.get("cmd")
        if command in ("Subscribe", "Unsubscribe"):
            self._reply(self._subscribe(command, message) | _req_id(message))
            self._door.hub.greet(self._reader)
        elif command == "Auth":
            await self._run(message)  # what comes after it may need it
            if self._session.identity is not None and not self._over.done():
                self._let_in(self._session.identity)
        else:
            await self._room.acquire()
            if self._over.done():  # meanwhile
                return
            task = asyncio.get_running_loop().create_task(self._run_beside(message))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _run_beside(self, message: TextMessage) -> None:
        try:
            await self._run(message)
        finally:
            self._room.release()

    async def _run(self, message: TextMessage) -> None:
        reply = await self._session.handle_text(message)
        self._outbox.put(reply.decode(), must=True)

    def _subscribe(self, command: str, message: TextMessage) -> dict[str, Any]:
        names = message.get("events")
        try:
            self._session.check_pace()
            self._session.check(Right.LOOK)
            if command == "Subscribe":
                self._subscription.add(names)
            else:
                self._subscription.remove(names)
        except PenstockError as error:
            return {"ok": False, "error": str(error)}
        if self._subscription.begun:
            self._reader.render = events.pubsub
            self._door.hub.want(self._reader, self._subscription.kinds)
        return {"ok": True, "subscribed": list(self._subscription.names)}

    # Out.

    def _take(self, message: str, _told: Told) -> bool:
        return self._outbox.put(message)

    def _reply(self, reply: dict[str, Any]) -> None:
        self._outbox.put(_encode(reply).decode(), must=True)

    async def _send(self, messages: list[str]) -> None:
        assert self._transport is not None
        for message in messages:
            whole = message
            if type(message) is events.Unfinished:
                told = message.told
                whole = message.finish(await data_of(self._door.store, told.kind, told.namespace or "", told.job))
            await self._transport.send_str(whole)
            self._outbox.moved()


def _req_id(message: TextMessage) -> dict[str, Any]:
    return {"reqId": message["reqId"]} if "reqId" in message else {}
