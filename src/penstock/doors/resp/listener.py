"""The listener of the Redis protocol: its connections pass commands to sessions, and send the replies.

A connection reads only what it can process: it stops reading while many bytes wait, or while the client does not read its
replies. One task per connection processes the commands.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, cast

import structlog

from penstock.core import limits
from penstock.core.errors import ProtocolError, TooMany
from penstock.doors.net.listener import ConnectionListener, client_name
from penstock.doors.net.loop_share import LoopShare
from penstock.doors.net.raw_sockets import keep_alive
from penstock.doors.resp import replies
from penstock.doors.resp.parser import CLIENTS, STRANGERS, RespParser
from penstock.doors.resp.session import RespSession, SessionEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.access.authenticator import Authenticator
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.clock import Alarm
    from penstock.core.errors import ServerError
    from penstock.doors.resp.parser import Command
    from penstock.doors.topics.subscriber import Subscribers

log = structlog.get_logger("penstock.resp")


class RespListener(ConnectionListener["RespConnection"]):
    """Accepts connections. ``rate_limit`` limits how many commands one address may send in a period (None: no limit)."""

    def __init__(
        self,
        subscribers: Subscribers,
        authenticator: Authenticator,
        *,
        rate_limit: SlidingWindow | None = None,
        connections_max: int = limits.resp_connections_max,
    ) -> None:
        super().__init__("RESP", connections_max, subscribers.engine.pool_shares)
        self.engine = subscribers.engine
        self.subscribers = subscribers
        self.clock = subscribers.engine.clock
        self.authenticator = authenticator
        self.rate_limit = rate_limit
        self.numbers = itertools.count(1)
        self.share = LoopShare(self.clock)  #: share of the event loop, for the commands of all connections
        self._since = self.clock.steady_ms()

    def connection(self) -> RespConnection:
        return RespConnection(self)

    def figures(self) -> dict[str, int]:
        """Return the figures of INFO. None of them needs extra counting."""
        return {
            "uptime_in_seconds": (self.clock.steady_ms() - self._since) // 1_000,
            "connected_clients": len(self.connections),
            "blocked_clients": self.engine.waiting_callers,
        }


class RespConnection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, listener: RespListener) -> None:
        self._listener = listener
        self._parser = RespParser(STRANGERS)
        self._session: RespSession
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._next: deque[Command] = deque()  #: commands that were parsed and not taken
        self._stirred: asyncio.Future[None] | None = None  #: the wait of the task
        self._counted_bytes = 0  #: bytes that the listener has counted for this connection
        self._counted_for = ""  #: the client that they were counted for
        self._client = ""  #: the client's address
        self._taken_bytes = 0  #: bytes of the commands in progress
        self._hungry = False  #: the task waits for more bytes
        self._writable = True
        self._reading = True
        self.lost = False  #: the connection is lost; replies are not sent
        self._last_commands = limits.resp_turn_commands  #: commands that may still start after the connection is lost
        self._stranger_commands = 0  #: commands since the client was last authenticated
        self._discards = 0  #: bytes that may still be read and discarded; 0: any number
        self._lingers = False  #: the last reply is sent, and the connection still reads
        self._received_at = 0
        self._alarm: Alarm | None = None
        self._hurry: Alarm | None = None  #: deadline for authentication
        self.number = next(listener.numbers)
        self._last = b""  #: the last reply
        self.gone = False  #: no more bytes are read; the connection closes after the last command is answered

    # Calls from the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session of a new client."""
        self._transport = cast("asyncio.Transport", transport)
        listener = self._listener
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else ""
        self._session = RespSession(
            listener.engine,
            listener.authenticator,
            listener.subscribers,
            self,
            rate_limit=listener.rate_limit,
            client=self._client,
            figures=listener.figures,
            share=listener.share,
            admit=self._admit,
        )
        keep_alive(transport.get_extra_info("socket"))
        if self._session.identity is not None:
            try:
                self._admit(self._session.identity.tenant(self._session.namespace))
            except TooMany as error:
                self.write(replies.refusal(error))
                self._transport.close()
                self.gone = True
                return
        else:
            listener.meet(self, self._session.client)
            clock = listener.clock
            self._hurry = clock.call_at(clock.steady_ms() + limits.auth_wait_ms_max, self._turn_away)
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="penstock-resp")

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that arrived."""
        if self.gone:
            self._discard(data)
            return
        self._received_at = self._listener.clock.steady_ms()
        self._parser.receive(data)
        try:
            self._account()
        except TooMany as error:
            self._refuse(replies.refusal(error))
            return
        if not self._hungry and self._parser.kept > limits.connection_frames_bytes:
            self._read(on=False)  # enough bytes are waiting
        self.wake()

    def _discard(self, data: bytes) -> None:
        if self._discards:
            self._discards = max(0, self._discards - len(data))
            if not self._discards:
                self._transport.abort()

    def eof_received(self) -> bool:
        """Handle the end of the client's bytes. Its commands are answered, but no command waits any more."""
        self.finish()
        if self._lingers:
            self._transport.close()
        return True

    def pause_writing(self) -> None:
        """Stop taking commands, because the client does not read its replies."""
        self._writable = False

    def resume_writing(self) -> None:
        """Continue, because the client has read its replies."""
        self._writable = True
        self.wake()

    def connection_lost(self, _error: Exception | None) -> None:
        """Handle a lost connection. A bounded part of the complete commands is still executed: see ``_last_turn``."""
        self.lost = True
        self._writable = True
        self.finish()
        if self._task is None or self._task.done():
            self._listener.leave(self)

    # The end of a connection.

    def stop(self) -> None:
        """Finish because the server stops. Do not wait for a client that does not read."""
        self.finish()
        if not self._writable:
            self._transport.abort()
        elif self._lingers:
            self._transport.close()

    def finish(self) -> None:
        """Read no more, finish the commands that have arrived, then close."""
        self.gone = True
        self._session.mark_disconnected()
        for alarm in (self._alarm, self._hurry):
            if alarm is not None:
                alarm.cancel()
        self.wake()

    def refuse(self, error: ServerError) -> None:
        """Send an error, and close."""
        self._refuse(replies.refusal(error))

    def _admit(self, namespace: str) -> None:
        """Count an authenticated client for a namespace. Raises TooMany, or NamespaceLimit."""
        if not self.gone:
            self._listener.enter(self, namespace)

    def _turn_away(self) -> None:
        if self._session.identity is None:
            self._refuse(replies.NOAUTH)

    def _refuse(self, last: bytes) -> None:
        """Close with a last reply, after commands in progress are answered: sent earlier, it would look like their reply."""
        self._last = last
        self._parser.clear()
        self.finish()

    # The methods of Link.

    @property
    def ahead(self) -> int:
        """Return the number of bytes that arrived and are not parsed yet."""
        return self._parser.kept

    def write(self, data: bytes) -> None:
        """Send bytes, unless the connection is closed."""
        if not data or self.lost or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > limits.connection_write_bytes_max:
            log.warning("a client does not read its replies; its connection is closed")
            self._transport.abort()
            return
        self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the client has read most of its replies."""
        while not self._writable:
            await self._wait()

    def peek(self) -> Command | None:
        """Return the next command without taking it, or None. Raises ProtocolError."""
        if not self._next:
            self._next += self._take(1)
        return self._next[0] if self._next else None

    def drop(self) -> None:
        """Remove the command that ``peek`` returned."""
        self._next.popleft()

    def put_back(self, commands: Sequence[Command]) -> None:
        """Put commands back that were taken, in front of the others."""
        self._next.extendleft(reversed(commands))

    async def stir(self) -> None:
        """Wait until bytes arrive, the client disconnects, or ``wake`` is called."""
        if self._is_partial and self._alarm is None and not self.gone:
            self._watch()
        self._read(on=True)
        self._hungry = True
        await self._wait()
        self._hungry = False

    def wake(self) -> None:
        """End the wait of ``stir``."""
        if self._stirred is not None and not self._stirred.done():
            self._stirred.set_result(None)

    async def _wait(self) -> None:
        self._stirred = asyncio.get_running_loop().create_future()
        try:
            await self._stirred
        finally:
            self._stirred = None

    # The task.

    async def _serve(self) -> None:
        """Process commands until the connection ends."""
        try:
            await self._work()
        except SessionEnd:
            pass
        except ProtocolError as error:
            self.write(replies.broken(error))
            self._lingers = not error.silent
        except Exception as error:  # after any error, the client gets a reply, and its jobs are released
            log.error("a connection failed unexpectedly", exc_info=error)
            self.write(replies.error("ERR Internal server error"))
        finally:
            self.gone = True
            self._parser.clear()
            self._next.clear()
            self._taken_bytes = 0
            self._account()
            await self._end()

    async def _end(self) -> None:
        """Release what the client holds, and close. All commands are answered."""
        try:
            await self._session.close()
        finally:
            self.write(self._last)
            if self._lingers and not self.lost and self._transport.can_write_eof():
                self._linger()
            else:
                self._transport.close()
            if self.lost:
                self._listener.leave(self)

    def _linger(self) -> None:
        """Continue to read for a short time, and discard the bytes.

        If a connection is closed while the client still sends, it is reset, and its last reply is lost.
        """
        self._transport.write_eof()
        self._read(on=True)
        clock = self._listener.clock
        self._alarm = clock.call_at(clock.steady_ms() + limits.goodbye_ms_max, self._transport.close)

    async def _work(self) -> None:
        session, share, fair_share = self._session, self._listener.share, self._listener.engine.fair_share
        while True:
            if (self._parser.kept or self._next) and not share.try_begin():
                await share.turn()
            commands = self._turn()
            if self.lost:
                commands = self._last_turn(commands)
            if commands:
                if session.identity is None:
                    self._check_stranger()
                else:
                    self._stranger_commands = 0
                if (place := fair_share.begin(session.tenant, len(commands))) is not None:
                    await place
                await session.work(commands)
                if fair_share.shared and session.at_once and (self._parser.kept or self._next):
                    await fair_share.give_way(session.tenant)  # otherwise these commands keep the event loop busy
            elif self.gone:
                return
            else:
                await self.stir()

    def _check_stranger(self) -> None:
        """Count a command of a client that has not authenticated. Raises SessionEnd after too many."""
        if self._stranger_commands >= limits.stranger_commands_max:
            self._read(on=False)
            self._last, self._lingers, self._discards = replies.NOAUTH_OFTEN, True, limits.goodbye_bytes_max
            raise SessionEnd
        self._stranger_commands += 1

    def _turn(self) -> list[Command]:
        """Return the next commands. Before authentication it is one at a time, because it decides the bounds of the next."""
        if self._session.identity is None:
            return [self._next.popleft()] if self._next else self._take(1)
        if not self._next:
            return self._take(
                limits.resp_shared_commands if self._listener.engine.fair_share.shared else limits.resp_turn_commands
            )
        commands = list(self._next)
        self._next.clear()
        return commands

    def _last_turn(self, commands: list[Command]) -> list[Command]:
        """Return the commands that still start for a lost client, as they may include an ack. The rest is dropped."""
        begun = commands[: self._last_commands]
        self._last_commands -= len(begun)
        if not self._last_commands:
            self._parser.clear()
            self._next.clear()
        return begun

    def _take(self, count: int) -> list[Command]:
        """Return the next commands. All earlier ones are done."""
        parser = self._parser
        parser.bounds = STRANGERS if self._session.identity is None else CLIENTS
        before = parser.kept
        commands = parser.take(count)
        self._taken_bytes = before - parser.kept
        if self._counted_bytes:
            self._account()
        return commands

    def _account(self) -> None:
        """Report to the listener the memory that this connection uses beyond the part that every connection may use.

        So a small command is always accepted, with any load of other clients. Announced bytes are not counted before they
        arrive, because they may never arrive.
        """
        size = max(0, self._parser.kept + self._taken_bytes - limits.connection_frames_bytes)
        if size != self._counted_bytes:
            if not self._counted_bytes:
                self._counted_for = client_name(self._session.identity, self._session.namespace, self._client)
            self._listener.hold(size - self._counted_bytes, self._counted_for)
            self._counted_bytes = size

    def _read(self, *, on: bool) -> None:
        if on != self._reading and not self.lost and not self._transport.is_closing():
            self._reading = on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # Commands that arrive incompletely.

    @property
    def _is_partial(self) -> bool:
        """Return whether only the beginning of a command has arrived, as far as the bytes were parsed."""
        return not self._next and self._parser.partial

    def _watch(self) -> None:
        """Set an alarm to check whether the partial command has grown."""
        until = self._received_at + limits.frame_idle_ms_max
        self._alarm = self._listener.clock.call_at(until, self._check_silence)

    def _check_silence(self) -> None:
        self._alarm = None
        if self.gone or not self._hungry or not self._is_partial:
            return
        if self._listener.clock.steady_ms() - self._received_at >= limits.frame_idle_ms_max:
            self._transport.abort()
        else:
            self._watch()
