"""What WebSockets of all doors share: admission, receiving, bounded sending, and closing with a reason."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.doors.net.raw_sockets import connection_key
from penstock.doors.net.send_queue import SendQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from granian._granian import RSGIWebsocketProtocol, RSGIWebsocketTransport
    from granian.rsgi import Scope

    from penstock.core.clock import Clock
    from penstock.doors.net.connections import Connection
    from penstock.doors.net.incoming_messages import Arrival
    from penstock.doors.net.raw_sockets import RawSockets


class Closing(IntEnum):
    """Why the server closes a connection: the close codes of the WebSocket protocol."""

    GOING_AWAY = 1001  #: the server stops
    BAD_FRAME = 1002  #: the received bytes are not WebSocket frames
    NOT_ALLOWED = 1008  #: no token was shown in time, or the token has expired or was revoked
    TOO_LARGE = 1009  #: a message was over the limit

    @property
    def reason(self) -> str:
        """The reason as text."""
        return _REASONS[self]


_REASONS: Final = {
    Closing.GOING_AWAY: "The server stops",
    Closing.BAD_FRAME: "Not a WebSocket frame",
    Closing.NOT_ALLOWED: "Not authenticated",
    Closing.TOO_LARGE: "Message too large (max 1MB)",
}


def close_frame(closing: Closing) -> bytes:
    """Return the close frame that gives a client the reason why its connection is closed."""
    body = closing.to_bytes(2) + closing.reason.encode()
    return bytes((0x88, len(body))) + body


async def say_why(raw_sockets: RawSockets, scope: Scope, outbox: SendQueue[Any], closing: Closing | None) -> None:
    """Send a client the reason why its connection is closed. If a message is half sent, only close the connection.

    ``closing``: None if the client does not read, so no reason is sent.
    """
    if not raw_sockets.reach(scope):
        return
    if outbox.broken_off:  # otherwise the HTTP server below would wait for the client without a limit
        await raw_sockets.say(connection_key(scope), b"", over=True)
    elif closing is not None:
        await raw_sockets.say(connection_key(scope), close_frame(closing))


_CLOSE: Final = 0  #: the kind of the message that ends a connection


class WebSocket:
    """One WebSocket connection. A door defines what happens when it begins, receives a message, and ends."""

    def __init__(
        self,
        clock: Clock,
        raw_sockets: RawSockets,
        scope: Scope,
        proto: RSGIWebsocketProtocol,
        turn: Callable[[], asyncio.Future[None] | None] = lambda: None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.clock = clock
        self.ended: asyncio.Future[None] = loop.create_future()
        self.outbox: SendQueue[str] = SendQueue(clock, self.send, lambda: self.end(None), turn, limits.socket_events_turn)
        self._raw_sockets = raw_sockets
        self._scope = scope
        self._proto = proto
        self._transport: RSGIWebsocketTransport | None = None
        self._over: asyncio.Future[None] = loop.create_future()
        self._closing: Closing | None = None  #: the reason that the client gets when the server closes the connection

    # Methods that doors implement.

    def begin(self) -> None:
        """Handle the start of the connection."""

    async def handle_frame(self, data: bytes | str) -> None:
        """Handle a message from the client."""
        raise NotImplementedError

    def complain(self, error: str) -> None:
        """Send an error to the client."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Finish the messages that have arrived, because the connection ends.

        What is put into the outbox by then is still sent, if the client is connected.
        """
        raise NotImplementedError

    async def leave(self) -> None:
        """Handle the end of sending: the connection has ended, and nothing more is sent."""

    async def render(self, message: str) -> str:
        """Return a message in the form in which it is sent."""
        return message

    # Methods that doors use.

    @property
    def is_over(self) -> bool:
        """Return whether the server is ending the connection."""
        return self._over.done()

    def end(self, closing: Closing | None) -> None:
        """End the connection soon. The first reason counts. None: the client does not read, so no reason is sent."""
        if not self._over.done():
            self._closing = closing
            self._over.set_result(None)

    async def run(self) -> None:
        """Serve the connection until the client closes it, or the server ends it."""
        receiving: asyncio.Task[None] | None = None
        try:
            try:
                self._transport = await self._proto.accept()
            except RuntimeError:  # the client has disconnected before the end of the handshake: nothing has begun
                return
            self.begin()
            receiving = asyncio.ensure_future(self._receive())
            await asyncio.wait({receiving, self._over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._finish(receiving)

    async def send(self, messages: list[str]) -> None:
        """Send messages one by one, and remove each from the list. Raises RuntimeError when the client has disconnected.

        The HTTP server copies a message. So the original is not kept until the client has read it.
        """
        assert self._transport is not None
        messages.reverse()
        while messages:
            await self._transport.send_str(await self.render(messages.pop()))
            self.outbox.moved()

    def message_bytes_max(self) -> int:
        """Return the current limit for the bytes of a message."""
        return limits.message_bytes_max

    def _cut_off(self, connection: Connection) -> None:
        """End the connection at once: an incomplete message is already too large. Nothing more of it is read."""
        self.end(Closing.TOO_LARGE)
        says_why = self._raw_sockets.reach(self._scope) and self.outbox.is_idle
        connection.abort(close_frame(Closing.TOO_LARGE) if says_why else b"")

    async def _receive(self) -> None:
        assert self._transport is not None
        arriving, arrival = self._raw_sockets.arriving, None
        if arriving is not None:
            arrival = await arriving.enter(connection_key(self._scope), self.message_bytes_max, self._cut_off)
        try:
            await self._receive_all(arrival)
        finally:
            if arriving is not None and arrival is not None:
                arriving.leave(arrival)

    async def _receive_all(self, arrival: Arrival | None) -> None:
        assert self._transport is not None
        while True:
            try:
                message = await self._transport.receive()
                if arrival is not None:
                    arrival.complete = True
            except RuntimeError:  # lost connection or invalid frame: the HTTP server does not say which
                self.end(Closing.BAD_FRAME)
                return
            if message.kind == _CLOSE or self._over.done():
                return
            if len(message.data) > limits.message_bytes_max:
                self.complain(Closing.TOO_LARGE.reason)
                self.end(Closing.TOO_LARGE)
                return
            await self.handle_frame(message.data)
            await self.outbox.room()

    async def _finish(self, receiving: asyncio.Task[None] | None) -> None:
        there = self._over.done()  # if so, the client gets what is still to be sent
        if not there:
            self.outbox.close()
        try:
            await self.finish()
            if there:
                await self.outbox.flush_within(limits.goodbye_ms_max)
            self.outbox.close()
            await self.leave()
        finally:
            await self._hang_up(receiving, there=there)

    async def _hang_up(self, receiving: asyncio.Task[None] | None, *, there: bool) -> None:
        try:
            if there:
                await say_why(self._raw_sockets, self._scope, self.outbox, self._closing)
        finally:
            self._proto.close(self._closing)
            if receiving is not None:
                receiving.cancel()
            # The connection is closed when nothing refers to these any more. That should not wait for the garbage collector.
            self._transport = None
            del self._proto
            self.ended.set_result(None)


S = TypeVar("S", bound=WebSocket)


class OpenSockets(Generic[S]):
    """The open connections of a door, at most ``most`` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[S] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[S]:
        return iter(self._open)

    def check_room(self) -> None:
        """Raise TooMany if there is no room for one more connection, or the door is closed."""
        if self._closed or len(self._open) >= self._most:
            raise TooMany("Too many WebSocket connections")

    async def serve(self, socket: S) -> None:
        """Serve an admitted connection until it ends."""
        self._open.add(socket)
        try:
            await socket.run()
        finally:
            self._open.discard(socket)

    def shut(self) -> None:
        """Admit no more connections."""
        self._closed = True

    async def close(self) -> None:
        """End all connections, after sending what is already queued for them."""
        self.shut()
        sockets = list(self._open)
        for socket in sockets:
            socket.end(Closing.GOING_AWAY)
        if sockets:
            await asyncio.wait([socket.ended for socket in sockets])
