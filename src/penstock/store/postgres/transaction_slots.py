"""Slots for the transactions of this server on a shard: several at once, or one exclusive one."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TransactionSlots:
    """First come, first served.

    A change of the catalog needs an exclusive slot: it is in memory, and others would see it too early.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._under_way = 0
        self._alone = False
        self._line: deque[tuple[asyncio.Future[None], bool]] = deque()

    async def take(self, *, alone: bool = False) -> None:
        """Wait for a slot; ``alone``: until no other one is taken. ``release`` returns it."""
        if not self._line and self._has_room(alone=alone):
            self._enter(alone=alone)
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        mine = called, alone
        self._line.append(mine)
        try:
            await called
        except asyncio.CancelledError:
            if mine in self._line:
                self._line.remove(mine)
                self._call()
            else:  # it got the slot at the same time
                self.release()
            raise

    def stay_alone(self) -> bool:
        """Block new slots until the current transaction ends; return False if several are taken."""
        if self._under_way > 1:
            return False
        self._alone = True
        return True

    def release(self) -> None:
        """Return a slot."""
        self._under_way -= 1
        self._alone = False
        self._call()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Take an exclusive slot."""
        await self.take(alone=True)
        try:
            yield
        finally:
            self.release()

    def _has_room(self, *, alone: bool) -> bool:
        return not self._under_way if alone else not self._alone and self._under_way < self._lanes

    def _enter(self, *, alone: bool) -> None:
        self._under_way += 1
        self._alone = alone

    def _call(self) -> None:
        while self._line and self._has_room(alone=self._line[0][1]):
            called, alone = self._line.popleft()
            if not called.cancelled():
                self._enter(alone=alone)
                called.set_result(None)
