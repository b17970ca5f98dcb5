"""Claims that wait for a job: the waiters of each queue, and a claim that its caller may give up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from penstock.core import limits
from penstock.core.errors import QueueMoving, TooMany
from penstock.engine.command import QueueCommand
from penstock.engine.jobs.settle import LeaseRef, Release

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
    """Look again at the line of a queue: its rate limit allows more by now."""

    __slots__ = ()

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return none: there is nothing to look at in a queue that is on another shard."""
        return ()


class ClaimWaiters:
    """Callers that wait for a job, first come first served."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._lines: dict[QueueKey, dict[Claim, Alarm]] = {}  #: the alarm of each claim rings at the end of its wait
        self._nudges: dict[QueueKey, tuple[int, Alarm]] = {}  #: the next look at a line, by the steady clock
        self._closed = False
        self._held: dict[str, int] = {}  #: how many wait of each namespace
        self.size = 0

    def line(self, queue: QueueKey) -> Iterable[Claim]:
        """Return the callers that wait at a queue, in order."""
        return self._lines.get(queue, ())

    def waiting(self, queue: QueueKey) -> int:
        """Return how many wait at a queue."""
        return len(self._lines.get(queue, ()))

    def enter(self, claim: Claim) -> None:
        """Join the line until served, tired of waiting, or gone."""
        if claim.future.done():
            return
        if self._closed or claim.state.is_abandoned:  # it may have left before it was in line
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
        self._lines.setdefault(claim.queue, {})[claim] = clock.call_at(until, lambda: self._tired(claim))
        self.size += 1
        self._held[namespace] = held + 1

    def leave(self, claim: Claim) -> bool:
        """Step out of the line; False if the caller was not in it."""
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
        shares = self._engine.shares
        shares.check("callers that wait for jobs", namespace, most=limits.waiters_max, taken=self.size, held=held)

    def look_around(self) -> None:
        """See which queues have moved: who waits at one that is gone is sent after it, the others' lines are looked at."""
        store, steady_ms = self._engine.store, self._engine.clock.steady_ms()
        for queue in list(self._lines):
            away = store.queue_away(queue)
            layout = store.layout
            if away is None and store.queue_find(queue) is None and layout is not None:
                gone = layout.has_moved and not layout.takes(queue)
            else:
                gone = away is not None and not away.move.standing.is_seen
            if not gone:
                self.nudge_at(queue, steady_ms)
                continue
            for claim in list(self.line(queue)):
                self.leave(claim)
                claim.state.suspend_wait(steady_ms)
                self._engine.send_on(claim, QueueMoving())

    def send_everybody_home(self) -> None:
        """Answer everybody with nothing, those who come later too, because the server is closing."""
        self._closed = True
        for claim in [claim for line in self._lines.values() for claim in line]:
            self._tired(claim)

    def nudge_all(self) -> None:
        """Have a look at every line, should nobody have told us that there is something to claim."""
        for queue in list(self._lines):
            self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_ready(self, work: UnitOfWork) -> None:
        """Have a look at the lines of the queues in which a piece of work has made something claimable."""
        for number in work.ready:
            queue = work.tx.queue_by_number(number).key
            if queue in self._lines:
                self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_at(self, queue: QueueKey, steady_ms: int) -> None:
        """Book another look at a line. Of several the earliest counts: each look books the next one, if there is need."""
        booked = self._nudges.get(queue)
        if booked is not None:
            if booked[0] <= steady_ms:
                return
            booked[1].cancel()  # it waits for a rate limit, which may have been changed since, as any other setting
        self._nudges[queue] = steady_ms, self._engine.clock.call_at(steady_ms, lambda: self._nudge(queue))

    def _nudge(self, queue: QueueKey) -> None:
        self._nudges.pop(queue, None)
        if queue in self._lines:
            self._engine.run_unheard(RecheckQueue(queue))

    def _tired(self, claim: Claim) -> None:
        if self.leave(claim) and not claim.future.done():
            claim.future.set_result([])


class PendingClaim:
    """A claim whose caller may leave while it waits: then nothing is claimed, or what was claimed is released."""

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
            self.give_up()  # it is the caller that was cancelled
            raise
        return () if self._claim.state.is_abandoned else deliveries

    def give_up(self) -> None:
        """Abandon the claim. A second call does nothing."""
        if not self._claim.state.is_abandoned:
            abandon(self._engine.of(self._claim.queue), self._claim)


def abandon(engine: ClaimShard, claim: Claim) -> None:
    """Remove a claim from its line, or release what it is just being given: its caller has left."""
    claim.state.abandon()
    engine = claim.state.engine or engine
    if engine.leave_line(claim):
        claim.future.cancel()
        return

    def give_back(future: asyncio.Future[list[Delivery]]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        return_deliveries(engine, claim, future.result())

    claim.future.add_done_callback(give_back)


def return_deliveries(engine: ClaimShard, caller: Claim, deliveries: list[Delivery]) -> None:
    """Release jobs that were leased for a caller that is gone."""
    if caller.note is not None:
        if deliveries:
            engine.run_unheard(caller.note.taken_back())
        return
    holds = [LeaseRef(delivery.job.id, delivery.job.token) for delivery in deliveries]
    if holds:  # if they cannot be released now, their leases will run out
        engine.run_unheard(Release(caller.queue.namespace, holds))
