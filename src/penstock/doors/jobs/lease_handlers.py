"""The route that notifies a worker when jobs that it holds were cancelled, without repeated polling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.doors.http.body import BodyReader
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import ABOUT_THE_JOB, JobsDoor, holds, in_words
from penstock.doors.jobs.job_handlers import NOT_ALIVE
from penstock.doors.jobs.wire import replies, requests
from penstock.engine.jobs.check_leases import CheckLeases
from penstock.engine.jobs.loss_alerts import LossAlert

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.doors.http.request import ApiRequest
    from penstock.engine.jobs.settle import LeaseRef

HELD_BATCH = BodyReader(requests.HeldBatchBody)


class LeaseHandlers(JobsDoor):
    """One method per route."""

    async def held_batch(self, req: ApiRequest) -> replies.BatchReply:
        body = await HELD_BATCH.read(req)
        claims = holds(body.ids, body.tokens)
        lost = await self.unless_gone(req, self._lost(self.namespace(req), body.ids, claims, body.timeout))
        errors = lost or []
        return replies.BatchReply(count=len(body.ids) - len(errors), errors=errors)

    async def _lost(
        self, namespace: str, texts: Sequence[str], claims: Sequence[LeaseRef], wait_ms: int
    ) -> list[replies.ItemError]:
        """Return the jobs that are no longer held, as soon as there is one, or when the time is over."""
        if not claims:
            return []  # nothing to wait for
        clock = self.engine.clock
        alert = LossAlert()
        # The alarm decides that the time is over, not the clock: a timer may fire slightly early, and this one fires once.
        alarm = clock.call_at(clock.steady_ms() + wait_ms, alert.end)
        # Another server may end a job after it was read and before the alert was set. Then a second read is needed.
        looks = 2 if self.store.capabilities.is_shared and wait_ms else 1
        try:
            while True:
                outcomes = await self.engine.run(CheckLeases(namespace, claims, alert))
                lost = [
                    replies.ItemError(text, in_words(outcome, text, NOT_ALIVE))
                    for text, outcome in zip(texts, outcomes, strict=True)
                    if isinstance(outcome, ABOUT_THE_JOB)
                ]
                if lost or alert.is_over or not wait_ms:
                    return lost
                looks -= 1
                if looks <= 0:
                    await alert.wait()
        finally:
            alarm.cancel()
            alert.close()

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        return self.namespaced(
            Route(
                "POST",
                "/jobs/held-batch",
                self.held_batch,
                "Check which jobs are still held",
                "Jobs",
                replies.BatchReply,
                body=HELD_BATCH,
                body_required=True,
            )
        )
