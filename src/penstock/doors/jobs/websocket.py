"""WebSockets: subscribed events, and commands, over one connection.

Until its first Subscribe a client gets all job events in their older form. Every command that is not about subscriptions
goes to a session, which accepts the same commands as the TCP protocol.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog

from penstock.access.authenticator import SHOWN_IN, shown_in
from penstock.access.expiry import Expiry
from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.errors import InvalidInput, RouteNotFound, ServerError, TooMany, Unauthorized
from penstock.core.pool_shares import Pool, PoolPlace
from penstock.doors.http.namespace import namespace_in
from penstock.doors.jobs import event_rendering
from penstock.doors.jobs.base import check_queue_name
from penstock.doors.jobs.command_call import TextMessage
from penstock.doors.jobs.event_filter import EventFilter
from penstock.doors.jobs.event_hub import EventHub, EventReader
from penstock.doors.jobs.session import STRANGER_COMMANDS, refusal
from penstock.doors.net.incoming_messages import UnauthenticatedSockets
from penstock.doors.net.listener import client_name
from penstock.doors.net.raw_sockets import connection_key
from penstock.doors.net.unread_replies import LISTINGS, SINGLE_READS, ListingTurns
from penstock.doors.websocket import Closing, OpenSockets, WebSocket

if TYPE_CHECKING:
    from collections.abc import Callable

    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.authenticator import Authenticator
    from penstock.access.identity import Identity
    from penstock.core.clock import Alarm, Clock
    from penstock.core.pool_shares import Shares
    from penstock.doors.jobs.event_rendering import OutgoingEvent
    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore

log = structlog.get_logger("penstock.sockets")

_encode = msgspec.json.Encoder().encode
_PREFIX: Final = "/ws/queues/"


class CommandSession(Protocol):
    """Runs the commands of one connection."""

    identity: Identity | None  #: the identity of the client
    namespace: str  #: the namespace of its commands
    client: str  #: the client's address

    def check(self, right: Right) -> None:
        """Raise Unauthorized or Forbidden unless the client has a right."""

    def check_pace(self) -> None:
        """Count a command that is answered elsewhere. Raises RateLimited."""

    def refuse(self, error: ServerError, message: object = None) -> dict[str, Any]:
        """Return the reply to an invalid command."""

    async def handle_text(self, message: TextMessage) -> bytes:
        """Run a command and return its reply, as JSON. Never raises."""

    def mark_disconnected(self) -> None:
        """Record that the client has disconnected: all waits for it end."""

    async def close(self) -> None:
        """Release what the client holds, because the connection has ended."""


class SocketDoor:
    """Answers ``/ws`` and ``/ws/queues/{queue}``.

    ``sessions`` creates a session, from the identity of the client (None: it has not shown a token yet), the namespace of
    its commands, its address, and a function that counts the connection for a namespace. ``store`` provides results and
    payloads. ``raw_sockets`` sends clients the reasons why their connections are closed.
    """

    def __init__(
        self,
        clock: Clock,
        hub: EventHub,
        authenticator: Authenticator,
        sessions: Callable[[Identity | None, str, str, Callable[[str], None]], CommandSession],
        *,
        store: Store | ShardedStore,
        raw_sockets: RawSockets,
        shares: Shares | None = None,
    ) -> None:
        self.clock = clock
        self._pool = Pool("WebSocket connections", limits.websockets_max, shares)
        self.store = store
        self.hub = hub
        self.raw_sockets = raw_sockets
        self.sessions = sessions
        self._authenticator = authenticator
        self.listings = ListingTurns()
        self.strangers = UnauthenticatedSockets(clock)
        self._connections: OpenSockets[Socket] = OpenSockets(limits.websockets_max)

    def __len__(self) -> int:
        return len(self._connections)

    async def serve(self, scope: Scope, proto: RSGIWebsocketProtocol, client: str) -> None:
        """Serve one connection from an address until it ends. Raises the error with which its handshake is refused."""
        namespace, queue = self._check(scope)
        identity = await self._identity(scope)
        if identity is None:
            await self.strangers.enter(client)
        left = asyncio.Event()

        def known() -> None:
            """Count the client as authenticated. Calling it twice has no further effect."""
            if identity is None and not left.is_set():
                left.set()
                self.strangers.leave(client)

        place = PoolPlace(self._pool)
        try:
            self._connections.check_room()  # keys may have been fetched meanwhile
            session = self.sessions(identity, namespace, client, place.take)
            if identity is not None:
                place.take(identity.tenant(namespace))
            await self._connections.serve(Socket(self, scope, proto, session, queue=queue, known=known))
        finally:
            known()
            place.give_up()

    async def _identity(self, scope: Scope) -> Identity | None:
        """Return the identity of a handshake. A client without a token may send Auth later.

        Raises Unauthorized, KeysUnavailable.
        """
        if self._authenticator.is_open:
            return self._authenticator.open_identity
        headers: Any = scope.headers
        if not any(name in headers for name in SHOWN_IN):  # a header that is not ASCII is present, but unreadable
            return None
        return await self._authenticator.identify(shown_in(headers))

    def _check(self, scope: Scope) -> tuple[str, str]:
        """Return the namespace and the queue of a handshake. Raises the error with which it is refused."""
        queue = scope.path.removeprefix(_PREFIX) if scope.path.startswith(_PREFIX) else ""
        if scope.path != "/ws" and not queue:
            raise RouteNotFound
        self._connections.check_room()
        namespace = namespace_in(scope.headers)
        if queue:
            check_queue_name(queue)
        return namespace, queue

    async def close(self) -> None:
        """End all connections, after sending what is already queued for them."""
        await self._connections.close()


class Socket(WebSocket):
    """One WebSocket connection."""

    def __init__(
        self,
        door: SocketDoor,
        scope: Scope,
        proto: RSGIWebsocketProtocol,
        session: CommandSession,
        *,
        queue: str,
        known: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(door.clock, door.raw_sockets, scope, proto, lambda: door.hub.turn(session.namespace))
        self._door = door
        self._session = session
        self._known = known  #: called when the client has shown a token
        self._alarm: Alarm | Expiry | None = None  #: fires when the client must have shown a token, or a new one
        self._subscription = EventFilter()
        self._reader = EventReader(event_rendering.legacy_socket, self._take, namespace=session.namespace, queue=queue)
        self._commands: set[asyncio.Task[None]] = set()
        self._reserving: set[asyncio.Future[None]] = set()  #: large replies that wait to be sent
        self._finishing = False
        self._stranger_commands = 0  #: messages before the client has shown a token
        self._room = asyncio.Semaphore(limits.socket_commands_max)

    def begin(self) -> None:
        """Admit the client, or require that it shows a token soon."""
        if self._session.identity is not None:
            self._let_in(self._session.identity)
        else:
            self._alarm = self.clock.call_at(self.clock.steady_ms() + limits.auth_wait_ms_max, self._hurry)

    def message_bytes_max(self) -> int:
        """Return the limit for the bytes of a message: lower until the client has shown a token."""
        return limits.stranger_frame_bytes_max if self._session.identity is None else limits.message_bytes_max

    async def finish(self) -> None:
        """Finish the commands that have arrived, because only a finished command shows which jobs it has leased."""
        self._door.hub.want(self._reader, frozenset())
        if self._alarm is not None:
            self._alarm.cancel()
        self._session.mark_disconnected()
        self._finishing = True
        for each in self._reserving:
            each.cancel()
        if self._commands:
            await asyncio.wait(self._commands)

    async def leave(self) -> None:
        """Release what the client held."""
        await self._session.close()

    def _hurry(self) -> None:
        """End the connection: the client has not shown a token, or its token is no longer valid."""
        known = self._session.identity is not None
        self._reply(refusal(Unauthorized("The token has expired" if known else Closing.NOT_ALLOWED.reason)))
        self.end(Closing.NOT_ALLOWED)

    def _let_in(self, identity: Identity) -> None:
        """Send events to an authenticated client: those that it has the right to see, for as long as its token is valid."""
        self._known()
        self._reader.namespace = self._session.namespace
        self._reader.everywhere = identity.may(ANYWHERE, Right.LOOK)
        kinds = self._subscription.kinds if self._subscription.begun else event_rendering.LEGACY_KINDS
        may_look = identity.may(self._session.namespace, Right.LOOK)
        self._door.hub.want(self._reader, kinds if may_look else frozenset())
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = Expiry(identity, self.clock, self._hurry)

    # Receiving.

    async def handle_frame(self, data: bytes | str) -> None:
        """Run a command, or change the subscriptions of the client."""
        is_stranger = self._session.identity is None
        if is_stranger:
            if self._stranger_commands >= limits.stranger_commands_max:
                self._reply(refusal(Unauthorized(STRANGER_COMMANDS)))
                self.end(Closing.NOT_ALLOWED)
                return
            self._stranger_commands += 1
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
            await self._run(message)  # messages after it may depend on it
            if self._session.identity is not None and not self.is_over:
                self._let_in(self._session.identity)
        elif is_stranger:
            await self._run(message)
        else:
            await self._room.acquire()
            if self.is_over:  # it ended meanwhile
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
        command = message.get("cmd")
        if command in LISTINGS or (self._has_unread() and command in SINGLE_READS):
            async with self._door.listings.turn(self._client_name):
                reply = await self._session.handle_text(message)
        else:
            reply = await self._session.handle_text(message)
        if len(reply) > limits.answer_counted_bytes and (refused := await self._reserve(len(reply))) is not None:
            reply = _encode(self._session.refuse(refused, message))
        self.outbox.put(reply.decode(), must=True)

    @property
    def _client_name(self) -> str:
        return client_name(self._session.identity, self._session.namespace, self._session.client)

    def _has_unread(self) -> bool:
        """Return whether some client has large replies or answers that it has not read."""
        return self._raw_sockets.answers is not None and self._raw_sockets.answers.unread > 0

    async def _reserve(self, size: int) -> TooMany | None:
        """Wait until a large reply may be sent; return what is sent instead if it may not be.

        The error and the frames of its traceback refer to each other, and are freed by the garbage collector only. So no frame
        of them may have the reply.
        """
        if self._raw_sockets.answers is None or self._finishing:
            return None
        reserving = asyncio.ensure_future(
            self._raw_sockets.answers.reserve(connection_key(self._scope), self._client_name, size)
        )
        self._reserving.add(reserving)
        try:
            await asyncio.wait({reserving})
        finally:
            reserving.cancel()  # it is done, unless this task was cancelled
            self._reserving.discard(reserving)
        if reserving.cancelled():  # it is when the connection ends
            return None
        error = reserving.exception()
        if error is not None and not isinstance(error, TooMany):
            raise error
        return error

    def _subscribe(self, command: str, message: TextMessage) -> dict[str, Any]:
        names = message.get("events")
        try:
            self._session.check_pace()
            self._session.check(Right.LOOK)
            if command == "Subscribe":
                self._subscription.add(names)
            else:
                self._subscription.remove(names)
        except ServerError as error:
            return refusal(error)
        if self._subscription.begun:
            self._reader.render = event_rendering.pubsub
            self._door.hub.want(self._reader, self._subscription.kinds)
        return {"ok": True, "subscribed": list(self._subscription.names)}

    # Sending.

    def _take(self, message: str, _outgoing: OutgoingEvent) -> bool:
        return self.outbox.put(message)

    def complain(self, error: str) -> None:
        """Send an error to the client."""
        self._reply(refusal(InvalidInput(error)))

    def _reply(self, reply: dict[str, Any]) -> None:
        self.outbox.put(_encode(reply).decode(), must=True)

    async def render(self, message: str) -> str:
        """Add to an event the data that must be read for it."""
        if type(message) is not event_rendering.Unfinished:
            return message
        return message.finish(await self._door.hub.data_of(self._door.store, message.outgoing))


def _req_id(message: TextMessage) -> dict[str, Any]:
    return {"reqId": message["reqId"]} if "reqId" in message else {}
