"""Claims that wait for a job: the waiters of each queue, and a claim that its caller may give up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from penstock.core import limits
from penstock.core.errors import QueueMoving, TooMany
from penstock.engine.command import QueueCommand
from penstock.engine.jobs.settle import LeaseRef, Release, slices_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.clock import Alarm
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.claim import Claim, ClaimShard
    from penstock.engine.unit_of_work import UnitOfWork


class RecheckQueue(QueueCommand[None]):
    """Serve the waiting claims of a queue again, because its rate limit now allows more."""

    __slots__ = ()

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return no queue: if the queue is on another shard, there is nothing to serve here."""
        return ()

    def tenant(self) -> str | None:
        """Return None: the server itself sends it."""
        return None


class ClaimWaiters:
    """Claims that wait for a job. The first claim in line is served first."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._lines: dict[QueueKey, dict[Claim, Alarm]] = {}  #: the alarm of each claim fires at the end of its wait
        self._nudges: dict[QueueKey, tuple[int, Alarm]] = {}  #: when a line is served next (steady ms), and the alarm
        self._closed = False
        self._held: dict[str, int] = {}  #: number of waiting claims of each namespace
        self.size = 0

    def line(self, queue: QueueKey) -> Iterable[Claim]:
        """Return the claims that wait at a queue, in order."""
        return self._lines.get(queue, ())

    def waiting(self, queue: QueueKey) -> int:
        """Return the number of claims that wait at a queue."""
        return len(self._lines.get(queue, ()))

    def enter(self, claim: Claim) -> None:
        """Add a claim to the line, until it is served, its wait ends, or its caller leaves."""
        if claim.future.done():
            return
        if self._closed or claim.state.is_abandoned:  # the caller may have left before the claim was in line
            claim.future.set_result([])
            return
        namespace = claim.queue.namespace
        held = self._held.get(namespace, 0)
        try:
            self._check_room(namespace, held)
        except TooMany as error:
            claim.future.set_exception(error)
            return
        clock = self._engine.clock
        until = claim.state.begin_wait(clock.steady_ms())
        self._lines.setdefault(claim.queue, {})[claim] = clock.call_at(until, lambda: self._wait_ended(claim))
        self.size += 1
        self._held[namespace] = held + 1

    def leave(self, claim: Claim) -> bool:
        """Remove a claim from the line; False if it was not in it."""
        line = self._lines.get(claim.queue)
        alarm = None if line is None else line.pop(claim, None)
        if line is None or alarm is None:
            return False
        alarm.cancel()
        self.size -= 1
        held = self._held.pop(claim.queue.namespace) - 1
        if held:
            self._held[claim.queue.namespace] = held
        if not line:
            del self._lines[claim.queue]
        return True

    def _check_room(self, namespace: str, held: int) -> None:
        """Raise TooMany, or NamespaceLimit."""
        if self.size >= limits.waiters_max:
            raise TooMany("Too many callers wait for jobs. Poll without a timeout, or retry later.")
        pool_shares = self._engine.pool_shares
        pool_shares.check("callers that wait for jobs", namespace, most=limits.waiters_max, taken=self.size, held=held)

    def handle_moved_queues(self) -> None:
        """Handle moved queues: claims of a queue that was moved are sent to its new shard. All other lines are served again."""
        store, steady_ms = self._engine.store, self._engine.clock.steady_ms()
        for queue in list(self._lines):
            away = store.queue_away(queue)
            layout = store.layout
            if away is None and store.queue_find(queue) is None and layout is not None:
                gone = layout.has_moved and not layout.takes(queue)
            else:
                gone = away is not None and not away.move.step.is_seen
            if not gone:
                self.nudge_at(queue, steady_ms)
                continue
            for claim in list(self.line(queue)):
                self.leave(claim)
                claim.state.suspend_wait(steady_ms)
                self._engine.send_on(claim, QueueMoving())

    def answer_all_waiters(self) -> None:
        """Answer all waiting claims, and all later ones, without a job, because the server is closing."""
        self._closed = True
        for claim in [claim for line in self._lines.values() for claim in line]:
            self._wait_ended(claim)

    def nudge_all(self) -> None:
        """Serve all lines again, in case a notification about new jobs was lost."""
        for queue in list(self._lines):
            self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_ready(self, work: UnitOfWork) -> None:
        """Serve the lines of the queues in which a transaction has made jobs ready."""
        for number in work.ready:
            queue = work.tx.queue_by_number(number).key
            if queue in self._lines:
                self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_at(self, queue: QueueKey, steady_ms: int) -> None:
        """Schedule the next time at which a line is served.

        The earliest time counts: each time schedules the next, if needed.
        """
        nudge = self._nudges.get(queue)
        if nudge is not None:
            if nudge[0] <= steady_ms:
                return
            nudge[1].cancel()  # the line waits for a rate limit, which may have been changed since, like any other setting
        self._nudges[queue] = steady_ms, self._engine.clock.call_at(steady_ms, lambda: self._nudge(queue))

    def _nudge(self, queue: QueueKey) -> None:
        self._nudges.pop(queue, None)
        if queue in self._lines:
            self._engine.run_in_background(RecheckQueue(queue))

    def _wait_ended(self, claim: Claim) -> None:
        if self.leave(claim) and not claim.future.done():
            claim.future.set_result([])


class PendingClaim:
    """A claim whose caller may leave while it waits. Then no job is claimed, or the claimed jobs are released."""

    def __init__(self, engine: EngineApi, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim

    def submit(self) -> Self:
        """Submit the claim. Raises what the engine refuses it with."""
        self._engine.run(self._claim)
        return self

    async def answer(self) -> Sequence[Delivery]:
        """Return the deliveries; none if the claim was given up. Raises the error that it was refused with."""
        try:
            deliveries = await asyncio.shield(self._claim.future)
        except asyncio.CancelledError:
            if self._claim.state.is_abandoned:
                return ()
            self.give_up()  # the caller was cancelled
            raise
        return () if self._claim.state.is_abandoned else deliveries

    def give_up(self) -> None:
        """Abandon the claim. A second call does nothing."""
        if not self._claim.state.is_abandoned:
            abandon(self._engine.of(self._claim.queue), self._claim)


def abandon(engine: ClaimShard, claim: Claim) -> None:
    """Remove a claim from its line, or release the jobs that are being leased to it, because its caller has left."""
    claim.state.abandon()
    engine = claim.state.engine or engine
    if engine.leave_line(claim):
        claim.future.cancel()
        return

    def return_jobs(future: asyncio.Future[list[Delivery]]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        return_deliveries(engine, claim, future.result())

    claim.future.add_done_callback(return_jobs)


def return_deliveries(engine: ClaimShard, caller: Claim, deliveries: list[Delivery]) -> None:
    """Release jobs that were leased for a caller that has left."""
    if caller.note is not None:
        if deliveries:
            engine.run_in_background(caller.note.taken_back())
        return
    holds = [LeaseRef(delivery.job.id, delivery.job.token) for delivery in deliveries]
    for some in slices_of(holds):  # if they cannot be released now, their leases expire
        engine.run_in_background(Release(caller.queue.namespace, some))
