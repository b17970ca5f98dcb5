"""The share of the event loop that the commands of all connections of a listener get together.

A slice of a few milliseconds for each connection would not be enough: with a hundred busy connections, other tasks would
wait for a hundred slices.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.clock import yield_to_loop

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: This many waiting commands continue in one round of the loop; each begins at least one command.
_WOKEN_MAX: Final = 16


class LoopShare:
    """In one round of the event loop, commands begin within ``limits.loop_share_ms``. The others wait for later rounds.

    They wait in line, and no round is skipped: the first ones continue in the next round, those behind them in the round
    after it.
    """

    def __init__(self, clock: Clock) -> None:
        #: Both are attributes, not methods: a caller with a turn reads them before each command.
        self.elapsed_s = clock.stopwatch
        self.ends_at = 0.0  #: when a caller with a turn should request another one before its next command, by ``elapsed_s``
        self._round: asyncio.Handle | None = None
        self._line: deque[asyncio.Future[None]] = deque()
        self._next = 0  #: how many continue in the next round
        self._waiting = 0  #: in the line, or due in the next round

    def try_begin(self) -> bool:
        """Return whether a command may begin at once; otherwise wait for a ``turn``.

        No command overtakes those that wait.
        """
        if self._round is None:  # no other command was run in this round
            self._begin()
            return True
        return not self._waiting and self.elapsed_s() < self.ends_at

    async def turn(self) -> None:
        """Return when a command may begin."""
        if self.try_begin():
            return
        self._waiting += 1
        try:
            if self._next < _WOKEN_MAX and not self._line:
                self._next += 1
                await yield_to_loop(1)
            else:
                mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._line.append(mine)
                await mine
        finally:
            self._waiting -= 1

    def _begin(self) -> None:
        self.ends_at = self.elapsed_s() + limits.loop_share_ms / 1_000
        self._round = asyncio.get_running_loop().call_soon(self._begin_next)

    def _begin_next(self) -> None:
        """Begin a new round of the loop. This is called before the commands that wait for it continue."""
        self._round = None
        self._next = 0
        if not self._waiting:
            self.ends_at = 0.0
            return
        self._begin()
        while self._line and self._next < _WOKEN_MAX:
            following = self._line.popleft()
            if not following.done():
                following.set_result(None)
                self._next += 1
