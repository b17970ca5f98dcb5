"""Settles deliveries of the messages door, over HTTP or over a WebSocket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.access.identity import Right
from penstock.core.errors import ReceiptUnknown
from penstock.core.lifecycle import Arrow
from penstock.doors.messages.rendering import receipt_in
from penstock.engine.jobs.dead_letters import SettleDead
from penstock.engine.jobs.settle import LEASE_GONE, Ack, LeaseRef, Nack

if TYPE_CHECKING:
    from penstock.access.identity import Identity
    from penstock.core.queue import QueueKey
    from penstock.doors.messages.deliveries import Deliveries
    from penstock.doors.messages.metrics import MessageCounters
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import ItemOutcome


class DeliverySettler:
    """Acks or nacks deliveries by their receipt handles. ``deliveries`` are those over WebSockets."""

    def __init__(self, engine: EngineApi, counters: MessageCounters, deliveries: Deliveries) -> None:
        self._engine = engine
        self._counters = counters
        self._deliveries = deliveries

    async def settle(self, identity: Identity, text: str, *, done: bool) -> None:
        """Ack (``done``) or nack a delivery in a namespace where ``identity`` may do so. Raises ReceiptUnknown."""
        receipt = receipt_in(text)
        hold = LeaseRef(receipt.id, receipt.token)
        settled: list[QueueKey] = []

        def may(queue: QueueKey) -> bool:
            return identity.may(queue.namespace, Right.SETTLE)

        outcome: ItemOutcome
        if receipt.dead:
            outcome = await self._engine.run(SettleDead(hold, Arrow.PURGE if done else Arrow.PUT_DOWN, may, settled.append))
        elif done:
            (outcome,) = await self._engine.run(Ack(None, [hold], [None], may, when_settled=settled.append))
        else:
            (outcome,) = await self._engine.run(Nack(None, [hold], None, may=may, when_settled=settled.append))
        self._deliveries.consumer_spoke(receipt.token)
        if isinstance(outcome, LEASE_GONE):
            raise ReceiptUnknown(f'{"ack" if done else "nack"}: unknown or expired receipt handle "{text}"')
        if outcome is not None:
            raise outcome
        count = self._counters.of(settled[-1])
        if done:
            count.acked += 1
        else:
            count.nacked += 1
