"""Flow control of streams: who does not read what it is sent is sent nothing more.

The HTTP server underneath takes everything it is given for a stream, and keeps it until the client takes it. What the client
has taken, whatever held it up (its socket, or the windows of HTTP/2), the system knows: it counts the bytes of a connection
that the other side has acknowledged. So it is asked, seldom enough to cost nothing.
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
    """The connections that streams run over, by their ends (``links.ends_of``). Many streams may share one."""

    def __init__(self, clock: Clock, links: RawSockets) -> None:
        self.clock = clock
        self.links = links
        self.unread = 0  #: bytes that all of them were sent and, as far as was looked, have not taken
        self.held = 0  #: bytes that wait for being sent, because something before them is unread
        self.of: dict[str, Flow] = {}

    def enter(self, ends: str) -> Flow:
        """Return the flow of a connection, for one more stream."""
        flow = self.of.get(ends)
        if flow is None:
            flow = self.of[ends] = Flow(self, ends)
        flow.streams += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """Count a stream out."""
        flow.streams -= 1
        if not flow.streams:
            del self.of[flow.ends]
            self.unread -= flow.unread


class Flow:
    """What was sent over one connection by streams."""

    def __init__(self, flows: Flows, ends: str) -> None:
        self.ends = ends
        self.streams = 0
        self.unread = 0  #: bytes that were sent and, as far as was looked, not taken
        self._flows = flows
        self._others = 0  #: bytes of other answers
        self._sent = 0
        self._looked_at = 0  #: how much was sent when it was last looked
        self._before: int | None = None  #: what the client had taken before, and besides
        self._waiting: asyncio.Task[bool] | None = None

    def count(self, size: int) -> None:
        """Hear that some bytes were sent."""
        self._sent += size
        self.unread += size
        self._flows.unread += size

    def count_other(self, size: int) -> None:
        """Hear that something else was sent over the same connection."""
        self._others += size

    def is_due(self, size: int = 0) -> bool:
        """Tell whether it is time to look, before so many bytes more are sent."""
        return (
            self._sent + size - self._looked_at > limits.stream_look_bytes
            or self._flows.unread + size > limits.streams_unread_bytes_max
        )

    async def reserve(self, size: int) -> bool:
        """Return when so many bytes may be sent: they count as sent then. First come, first served.

        False if the client takes nothing for long, or too much is held back for others already.
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
                if self._has_room():  # whoever came before may have used it
                    self.count(size)
                    return True
            return False
        finally:
            flows.held -= size

    async def room(self) -> bool:
        """Return when the client has taken what it was sent, but for a little; False if it takes nothing for long."""
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._wait(), name="penstock-flow")
        return await asyncio.shield(self._waiting)

    def _has_room(self) -> bool:
        """Tell whether something more may be sent. Who has read everything may always be sent something."""
        crowded = self._flows.unread > limits.streams_unread_bytes_max
        return not self.unread or (self.unread <= limits.stream_unread_bytes_max and not crowded)

    async def _wait(self) -> bool:
        clock, least = self._flows.clock, self.unread
        until = clock.steady_ms() + limits.reader_stuck_ms_max
        try:
            while True:
                await self._look()
                if self._has_room():
                    return True
                if self.unread < least:
                    least, until = self.unread, clock.steady_ms() + limits.reader_stuck_ms_max
                elif clock.steady_ms() >= until:
                    return False
                await pause(clock, limits.stream_look_ms)
        finally:
            self._waiting = None

    async def _look(self) -> None:
        """Find out how much the client has taken."""
        taken = await self._flows.links.taken(self.ends)
        sent, unread = self._sent, 0
        self._looked_at = sent
        if taken is not None:  # otherwise the client is gone, which is noticed elsewhere; or the system does not tell
            taken -= self._others
            if self._before is None or taken - self._before > sent:  # something else was sent over the connection
                self._before = taken - sent
            unread = sent - (taken - self._before)
        self._flows.unread += unread - self.unread
        self.unread = unread
