"""Large answers that clients have not read yet: counted by connection, by client and for the whole server, and bounded.

The HTTP server accepts every answer, and keeps it until the client reads it. The bytes that the client has acknowledged, as
counted by the operating system, show how much that is. Answers up to ``limits.answer_counted_bytes`` are not counted: their
number is bounded by that of requests in progress on a connection.

Over HTTP/2 a client can leave some answers of a connection unread and read others. So while a connection has unread
answers, its small ones are counted, too. Of the acknowledged bytes, as many do not count as were received outside of
requests: they may be PING frames, and each of these gets a reply of the same size.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import TooMany
from penstock.core.pool_shares import has_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock


class WatchedConnection(Protocol):
    """A connection with its byte counters."""

    acked: int  #: bytes that the client has acknowledged
    received: int  #: bytes received from the client

    def update(self, now: int) -> bool:
        """Read the counters. Return False if the connection is closed."""


class WatchedConnections(Protocol):
    """Finds connections by their names."""

    def find(self, key: str) -> WatchedConnection | None:
        """Return a connection, if it is known."""

    async def get(self, key: str) -> WatchedConnection | None:
        """Return a connection. Search for it if it is not known."""


#: Bytes that an answer over HTTP/2 has beyond its body, at least: two frame headers and the smallest head.
_OVERHEAD_BYTES: Final = 24
#: A client may send frames outside of requests, to open windows, for example: one byte for this many bytes of its
#: requests and answers ...
_FRAMES_PART: Final = 16
#: ... plus this many bytes.
_FRAMES_BYTES: Final = 4_096


class _Reader:
    """One connection that large answers were sent to."""

    __slots__ = ("before", "client", "due", "is_http2", "key", "moved_at", "requests", "sent", "taken", "unread")

    def __init__(self, key: str, client: str, before: tuple[int, int], now: int, *, is_http2: bool) -> None:
        self.key = key
        self.client = client  #: the client for which these unread bytes are counted
        self.before = before  #: bytes that the connection had acknowledged before, and bytes received
        self.is_http2 = is_http2
        self.sent = 0  #: bytes of large answers; over HTTP/2 also of small ones
        self.requests = 0  #: bytes of requests that were received since then (HTTP/2)
        self.taken = 0  #: bytes of answers that it had taken when it was last seen to take enough
        self.due = 0  #: bytes that were unread at that time
        self.unread = 0
        self.moved_at = now  #: steady ms

    def count_taken(self, acked: int, received: int) -> int:
        """Return how many bytes of answers the client has taken, from the system's counters of the connection."""
        acked -= self.before[0]
        if not self.is_http2:
            return acked
        known = self.sent + self.requests
        frames = received - self.before[1] - self.requests - known // _FRAMES_PART - _FRAMES_BYTES
        return acked - max(0, frames)


