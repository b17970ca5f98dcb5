"""Claims of HTTP clients, which may disconnect while they wait, or end the wait by its id."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.doors.identity_watch import IdentityWatch
from penstock.engine.jobs.claim_waiters import PendingClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.claim import Claim


class PullWaits:
    """Pulls that wait for a job and have a wait id, so that their client can end them. Several pulls may have the same id.

    A client that disconnects also ends its pull, but the server notices that later: a job that becomes ready in between
    would be leased to a client that has disconnected.
    """

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], set[PendingClaim]] = {}

    def add(self, namespace: str, wait_id: str, wait: PendingClaim) -> None:
        """Add a waiting pull."""
        self._waits.setdefault((namespace, wait_id), set()).add(wait)

    def remove(self, namespace: str, wait_id: str, wait: PendingClaim) -> None:
        """Remove a pull that was answered."""
        waits = self._waits[namespace, wait_id]
        waits.discard(wait)
        if not waits:
            del self._waits[namespace, wait_id]

    def end(self, namespace: str, wait_id: str) -> int:
        """Answer all pulls with an id at once, without a job. Return how many there were."""
        waits = self._waits.get((namespace, wait_id), ())
        for wait in waits:
            wait.give_up()
        return len(waits)


async def claim_for(
    req: ApiRequest, engine: EngineApi, claim: Claim, waits: PullWaits | None = None, wait_id: str | None = None
) -> Sequence[Delivery]:
    """Claim jobs. If the client disconnects while it waits, nothing is claimed, or the jobs are released.

    The same happens if its key or token ends; then Unauthorized is raised. With a ``wait_id``, ``waits`` can also end the
    wait.
    """
    if claim.wait_ms == 0:
        return await engine.run(claim)
    wait = PendingClaim(engine, claim).submit()
    namespace = claim.queue.namespace
    if waits is not None and wait_id is not None:
        waits.add(namespace, wait_id, wait)
    gone = asyncio.ensure_future(req.disconnected())
    gone.add_done_callback(lambda left: None if left.cancelled() else wait.give_up())
    watch = IdentityWatch(req, engine.clock, wait.give_up)
    try:
        deliveries = await wait.answer()
        if gone.done() or watch.is_over:  # a claim may have succeeded at the same moment
            wait.give_up()
            watch.check()
            return ()
        return deliveries
    finally:
        watch.cancel()
        gone.cancel()
        if waits is not None and wait_id is not None:
            waits.remove(namespace, wait_id, wait)
