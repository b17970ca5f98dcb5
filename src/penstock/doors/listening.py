"""What listeners of our own share: they count their connections, and the memory that what arrives on them takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core import limits
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    import ssl


class Stoppable(Protocol):
    """A connection, as far as its listener is concerned."""

    def stop(self) -> None:
        """Answer what is under way, then close."""


C = TypeVar("C", bound=Stoppable)


class ConnectionListener(Generic[C]):
    """Accepts connections. ``start`` it, and ``stop`` it before the engine is closed. Who builds on it makes them."""

    def __init__(self, name: str, connections_max: int) -> None:
        self.connections: set[C] = set()
        self.bytes = 0  #: that arrive or are being worked on, beyond what every connection may keep
        self._shares: dict[str, int] = {}  #: of these bytes, by address
        self._name = name
        self._connections_max = connections_max
        self._servers: list[asyncio.Server] = []
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def connection(self) -> asyncio.Protocol:
        """Return what serves the next client."""
        raise NotImplementedError

    async def start(self, host: str, port: int, *, backlog: int = 1_024, tls: ssl.SSLContext | None = None) -> None:
        """Begin to accept, with ``tls`` if it is given; at one more address if it accepts already.

        Raises OSError if another program listens there.
        """
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(self.connection, host, port, backlog=backlog, ssl=tls))

    @property
    def port(self) -> int:
        """Return where it listens; the first of several."""
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Accept nothing more, answer what is under way, and let everybody go."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.stop()
        await self._all_closed.wait()

    def enter(self, connection: C) -> None:
        """Count a connection in. Raises TooMany."""
        if len(self.connections) >= self._connections_max:
            raise TooMany(f"Too many {self._name} connections")
        self.connections.add(connection)
        self._all_closed.clear()

    def leave(self, connection: C) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def hold(self, size: int, sender: str) -> None:
        """Make room for what arrives, or give it back. Raises TooMany if there is none, or the sender's share is used up."""
        if not size:
            return
        share = self._shares.get(sender, 0) + size
        if size > 0 and (self.bytes + size > limits.frames_bytes_max or share > limits.frames_share_bytes_max):
            raise TooMany("Too many large requests at once. Retry in a moment.")
        self.bytes += size
        if share:
            self._shares[sender] = share
        else:
            del self._shares[sender]
