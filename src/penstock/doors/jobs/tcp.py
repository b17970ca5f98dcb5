"""The jobs door over TCP: connections that pass frames to sessions and send their replies. docs/tcp.md is the protocol.

A connection reads no more from its client than it can process: a limited number of commands is in progress, and nothing is
read while the client does not read its replies.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import structlog

from penstock.core import limits
from penstock.core.errors import InvalidInput, ServerError, TooMany, Unauthorized
from penstock.core.time_slices import in_slices
from penstock.doors.jobs import jsonable, tcp_frames
from penstock.doors.jobs.queue_events import QueueEvents
from penstock.doors.jobs.session import STRANGER_COMMANDS, JobsSession, refusal
from penstock.doors.net.listener import ConnectionListener, client_name
from penstock.doors.net.raw_sockets import keep_alive
from penstock.doors.net.unread_replies import LISTINGS, ListingTurns, UnreadReplies

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.access.authenticator import Authenticator
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.clock import Alarm, Clock
    from penstock.doors.jobs.command_call import CommandTable
    from penstock.doors.jobs.event_hub import EventHub

log = structlog.get_logger("penstock.tcp")


class TcpListener(ConnectionListener["TcpConnection"]):
    """Accepts connections. ``rate_limit`` limits how many commands may come from one address (None: no limit).

    ``hub``: the source of the events of queues (None: clients cannot subscribe).
    """

    def __init__(
        self,
        table: CommandTable,
        authenticator: Authenticator,
        clock: Clock,
        *,
        hub: EventHub | None = None,
        rate_limit: SlidingWindow | None = None,
        connections_max: int = limits.tcp_connections_max,
    ) -> None:
        super().__init__("TCP", connections_max, table.engine.pool_shares)
        self.table = table
        self.authenticator = authenticator
        self.clock = clock
        self.hub = hub
        self.rate_limit = rate_limit
        self.unread = UnreadReplies(clock)
        self.listings = ListingTurns()

    def connection(self) -> TcpConnection:
        return TcpConnection(self)


class TcpConnection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, listener: TcpListener) -> None:
        self._listener = listener
        self._session: JobsSession
        self._parser = tcp_frames.FrameParser(limits.stranger_frame_bytes_max)
        self._stranger = True  #: the client must show a token, and has not shown one yet
        self._stranger_commands = 0  #: commands before the client has shown a token
        self._transport: asyncio.Transport
        self._frames: deque[bytes] = deque()  #: complete frames that are not processed yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept_bytes = 0  #: of frames that wait or are being processed
        self._counted_bytes = 0  #: bytes that the listener has counted
        self._counted_for = ""  #: the client that they were counted for
        self._client = ""  #: the client's address
        self._name = str(id(self))  #: its name among the connections with unread replies
        self._writable = True
        self._taking = asyncio.Event()  #: set while the client reads what it is sent, or has disconnected
        self._taking.set()
        self._reading = True
        self._continues = False  #: waiting commands begin in the next turn of the event loop
        self._ending = False  #: no more frames are accepted; it closes when the last command is answered
        self._lost = False
        self._received_at = 0
        self._alarm: Alarm | None = None
        self._hurry: Alarm | None = None  #: fires when the time limit for showing a token is over

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the session of a client that has connected."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else ""
        self._session = JobsSession(
            self._listener.table,
            self._listener.authenticator,
            rate_limit=self._listener.rate_limit,
            client=self._client,
            admit=self._admit,
        )
        if self._listener.hub is not None:
            store = self._listener.table.engine.store
            self._session.events = QueueEvents(self._listener.hub, store, self._listener.clock, self._session, self)
        keep_alive(transport.get_extra_info("socket"))
        if self._session.identity is not None:
            try:
                self._admit(self._session.identity.tenant(self._session.namespace))
            except TooMany as error:
                self.refuse(error)
                return
            self._welcome()
        else:
            self._listener.meet(self, self._session.client)
            clock = self._listener.clock
            self._hurry = clock.call_at(clock.steady_ms() + limits.auth_wait_ms_max, self._turn_away)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self._ending:
            return
        self._received_at = self._listener.clock.steady_ms()
        self._queue(self._parser.receive(data))
        self._proceed()
        if self._parser.partial and self._alarm is None:
            self._watch()

    def eof_received(self) -> bool:
        """Answer what the client has sent; it sends no more. Its commands that wait are ended."""
        self.finish()
        return True

    def pause_writing(self) -> None:
        """Begin no more commands, because the client does not read its replies."""
        self._writable = False
        self._taking.clear()
        self._proceed()

    def resume_writing(self) -> None:
        """Begin commands again, because the client has read its replies."""
        self._writable = True
        self._taking.set()
        self._proceed()

    def connection_lost(self, _error: Exception | None) -> None:
        """Finish the commands that have begun, because one may be an ack, and drop the others.

        The client has disconnected.
        """
        self._lost = True
        self._listener.unread.leave(self._name)
        self._drop()
        self._writable = True
        self._taking.set()
        self.finish()

    # Processing.

    def stop(self) -> None:
        """Finish, because the server stops, but do not wait for a client that does not read."""
        self.finish()
        if not self._writable:
            self._transport.abort()

    def finish(self) -> None:
        """Accept no more frames, finish the received ones, then close."""
        self._ending = True
        self._session.mark_disconnected()
        if self._session.events is not None:
            self._session.events.close()
        for alarm in (self._alarm, self._hurry):
            if alarm is not None:
                alarm.cancel()
        self._proceed()

    def _admit(self, namespace: str) -> None:
        """Count the connection for a namespace, after the client has authenticated. Raises TooMany, or NamespaceLimit."""
        if not self._ending:
            self._listener.enter(self, namespace)

    def _welcome(self) -> None:
        """Accept large frames, because the client has authenticated or need not. Received frames may be large already."""
        self._stranger = False
        if self._hurry is not None:
            self._hurry.cancel()
        self._queue(self._parser.allow(limits.frame_bytes_max))

    def _turn_away(self) -> None:
        self.refuse(Unauthorized("Not authenticated"))

    def _count_stranger(self) -> bool:
        """Count a command of a client that has not shown a token. Close the connection and return False after too many."""
        if self._stranger_commands >= limits.stranger_commands_max:
            self.refuse(Unauthorized(STRANGER_COMMANDS))
            return False
        self._stranger_commands += 1
        return True

    def _queue(self, received: list[bytes]) -> None:
        for frame in received:
            self._frames.append(frame)
            self._kept_bytes += len(frame)

    def _proceed(self) -> None:
        """Begin as many commands as possible, and continue reading only if there is room."""
        if self._stranger and self._session.authenticated and not self._ending:
            self._welcome()
        try:
            self._account()  # before any command begins, because a command that has begun is finished
        except TooMany as error:
            self.refuse(error)
            return
        clock = self._listener.clock
        until = clock.stopwatch() + limits.slice_ms / 1_000
        while (
            self._frames
            and self._writable
            and len(self._tasks)
            < (
                # Of a client that has not shown a token, one at a time, because each may be an Auth.
                1 if self._stranger else limits.connection_commands_max
            )
        ):
            if self._stranger and not self._count_stranger():
                return
            self._begin(self._frames.popleft())
            if clock.stopwatch() > until and self._frames:  # other connections continue first
                self._continue_soon()
                break
        # An Auth among the commands of an unauthenticated client decides what it may send after it.
        undecided = bool(self._frames) or (self._stranger and bool(self._tasks))
        if self._parser.broken is not None and not undecided and not self._ending:
            self.refuse(self._parser.broken)
            return
        if self._ending:
            if not self._frames and not self._tasks:
                self._end()
            return
        # One chunk more than can be processed is read, so that a disconnect is noticed while all commands wait.
        room = self._writable and len(self._frames) < limits.connection_commands_max and self._parser.broken is None
        if room != self._reading:
            self._reading = room
            if room:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _continue_soon(self) -> None:
        """Begin more commands in the next turn of the event loop."""
        if not self._continues:
            self._continues = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        self._continues = False
        self._proceed()

    def _account(self) -> None:
        """Have the listener count the memory of this connection, beyond what every connection may use.

        So a small command is always accepted, with any load of other clients. Announced bytes of a frame are not counted: they
        may never arrive.
        """
        kept = self._kept_bytes + (0 if self._ending else self._parser.kept)
        size = max(0, kept - limits.connection_frames_bytes)
        if not self._counted_bytes:
            self._counted_for = self._client_name
        self._listener.hold(size - self._counted_bytes, self._counted_for)
        self._counted_bytes = size

    def _begin(self, frame: bytes) -> None:
        if len(frame) > limits.connection_frames_bytes:
            self._follow(self._work_large(frame))
            return
        try:
            message = tcp_frames.decode(frame)
        except InvalidInput as error:
            self._follow(self._refuse_frame(error, len(frame)))
            return
        self._follow(self._work(message, len(frame)))

    def _follow(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def _work_large(self, frame: bytes) -> None:
        """Answer a large command. It is decoded in slices, so that other clients are served meanwhile."""
        try:
            message = await in_slices(tcp_frames.decode_steps(frame))
        except InvalidInput as error:
            await self._refuse_frame(error, len(frame))
            return
        await self._work(message, len(frame))

    async def _refuse_frame(self, error: InvalidInput, size: int) -> None:
        """Answer a frame that is not a command, when it is its turn."""
        await self._session.take_turn()
        self._kept_bytes -= size
        self._write(self._session.refuse(error))

    async def _work(self, message: dict[str, Any], size: int) -> None:
        try:
            if size > limits.small_body_bytes:
                async with self._listener.table.engine.fair_share.large(self._session.tenant):
                    frame = await self._answer(message, size)
            elif message.get("cmd") in LISTINGS:
                async with self._listener.listings.turn(self._client_name):
                    frame = await self._answer(message, size)
            else:
                frame = await self._answer(message, size)
            if sum(map(len, frame)) > limits.answer_counted_bytes:
                frame = await self._counted(frame, message)
            self._send(*frame)
        finally:
            self._kept_bytes -= size

    async def _answer(self, message: dict[str, Any], size: int) -> list[bytes]:
        """Return the frame of a reply, whole or in parts."""
        reply = await self._reply(message, size)
        if tcp_frames.is_long(reply):
            return await in_slices(tcp_frames.encode_steps(reply))
        return [tcp_frames.encode(reply)]

    @property
    def _client_name(self) -> str:
        return client_name(self._session.identity, self._session.namespace, self._client)

    async def _counted(self, frame: list[bytes], message: dict[str, Any]) -> list[bytes]:
        """Wait until a large reply may be sent. Return it, or the error that is sent instead."""
        if self._lost:
            return frame
        try:
            await self._listener.unread.reserve(self._name, self._transport, self._client_name, sum(map(len, frame)))
        except TooMany as error:
            return [tcp_frames.encode(self._session.refuse(error, message))]
        return frame

    async def _reply(self, message: dict[str, Any], size: int) -> dict[str, Any]:
        try:
            if size > limits.small_frame_bytes:
                await in_slices(jsonable.convert_steps(message))
            else:
                jsonable.convert(message)
        except InvalidInput as error:
            await self._session.take_turn()
            return self._session.refuse(error, message)
        return await self._session.handle(message)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a reply could not be sent", exc_info=task.exception())
        self._proceed()

    def _write(self, reply: dict[str, Any]) -> None:
        self._send(tcp_frames.encode(reply))

    def _send(self, *parts: bytes) -> None:
        """Send a frame, whole or in parts."""
        if self._lost or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > limits.connection_write_bytes_max:
            log.warning("a client does not read its replies; its connection is closed")
            self._transport.abort()
            return
        for part in parts:
            self._transport.write(part)

    async def write_event(self, frame: bytes) -> None:
        """Send a frame that is not a reply. Returns when the client is ready for more.

        Raises RuntimeError if it has disconnected.
        """
        await self._taking.wait()
        if self._lost or self._transport.is_closing():
            raise RuntimeError("the client has disconnected")
        self._transport.write(frame)

    def refuse(self, error: ServerError) -> None:
        """Send the reason, and close."""
        self._write(refusal(error))
        self._drop()
        self.finish()

    def _drop(self) -> None:
        """Drop the frames that are not processed yet."""
        while self._frames:
            self._kept_bytes -= len(self._frames.popleft())

    def _end(self) -> None:
        """Close, because everything is answered, and then release what the client held."""
        if not self._lost:
            self._transport.close()
            return
        if self in self._listener.connections:
            task = asyncio.get_running_loop().create_task(self._close())
            self._tasks.add(task)

    async def _close(self) -> None:
        try:
            await self._session.close()
        finally:
            self._listener.leave(self)

    # A frame that does not arrive completely.

    def _watch(self) -> None:
        """Check again when the frame that is arriving should be complete, or at least longer."""
        until = self._received_at + limits.frame_idle_ms_max
        self._alarm = self._listener.clock.call_at(until, self._check_silence)

    def _check_silence(self) -> None:
        self._alarm = None
        if self._ending or not self._parser.partial:
            return
        silent_ms = self._listener.clock.steady_ms() - self._received_at
        if self._reading and silent_ms >= limits.frame_idle_ms_max:
            self._transport.abort()
        elif self._reading:
            self._watch()
        else:  # the server itself has paused reading: count from now
            self._received_at = self._listener.clock.steady_ms()
            self._watch()
