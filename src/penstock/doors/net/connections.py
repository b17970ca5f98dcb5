"""The TCP connections of the HTTP listeners, as the operating system sees them.

The HTTP server (Granian) accepts connections and offers no way to list, limit or close them. The operating system provides
this: their descriptors are listed in /proc/self/fd, TCP_INFO counts their bytes, and a copy of a descriptor can end a
connection. On a system without these the table stays empty, and no connection is ever closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.clock import pause
from penstock.doors.net import raw_sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.clock import Clock

_OPEN: Final = Path("/proc/self/fd")
#: Offset in TCP_INFO of the bytes that the peer has acknowledged. The bytes received from it follow.
_BYTES_AT: Final = 120
_BYTES: Final = struct.Struct("=QQ")
#: Descriptors that are checked before other tasks run.
_SLICE: Final = 256
#: A scan of all descriptors is followed by a pause that is this many times as long.
_PAUSE_FACTOR: Final = 20
_UNSPECIFIED: Final = struct.pack("=H14x", socket.AF_UNSPEC)


class Connection:
    """One connection of an HTTP listener. Times are in steady milliseconds."""

    __slots__ = ("acked", "closing", "family", "host", "inode", "key", "moved_at", "number", "received", "since")

    def __init__(self, number: int, inode: int, link: socket.socket, now: int) -> None:
        self.number = number  #: its descriptor
        self.inode = inode  #: differs from that of a later socket with the same descriptor
        self.family = link.family
        self.key = raw_sockets.socket_key(link)  #: in the format of ``raw_sockets.connection_key``
        self.host = self.key.rpartition(":")[0]  #: the address of the client, without the port
        self.since = now  #: when it was first seen
        self.moved_at = now  #: when bytes were last seen to be received or acknowledged
        self.received = 0  #: bytes received from the client
        self.acked = 0  #: bytes that the client has acknowledged
        self.closing = False  #: whether the end of its input was simulated, so that the HTTP server closes it

    def update(self, now: int) -> bool:
        """Read how many bytes were received and acknowledged. Return False if the connection is closed."""
        try:
            if os.fstat(self.number).st_ino != self.inode:
                return False
            link = socket.socket(self.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=self.number)
        except OSError:
            return False
        try:
            info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_AT + _BYTES.size)
            acked, received = _BYTES.unpack_from(info, _BYTES_AT)
        except (OSError, struct.error):
            return False
        finally:
            link.detach()  # the descriptor belongs to the HTTP server
        if acked != self.acked or received != self.received:
            self.acked, self.received, self.moved_at = acked, received, now
        return True

    def end_input(self) -> None:
        """Simulate the end of the client's input, so that the HTTP server closes the connection properly."""
        self.closing = True
        link = self._copy()
        if link is not None:
            with link, contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RD)

    def shrink_input(self, size: int) -> None:
        """Limit the unread bytes that the system accepts to about this many. It slows down a client that sends too much."""
        link = self._copy()
        if link is not None:
            with link, contextlib.suppress(OSError):
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def abort(self, words: bytes = b"") -> bool:
        """Reset the connection, and free its memory in the system. ``words`` are sent before.

        Return False if it is closed already.
        """
        link = self._copy()
        if link is None:
            return False
        with link:
            try:
                if words:
                    link.send(words, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                if _connect(link.fileno(), _UNSPECIFIED, len(_UNSPECIFIED)) != 0:
                    link.shutdown(socket.SHUT_RDWR)
            except OSError:
                return False
        return True

    def _copy(self) -> socket.socket | None:
        """Return a copy of its socket; None if the connection is closed."""
        link = raw_sockets.copy(self.number)
        if link is not None and os.fstat(link.fileno()).st_ino != self.inode:
            link.close()
            return None
        return link


#: Connecting to no address makes TCP abort: both queues are emptied, and the client gets a reset. ``shutdown``
#: would leave received bytes readable, and unsent bytes in the memory of the system.
_connect: Final = ctypes.CDLL(None).connect
_connect.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)


class ConnectionTable:
    """The connections that were accepted on some ports, found by a scan of all descriptors of this process."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ports: set[int] = set()  #: of the HTTP listeners
        self._known: dict[int, Connection | int] = {}  #: by descriptor; for other sockets only the inode
        self._by_key: dict[str, Connection] = {}
        self._scanned_until = 0
        self._pause_ms = 0
        self._scanning: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_key.values()))

    def find(self, key: str) -> Connection | None:
        """Return a connection by its ends (``raw_sockets.connection_key``), as of the last scan."""
        return self._by_key.get(key)

    async def get(self, key: str) -> Connection | None:
        """Return a connection by its ends. Scan the descriptors again if it is not known yet."""
        for _ in range(2):  # a scan in progress may have passed its descriptor already
            found = self._by_key.get(key)
            if found is not None and found.update(self.clock.steady_ms()):
                return found
            await self.scan()
        return self._by_key.get(key)

    async def scan(self) -> None:
        """Scan all descriptors: once for all callers, and with pauses in proportion to the duration of a scan."""
        if self._scanning is None:
            self._scanning = asyncio.ensure_future(self._scan())
        await asyncio.shield(self._scanning)

    async def _scan(self) -> None:
        try:
            clock = self.clock
            await pause(clock, self._scanned_until + self._pause_ms - clock.steady_ms())
            seconds = 0.0
            known: dict[int, Connection | int] = {}
            numbers = _descriptors()
            for first in range(0, len(numbers), _SLICE):
                began = clock.stopwatch()
                now = clock.steady_ms()
                for number in numbers[first : first + _SLICE]:
                    entry = self._entry(number, now)
                    if entry is not None:
                        known[number] = entry
                seconds += clock.stopwatch() - began
                await pause(clock, 0)
            self._known = known
            self._by_key = {each.key: each for each in known.values() if isinstance(each, Connection)}
            self._scanned_until = clock.steady_ms()
            self._pause_ms = int(seconds * 1_000 * _PAUSE_FACTOR)
        finally:
            self._scanning = None

    def _entry(self, number: int, now: int) -> Connection | int | None:
        """Return the entry of a descriptor: the connection, the inode of another socket, or None if it is not a socket."""
        try:
            status = os.fstat(number)
        except OSError:
            return None
        if not stat.S_ISSOCK(status.st_mode):
            return None
        entry = self._known.get(number)
        if isinstance(entry, Connection):
            if entry.inode == status.st_ino and entry.update(now):
                return entry
        elif entry == status.st_ino:
            return entry
        return self._meet(number, status.st_ino, now)

    def _meet(self, number: int, inode: int, now: int) -> Connection | int:
        link = raw_sockets.copy(number)
        if link is None:
            return inode
        with link:
            try:
                is_tcp = link.family in (socket.AF_INET, socket.AF_INET6) and link.type == socket.SOCK_STREAM
                if not is_tcp or link.getsockname()[1] not in self.ports:
                    return inode
                if link.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return inode
                connection = Connection(number, inode, link, now)
            except OSError:
                return inode
        return connection if connection.key and connection.update(now) else inode


def _descriptors() -> list[int]:
    try:
        return sorted(int(each.name) for each in _OPEN.iterdir())[: limits.descriptors_scanned_max]
    except OSError:  # not supported by this system
        return []
