"""What a store promises about webhooks: kept as they are, through a restart, and taken back by a rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.events import EventKind, queue_event
from penstock.core.webhook import WebhookRecord
from tests.store.conformance.workbench import MAIL

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


def make(bench: Workbench, namespace: str = "default") -> WebhookRecord:
    return WebhookRecord(
        id=bench.serial(), namespace=namespace, url="https://good.com/ä?a=b", events=("completed", "job.failed"), queue="mail",
        secret="geheim ☃", created_at=bench.now_ms, cursor=7, enabled=False, successes=3, failures=2, last_triggered=9,
    )  # fmt: skip


async def save(bench: Workbench, *webhooks: WebhookRecord) -> None:
    async with bench.transaction() as tx:
        await tx.webhook_save(webhooks)


async def test_webhooks_are_kept_as_they_are_oldest_first(bench: Workbench) -> None:
    first, second = make(bench), msgspec.structs.replace(make(bench, "other"), queue=None, secret=None, last_triggered=None)
    await save(bench, second, first)
    assert bench.store.webhook_list() == [first, second]
    await bench.restart()
    assert bench.store.webhook_list() == [first, second]
    assert bench.store.webhook_find(second.id) == second
    assert bench.store.webhook_find(1) is None


async def test_a_webhook_is_replaced_as_a_whole(bench: Workbench) -> None:
    webhook = make(bench)
    await save(bench, webhook)
    changed = msgspec.structs.replace(webhook, cursor=8, enabled=True, successes=4)
    await save(bench, changed)
    await bench.restart()
    assert bench.store.webhook_list() == [changed]


async def test_a_removed_webhook_is_gone_and_an_unknown_one_is_no_error(bench: Workbench) -> None:
    first, second = make(bench), make(bench)
    await save(bench, first, second)
    async with bench.transaction() as tx:
        await tx.webhook_remove([first.id, 5])
    await bench.restart()
    assert bench.store.webhook_list() == [second]


async def test_a_transaction_sees_what_it_wrote_and_a_rollback_takes_it_back(bench: Workbench) -> None:
    kept, new = make(bench), make(bench, "brand-new")
    await save(bench, kept)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.webhook_save([new])
            assert bench.store.webhook_find(new.id) == new
            await tx.webhook_save([msgspec.structs.replace(kept, cursor=99)])
            await tx.webhook_remove([kept.id])
            assert bench.store.webhook_find(kept.id) is None
            raise RuntimeError
    assert bench.store.webhook_list() == [kept]
    await bench.restart()
    assert bench.store.webhook_list() == [kept]


async def test_the_next_number_of_the_journal_is_known(bench: Workbench) -> None:
    assert bench.store.journal_next == 1
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
        tx.journal([queue_event(EventKind.QUEUE_PAUSED, queue.number)] * 3)
    assert bench.store.journal_next == 4
    await bench.restart()
    assert bench.store.journal_next == 4
