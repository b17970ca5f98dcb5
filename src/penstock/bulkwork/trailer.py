"""The end of every answer in Arrow: how many rows there were, so that a reader knows that it has got all of them."""

from __future__ import annotations

from typing import Final

MARK: Final = b"PNSTROWS"


def trailer(rows: int) -> bytes:
    """Return what comes after the stream: 16 bytes, the mark and the number of rows as a little-endian uint64."""
    return MARK + rows.to_bytes(8, "little")
