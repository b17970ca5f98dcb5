"""Runs one delivery task for every enabled webhook, and records the progress of each.

Events are read from the journal, from each webhook's own position, and the position is recorded after the delivery. So after
a crash, some events are repeated and none is skipped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.core import limits
from penstock.core.errors import ServerError
from penstock.engine.event_feed import UNNUMBERED
from penstock.engine.maintenance.service import PeriodicService
from penstock.engine.queues.webhooks import NoteDeliveries
from penstock.outbound.delivery import Policy, WebhookDelivery, subjects_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.webhook import DeliveryProgress
    from penstock.engine.context import EngineContext
    from penstock.outbound.delivery import Post
    from penstock.store.contract import JournalBlock

log = structlog.get_logger("penstock.webhooks")


class WebhookDispatcher(PeriodicService):
    """Delivers webhooks. Start it after the engine, stop it before the engine closes. ``run_once`` records the progress."""

    every_ms = 500
    #: Positions that moved without a delivery are recorded at this interval: losing them costs only a repeated read.
    idle_ms = limits.MINUTE_MS

    def __init__(self, engine: EngineContext, post: Post, policy: Policy | None = None) -> None:
        super().__init__(engine)
        self._post = post
        self._policy = policy or Policy()
        self._deliveries: dict[int, WebhookDelivery] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._left: list[WebhookDelivery] = []  #: stopped deliveries with progress that is not recorded yet
        self._all_noted_at = engine.clock.steady_ms()
        self._stop_listening: Callable[[], None] | None = None
        self._subscriptions: list[Callable[[], None]] = []  #: functions that end the subscriptions to signals of the engine

    def start(self) -> None:
        """Start to deliver. It is safe to call this twice."""
        if not self._subscriptions:
            signals = self._engine.signals
            self._subscriptions = [
                signals.webhooks_changed.subscribe(self._serve_webhooks),
                signals.leadership_changed.subscribe(self._serve_webhooks),
                signals.durable.subscribe(self._nudge),
                signals.store_recovered.subscribe(self._rewind),
            ]
            self._serve_webhooks()
        super().start()

    async def stop(self) -> None:
        """Stop immediately, and record all positions. It is safe to call this twice."""
        await super().stop()
        for end in self._subscriptions:
            end()
        self._subscriptions = []
        for webhook_id in list(self._deliveries):
            self._dismiss(webhook_id)
        self._listen()
        await asyncio.gather(*self._leaving)
        try:
            await self._note(all_webhooks=True)
        except ServerError as error:
            log.warning("the last deliveries could not be recorded and are repeated at the next start", error=str(error))

    async def run_once(self) -> None:
        """Record deliveries, and at intervals the positions of all webhooks."""
        now = self._engine.clock.steady_ms()
        all_webhooks = now - self._all_noted_at >= self.idle_ms
        if all_webhooks:
            self._all_noted_at = now
        await self._note(all_webhooks=all_webhooks)

    def _handle_block(self, block: JournalBlock) -> None:
        if block.seq != UNNUMBERED:
            subjects = subjects_of(block)
            for delivery in self._deliveries.values():
                delivery.handle_block(block, subjects)

    def _nudge(self) -> None:
        for delivery in self._deliveries.values():
            delivery.nudge()

    def _rewind(self) -> None:
        """Handle a store that was read again: lost registrations and events are discarded."""
        for delivery in (*self._deliveries.values(), *self._left):
            delivery.rewind()
        self._serve_webhooks()

    def _serve_webhooks(self) -> None:
        """Read the webhooks, and run a delivery for each enabled one, if this server is the one that delivers."""
        webhooks = self._engine.store.webhook_list() if self._engine.leads else []
        wanted = {webhook.id: webhook for webhook in webhooks if webhook.enabled}
        for webhook_id, delivery in list(self._deliveries.items()):
            # A webhook whose position is ahead of its delivery was disabled and enabled again.
            if webhook_id not in wanted or wanted[webhook_id].cursor > delivery.cursor:
                self._dismiss(webhook_id)
        for webhook_id, webhook in wanted.items():
            if webhook_id not in self._deliveries:
                delivery = self._deliveries[webhook_id] = WebhookDelivery(self._engine, self._post, self._policy, webhook)
                delivery.start()
        self._listen()

    def _listen(self) -> None:
        """Subscribe to the feed only while there are deliveries to wake: a feed without subscribers costs nothing."""
        if self._deliveries and self._stop_listening is None:
            self._stop_listening = self._engine.feed.listen(self._handle_block)
        elif not self._deliveries and self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _dismiss(self, webhook_id: int) -> None:
        delivery = self._deliveries.pop(webhook_id)
        leaving = asyncio.get_running_loop().create_task(delivery.stop(), name="penstock-webhook-leaving")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if self._engine.store.webhook_find(webhook_id) is not None:
            self._left.append(delivery)

    async def _note(self, *, all_webhooks: bool) -> None:
        noted: list[tuple[WebhookDelivery, DeliveryProgress]] = []
        left, self._left = self._left, []
        for delivery in (*left, *self._deliveries.values()):
            if all_webhooks or delivery.has_news or delivery in left:
                progress = delivery.take_progress()
                if progress is not None:
                    noted.append((delivery, progress))
        if not noted:
            return
        try:
            await self._engine.run(NoteDeliveries([(delivery.webhook.id, progress) for delivery, progress in noted]))
        except ServerError:
            for delivery, progress in noted:
                delivery.restore_progress(progress)
            self._left += left
            raise
