"""Flow control of streams: a client that does not read what it was sent is sent nothing more.

The HTTP server below accepts all data of a stream, and keeps it until the client takes it. The operating system counts the
bytes of a connection that the client has acknowledged, so it shows what the client has taken, whether the socket or the
windows of HTTP/2 delay it. This module reads that count, at intervals that keep the cost small.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.clock import pause

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.doors.net.raw_sockets import RawSockets


class Flows:
    """The connections of streams, by their two ends (``raw_sockets.connection_key``). Many streams may share one connection."""

    def __init__(self, clock: Clock, raw_sockets: RawSockets) -> None:
        self.clock = clock
        self.raw_sockets = raw_sockets
        self.unread = 0  #: bytes that were sent to all of them and not taken, as of the last check of each
        self.held = 0  #: bytes that wait to be sent, because earlier bytes are unread
        self.of: dict[str, Flow] = {}

    def enter(self, key: str) -> Flow:
        """Return the flow of a connection, and count one more stream of it."""
        flow = self.of.get(key)
        if flow is None:
            flow = self.of[key] = Flow(self, key)
        flow.streams += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """Count one stream less."""
        flow.streams -= 1
        if not flow.streams:
            del self.of[flow.key]
            self.unread -= flow.unread


class Flow:
    """Counts what streams sent over one connection."""

    def __init__(self, flows: Flows, key: str) -> None:
        self.key = key
        self.streams = 0
        self.unread = 0  #: bytes that were sent and not taken, as of the last check
        self._flows = flows
        self._others = 0  #: bytes of other answers
        self._sent = 0
        self._checked_at = 0  #: bytes sent at the last check
        self._before: int | None = None  #: bytes that the client had taken before, or of other answers
        self._waiting: asyncio.Task[bool] | None = None

    def count(self, size: int) -> None:
        """Count bytes that were sent."""
        self._sent += size
        self.unread += size
        self._flows.unread += size

    def count_other(self, size: int) -> None:
        """Count bytes of other answers on the same connection."""
        self._others += size

    def is_due(self, size: int = 0) -> bool:
        """Return whether a check is due before ``size`` more bytes are sent."""
        return (
            self._sent + size - self._checked_at > limits.stream_look_bytes
            or self._flows.unread + size > limits.streams_unread_bytes_max
        )

    async def reserve(self, size: int) -> bool:
        """Wait until ``size`` bytes may be sent, and count them as sent. First come, first served.

        Return False if the client takes nothing for a long time, or too many bytes wait already.
        """
        if not self.is_due(size):
            self.count(size)
            return True
        flows = self._flows
        if flows.held + size > limits.streams_unread_bytes_max:
            return False
        flows.held += size
        try:
            while await self.room():
                if self._has_room():  # an earlier caller may have used the room
                    self.count(size)
                    return True
            return False
        finally:
            flows.held -= size

    async def room(self) -> bool:
        """Wait until the client has taken most of its bytes. Return False if it takes nothing for a long time."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="penstock-flow")
        return await asyncio.shield(self._waiting)

    def _has_room(self) -> bool:
        """Return whether more bytes may be sent. A client without unread bytes may always be sent more."""
        crowded = self._flows.unread > limits.streams_unread_bytes_max
        return not self.unread or (self.unread <= limits.stream_unread_bytes_max and not crowded)

    async def _wait(self) -> bool:
        clock, least = self._flows.clock, self.unread
        until = clock.steady_ms() + limits.reader_stuck_ms_max
        try:
            while True:
                await self._check_taken()
                if self._has_room():
                    return True
                if self.unread < least:
                    least, until = self.unread, clock.steady_ms() + limits.reader_stuck_ms_max
                elif clock.steady_ms() >= until:
                    return False
                await pause(clock, limits.stream_look_ms)
        finally:
            self._waiting = None

    async def _check_taken(self) -> None:
        """Check how many bytes the client has taken."""
        taken = await self._flows.raw_sockets.taken(self.key)
        sent, unread = self._sent, 0
        self._checked_at = sent
        if taken is not None:  # else the client is gone, which other code notices; or the system gives no count
            taken -= self._others
            if self._before is None or taken - self._before > sent:  # other bytes were sent too
                self._before = taken - sent
            unread = sent - (taken - self._before)
        self._flows.unread += unread - self.unread
        self.unread = unread