class UnreadAnswers:
    """Decides when a large answer may be passed to the HTTP server.

    ``cut`` is called with the ends of a connection whose client reads nothing.
    """

    def __init__(self, clock: Clock, table: WatchedConnections, cut: Callable[[str], None]) -> None:
        self._clock = clock
        self._table = table
        self._cut = cut
        self.unread = 0  #: bytes, of all connections
        self.waiting = 0  #: answers that wait to be passed on
        self._waiting_bytes = 0
        self._waiting_of: dict[str, tuple[int, int]] = {}  #: the waiting answers by client: number and bytes
        self._by_key: dict[str, _Reader] = {}
        self.http2: dict[str, _Reader] = {}  #: the watched connections over HTTP/2
        self._by_client: dict[str, int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._looked: asyncio.Future[None] | None = None

    async def reserve(self, key: str, client: str, size: int, *, is_http2: bool = False) -> None:
        """Return when an answer of this many bytes may be passed on. From then on it counts as unread.

        ``key`` name the connection (``raw_sockets.connection_key``), ``client`` the identity or the address. Raises TooMany if
        too much waits already, or the client reads nothing for ``limits.answer_stall_ms_max``.
        """
        if not self._fits(key, client, size):
            await self._wait(key, client, size)
        reader = self._by_key.get(key)
        if reader is None:
            reader = self._add(key, client, is_http2=is_http2)
        reader.sent += size
        self._count(reader, size)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="penstock-answers")

    def _add(self, key: str, client: str, *, is_http2: bool) -> _Reader:
        known, now = self._table.find(key), self._clock.steady_ms()
        if known is not None and is_http2:  # the last scan may be some time ago
            known.update(now)
        before = (0, 0) if known is None else (known.acked, known.received)
        reader = self._by_key[key] = _Reader(key, client, before, now, is_http2=is_http2)
        if is_http2:
            self.http2[key] = reader
        return reader

    def count_small(self, key: str, size: int) -> None:
        """Count an answer that need not wait, if its connection is one of ``http2``."""
        reader = self.http2.get(key)
        if reader is not None:
            reader.sent += size + _OVERHEAD_BYTES
            self._count(reader, size + _OVERHEAD_BYTES)

    def count_request(self, key: str, size: int) -> None:
        """Count a request that was received over a connection of ``http2``: its head and its body."""
        reader = self.http2.get(key)
        if reader is not None:
            reader.requests += size

    def _fits(self, key: str, client: str, size: int) -> bool:
        """Return whether an answer may be passed on. If nothing is unread, any answer may, of any size.

        A connection without unread answers may use twice the share of its client, and is always sent a small answer. So one
        of the clients behind one address (all local ones, for example) does not hold up all the others.
        """
        reader = self._by_key.get(key)
        of_connection = 0 if reader is None else reader.unread
        of_client = self._by_client.get(client, 0)
        share = limits.answers_client_bytes_max
        if not of_connection:
            if size <= limits.answer_small_bytes:
                return True
            share *= 2
        return (
            (not of_connection or of_connection + size <= limits.answers_connection_bytes_max)
            and (not of_client or of_client + size <= share)
            and (not self.unread or self.unread + size <= limits.answers_bytes_max)
        )

    async def _wait(self, key: str, client: str, size: int) -> None:
        answers, held = self._waiting_of.get(client, (0, 0))
        free = limits.answers_bytes_max - self._waiting_bytes
        crowded = (self._waiting_bytes and size > free) or (held and held + size > free)
        if crowded or not has_room(limits.answers_waiting_max, self.waiting, answers):
            raise TooMany("Too many answers wait for clients that do not read. Retry in a moment.")
        until = self._clock.steady_ms() + limits.answer_stall_ms_max
        self._count_waiting(client, 1, size)
        try:
            while not self._fits(key, client, size):
                if self._clock.steady_ms() >= until:
                    raise TooMany("Answers of earlier requests have not been read. Read them first.")
                if self._looked is None:
                    self._looked = asyncio.get_running_loop().create_future()
                await asyncio.shield(self._looked)
        finally:
            self._count_waiting(client, -1, -size)

    def _count_waiting(self, client: str, answers: int, size: int) -> None:
        self.waiting += answers
        self._waiting_bytes += size
        before, held = self._waiting_of.get(client, (0, 0))
        if before + answers:
            self._waiting_of[client] = (before + answers, held + size)
        else:
            del self._waiting_of[client]

    def _count(self, reader: _Reader, change: int) -> None:
        reader.unread += change
        self.unread += change
        left = self._by_client.get(reader.client, 0) + change
        if left:
            self._by_client[reader.client] = left
        else:
            self._by_client.pop(reader.client, None)

    async def _watch(self) -> None:
        """Check repeatedly how much was taken, as long as something is unread."""
        try:
            while self._by_key:
                await pause(self._clock, limits.answer_look_ms)
                unknown = next((key for key in self._by_key if self._table.find(key) is None), None)
                if unknown is not None:
                    await self._table.get(unknown)
                for number, reader in enumerate(list(self._by_key.values())):
                    self._check_reader(reader)
                    if number % 100 == 99:
                        await pause(self._clock, 0)
                if self._looked is not None:
                    self._looked.set_result(None)
                    self._looked = None
        finally:
            self._watching = None

    def _check_reader(self, reader: _Reader) -> None:
        now = self._clock.steady_ms()
        known = self._table.find(reader.key)
        if known is None or not known.update(now):  # the connection is closed
            self._forget(reader)
            return
        crowded = self.unread > limits.answers_bytes_max // 2
        taken = reader.count_taken(known.acked, known.received)
        unread = max(0, reader.sent - taken)
        self._count(reader, unread - reader.unread)
        if not unread:
            self._forget(reader)
            return
        if taken - reader.taken > (reader.due // limits.answer_crowded_parts if crowded else 0):
            reader.taken, reader.due, reader.moved_at = taken, unread, now
        if now - reader.moved_at >= (limits.answer_stall_crowded_ms_max if crowded else limits.answer_stall_ms_max):
            self._forget(reader)
            self._cut(reader.key)

    def _forget(self, reader: _Reader) -> None:
        self._count(reader, -reader.unread)
        del self._by_key[reader.key]
        self.http2.pop(reader.key, None)
