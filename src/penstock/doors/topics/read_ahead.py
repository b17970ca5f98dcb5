"""Reads a body ahead of its consumer, so that its end is noticed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class ReadAhead:
    """Reads ``chunks``, a bounded number of bytes ahead. ``cut_off`` is called if the client disconnects before the end."""

    def __init__(self, chunks: AsyncIterator[bytes], cut_off: Callable[[], None]) -> None:
        self._chunks = chunks
        self._cut_off = cut_off
        self._ahead: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()  #: set when something was read or taken
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._read(), name="penstock-read-ahead")

    async def next(self) -> bytes | None:
        """Return the next chunk; None at the end."""
        while not self._ahead:
            if self._over:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._ahead.popleft()
        self._bytes -= len(chunk)
        self._changed.set()
        return chunk

    def close(self) -> None:
        """Stop reading."""
        self._task.cancel()

    async def _read(self) -> None:
        try:
            async for chunk in self._chunks:
                self._ahead.append(chunk)
                self._bytes += len(chunk)
                self._changed.set()
                while self._bytes > limits.stream_ahead_bytes_max:
                    self._changed.clear()
                    await self._changed.wait()
        except (InvalidInput, RuntimeError):  # the client is gone
            self._cut_off()
        finally:
            self._over = True
            self._changed.set()
