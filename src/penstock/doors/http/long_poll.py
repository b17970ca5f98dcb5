"""Claims of HTTP clients, which may hang up while they wait, or end the wait by its id."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.doors.wait_permission import Permission
from penstock.engine.jobs.claim_waiters import PendingClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.claim import Claim


class PullWaits:
    """Pulls that wait for a job and have a wait id, so that their client can end them. Several may have the same id.

    A client that hangs up ends its pull, too, but the server notices that later: a job that becomes ready in between would
    be leased to a client that is gone.
    """

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], set[PendingClaim]] = {}

    def add(self, namespace: str, wait_id: str, wait: PendingClaim) -> None:
        """Remember a pull that waits."""
        self._waits.setdefault((namespace, wait_id), set()).add(wait)

    def remove(self, namespace: str, wait_id: str, wait: PendingClaim) -> None:
        """Forget a pull that was answered."""
        waits = self._waits[namespace, wait_id]
        waits.discard(wait)
        if not waits:
            del self._waits[namespace, wait_id]

    def end(self, namespace: str, wait_id: str) -> int:
        """Have all pulls with an id answered at once, without a job. Return how many there were."""
        waits = self._waits.get((namespace, wait_id), ())
        for wait in waits:
            wait.give_up()
        return len(waits)


async def claim_for(
    req: ApiRequest, engine: EngineApi, claim: Claim, waits: PullWaits | None = None, wait_id: str | None = None
) -> Sequence[Delivery]:
    """Claim jobs. If the client hangs up while it waits, nothing is claimed, or it is given back.

    So it is if its key or token ends: raises Unauthorized. With a ``wait_id``, ``waits`` can end the wait, too.
    """
    if claim.wait_ms == 0:
        return await engine.run(claim)
    wait = PendingClaim(engine, claim).submit()
    namespace = claim.queue.namespace
    if waits is not None and wait_id is not None:
        waits.add(namespace, wait_id, wait)
    gone = asyncio.ensure_future(req.disconnected())
    gone.add_done_callback(lambda left: None if left.cancelled() else wait.give_up())
    permission = Permission(req, engine.clock, wait.give_up)
    try:
        deliveries = await wait.answer()
        if gone.done() or permission.is_over:  # perhaps at the same moment
            wait.give_up()
            permission.check()
            return ()
        return deliveries
    finally:
        permission.cancel()
        gone.cancel()
        if waits is not None and wait_id is not None:
            waits.remove(namespace, wait_id, wait)
