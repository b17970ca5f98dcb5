"""Claims of HTTP clients, which may hang up while they wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.engine.claim import Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.doors.http.request import Request
    from penstock.engine.claim import Claim
    from penstock.engine.fleet import AnyEngine


async def claim_for(req: Request, engine: AnyEngine, claim: Claim) -> Sequence[Delivery]:
    """Claim jobs. If the client hangs up while it waits, nothing is claimed, or it is given back."""
    if claim.wait_ms == 0:
        return await engine.run(claim)
    wait = Wait(engine, claim)
    gone = asyncio.ensure_future(req.disconnected())
    gone.add_done_callback(lambda left: None if left.cancelled() else wait.give_up())
    try:
        deliveries = await wait.answer()
        if gone.done():  # at the same moment
            wait.give_up()
            return ()
        return deliveries
    finally:
        gone.cancel()
