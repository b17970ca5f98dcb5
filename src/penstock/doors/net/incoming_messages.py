"""Incomplete WebSocket messages: how many bytes of them have been read. Those that are too large are ended.

The HTTP server collects the fragments of a message, up to 64 MB, before it passes the message on; that limit cannot
be set. The operating system shows how much it has read: the bytes that were received, without those still unread. So
all WebSockets are checked regularly, at an interval that grows with their number.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.addresses import network_of
from penstock.core.clock import pause
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.doors.net.connections import Connection, ConnectionTable

_COUNT: Final = struct.Struct("=i")


class Arrival:
    """The message that arrives over one WebSocket."""

    __slots__ = ("_bytes_before", "_since", "bytes", "complete", "connection", "limit", "too_large")

    def __init__(self, connection: Connection, limit: Callable[[], int], too_large: Callable[[Connection], None]) -> None:
        self.connection = connection
        self.limit = limit  #: the current limit for the bytes of a message
        self.too_large = too_large
        self.complete = True  #: whether a message was passed on since the last check
        self.bytes = 0  #: read since then, as of the last check
        self._bytes_before = 0
        self._since = 0

    def update(self, now: int) -> bool:
        """Update how many bytes have been read. Return False if the connection is closed."""
        connection = self.connection
        if not connection.update(now):
            return False
        try:
            (waiting,) = _COUNT.unpack(fcntl.ioctl(connection.number, termios.FIONREAD, bytes(_COUNT.size)))
        except OSError:
            return False
        read = connection.received - waiting
        if self.complete:
            self.complete, self._bytes_before, self._since = False, read, now
        self.bytes = read - self._bytes_before
        return True

    def is_too_large(self, now: int) -> bool:
        """Return whether more was read than any accepted message has."""
        slack = limits.message_slack_bytes + limits.message_slack_bytes_s * (now - self._since) // 1_000
        return self.bytes > self.limit() + slack


class ArrivingMessages:
    """Checks all WebSockets. ``counted`` is called for each one that is closed."""

    def __init__(self, clock: Clock, table: ConnectionTable, counted: Callable[[], None]) -> None:
        self._clock = clock
        self._table = table
        self._counted = counted
        self._open: set[Arrival] = set()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, key: str, limit: Callable[[], int], too_large: Callable[[Connection], None]) -> Arrival | None:
        """Watch a WebSocket, before anything is read from it. Return None if the system does not show its connection.

        ``limit`` returns how many bytes a message may have. ``too_large`` is called once if a message has more.
        """
        connection = await self._table.get(key)
        if connection is None:
            return None
        arrival = Arrival(connection, limit, too_large)
        connection.shrink_input(limits.websocket_window_bytes)
        arrival.update(self._clock.steady_ms())
        self._open.add(arrival)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="penstock-arriving")
        return arrival

    def leave(self, arrival: Arrival) -> None:
        """Stop watching a WebSocket. Does nothing if it is not watched."""
        self._open.discard(arrival)

    async def _watch(self) -> None:
        try:
            while self._open:
                await pause(self._clock, max(limits.message_look_ms, len(self._open) * limits.message_look_ms // 50))
                now = self._clock.steady_ms()
                for arrival in list(self._open):
                    if not arrival.update(now):
                        self._open.discard(arrival)
                    elif arrival.is_too_large(now):
                        self._cut(arrival)
                while sum(each.bytes for each in self._open) > limits.messages_arriving_bytes_max:
                    self._cut(max(self._open, key=lambda each: each.bytes))
        finally:
            self._task = None

    def _cut(self, arrival: Arrival) -> None:
        self._open.discard(arrival)
        self._counted()
        arrival.too_large(arrival.connection)


class UnauthenticatedSockets:
    """WebSockets that have not shown a token yet: a few at a time, and fewer from one address. Further ones wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_address: dict[str, int] = {}
        self._total = 0
        self._waiting = 0

    async def enter(self, address: str) -> None:
        """Return when there is room for one more. Raises TooMany after ``limits.auth_wait_ms_max``, or if too many wait."""
        address = network_of(address)
        if not self._has_room(address):
            if self._waiting >= limits.strangers_waiting_max:
                raise TooMany("Too many WebSocket connections without a token")
            until = self._clock.steady_ms() + limits.auth_wait_ms_max
            self._waiting += 1
            try:
                while not self._has_room(address):
                    if self._clock.steady_ms() >= until:
                        raise TooMany("Too many WebSocket connections without a token")
                    await pause(self._clock, limits.strangers_look_ms)
            finally:
                self._waiting -= 1
        self._total += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1

    def leave(self, address: str) -> None:
        """Make room: a WebSocket has shown its token, or is closed."""
        address = network_of(address)
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _has_room(self, address: str) -> bool:
        return self._total < limits.strangers_max and self._by_address.get(address, 0) < limits.strangers_address_max
