"""Large answers that clients have not taken yet: counted by connection, by client and for the whole server, and bounded.

The HTTP server underneath takes every answer it is given, and keeps it until the client does. How much that is, the operating
system tells by the bytes that the client has acknowledged. Answers up to ``limits.answer_counted_bytes`` are not counted: their
number is bounded by that of requests under way on a connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import TooMany
from penstock.core.pool_shares import has_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock


class WatchedConnection(Protocol):
    """A connection whose figures are known."""

    acked: int  #: bytes that the client has taken

    def look(self, now: int) -> bool:
        """Read the figures anew; False if the connection is gone."""


class WatchedConnections(Protocol):
    """Finds connections by their names."""

    def find(self, ends: str) -> WatchedConnection | None:
        """Return a connection, if it is known."""

    async def get(self, ends: str) -> WatchedConnection | None:
        """Return a connection; it is looked for if it is not known."""


class _Reader:
    """One connection that was sent large answers."""

    __slots__ = ("before", "client", "due", "ends", "moved_at", "sent", "taken", "unread")

    def __init__(self, ends: str, client: str, before: int, now: int) -> None:
        self.ends = ends
        self.client = client  #: whose unread bytes these are
        self.before = before  #: bytes that the connection had acknowledged before
        self.sent = 0  #: bytes of large answers
        self.taken = before  #: bytes that it had acknowledged when it was last seen to take enough
        self.due = 0  #: bytes that were unread then
        self.unread = 0
        self.moved_at = now  #: steady ms


class UnreadAnswers:
    """Decides when a large answer may be handed to the HTTP server.

    ``cut`` is called with the ends of a connection whose client takes nothing.
    """

    def __init__(self, clock: Clock, table: WatchedConnections, cut: Callable[[str], None]) -> None:
        self._clock = clock
        self._table = table
        self._cut = cut
        self.unread = 0  #: bytes, of all connections
        self.waiting = 0  #: answers that wait for being handed over
        self._waiting_bytes = 0
        self._waiting_of: dict[str, tuple[int, int]] = {}  #: of these, by client: answers and bytes
        self._by_ends: dict[str, _Reader] = {}
        self._by_client: dict[str, int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._looked: asyncio.Future[None] | None = None

    async def reserve(self, ends: str, client: str, size: int) -> None:
        """Return when an answer of so many bytes may be handed over; it counts as unread then.

        ``ends`` name the connection (``links.ends_of``), ``client`` the identity or the address. Raises TooMany if too much
        waits already, or the client takes nothing for ``limits.answer_stall_ms_max``.
        """
        if not self._fits(ends, client, size):
            await self._wait(ends, client, size)
        reader = self._by_ends.get(ends)
        if reader is None:
            known = self._table.find(ends)
            reader = _Reader(ends, client, 0 if known is None else known.acked, self._clock.steady_ms())
            self._by_ends[ends] = reader
        reader.sent += size
        self._count(reader, size)
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(), name="penstock-answers")

    def _fits(self, ends: str, client: str, size: int) -> bool:
        """Tell whether an answer may be handed over. One may always be, whatever its size, where nothing is unread.

        A connection without unread answers may use twice the share of its client, and is always sent a small answer: clients
        behind one address, all local ones for example, are not all held up by one of them.
        """
        reader = self._by_ends.get(ends)
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

    async def _wait(self, ends: str, client: str, size: int) -> None:
        answers, held = self._waiting_of.get(client, (0, 0))
        free = limits.answers_bytes_max - self._waiting_bytes
        crowded = (self._waiting_bytes and size > free) or (held and held + size > free)
        if crowded or not has_room(limits.answers_waiting_max, self.waiting, answers):
            raise TooMany("Too many answers wait for clients that do not read theirs. Retry in a moment.")
        until = self._clock.steady_ms() + limits.answer_stall_ms_max
        self._count_waiting(client, 1, size)
        try:
            while not self._fits(ends, client, size):
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
        """Look again and again how much was taken, for as long as something is unread."""
        try:
            while self._by_ends:
                await pause(self._clock, limits.answer_look_ms)
                unknown = next((ends for ends in self._by_ends if self._table.find(ends) is None), None)
                if unknown is not None:
                    await self._table.get(unknown)
                for number, reader in enumerate(list(self._by_ends.values())):
                    self._look(reader)
                    if number % 100 == 99:
                        await pause(self._clock, 0)
                if self._looked is not None:
                    self._looked.set_result(None)
                    self._looked = None
        finally:
            self._watching = None

    def _look(self, reader: _Reader) -> None:
        now = self._clock.steady_ms()
        known = self._table.find(reader.ends)
        if known is None or not known.look(now):  # the connection is gone
            self._forget(reader)
            return
        crowded = self.unread > limits.answers_bytes_max // 2
        unread = max(0, reader.sent - (known.acked - reader.before))
        self._count(reader, unread - reader.unread)
        if not unread:
            self._forget(reader)
            return
        if known.acked - reader.taken > (reader.due // limits.answer_crowded_parts if crowded else 0):
            reader.taken, reader.due, reader.moved_at = known.acked, unread, now
        if now - reader.moved_at >= (limits.answer_stall_crowded_ms_max if crowded else limits.answer_stall_ms_max):
            self._forget(reader)
            self._cut(reader.ends)

    def _forget(self, reader: _Reader) -> None:
        self._count(reader, -reader.unread)
        del self._by_ends[reader.ends]
