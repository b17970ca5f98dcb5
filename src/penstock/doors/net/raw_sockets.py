"""The sockets of this process, for what the HTTP server underneath has no words for.

Granian's interface can neither say why a WebSocket is closed (its close frames are empty), nor give a refused handshake a body,
nor have the system watch over its connections. All of that can be said to the socket itself, which is found by its addresses:
those of both ends, because one client may use the same port of its own for connections to several listeners.
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
#: All sockets are looked through at most this often.
LOOK_EVERY_MS: Final = 1_000
#: Where the system says, among what it knows of a TCP connection, how many bytes the other side has acknowledged.
_BYTES_ACKED_AT: Final = 120
_BYTES_ACKED: Final = struct.Struct("=Q")


def keep_alive(link: socket.socket) -> None:
    """Have the system find out about clients that are gone without a word, so that what they hold goes back.

    Who is silent is asked whether it is still there, who does not acknowledge what it is sent is gone: both after
    ``limits.gone_s`` at the latest. Of an answer that a client does not read, the system takes no more than
    ``limits.socket_unsent_bytes``. What a listening socket is told holds for all connections that come in through it.
    """
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.keepalive_s)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, (limits.gone_s - limits.keepalive_s) // 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limits.gone_s * 1_000)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limits.socket_unsent_bytes)


def keep_listener_alive(port: int) -> int:
    """Have the system watch over all connections that will come in through a port; return how many sockets listen there."""
    found = 0
    for _, link in _links():
        with link:
            if link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and link.getsockname()[1] == port:
                keep_alive(link)
                found += 1
    return found


def ends_of(scope: Scope) -> str:
    """Name the connection of a request by both ends: the address of the client, and the port that it connected to."""
    return f"{scope.client} {scope.server.rpartition(':')[2]}"


class RawSockets:
    """Finds the socket of a client, and sends last words to it. ``tls``: not there, where plain bytes would be garbage."""

    def __init__(self, clock: Clock, *, tls: bool = False) -> None:
        self._clock = clock
        self._tls = tls
        #: Of open sockets, by both ends: as of the last look, so to be checked. There are several with the same ends only if a
        #: client uses one port for connections to several addresses of this machine, and the listener has all of them.
        self._numbers: dict[str, list[int]] = {}
        self._looked_at: int | None = None
        self._looking: asyncio.Future[None] | None = None
        self.arriving: ArrivingMessages | None = None  #: bounds WebSocket messages that are not complete
        self.answers: UnreadAnswers | None = None  #: bounds large replies over WebSockets that were not read

    def reach(self, scope: Scope) -> bool:
        """Tell whether a request came in over a connection of its own, unencrypted: only there can something be added."""
        return not self._tls and scope.http_version.startswith("1") and scope.scheme not in ("https", "wss")

    async def say(self, ends: str, words: bytes, *, over: bool = False) -> bool:
        """Send bytes right behind what was sent before; False if the client is gone or has no room for them.

        ``ends`` are spelled as ``ends_of`` does. ``over``: nothing can be sent after that. Only for a connection on which
        nothing else sends at the moment, and which is closed afterwards.
        """
        link = await self._get(ends)
        if link is None:
            return False
        with link:  # a copy: it must not outlive this, or the connection would not end
            try:
                whole = link.send(words, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(words)
                if over:
                    link.shutdown(socket.SHUT_WR)
            except OSError:
                return False
            return whole

    async def stop_reading(self, ends: str) -> None:
        """Read nothing more from a client: to what waits for the rest of a request, the connection looks lost."""
        link = await self._get(ends)
        if link is not None:
            with link, contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RD)

    async def taken(self, ends: str) -> int | None:
        """Return how many bytes of its connection a client has taken so far; None if the system does not tell."""
        links = self._find(ends)
        if not links:
            await self._look_soon()
            links = self._find(ends)
        found = [taken for link in links if (taken := _taken(link)) is not None]
        return min(found, default=None)

    async def _get(self, ends: str) -> socket.socket | None:
        """Return a copy of the socket of a client; None if it is gone, or cannot be told from another one."""
        links = self._find(ends)
        if not links:
            await self._look_soon()
            links = self._find(ends)
        if len(links) == 1:
            return links[0]
        for link in links:
            link.close()
        return None

    def _find(self, ends: str) -> list[socket.socket]:
        """Return copies of all sockets that have these ends."""
        found = []
        for number in self._numbers.get(ends, ()):
            link = copy(number)
            if link is None:
                continue
            if ends_at(link) == ends:
                found.append(link)
            else:
                link.close()
        return found

    async def _look_soon(self) -> None:
        """Look through all sockets, once for all that want to, and not again and again."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        try:
            if self._looked_at is not None:
                await pause(self._clock, self._looked_at + LOOK_EVERY_MS - self._clock.steady_ms())
            self._looked_at = self._clock.steady_ms()
            self._numbers = {}
            for number, link in _links():
                with link:
                    self._numbers.setdefault(ends_at(link), []).append(number)
        finally:
            self._looking = None


def _taken(link: socket.socket) -> int | None:
    """Return how many bytes the other side has acknowledged, and close the copy."""
    with link:
        try:
            info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED.size + _BYTES_ACKED_AT)
            (taken,) = _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)
        except (OSError, struct.error):
            return None
        return int(taken)


def _links() -> Iterator[tuple[int, socket.socket]]:
    """Go through the TCP sockets of this process: their numbers, and copies of them that the caller closes."""
    try:
        numbers = sorted(int(each.name) for each in _OPEN.iterdir())
    except OSError:  # a system without it
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
    """Return a copy of a socket, which stays the same whatever happens to the original; None if it is none.

    A file is left alone: closing a copy of it would take away the locks that this process has on it, SQLite's among them.
    """
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        copy = os.dup(number)
    except OSError:  # closed meanwhile
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:  # a moment ago it was one; for the same reason, the copy of what it is now is never closed
        return None


def ends_at(link: socket.socket) -> str:
    """Spell both ends as ``ends_of`` does; empty if there is no other end."""
    try:
        peer, port = link.getpeername(), link.getsockname()[1]
    except OSError:
        return ""
    if len(peer) == 2:
        return f"{peer[0]}:{peer[1]} {port}"
    host, _, _ = peer[0].partition("%")  # the HTTP server writes the number of the interface, not its name
    return f"[{host}%{peer[3]}]:{peer[1]} {port}" if peer[3] else f"[{host}]:{peer[1]} {port}"
