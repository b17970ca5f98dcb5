"""Registers the webhooks to which messages of a queue are pushed. The messages door pushes them.

They are settings of their queue: every server reads them with the queue, they move with it, and they are removed with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.errors import QueueMoving, SubscriptionNotFound, TooMany
from penstock.core.events import EventKind
from penstock.core.queue import PushSubscription
from penstock.engine.command import BY_RECEIPT, Command, QueueCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class AddSubscription(QueueCommand[PushSubscription]):
    """Push the messages of a queue to a URL that was checked. Refused with TooMany."""

    __slots__ = ("secret", "url")

    grows = True

    def __init__(self, queue: QueueKey, url: str, secret: str) -> None:
        super().__init__(queue)
        self.url = url
        self.secret = secret


class RemoveSubscription(Command[None]):
    """Stop pushing messages to a URL. Refused with SubscriptionNotFound.

    ``may``: whether subscriptions of a queue may be changed; all others count as unknown.
    """

    __slots__ = ("may", "subscription_id")

    def __init__(self, subscription_id: int, may: Callable[[QueueKey], bool]) -> None:
        self.subscription_id = subscription_id
        self.may = may

    def tenant(self) -> str | None:
        """Return the share of commands that name no namespace."""
        return BY_RECEIPT


async def add_subscription(engine: EngineContext, work: UnitOfWork, commands: Sequence[AddSubscription]) -> None:
    """Apply a batch of registrations."""
    for command in commands:
        try:
            queue = await work.tx.queue_open(command.queue)
            _check_room(engine, queue)
        except TooMany as error:
            work.refuse(command, error)
            continue
        added = PushSubscription(work.serial(), command.url, command.secret, work.now_ms)
        await _save(engine, work, queue, (*queue.settings.subscriptions, added))
        work.answer(command, added)


def _check_room(engine: EngineContext, queue: Queue) -> None:
    """Raise TooMany, or NamespaceLimit."""
    namespace, most = queue.key.namespace, limits.subscriptions_max
    taken = held = 0
    for each in engine.store.queues_subscribed():
        count = len(each.settings.subscriptions)
        taken += count
        held += count if each.key.namespace == namespace else 0
    text = ""
    if len(queue.settings.subscriptions) >= limits.queue_subscriptions_max:
        text = f"Too many subscriptions of this queue (max {limits.queue_subscriptions_max})."
    elif taken >= most:
        text = f"Too many subscriptions (max {most})."
    if text:
        raise TooMany(f"{text} Remove some that are not used.")
    engine.pool_shares.check("push subscriptions", namespace, most=most, taken=taken, held=held)


async def remove_subscription(engine: EngineContext, work: UnitOfWork, commands: Sequence[RemoveSubscription]) -> None:
    """Apply a batch of removals."""
    for command in commands:
        found = _find(engine, command)
        if found is None:
            work.refuse(command, SubscriptionNotFound())
        elif work.tx.queue_away(found.key) is not None:
            work.refuse(command, QueueMoving())
        else:
            kept = tuple(each for each in found.settings.subscriptions if each.id != command.subscription_id)
            await _save(engine, work, found, kept)
            work.answer(command, None)


async def _save(engine: EngineContext, work: UnitOfWork, queue: Queue, subscriptions: tuple[PushSubscription, ...]) -> None:
    settings = msgspec.structs.replace(queue.settings, subscriptions=subscriptions)
    await work.tx.queue_save(queue, settings, queue.created_at)
    work.journal_queue_event(EventKind.CONFIG_MESSAGES_CHANGED, queue)
    work.reconfigured.add(queue.key)
    work.after_commit.append(engine.signals.webhooks_changed.emit)


def _find(engine: EngineContext, command: RemoveSubscription) -> Queue | None:
    """Return the queue that has a subscription. All queues with subscriptions are searched."""
    for queue in engine.store.queues_subscribed():
        if any(each.id == command.subscription_id for each in queue.settings.subscriptions):
            return queue if command.may(queue.key) else None
    return None
