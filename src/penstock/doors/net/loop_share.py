"""The share of the event loop that the commands of all connections of a listener get together.

Slices of a few milliseconds for each connection would not be enough: with a hundred busy connections, others would wait for a
hundred slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core import limits

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: So many of those who wait are woken in one round of the loop; each begins at least one command.
_WOKEN_MAX: Final = 16


class LoopShare:
    """In one round of the event loop, commands begin within ``limits.slice_ms``. The others wait for later rounds, in line."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._round: asyncio.Handle | None = None
        self._line: deque[asyncio.Future[None]] = deque()
        self._waiting = 0  #: in the line, or woken and not gone on yet

    @property
    def is_over(self) -> bool:
        """Tell whether who has a turn should ask for another one before its next command."""
        return self._clock.stopwatch() >= self._ends_at

    @property
    def is_free(self) -> bool:
        """Tell whether a command can begin without asking for a turn. Nobody overtakes those who wait."""
        return not self._waiting and not self.is_over

    async def turn(self) -> None:
        """Return when it may go on: at once if nothing else was done in this round."""
        if self._round is None:
            self._begin()
            if not self._waiting:
                return
        elif self.is_free:
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(mine)
        self._waiting += 1
        try:
            await mine
        finally:
            self._waiting -= 1

    def _begin(self) -> None:
        self._ends_at = self._clock.stopwatch() + limits.slice_ms / 1_000
        self._round = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A new round of the loop."""
        self._round = None
        if not self._line:
            self._ends_at = 0.0
            return
        self._begin()
        for _ in range(min(_WOKEN_MAX, len(self._line))):
            following = self._line.popleft()
            if not following.done():
                following.set_result(None)
