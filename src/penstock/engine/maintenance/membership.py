"""Membership of a server in a shared store: heartbeat and leadership."""

from __future__ import annotations

from penstock.core import limits
from penstock.engine.maintenance.service import PeriodicService


class Membership(PeriodicService):
    """On a store that other servers use too: shows them that this one lives, and looks for what nobody told us of.

    A wake-up can be lost with the connection that carries it, and a job is passed over while a server holds it that dies.
    """

    every_ms = 1_000

    async def run_once(self) -> None:
        """Keep our number, take the lead if nobody has it, and look at every line."""
        engine = self._engine
        status = engine.store.status()
        if status.error is not None and not status.full:  # where there is no room left, the rest goes on as far as it can
            engine.take_lead(None)
        else:
            await engine.store.keep_node()
            engine.ids.use(node=engine.store.node)
            asked_at = engine.clock.steady_ms()
            engine.take_lead(await engine.store.lead("housekeeping", limits.lead_ms), asked_at + limits.lead_ms)
            engine.room.nudge_all()
            engine.timer.arm()
