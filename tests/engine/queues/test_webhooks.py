"""Registering webhooks: limits, namespaces, events of the journal, and notes that never go back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import ids, limits
from penstock.core.errors import InvalidInput, TooMany, WebhookNotFound
from penstock.core.events import EventKind
from penstock.core.webhook import KINDS, DeliveryProgress, check_events
from penstock.engine.queues.webhooks import AddWebhook, EnableWebhook, NoteDeliveries, RemoveWebhook
from tests.support.engines import push, push_many

if TYPE_CHECKING:
    from penstock.core.webhook import WebhookRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def add(engine: Engine) -> WebhookRecord:
    return await engine.run(AddWebhook("default", "http://good.com/", ("completed",), None, None))


async def test_registrations_and_removals_are_journaled(engine: Engine) -> None:
    webhook = await add(engine)
    await engine.run(RemoveWebhook("default", webhook.id))
    events = [event for block in await engine.store.journal_read(0, 10) for event in block.events]
    name = ids.to_uuid(webhook.id)
    payloads: list[Any] = [(event[0], event[4]) for event in events]
    assert payloads == [
        (EventKind.WEBHOOK_ADDED, {"id": name, "url": "http://good.com/", "events": ["completed"]}),
        (EventKind.WEBHOOK_REMOVED, {"id": name}),
    ]
    assert engine.store.webhook_list() == []


async def test_a_webhook_of_another_namespace_is_not_there(engine: Engine) -> None:
    webhook = await add(engine)
    with pytest.raises(WebhookNotFound):
        await engine.run(RemoveWebhook("other", webhook.id))
    with pytest.raises(WebhookNotFound):
        await engine.run(EnableWebhook("other", webhook.id, enabled=False))
    assert engine.store.webhook_list() == [webhook]


async def test_there_is_a_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "webhooks_max", 2)
    await add(engine)
    both = [engine.run(AddWebhook("other", "http://good.com/", ("failed",), None, None)) for _ in range(2)]
    await both[0]
    with pytest.raises(TooMany, match="Too many webhooks"):
        await both[1]


async def test_switching_on_what_is_on_changes_nothing(engine: Engine) -> None:
    webhook = await add(engine)
    await push(engine)
    await engine.run(EnableWebhook("default", webhook.id, enabled=True))
    assert engine.store.webhook_list() == [webhook]
    await engine.run(EnableWebhook("default", webhook.id, enabled=False))
    await engine.run(EnableWebhook("default", webhook.id, enabled=True))
    assert engine.store.webhook_list()[0].cursor == engine.store.journal_next


async def test_a_note_adds_up_and_never_goes_back(engine: Engine) -> None:
    webhook = await add(engine)
    await push_many(engine, 60)
    await engine.run(
        NoteDeliveries(
            [(webhook.id, DeliveryProgress(50, 2, 1, 77)), (5, DeliveryProgress(1)), (webhook.id, DeliveryProgress(40, 1))]
        )
    )
    (noted,) = engine.store.webhook_list()
    assert (noted.cursor, noted.successes, noted.failures, noted.last_triggered) == (50, 3, 1, 77)


async def test_a_note_never_points_behind_the_end_of_the_journal(engine: Engine) -> None:
    webhook = await add(engine)
    await engine.run(NoteDeliveries([(webhook.id, DeliveryProgress(50))]))
    (noted,) = engine.store.webhook_list()
    assert noted.cursor == engine.store.journal_next < 50


def test_every_spelling_of_an_event_is_the_same_event() -> None:
    for name in KINDS:
        assert check_events([name, f"job.{name}", f"job:{name}", name]) == (name, f"job.{name}", f"job:{name}")


@pytest.mark.parametrize("names", [[], ["nonsense"], ["completed", "job-completed"], ["Completed"], [""], ["pushed"] * 19])
def test_events_that_do_not_exist_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match="ebhook event"):
        check_events(names)
