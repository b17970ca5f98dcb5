"""Turns at expensive operations: few run at a time, and each namespace that waits gets its share."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class FairTurns:
    """Up to ``places`` turns are in progress.

    The others wait in one line per namespace; the lines are served in rotation.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of callers that wait for a turn."""
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it until the end of the block.

        Do not wait for a client in the block: others wait for its end.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait(namespace)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, namespace: str) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(namespace, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # it got its turn at the same moment
                self._pass_on()
            else:
                self._leave(namespace, mine)
            raise

    def _leave(self, namespace: str, mine: asyncio.Future[None]) -> None:
        line = self._lines.get(namespace, deque())
        if mine in line:
            line.remove(mine)
            if not line:
                del self._lines[namespace]

    def _pass_on(self) -> None:
        """Pass a finished turn on to the next line."""
        while self._lines:
            namespace = next(iter(self._lines))
            line = self._lines.pop(namespace)
            following = line.popleft()
            if line:
                self._lines[namespace] = line  # behind the other lines
            if not following.done():  # it may be cancelled, and not have left yet
                following.set_result(None)
                return
        self._free += 1
