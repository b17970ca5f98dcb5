"""Registers webhooks, and records how far their deliveries have got. ``outbound`` delivers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import ids, limits
from penstock.core.errors import TooMany, WebhookNotFound
from penstock.core.events import EventKind, queue_event
from penstock.core.webhook import DeliveryProgress, WebhookRecord
from penstock.engine.command import Command, NamespaceCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class AddWebhook(NamespaceCommand[WebhookRecord]):
    """Register a webhook that was checked; it gets the events from now on. Refused with TooMany."""

    __slots__ = ("events", "known_as", "queue", "secret", "url")

    grows = True

    def __init__(self, namespace: str, url: str, events: tuple[str, ...], queue: str | None, secret: str | None) -> None:
        super().__init__(namespace)
        self.url = url
        self.events = events
        self.queue = queue
        self.known_as: int | None = None  #: the id it has on another shard, where its event was journaled already
        self.secret = secret


class RemoveWebhook(NamespaceCommand[None]):
    """Remove a webhook. Refused with WebhookNotFound."""

    __slots__ = ("webhook_id",)

    def __init__(self, namespace: str, webhook_id: int) -> None:
        super().__init__(namespace)
        self.webhook_id = webhook_id


class EnableWebhook(NamespaceCommand[None]):
    """Switch a webhook on or off; a webhook that is switched on again continues from now. Refused with WebhookNotFound."""

    __slots__ = ("enabled", "webhook_id")

    def __init__(self, namespace: str, webhook_id: int, *, enabled: bool) -> None:
        super().__init__(namespace)
        self.webhook_id = webhook_id
        self.enabled = enabled


class NoteDeliveries(Command[None]):
    """Record how far the deliveries of webhooks have got, by webhook id. Webhooks that were removed are left out."""

    __slots__ = ("progress",)

    def __init__(self, progress: Sequence[tuple[int, DeliveryProgress]]) -> None:
        self.progress = progress

    def weight(self) -> int:
        """Return the number of its webhooks."""
        return len(self.progress)


async def add_webhook(engine: EngineContext, work: UnitOfWork, commands: Sequence[AddWebhook]) -> None:
    """Apply a batch of registrations."""
    for command in commands:
        try:
            _check_room(engine, command)
        except TooMany as error:
            work.refuse(command, error)
            continue
        webhook = WebhookRecord(
            id=command.known_as or work.serial(),
            namespace=command.namespace,
            url=command.url,
            events=command.events,
            queue=command.queue,
            secret=command.secret,
            created_at=work.now_ms,
            cursor=engine.store.journal_next,
        )
        await work.tx.webhook_save([webhook])
        if command.known_as is None:
            events = list(webhook.events)
            _journal_event(work, EventKind.WEBHOOK_ADDED, command.namespace, webhook.id, url=webhook.url, events=events)
        _changed(engine, work)
        work.answer(command, webhook)


def _check_room(engine: EngineContext, command: AddWebhook) -> None:
    """Raise TooMany, or NamespaceLimit. A webhook that exists on another shard was counted there."""
    webhooks = engine.store.webhook_list()
    if len(webhooks) >= limits.webhooks_max:
        raise TooMany(f"Too many webhooks (max {limits.webhooks_max}). Remove some that are not used.")
    if command.known_as is None:
        held = sum(each.namespace == command.namespace for each in webhooks)
        engine.pool_shares.check("webhooks", command.namespace, most=limits.webhooks_max, taken=len(webhooks), held=held)


async def remove_webhook(engine: EngineContext, work: UnitOfWork, commands: Sequence[RemoveWebhook]) -> None:
    """Apply a batch of removals."""
    for command in commands:
        if find(engine, command.namespace, command.webhook_id) is None:
            work.refuse(command, WebhookNotFound())
            continue
        await work.tx.webhook_remove([command.webhook_id])
        _journal_event(work, EventKind.WEBHOOK_REMOVED, command.namespace, command.webhook_id)
        _changed(engine, work)
        work.answer(command, None)


async def enable_webhook(engine: EngineContext, work: UnitOfWork, commands: Sequence[EnableWebhook]) -> None:
    """Apply a batch of switches."""
    for command in commands:
        webhook = find(engine, command.namespace, command.webhook_id)
        if webhook is None:
            work.refuse(command, WebhookNotFound())
            continue
        if webhook.enabled != command.enabled:
            cursor = engine.store.journal_next if command.enabled else webhook.cursor
            await work.tx.webhook_save([msgspec.structs.replace(webhook, enabled=command.enabled, cursor=cursor)])
            _changed(engine, work)
        work.answer(command, None)


async def note_deliveries(engine: EngineContext, work: UnitOfWork, commands: Sequence[NoteDeliveries]) -> None:
    """Apply a batch of deliveries. A cursor never moves back: that of a webhook that was switched on again is ahead already.

    It also never points behind the end of the journal: after a disk failure, the journal may have lost what was delivered.
    """
    end = engine.store.journal_next
    for command in commands:
        for webhook_id, progress in command.progress:
            webhook = engine.store.webhook_find(webhook_id)
            if webhook is not None:
                changed = msgspec.structs.replace(
                    webhook,
                    cursor=max(webhook.cursor, min(progress.cursor, end)),
                    successes=webhook.successes + progress.successes,
                    failures=webhook.failures + progress.failures,
                    last_triggered=progress.last_triggered or webhook.last_triggered,
                )
                await work.tx.webhook_save([changed])
        work.answer(command, None)


def find(engine: EngineContext, namespace: str, webhook_id: int) -> WebhookRecord | None:
    """Return a webhook of a namespace, or None."""
    webhook = engine.store.webhook_find(webhook_id)
    return None if webhook is None or webhook.namespace != namespace else webhook


def _journal_event(work: UnitOfWork, kind: EventKind, namespace: str, webhook_id: int, **more: object) -> None:
    work.tx.journal([queue_event(kind, 0, {"id": ids.to_uuid(webhook_id), **more}, namespace=namespace)])


def _changed(engine: EngineContext, work: UnitOfWork) -> None:
    work.after_commit.append(engine.signals.webhooks_changed.emit)
