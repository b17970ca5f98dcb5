"""The lease clock of a store with one server: saves how much time was counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.command import Command
from penstock.engine.maintenance.service import PeriodicService

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class ClockMarker(PeriodicService):
    """On a store with one server: records how much time was counted, while there are leases that use it.

    After a restart of the machine, the count continues from there.
    """

    every_ms = 10_000

    async def run_once(self) -> None:
        """Save a mark if there are leases."""
        if self._engine.store.horizon.lease_expiry_ms is not None and self._engine.store.status().error is None:
            await self._engine.run(MarkClock())


class MarkClock(Command[None]):
    """Record how much time was counted."""

    __slots__ = ()


async def mark_clock(_engine: EngineContext, work: UnitOfWork, commands: Sequence[MarkClock]) -> None:
    """Save one mark for all commands."""
    await work.tx.clock_mark()
    for command in commands:
        work.answer(command, None)
