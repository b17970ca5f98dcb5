"""Membership of a server in a shared store: heartbeat and leadership."""

from __future__ import annotations

from penstock.core import limits
from penstock.engine.maintenance.service import PeriodicService


class Membership(PeriodicService):
    """On a shared store: shows the other servers that this one runs, and looks for work whose notification was lost.

    A notification can be lost with its connection. A job is passed over while another server has locked it; if that server
    dies, there is no notification.
    """

    every_ms = 1_000

    async def run_once(self) -> None:
        """Keep this server's number, become leader if there is none, and serve all lines."""
        engine = self._engine
        status = engine.store.status()
        if status.error is not None and not status.full:  # if only the disk is full, the rest continues as far as possible
            engine.take_lead(None)
        else:
            await engine.store.keep_node()
            engine.ids.use(node=engine.store.node)
            asked_at = engine.clock.steady_ms()
            engine.take_lead(await engine.store.lead("housekeeping", limits.lead_ms), asked_at + limits.lead_ms)
            engine.claim_waiters.nudge_all()
            engine.timer.arm()
