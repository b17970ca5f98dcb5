"""The sockets of this process, for functions that the HTTP server does not offer.

Granian's interface cannot give the reason why a WebSocket is closed (its close frames are empty), cannot give a refused
handshake a body, and cannot turn on keep-alive for its connections. All of that is possible on the socket itself. It is
found by the addresses of both ends, because one client may use the same local port for connections to several listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.clock import pause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from granian.rsgi import Scope

    from penstock.core.clock import Clock
    from penstock.doors.net.incoming_messages import ArrivingMessages
    from penstock.doors.net.unread_answers import UnreadAnswers

_OPEN: Final = Path("/proc/self/fd")
#: All sockets are scanned at most this often.
CHECK_EVERY_MS: Final = 1_000
#: Offset in TCP_INFO of the number of bytes that the peer has acknowledged.
_BYTES_ACKED_AT: Final = 120
_BYTES_ACKED: Final = struct.Struct("=Q")


def keep_alive(link: socket.socket) -> None:
    """Have the system detect clients that disappeared without closing, so that what they hold is released.

    The system probes a silent client, and drops a client that does not acknowledge what it is sent: both after
    ``limits.gone_s`` at the latest. The system takes no more than ``limits.socket_unsent_bytes`` of an answer that a client
    does not read. Options of a listening socket apply to all connections that it accepts.
    """
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.keepalive_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, (limits.gone_s - limits.keepalive_s) // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.gone_s * 1_000)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.socket_unsent_bytes)


def keep_listener_alive(port: int) -> int:
    """Turn on ``keep_alive`` for all connections accepted on a port from now on. Return how many sockets listen there."""
    found = 0
    for _, link in _links():
        with link:
            if link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and link.getsockname()[1] == port:
                keep_alive(link)
                found += 1
    return found


def connection_key(scope: Scope) -> str:
    """Return the name of a request's connection, from both ends: the client's address, and the port that it connected to."""
    return f"{scope.client} {scope.server.rpartition(':')[2]}"


class RawSockets:
    """Finds the socket of a client, and sends final bytes to it.

    ``tls``: never, because plain bytes would be invalid there.
    """

    def __init__(self, clock: Clock, *, tls: bool = False) -> None:
        self._clock = clock
        self._tls = tls
        #: Descriptors of open sockets, by both ends, as of the last scan; so each must be checked. Several have the same
        #: ends only if a client uses one port for connections to several addresses of this machine, and the listener has all
        #: of them.
        self._numbers: dict[str, list[int]] = {}
        self._checked_at: int | None = None
        self._checking: asyncio.Future[None] | None = None
        self.arriving: ArrivingMessages | None = None  #: bounds incomplete WebSocket messages
        self.answers: UnreadAnswers | None = None  #: bounds large unread replies over WebSockets

    def reach(self, scope: Scope) -> bool:
        """Return whether a request uses its own unencrypted connection: only there bytes can be added."""
        return not self._tls and scope.http_version.startswith("1") and scope.scheme not in ("https", "wss")

    async def say(self, key: str, words: bytes, *, over: bool = False) -> bool:
        """Send bytes right after what was sent before. Return False if the client has disconnected or has no room for them.

        ``key`` have the format of ``connection_key``. ``over``: nothing can be sent after that. Only for a connection on which
        nothing else is sent at the moment, and which is closed afterwards.
        """
        link = await self._get(key)
        if link is None:
            return False
        with link:  # a copy, which must be closed here; otherwise the connection would not end
            try:
                whole = link.send(words, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(words)
                if over:
                    link.shutdown(socket.SHUT_WR)
            except OSError:
                return False
            return whole

    async def stop_reading(self, key: str) -> None:
        """Read nothing more from a client. A reader that waits for the rest of a request sees a lost connection."""
        link = await self._get(key)
        if link is not None:
            with link, contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RD)

    async def taken(self, key: str) -> int | None:
        """Return how many bytes a client has acknowledged on its connection so far; None if the system does not show it."""
        links = self._find(key)
        if not links:
            await self._look_soon()
            links = self._find(key)
        found = [taken for link in links if (taken := _taken(link)) is not None]
        return min(found, default=None)

    async def _get(self, key: str) -> socket.socket | None:
        """Return a copy of the socket of a client; None if it is closed, or cannot be distinguished from another one."""
        links = self._find(key)
        if not links:
            await self._look_soon()
            links = self._find(key)
        if len(links) == 1:
            return links[0]
        for link in links:
            link.close()
        return None

    def _find(self, key: str) -> list[socket.socket]:
        """Return copies of all sockets that have these ends."""
        found = []
        for number in self._numbers.get(key, ()):
            link = copy(number)
            if link is None:
                continue
            if socket_key(link) == key:
                found.append(link)
            else:
                link.close()
        return found

    async def _look_soon(self) -> None:
        """Scan all sockets, once for all callers, and at most every ``CHECK_EVERY_MS``."""
        if self._checking is None:
            self._checking = asyncio.ensure_future(self._read_links())
        await asyncio.shield(self._checking)

    async def _read_links(self) -> None:
        try:
            if self._checked_at is not None:
                await pause(self._clock, self._checked_at + CHECK_EVERY_MS - self._clock.steady_ms())
            self._checked_at = self._clock.steady_ms()
            self._numbers = {}
            for number, link in _links():
                with link:
                    self._numbers.setdefault(socket_key(link), []).append(number)
        finally:
            self._checking = None


def _taken(link: socket.socket) -> int | None:
    """Return how many bytes the peer has acknowledged, and close the copy."""
    with link:
        try:
            info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size + _BYTES_ACKED_AT)
            (taken,) = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)
        except (OSError, struct.error):
            return None
        return int(taken)


def _links() -> Iterator[tuple[int, socket.socket]]:
    """Yield the TCP sockets of this process: their descriptors, and copies of them that the caller closes."""
    try:
        numbers = sorted(int(each.name) for each in _OPEN.iterdir())
    except OSError:  # not supported by this system
        return
    for number in numbers[: limits.links_looked_at_max]:
        link = copy(number)
        if link is None:
            continue
        if link.family in (socket.AF_INET, socket.AF_INET6) and link.type == socket.SOCK_STREAM:
            yield number, link
        else:
            link.close()


def copy(number: int) -> socket.socket | None:
    """Return a copy of a socket, which stays the same whatever happens to the original; None if it is not a socket.

    A file is not copied: closing a copy of it would release the locks that this process has on it, SQLite's among them.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        copy = os.dup(number)
    except OSError:  # closed meanwhile
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:  # it was a socket a moment ago; for the same reason, the copy of what it is now is never closed
        return None


def socket_key(link: socket.socket) -> str:
    """Return both ends in the format of ``connection_key``; empty if there is no peer."""
    try:
        peer, port = link.getpeername(), link.getsockname()[1]
    except OSError:
        return ""
    if len(peer) == 2:
        return f"{peer[0]}:{peer[1]} {port}"
    host, _, _ = peer[0].partition("%")  # the HTTP server writes the number of the interface, not its name
    return f"[{host}%{peer[3]}]:{peer[1]} {port}" if peer[3] else f"[{host}]:{peer[1]} {port}"
