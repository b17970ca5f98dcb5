"""Flow control of streams: who does not read what it is sent is sent nothing more.

The HTTP server underneath takes everything it is given for a stream, and keeps it until the client takes it. What the client
has taken, whatever held it up (its socket, or the windows of HTTP/2), the system knows: it counts the bytes of a connection
that the other side has acknowledged. So it is asked, seldom enough to cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.clock import pause

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.doors.links import Links


class Flows:
    """The connections that streams run over, by client, spelled ``address:port``. Many streams may share one."""

    def __init__(self, clock: Clock, links: Links) -> None:
        self.clock = clock
        self.links = links
        self._flows: dict[str, Flow] = {}

    def enter(self, client: str) -> Flow:
        """Return the flow of a connection, for one more stream."""
        flow = self._flows.get(client)
        if flow is None:
            flow = self._flows[client] = Flow(self, client)
        flow.streams += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """Count a stream out."""
        flow.streams -= 1
        if not flow.streams:
            del self._flows[flow.client]


class Flow:
    """What was sent over one connection, as far as streams are concerned."""

    def __init__(self, flows: Flows, client: str) -> None:
        self.client = client
        self.streams = 0
        self._flows = flows
        self._sent = 0
        self._looked_at = 0  #: how much was sent when it was last seen that all is well
        self._before: int | None = None  #: what the client had taken before, and besides

    def count(self, size: int) -> None:
        """Hear that some bytes were sent."""
        self._sent += size

    @property
    def is_due(self) -> bool:
        """Tell whether so much was sent that it is time to ask for room."""
        return self._sent - self._looked_at > limits.stream_look_bytes

    async def room(self) -> bool:
        """Return when the client has taken what it was sent, but for a little; False if it takes nothing for long."""
        clock, least = self._flows.clock, self._sent
        until = clock.steady_ms() + limits.reader_stuck_ms_max
        while True:
            taken = await self._flows.links.taken(self.client)
            if taken is None:  # the client is gone, which is noticed elsewhere; or the system does not tell
                return True
            if self._before is None or taken - self._before > self._sent:  # something else was sent over the connection
                self._before = taken - self._sent
            unread = self._sent - (taken - self._before)
            if unread <= limits.stream_unread_bytes_max:
                self._looked_at = self._sent
                return True
            if unread < least:
                least, until = unread, clock.steady_ms() + limits.reader_stuck_ms_max
            elif clock.steady_ms() >= until:
                return False
            await pause(clock, limits.stream_look_ms)
