"""Subscriptions of queues: limits, whose they are, and who hears of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.errors import SubscriptionNotFound, TooMany
from penstock.core.events import EventKind
from penstock.core.queue import QueueKey
from penstock.engine.queues import admin
from penstock.engine.queues.push_subscriptions import AddSubscription, RemoveSubscription
from tests.support.engines import QUEUE, push

if TYPE_CHECKING:
    from penstock.core.queue import PushSubscription
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

OTHER = QueueKey("other", "mail")


async def add(engine: Engine, queue: QueueKey = QUEUE) -> PushSubscription:
    return await engine.run(AddSubscription(queue, "http://good.com/", "secret"))


def of(engine: Engine, queue: QueueKey = QUEUE) -> tuple[PushSubscription, ...]:
    found = engine.store.queue_find(queue)
    return () if found is None else found.settings.subscriptions


async def test_a_subscription_is_a_setting_of_its_queue(engine: Engine) -> None:
    changes: list[int] = []
    engine.signals.webhooks_changed.subscribe(lambda: changes.append(len(of(engine))))
    one, other = await add(engine), await add(engine)
    assert of(engine) == (one, other)
    await engine.run(RemoveSubscription(one.id, lambda _: True))
    assert of(engine) == (other,)
    assert changes == [1, 2, 1]
    events = [event for block in await engine.store.journal_read(0, 10) for event in block.events]
    assert {event[0] for event in events} == {EventKind.CONFIG_MESSAGES_CHANGED}
    assert "secret" not in f"{events}{engine.store.queue_find(QUEUE)}"


async def test_a_subscription_of_others_is_not_there(engine: Engine) -> None:
    mine = await add(engine)
    for command in (RemoveSubscription(mine.id, lambda key: key == OTHER), RemoveSubscription(1, lambda _: True)):
        with pytest.raises(SubscriptionNotFound):
            await engine.run(command)
    assert of(engine) == (mine,)


async def test_there_are_limits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "queue_subscriptions_max", 2)
    monkeypatch.setattr(limits, "subscriptions_max", 3)
    several = [engine.run(AddSubscription(QUEUE, "http://good.com/", "")) for _ in range(3)]
    await several[0]
    await several[1]
    with pytest.raises(TooMany, match="of this queue"):
        await several[2]
    await add(engine, OTHER)
    with pytest.raises(TooMany, match="Too many subscriptions \\(max 3\\)"):
        await add(engine, OTHER)


async def test_a_queue_takes_its_subscriptions_along(engine: Engine) -> None:
    await add(engine)
    await push(engine)
    changes: list[int] = []
    engine.signals.webhooks_changed.subscribe(lambda: changes.append(len(of(engine))))
    await admin.drain(engine, QUEUE)
    assert len(of(engine)) == 1
    await admin.obliterate(engine, QUEUE)
    assert (of(engine), changes) == ((), [0])
