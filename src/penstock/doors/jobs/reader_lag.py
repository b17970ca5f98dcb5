"""How far the reader of an event stream is behind.

The HTTP server accepts all bytes of a stream and keeps them until the socket takes them, without a limit and without
reporting it. The operating system shows it: a socket whose send queue does not become empty belongs to a slow reader. Its
table is read only after many bytes were sent, and at most a few times a second for all readers together.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock

CHECK_EVERY_MS: Final = 100
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


class ReaderLag:
    """Bytes that wait in the send queues of sockets, by the address of the peer."""

    def __init__(self, clock: Clock, tables: tuple[Path, ...] = _TABLES) -> None:
        self._clock = clock
        self._tables = tables
        self._read_at: int | None = None
        self._bytes: dict[str, int] = {}

    def waiting(self, client: str) -> int:
        """Return the bytes that wait for a client, given as ``address:port``; 0 if the system does not show them."""
        steady = self._clock.steady_ms()
        if self._read_at is None or steady - self._read_at >= CHECK_EVERY_MS:
            self._read_at = steady
            self._bytes = self._read_tables()
        return self._bytes.get(_key(client), 0)

    def _read_tables(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for table in self._tables:
            if table.exists():
                for line in table.read_text(encoding="ascii").splitlines()[1:]:
                    columns = line.split()
                    queued = int(columns[4].partition(":")[0], 16)
                    if queued:
                        found[columns[2]] = queued
        return found


def _key(client: str) -> str:
    """Return an address in the format of the system's table: words of four bytes, each with its lowest byte first."""
    host, _, port = client.rpartition(":")
    try:
        packed = ipaddress.ip_address(host.strip("[]")).packed
    except ValueError:
        return ""
    words = (packed[start : start + 4][::-1].hex().upper() for start in range(0, len(packed), 4))
    return f"{''.join(words)}:{int(port):04X}"
