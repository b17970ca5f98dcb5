"""Replies of Penstock's own listeners that clients have not read: counted and bounded like large answers over HTTP.

The unread bytes of a connection are known here, from the buffer of its transport; the operating system is not needed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.doors.net.unread_answers import UnreadAnswers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.clock import Clock

#: Commands whose replies may be very large: lists of jobs with their payloads, of results, of priorities, and of queues. A
#: tuple, because the name of a command that a client sends may have no hash.
LISTINGS: Final = ("GetJobs", "Dlq", "GetCountsPerPriority", "GetChildrenValues", "ListQueues", "DashboardQueues")
#: Commands that read one job, which may be large: over WebSocket they take turns with listings while replies are unread.
SINGLE_READS: Final = ("GetJob", "GetJobByCustomId", "GetResult", "GetLogs")
#: Closing a socket with this option resets its connection, and frees what the system holds of it.
_RESET: Final = struct.pack("ii", 1, 0)


class ListingTurns:
    """Decides when a listing may begin.

    Only a few listings of a client are made at the same time, because each may be large.
    """

    def __init__(self) -> None:
        self._of: dict[str, asyncio.Semaphore] = {}
        self._counts: dict[str, int] = {}  #: listings that wait or are being made, by client

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until a listing of a client may begin. It is made until the context ends."""
        turns = self._of.setdefault(client, asyncio.Semaphore(limits.client_listings_max))
        self._counts[client] = self._counts.get(client, 0) + 1
        try:
            async with turns:
                yield
        finally:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client], self._of[client]


class ReplyConnection:
    """A connection with the counters that ``UnreadAnswers`` needs."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.counted = 0  #: bytes of the replies that were counted
        self.acked = 0  #: how many of these bytes have left the buffer
        self.received = 0  #: always 0: a frame that is only announced gets no reply

    def update(self, _now: int) -> bool:
        """Update how much was taken. Return False if the connection is closed."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            return False
        self.acked = max(self.acked, self.counted - self.transport.get_write_buffer_size())
        return True


class UnreadReplies:
    """Decides when a large reply may be written to a connection. A connection whose client reads nothing is aborted."""

    def __init__(self, clock: Clock) -> None:
        self._connections: dict[str, ReplyConnection] = {}
        self._answers = UnreadAnswers(clock, self, self._cut)

    def find(self, key: str) -> ReplyConnection | None:
        """Return a connection by its name; None if it has no unread replies, or is closed."""
        return self._connections.get(key)

    async def get(self, key: str) -> ReplyConnection | None:
        """Return a connection by its name, as ``find`` does."""
        return self._connections.get(key)

    async def reserve(self, name: str, transport: asyncio.Transport, client: str, size: int) -> None:
        """Return when a reply of this many bytes may be written.

        It must be written at once, and counts as unread from then on.

        ``name`` is the connection's own. Raises TooMany: see ``UnreadAnswers.reserve``.
        """
        connection = self._connections.setdefault(name, ReplyConnection(transport))
        await self._answers.reserve(name, client, size)
        connection.counted += size

    def leave(self, name: str) -> None:
        """Remove a closed connection. Does nothing if it is not known."""
        self._connections.pop(name, None)

    def _cut(self, name: str) -> None:
        connection = self._connections.pop(name, None)
        if connection is not None:
            link = connection.transport.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            connection.transport.abort()
