"""Subscribers: each holds at most one message, settles it, and gets the next one.

A held message is leased. This server renews the lease while the subscriber is connected, so a subscriber may take as much
time as it needs. When the server dies, its leases expire, and the held messages are ready again.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import structlog

from penstock.core import limits
from penstock.core.binary_payload import unwrap
from penstock.core.errors import JobNotFound, ServerError, TooMany
from penstock.core.job import details_of
from penstock.core.lifecycle import Arrow
from penstock.core.pool_shares import Pool
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import PendingClaim
from penstock.engine.jobs.settle import Ack, LeaseRef, Renew, Requeue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Alarm
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi, ShardApi
    from penstock.engine.jobs.settle import LeaseCommand

log = structlog.get_logger("penstock.topics")


class MessageOutcome(Enum):
    """How a subscriber settles its message."""

    ACK = "ACK"  #: done: it is removed
    NACK = "NACK"  #: not done: to the front of the topic
    BACK = "BACK"  #: not done: to the back
    DACK = "DACK"  #: not done: to the front, after a delay


_ARROWS = {MessageOutcome.NACK: Arrow.RETURN, MessageOutcome.BACK: Arrow.SEND_BACK, MessageOutcome.DACK: Arrow.SNOOZE}


class NothingHeld(ServerError):
    """No message is held, so there is nothing to settle."""

    code = "wrong_state"


class Occupied(ServerError):
    """A message is held already. Settle it before you request the next one."""

    code = "wrong_state"


class NextFailed(ServerError):
    """The next message could not be claimed. The settlement of the previous one is done."""

    def __init__(self, reason: ServerError) -> None:
        why = "" if isinstance(reason, Occupied) else f": {reason}"
        super().__init__(f"error getting next value for consumer{why}")
        self.code = reason.code
        self.reason = reason


class TopicMessage(NamedTuple):
    """A message, as a subscriber gets it."""

    data: bytes
    dack_count: int = 0  #: the number of its DACKs


class Subscribers:
    """All subscribers of this server. ``lease_ms``: the lease of a held message, renewed while the server runs."""

    def __init__(self, engine: EngineApi, lease_ms: int) -> None:
        self.engine = engine
        self.lease_ms = lease_ms
        self.closed = False
        self._open: set[Subscriber] = set()
        self._pool = Pool("subscribers", limits.subscribers_max, engine.pool_shares)
        self._alarm: Alarm | None = None
        self._renewing: dict[ShardApi, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def subscribe(self, queue: QueueKey) -> Subscriber:
        """Return a new subscriber, which the caller closes. Raises TooMany."""
        if self.closed or len(self._open) >= limits.subscribers_max:
            raise TooMany("Too many subscribers. Retry later, or use another server.")
        self._pool.enter(queue.namespace)
        subscriber = Subscriber(self, queue)
        self._open.add(subscriber)
        self._set_alarm()
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        if subscriber in self._open:
            self._open.discard(subscriber)
            self._pool.leave(subscriber.queue.namespace)

    def stop(self) -> None:
        """End all waits because the server stops: each waiting subscriber gets no message."""
        self.closed = True
        for subscriber in self._open:
            subscriber.stop_waiting()

    async def close(self) -> None:
        """Release all held messages. Call this when the subscribers are no longer in use."""
        self.stop()
        if self._alarm is not None:
            self._alarm.cancel()
        await asyncio.gather(*(subscriber.close() for subscriber in list(self._open)))
        await asyncio.gather(*self._renewing.values())

    # Leases.

    def _set_alarm(self) -> None:
        if self._alarm is None and self._open and not self.closed:
            clock = self.engine.clock
            self._alarm = clock.call_at(clock.steady_ms() + self.lease_ms // 3, self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        if not self.closed:
            self._renew_all()
        self._set_alarm()

    def _renew_all(self) -> None:
        """Renew the leases of messages that have been held for some time. A failed renewal is tried again.

        Each shard has its own task, so that a shard that hangs does not delay renewals on the others.
        """
        before = self.engine.clock.steady_ms() - self.lease_ms // 3
        holds: dict[ShardApi, dict[str, list[LeaseRef]]] = {}
        for subscriber in self._open:
            if subscriber.hold is not None and subscriber.held_since <= before:
                of_shard = holds.setdefault(self.engine.of(subscriber.queue), {})
                of_shard.setdefault(subscriber.queue.namespace, []).append(subscriber.hold)
        for engine, of_shard in holds.items():
            if engine not in self._renewing:
                renewing = asyncio.get_running_loop().create_task(
                    self._renew(engine, of_shard), name="penstock-topics-leases"
                )
                self._renewing[engine] = renewing

    async def _renew(self, engine: ShardApi, holds: dict[str, list[LeaseRef]]) -> None:
        try:
            for namespace, all_of_it in holds.items():
                for start in range(0, len(all_of_it), limits.ids_max):
                    some = all_of_it[start : start + limits.ids_max]
                    await self.engine.run(Renew(namespace, some, [self.lease_ms] * len(some)))
        except ServerError as error:
            log.warning("leases of held messages could not be renewed", error=str(error))
        finally:
            del self._renewing[engine]


class Subscriber:
    """One subscriber. Its methods are called one after the other, except ``close``, which may be called at any time."""

    def __init__(self, subscribers: Subscribers, queue: QueueKey) -> None:
        self.queue = queue
        self.hold: LeaseRef | None = None  #: the lease of the held message
        self.held_since = 0  #: steady ms
        self._subscribers = subscribers
        self._engine = subscribers.engine
        self._asked: PendingClaim | None = None  #: the claim of the next message
        self._closed = False

    async def next(self, wait_ms: int | None = None) -> TopicMessage | None:
        """Wait for the next message, and hold it. ``wait_ms``: the longest wait; by default without end.

        Return None if the time is over, the server stops, or the subscriber was closed. Raises NextFailed, for example
        because a message is held already.
        """
        if self.hold is not None:
            raise NextFailed(Occupied())
        while not self._closed and not self._subscribers.closed:
            delivery = await self._delivered(self._ask(wait_ms))
            if delivery is not None:
                return self._take(delivery)
            if wait_ms is not None:
                break
        return None

    async def settle(self, word: MessageOutcome, delay_ms: int = 0) -> None:
        """Settle the held message; ``delay_ms`` is for DACK.

        An ACK without a held message has no effect, unless this is closed. Raises NothingHeld. Raises StaleLease, WrongState
        or JobNotFound if the lease was lost in the meantime, but an ACK of a removed message succeeds. After any other error
        nothing was changed, and the message is still held.
        """
        command = self._settlement(word, delay_ms)
        if command is not None:
            outcomes = await self._engine.run(command)
            self._settled(word, outcomes)

    async def settle_and_next(
        self,
        word: MessageOutcome,
        delay_ms: int = 0,
        when_settled: Callable[[], None] = lambda: None,
        *,
        wait_ms: int | None = None,
    ) -> TopicMessage | None:
        """Settle, then wait for the next message; both together if the outcome is the same.

        ``when_settled`` is called between the two.
        """
        if word is not MessageOutcome.ACK or self.hold is None or self._closed or self._subscribers.closed:
            await self.settle(word, delay_ms)
            when_settled()
            return await self.next(wait_ms)
        settling = self._engine.run(Ack(self.queue.namespace, [self.hold], (None,)))
        try:
            asked = self._ask(wait_ms)
        except NextFailed:  # the settlement is done all the same
            self._settled(word, await settling)
            when_settled()
            raise
        try:
            self._settled(word, await settling)
        except BaseException:
            asked.give_up()
            raise
        when_settled()
        delivery = await self._delivered(asked)
        if delivery is not None:
            return self._take(delivery)
        return await self.next() if wait_ms is None else None

    def end(self) -> None:
        """Accept no more requests. Call ``close`` afterwards."""
        self._closed = True
        self.stop_waiting()

    def stop_waiting(self) -> None:
        """Make a waiting ``next`` return without a message."""
        if self._asked is not None:
            self._asked.give_up()

    async def close(self) -> None:
        """Stop waiting, and return the held message to the front. Never raises: if that fails, the lease expires."""
        self.end()
        hold, self.hold = self.hold, None
        self._subscribers.leave(self)
        if hold is not None:
            try:
                await self._engine.run(Requeue(self.queue.namespace, [hold], Arrow.RETURN))
            except ServerError as error:
                log.warning("a held message could not be released; its lease will expire", error=str(error))

    # Claims.

    def _ask(self, wait_ms: int | None) -> PendingClaim:
        wait_ms = limits.subscription_wait_ms if wait_ms is None else wait_ms
        claim = Claim(self.queue, wait_ms=wait_ms, lease_ms=self._subscribers.lease_ms)
        try:
            self._asked = PendingClaim(self._engine, claim).submit()
        except ServerError as error:
            raise NextFailed(error) from None
        return self._asked

    async def _delivered(self, asked: PendingClaim) -> Delivery | None:
        """Wait for the delivery of a claim; None if there is none, or the claim was cancelled."""
        try:
            deliveries = await asked.answer()
        except ServerError as error:
            raise NextFailed(error) from None
        finally:
            self._asked = None
        return deliveries[0] if deliveries else None

    def _take(self, delivery: Delivery) -> TopicMessage:
        job, payload = delivery
        self.hold = LeaseRef(job.id, job.token)
        self.held_since = self._engine.clock.steady_ms()
        data, _ = unwrap(payload)
        return TopicMessage(data, 0 if job.details is None else details_of(job).dacks)

    # Settlements.

    def _settlement(self, word: MessageOutcome, delay_ms: int) -> LeaseCommand | None:
        if self.hold is None:
            if word is MessageOutcome.ACK and not self._closed:  # after the close, the held message was released
                return None
            raise NothingHeld
        if word is MessageOutcome.ACK:
            return Ack(self.queue.namespace, [self.hold], (None,))
        return Requeue(self.queue.namespace, [self.hold], _ARROWS[word], delay_ms)

    def _settled(self, word: MessageOutcome, outcomes: Sequence[ServerError | None]) -> None:
        self.hold = None
        problem = outcomes[0]
        if problem is not None and not (word is MessageOutcome.ACK and isinstance(problem, JobNotFound)):
            raise problem
