"""What listeners of our own share: they count their connections, and the memory that what arrives on them takes.

Connections whose clients still have to show a token are counted apart (``UnauthenticatedConnections``), so that they take no
place of others. Clients show their tokens at once after connecting; so when there are too many, the oldest makes room for
the newest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core import limits
from penstock.core.addresses import network_of
from penstock.core.errors import PenstockError, TooMany
from penstock.core.pool_shares import Pool, PoolPlace, Shares, has_room

if TYPE_CHECKING:
    import ssl

    from penstock.access.identity import Identity


class Stoppable(Protocol):
    """A connection, as far as its listener is concerned."""

    def stop(self) -> None:
        """Answer what is under way, then close."""

    def refuse(self, error: PenstockError) -> None:
        """Say why, and close."""


C = TypeVar("C", bound=Stoppable)


class UnauthenticatedConnections(Generic[C]):
    """Connections whose clients have not shown a token yet: at most ``most``, shared among addresses."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: dict[C, str] = {}  #: with their networks, the oldest first
        self._of: dict[str, dict[C, None]] = {}  #: by network, likewise

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: C, address: str) -> None:
        """Count one in, after the oldest one has made room if there is none: of the same network, if that has its share."""
        network = network_of(address)
        same = self._of.get(network, {})
        if not has_room(self._most, len(self._all), len(same)):
            oldest = next(iter(same), None) or next(iter(self._all))
            self.discard(oldest)
            oldest.refuse(TooMany("Too many connections wait for a token. Show it at once after connecting."))
        self._all[connection] = network
        self._of.setdefault(network, {})[connection] = None

    def discard(self, connection: C) -> None:
        """Count one out; fine if it is not counted."""
        network = self._all.pop(connection, None)
        if network is not None:
            same = self._of[network]
            del same[connection]
            if not same:
                del self._of[network]


def client_name(identity: Identity | None, address: str) -> str:
    """Name a client whose unread replies are counted: the identity, or the network of its address if it has no subject."""
    return f"identity {identity.subject}" if identity is not None and identity.subject else network_of(address)


class ConnectionListener(Generic[C]):
    """Accepts connections. ``start`` it, and ``stop`` it before the engine is closed. Who builds on it makes them."""

    def __init__(self, name: str, connections_max: int, shares: Shares | None = None) -> None:
        self.connections: set[C] = set()
        self.strangers: UnauthenticatedConnections[C] = UnauthenticatedConnections(limits.listener_strangers_max)
        self._pool = Pool(f"{name} connections", connections_max, shares)
        self._places: dict[C, PoolPlace] = {}
        self.bytes = 0  #: that arrive or are being worked on, beyond what every connection may keep
        self._shares: dict[str, int] = {}  #: of these bytes, by address
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
        # A handshake that is not finished is no connection yet, so it is not counted; it has as long as a token has.
        wait_s = limits.auth_wait_ms_max / 1000 if tls is not None else None
        server = await loop.create_server(
            self.connection, host, port, backlog=backlog, ssl=tls, ssl_handshake_timeout=wait_s
        )
        self._servers.append(server)

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

    def meet(self, connection: C, address: str) -> None:
        """Count a connection in whose client has to show a token."""
        self.connections.add(connection)
        self._all_closed.clear()
        self.strangers.add(connection, address)

    def enter(self, connection: C, namespace: str) -> None:
        """Count a connection for a namespace, and for no other any more. Raises TooMany, or NamespaceLimit."""
        place = self._places.get(connection) or PoolPlace(self._pool)
        place.take(namespace)
        self._places[connection] = place
        self.strangers.discard(connection)
        self.connections.add(connection)
        self._all_closed.clear()

    def leave(self, connection: C) -> None:
        """Count a connection out."""
        self.connections.discard(connection)
        self.strangers.discard(connection)
        place = self._places.pop(connection, None)
        if place is not None:
            place.give_up()
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
