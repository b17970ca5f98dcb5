"""What Penstock's own listeners share: they count their connections, and the memory for what arrives on them.

Connections whose clients still have to show a token are counted separately (``UnauthenticatedConnections``), so that they
take no room from others. Clients show their tokens at once after connecting. So when there are too many such connections,
the oldest is closed for the newest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from penstock.core import limits
from penstock.core.addresses import network_of
from penstock.core.errors import ServerError, TooMany
from penstock.core.pool_shares import Pool, PoolPlace, Shares, has_room

if TYPE_CHECKING:
    import ssl

    from penstock.access.identity import Identity


class Stoppable(Protocol):
    """A connection, as its listener uses it."""

    def stop(self) -> None:
        """Answer the commands in progress, then close."""

    def refuse(self, error: ServerError) -> None:
        """Send the reason, and close."""


C = TypeVar("C", bound=Stoppable)


class UnauthenticatedConnections(Generic[C]):
    """Connections whose clients have not shown a token yet: at most ``most``, shared among addresses."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: dict[C, str] = {}  #: with their networks, the oldest first
        self._of: dict[str, dict[C, None]] = {}  #: by network, the oldest first

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: C, address: str) -> None:
        """Add a connection.

        If there is no room, close the oldest one before: of the same network, if that has used its share.
        """
        network = network_of(address)
        same = self._of.get(network, {})
        if not has_room(self._most, len(self._all), len(same)):
            oldest = next(iter(same), None) or next(iter(self._all))
            self.discard(oldest)
            oldest.refuse(TooMany("Too many connections without a token. Send the token right after connecting."))
        self._all[connection] = network
        self._of.setdefault(network, {})[connection] = None

    def discard(self, connection: C) -> None:
        """Remove a connection. Does nothing if it is not counted."""
        network = self._all.pop(connection, None)
        if network is not None:
            same = self._of[network]
            del same[connection]
            if not same:
                del self._of[network]


def client_name(identity: Identity | None, namespace: str, address: str) -> str:
    """Return the name of a client for counting its memory and its unread replies. ``namespace``: the one it works in."""
    network = network_of(address)
    return network if identity is None else identity.holder(namespace, network)


class ConnectionListener(Generic[C]):
    """Base of listeners that accept connections. Call ``start``, and ``stop`` before the engine is closed.

    Subclasses create the connections.
    """

    def __init__(self, name: str, connections_max: int, shares: Shares | None = None) -> None:
        self.connections: set[C] = set()
        self.strangers: UnauthenticatedConnections[C] = UnauthenticatedConnections(limits.listener_strangers_max)
        self._pool = Pool(f"{name} connections", connections_max, shares)
        self._places: dict[C, PoolPlace] = {}
        self.bytes = 0  #: bytes that arrive or are being processed, beyond what every connection may keep
        self._shares: dict[str, int] = {}  #: shares of these bytes, by client (``client_name``)
        self._servers: list[asyncio.Server] = []
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def connection(self) -> asyncio.Protocol:
        """Return the protocol object that serves the next client."""
        raise NotImplementedError

    async def start(self, host: str, port: int, *, backlog: int = 1_024, tls: ssl.SSLContext | None = None) -> None:
        """Begin to accept connections, with ``tls`` if it is given. Call it again for one more address.

        Raises OSError if another program listens there.
        """
        loop = asyncio.get_running_loop()
        # An unfinished handshake is not a connection yet, so it is not counted. Its time limit is the one for showing a
        # token.
        wait_s = limits.auth_wait_ms_max / 1000 if tls is not None else None
        server = await loop.create_server(
            self.connection, host, port, backlog=backlog, ssl=tls, ssl_handshake_timeout=wait_s
        )
        self._servers.append(server)

    @property
    def port(self) -> int:
        """The port on which it listens; the first of several."""
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Accept no more connections, answer the commands in progress, and close all connections."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.stop()
        await self._all_closed.wait()

    def meet(self, connection: C, address: str) -> None:
        """Count a connection whose client must show a token."""
        self.connections.add(connection)
        self._all_closed.clear()
        self.strangers.add(connection, address)

    def enter(self, connection: C, namespace: str) -> None:
        """Count a connection for a namespace, and no longer for another one. Raises TooMany, or NamespaceLimit."""
        place = self._places.get(connection) or PoolPlace(self._pool)
        place.take(namespace)
        self._places[connection] = place
        self.strangers.discard(connection)
        self.connections.add(connection)
        self._all_closed.clear()

    def leave(self, connection: C) -> None:
        """Remove a connection from the counts."""
        self.connections.discard(connection)
        self.strangers.discard(connection)
        place = self._places.pop(connection, None)
        if place is not None:
            place.give_up()
        if not self.connections:
            self._all_closed.set()

    def hold(self, size: int, sender: str) -> None:
        """Reserve memory for what arrives, or give it back.

        Raises TooMany if there is none, or the sender has used its share.
        """
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
