"""WebSockets: events by subscription, and commands, over one connection.

Until its first Subscribe a client gets all job events in their older form. Every command that is not about subscriptions goes
to a session, which speaks the same commands as the TCP protocol.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from penstock.access.gate import shown_in
from penstock.access.identity import EVERYBODY, Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.doors.jobs import events
from penstock.doors.jobs.door import check_namespace, check_queue_name
from penstock.doors.jobs.hub import Hub, Reader
from penstock.doors.jobs.outbox import Outbox
from penstock.doors.jobs.subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from granian._granian import RSGIWebsocketProtocol, RSGIWebsocketTransport
    from granian.rsgi import Scope

    from penstock.access.gate import Gate
    from penstock.access.identity import Identity
    from penstock.core.clock import Alarm, Clock

log = structlog.get_logger("penstock.sockets")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_PREFIX: Final = "/ws/queues/"
_CLOSE = 0  #: the kind of the message that ends a connection
_TEXT = 2
GOING_AWAY: Final = 1001


class CommandSession(Protocol):
    """Runs the commands of one connection."""

    identity: Identity | None  #: who the client has shown to be
    namespace: str  #: whose queues and jobs it is about

    def check(self, right: Right) -> None:
        """Raise Unauthorized or Forbidden unless the client may do something."""

    async def handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its reply."""

    async def close(self) -> None:
        """The connection is gone: give back what it holds."""


class SocketDoor:
    """Answers ``/ws`` and ``/ws/queues/{queue}``.

    ``sessions`` makes a session, given who the client has shown to be (None: it has not yet) and the namespace it is about;
    ``allow_origin`` is the web page that may connect from a browser (``*``: every one).
    """

    def __init__(
        self,
        clock: Clock,
        hub: Hub,
        gate: Gate,
        sessions: Callable[[Identity | None, str], CommandSession],
        *,
        allow_origin: str,
    ) -> None:
        self.clock = clock
        self.hub = hub
        self.sessions = sessions
        self._gate = gate
        self._allow_origin = allow_origin
        self._open: set[Socket] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    async def serve(self, scope: Scope, proto: RSGIWebsocketProtocol) -> None:
        """Serve one connection until it ends."""
        status, namespace, queue = self._check(scope)
        if status:
            proto.close(status)
            return
        socket = Socket(self, proto, namespace, queue, identity=await self._identity(scope))
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)

    async def _identity(self, scope: Scope) -> Identity | None:
        """Return who a handshake shows; who shows nothing that is good may do so later, with Auth."""
        if self._gate.is_open:
            return EVERYBODY
        headers: Any = scope.headers
        shown = shown_in(headers)
        try:
            return await self._gate.identify(shown) if shown else None
        except PenstockError:
            return None

    def _check(self, scope: Scope) -> tuple[int, str, str]:
        """Return the status a handshake is refused with (0: none), the namespace and the queue it is about."""
        queue = scope.path.removeprefix(_PREFIX) if scope.path.startswith(_PREFIX) else ""
        namespace = scope.headers.get("x-namespace", DEFAULT_NAMESPACE)
        origin = scope.headers.get("origin")
        status = 0
        if scope.path != "/ws" and not queue:
            status = 404
        elif origin is not None and self._allow_origin not in ("*", origin):
            status = 403
        elif self._closed or len(self._open) >= limits.websockets_max:
            status = 503
        else:
            try:
                check_namespace(namespace)
                if queue:
                    check_queue_name(queue)
            except InvalidInput:
                status = 400
        return status, namespace, queue

    async def close(self) -> None:
        """End all connections, after what is already on its way to them."""
        self._closed = True
        sockets = list(self._open)
        for socket in sockets:
            socket.end()
        if sockets:
            await asyncio.wait([socket.ended for socket in sockets])


