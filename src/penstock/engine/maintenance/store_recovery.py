"""Recovery of the store: looks for free space, or opens the files again."""

from __future__ import annotations

from penstock.engine.maintenance.service import PeriodicService


class StoreRecovery(PeriodicService):
    """Recovers the store: looks for free space, or opens the files again."""

    every_ms = 1_000

    async def run_once(self) -> None:
        """Recover the store if it needs it."""
        status = self._engine.store.status()
        was_in_trouble = status.error is not None
        if (was_in_trouble or status.reserve_short) and await self._engine.store.recover() and was_in_trouble:
            self._engine.handle_recovery()
