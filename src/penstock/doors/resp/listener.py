"""The listener of the Redis protocol: connections that carry commands to sessions and replies back.

A connection takes no more from its client than it can work on: nothing is read while much is waiting to be done, or while the
client does not read its replies. One task works through what arrives.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, cast

import structlog

from penstock.core import limits
from penstock.core.errors import ProtocolError, TooMany
from penstock.doors.net.listener import ConnectionListener
from penstock.doors.net.loop_share import LoopShare
from penstock.doors.net.raw_sockets import keep_alive
from penstock.doors.resp import replies
from penstock.doors.resp.parser import CLIENTS, STRANGERS, RespParser
from penstock.doors.resp.session import Goodbye, RespSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.access.authenticator import Authenticator
    from penstock.access.rate_limit import SlidingWindow
    from penstock.core.clock import Alarm
    from penstock.core.errors import PenstockError
    from penstock.doors.resp.parser import Command
    from penstock.doors.topics.subscriber import Subscribers

log = structlog.get_logger("penstock.resp")


class RespListener(ConnectionListener["RespConnection"]):
    """Accepts connections. ``window`` limits how many commands may come from one address (None: no limit)."""

    def __init__(
        self,
        subscribers: Subscribers,
        gate: Authenticator,
        *,
        window: SlidingWindow | None = None,
        connections_max: int = limits.resp_connections_max,
    ) -> None:
        super().__init__("RESP", connections_max, subscribers.engine.shares)
        self.engine = subscribers.engine
        self.subscribers = subscribers
        self.clock = subscribers.engine.clock
        self.gate = gate
        self.window = window
        self.numbers = itertools.count(1)
        self.share = LoopShare(self.clock)  #: of the event loop, for the commands of all connections
        self._since = self.clock.steady_ms()

    def connection(self) -> RespConnection:
        return RespConnection(self)

    def figures(self) -> dict[str, int]:
        """Return what INFO shows, none of which has to be counted for it."""
        return {
            "uptime_in_seconds": (self.clock.steady_ms() - self._since) // 1_000,
            "connected_clients": len(self.connections),
            "blocked_clients": self.engine.waiting_callers,
        }


class RespConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: RespListener) -> None:
        self._listener = listener
        self._parser = RespParser(STRANGERS)
        self._session: RespSession
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None
        self._next: deque[Command] = deque()  #: commands that were looked at, and not taken
        self._stirred: asyncio.Future[None] | None = None  #: what the task waits for
        self._counted_bytes = 0  #: what the listener knows of
        self._client = ""  #: its address
        self._taken_bytes = 0  #: of the commands that are being worked on
        self._hungry = False  #: it can use whatever arrives
        self._writable = True
        self._reading = True
        self.lost = False  #: the client gets nothing any more
        self._last_commands = limits.resp_turn_commands  #: that are still begun after that
        self._lingers = False  #: its last words were said, and it still reads
        self._heard_at = 0
        self._alarm: Alarm | None = None
        self._hurry: Alarm | None = None  #: goes off when a stranger has had time enough
        self.number = next(listener.numbers)
        self._last = b""  #: what is said in the end
        self.gone = False  #: nothing more is taken; it closes when the last command is answered

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        listener = self._listener
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else ""
        self._session = RespSession(
            listener.engine,
            listener.gate,
            listener.subscribers,
            self,
            window=listener.window,
            client=self._client,
            figures=listener.figures,
            share=listener.share,
        )
        keep_alive(transport.get_extra_info("socket"))
        self._session.admit = self._admit
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
        """Some bytes arrived."""
        if self.gone:
            return
        self._heard_at = self._listener.clock.steady_ms()
        self._parser.receive(data)
        try:
            self._account()
        except TooMany as error:
            self._refuse(replies.refusal(error))
            return
        if not self._hungry and self._parser.kept > limits.connection_frames_bytes:
            self._read(on=False)  # there is enough to do
        self.wake()

    def eof_received(self) -> bool:
        """The client sends no more. What it has sent is answered, but nobody waits on its behalf any more."""
        self.finish()
        if self._lingers:
            self._transport.close()
        return True

    def pause_writing(self) -> None:
        """The client does not read its replies: take no more commands."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        self.wake()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone. Of what it had sent completely, a bounded part is still done: see ``_last_turn``."""
        self.lost = True
        self._writable = True
        self.finish()
        if self._task is None or self._task.done():
            self._listener.leave(self)

    # What follows.

    def stop(self) -> None:
        """The server stops: finish, but do not wait for a client that does not read."""
        self.finish()
        if not self._writable:
            self._transport.abort()
        elif self._lingers:
            self._transport.close()

    def finish(self) -> None:
        """Take nothing more, finish what is here, then close."""
        self.gone = True
        self._session.hang_up()
        for alarm in (self._alarm, self._hurry):
            if alarm is not None:
                alarm.cancel()
        self.wake()

    def refuse(self, error: PenstockError) -> None:
        """Say why, and close."""
        self._refuse(replies.refusal(error))

    def _admit(self, namespace: str) -> None:
        """The client shows who it is: count it for a namespace. Raises TooMany, or NamespaceLimit."""
        if not self.gone:
            self._listener.enter(self, namespace)

    def _turn_away(self) -> None:
        if self._session.identity is None:
            self._refuse(replies.NOAUTH)

    def _refuse(self, last: bytes) -> None:
        """Close, and say why once what is under way is answered: until then, it would look like an answer to that."""
        self._last = last
        self._parser.clear()
        self.finish()

    # What the session asks for.

    @property
    def ahead(self) -> int:
        """Return how many bytes have arrived that were not looked at yet."""
        return self._parser.kept

    def write(self, data: bytes) -> None:
        """Send something, unless there is nobody to get it."""
        if not data or self.lost or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > limits.connection_write_bytes_max:
            log.warning("a client does not read its replies; its connection is closed")
            self._transport.abort()
            return
        self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the client has read what it was sent, more or less."""
        while not self._writable:
            await self._wait()

    def peek(self) -> Command | None:
        """Return the next command without taking it; None if there is none. Raises ProtocolError."""
        if not self._next:
            self._next += self._take(1)
        return self._next[0] if self._next else None

    def drop(self) -> None:
        """Take the command that was peeked at."""
        self._next.popleft()

    def put_back(self, commands: Sequence[Command]) -> None:
        """Have commands looked at again that were taken."""
        self._next.extendleft(reversed(commands))

    async def stir(self) -> None:
        """Wait until something has arrived, or the client is gone, or ``wake`` is called."""
        if self._is_partial and self._alarm is None and not self.gone:
            self._watch()
        self._read(on=True)
        self._hungry = True
        await self._wait()
        self._hungry = False

    def wake(self) -> None:
        """End that wait."""
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
        """Work through what arrives until the end."""
        try:
            await self._work()
        except Goodbye:
            pass
        except ProtocolError as error:
            self.write(replies.broken(error))
            self._lingers = not error.silent
        except Exception as error:  # whatever went wrong, the client hears of it, and what it holds goes back
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
        """Everything is answered: give back what the client held, and close."""
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
        """Read on for a moment, and throw away what comes.

        Closed at once, a connection that is still being written to is reset, and its last words are lost.
        """
        self._transport.write_eof()
        self._read(on=True)
        clock = self._listener.clock
        self._alarm = clock.call_at(clock.steady_ms() + limits.goodbye_ms_max, self._transport.close)

    async def _work(self) -> None:
        session, share = self._session, self._listener.share
        while True:
            if (self._parser.kept or self._next) and not share.has_turn():
                await share.turn()
            commands = self._turn()
            if self.lost:
                commands = self._last_turn(commands)
            if commands:
                if (place := self._listener.engine.share.begin(session.namespace, len(commands))) is not None:
                    await place
                await session.work(commands)
            elif self.gone:
                return
            else:
                await self.stir()

    def _turn(self) -> list[Command]:
        """Return what is to be done next: of a stranger one command, because that decides what it may send behind it."""
        if self._session.identity is None:
            return [self._next.popleft()] if self._next else self._take(1)
        if not self._next:
            return self._take(
                limits.resp_shared_commands if self._listener.engine.share.shared else limits.resp_turn_commands
            )
        commands = list(self._next)
        self._next.clear()
        return commands

    def _last_turn(self, commands: list[Command]) -> list[Command]:
        """Return what is still begun for a client that is lost: an acknowledgement may be among it. The rest is dropped."""
        begun = commands[: self._last_commands]
        self._last_commands -= len(begun)
        if not self._last_commands:
            self._parser.clear()
            self._next.clear()
        return begun

    def _take(self, count: int) -> list[Command]:
        """Return the next commands. Those before them are done."""
        parser = self._parser
        parser.bounds = STRANGERS if self._session.identity is None else CLIENTS
        before = parser.kept
        commands = parser.take(count)
        self._taken_bytes = before - parser.kept
        if self._counted_bytes:
            self._account()
        return commands

    def _account(self) -> None:
        """Have the listener count what this connection keeps in memory, beyond what every connection may.

        So a small command always gets through, whatever others send. What a command only announces is not counted: it may
        never come.
        """
        size = max(0, self._parser.kept + self._taken_bytes - limits.connection_frames_bytes)
        if size != self._counted_bytes:
            self._listener.hold(size - self._counted_bytes, self._client)
            self._counted_bytes = size

    def _read(self, *, on: bool) -> None:
        if on != self._reading and not self.lost and not self._transport.is_closing():
            self._reading = on
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # A command that does not go on.

    @property
    def _is_partial(self) -> bool:
        """Tell whether only the beginning of a command is here, as far as anybody has looked."""
        return not self._next and self._parser.partial

    def _watch(self) -> None:
        """Look again when the command that is arriving should be complete, or at least have gone on."""
        until = self._heard_at + limits.frame_idle_ms_max
        self._alarm = self._listener.clock.call_at(until, self._look)

    def _look(self) -> None:
        self._alarm = None
        if self.gone or not self._hungry or not self._is_partial:
            return
        if self._listener.clock.steady_ms() - self._heard_at >= limits.frame_idle_ms_max:
            self._transport.abort()
        else:
            self._watch()