class Socket:
    """One connection."""

    def __init__(
        self, door: SocketDoor, proto: RSGIWebsocketProtocol, namespace: str, queue: str, *, identity: Identity | None
    ) -> None:
        self._door = door
        self._clock = door.clock
        self._proto = proto
        self._transport: RSGIWebsocketTransport | None = None
        self._session = door.sessions(identity, namespace)
        self._alarm: Alarm | None = None  #: rings when the client must have shown a token, or a new one
        self._subscription = Subscription()
        self._over = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox: Outbox[str] = Outbox(self._clock, self._send, self.end)
        self._reader = Reader(events.legacy, self._take, namespace=namespace, queue=queue)
        self._commands: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(limits.socket_commands_max)

    def end(self) -> None:
        """Have it end soon; ending twice is fine."""
        if not self._over.done():
            self._over.set_result(None)

    async def run(self) -> None:
        """Serve until the client hangs up, does not show a token in time, or the server stops."""
        receiving: asyncio.Task[None] | None = None
        try:
            self._transport = await self._proto.accept()
            if self._session.identity is not None:
                self._let_in()
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
        for task in self._commands:
            task.cancel()
        if self._over.done():  # the client is still there, and gets what was meant for it
            await self._outbox.flush_within(limits.goodbye_ms_max)
        self._outbox.close()
        self._proto.close(GOING_AWAY)
        if receiving is not None:
            receiving.cancel()
        # The connection is closed when nobody holds these any more, and that should not wait for the garbage collector.
        self._transport = None
        del self._proto
        try:
            await self._session.close()
        except PenstockError as error:
            log.warning("what a closed connection held could not be given back", error=str(error))
        finally:
            self.ended.set_result(None)

    def _hurry(self) -> None:
        """End it if the client has not shown a token, or the one it has shown is no longer good."""
        identity = self._session.identity
        if identity is None or identity.expired(self._clock.now_ms()):
            self.end()
        else:
            self._expect_end(identity)

    def _let_in(self) -> None:
        """The client is known: tell it what happens, as far as it may know, for as long as its token is good."""
        identity = self._session.identity
        assert identity is not None
        self._reader.namespace = self._session.namespace
        if not identity.may(self._session.namespace, Right.LOOK):
            self._door.hub.want(self._reader, frozenset())
        elif not self._subscription.begun:
            self._door.hub.want(self._reader, events.LEGACY_KINDS)
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
            except RuntimeError:  # the connection is gone
                return
            if message.kind == _CLOSE:
                return
            if len(message.data) > limits.message_bytes_max:
                self._reply({"ok": False, "error": "Message too large (max 1MB)"})
                self.end()
                return
            await self._hear(message.data)
            await self._outbox.room()

    async def _hear(self, data: bytes | str) -> None:
        try:
            message = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._reply({"ok": False, "error": "Invalid JSON"})
            return
        command = message.get("cmd") if isinstance(message, dict) else None
        if not isinstance(command, str) or not command:
            self._reply({"ok": False, "error": "Invalid command"} | _req_id(message))
        elif command in ("Subscribe", "Unsubscribe"):
            self._reply(self._subscribe(command, message) | _req_id(message))
        elif command == "Auth":
            await self._run(message)  # what comes after it may need it
        else:
            await self._room.acquire()
            task = asyncio.get_running_loop().create_task(self._run_beside(message))
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _run_beside(self, message: dict[str, Any]) -> None:
        try:
            await self._run(message)
        finally:
            self._room.release()

    async def _run(self, message: dict[str, Any]) -> None:
        try:
            reply = await self._session.handle(message)
        except PenstockError as error:
            reply = {"ok": False, "error": str(error)} | _req_id(message)
        except Exception:
            log.exception("a command failed unexpectedly")
            reply = {"ok": False, "error": "Internal server error"} | _req_id(message)
        self._reply(reply)
        if message["cmd"] == "Auth" and reply.get("ok") is True:
            self._let_in()

    def _subscribe(self, command: str, message: dict[str, Any]) -> dict[str, Any]:
        names = message.get("events")
        try:
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

    def _take(self, message: str, _seq: int) -> bool:
        return self._outbox.put(message)

    def _reply(self, reply: dict[str, Any]) -> None:
        self._outbox.put(_encode(reply).decode(), must=True)

    async def _send(self, messages: list[str]) -> None:
        assert self._transport is not None
        for message in messages:
            await self._transport.send_str(message)


def _req_id(message: object) -> dict[str, Any]:
    return {"reqId": message["reqId"]} if isinstance(message, dict) and "reqId" in message else {}
