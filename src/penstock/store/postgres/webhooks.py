"""Webhooks in PostgreSQL: few and read often, so every server also has all of them in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.webhook import WebhookRecord
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Connection

_ALL = """
select w.id, n.name, w.url, w.events, w.queue, w.secret, w.created_at, w.cursor, w.enabled, w.successes, w.failures,
       w.last_triggered
from webhooks w join namespaces n on n.number = w.namespace
"""
_SAVE = """
insert into webhooks values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (id) do update set url = $3, events = $4, queue = $5, secret = $6, cursor = $8, enabled = $9, successes = $10,
  failures = $11, last_triggered = $12
"""


async def read(db: Connection) -> list[WebhookRecord]:
    """Read all webhooks."""
    return [
        WebhookRecord(webhook_id, namespace, url, tuple(events.split(",")), *others)
        for webhook_id, namespace, url, events, *others in await db.fetch(_ALL)
    ]


async def save(db: Connection, webhooks: Iterable[tuple[int, WebhookRecord]]) -> None:
    """Write webhooks, each with the number of its namespace."""
    await db.executemany(
        _SAVE,
        [
            (
                each.id,
                namespace,
                each.url,
                ",".join(each.events),
                each.queue,
                each.secret,
                each.created_at,
                each.cursor,
                each.enabled,
                each.successes,
                each.failures,
                each.last_triggered,
            )
            for namespace, each in webhooks
        ],
    )


class PostgresWebhooks(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def webhook_save(self, webhooks: Sequence[WebhookRecord]) -> None:
        await self._change_webhooks()
        numbered = [(await self._open_namespace(each.namespace), each) for each in webhooks]
        await save(self._db, numbered)
        for each in webhooks:
            self._catalog.webhooks[each.id] = each

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        await self._change_webhooks()
        await self._db.execute("delete from webhooks where id = any ($1::bigint[])", ids)
        for webhook_id in ids:
            self._catalog.webhooks.pop(webhook_id, None)

    async def _change_webhooks(self) -> None:
        """Detect a change by another server since the webhooks were read: a write replaces the whole row."""
        await self._next_version()
        self._webhooks_changed = True
        before = dict(self._catalog.webhooks)

        def undo() -> None:
            self._catalog.webhooks = before

        self._undo.append(undo)
