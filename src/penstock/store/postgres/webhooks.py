"""Webhooks in PostgreSQL: few and asked for often, so every server has all of them in memory too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.webhook import Webhook

if TYPE_CHECKING:
    from collections.abc import Iterable

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


async def read(db: Connection) -> list[Webhook]:
    """Read all webhooks."""
    return [
        Webhook(webhook_id, namespace, url, tuple(events.split(",")), *others)
        for webhook_id, namespace, url, events, *others in await db.fetch(_ALL)
    ]


async def save(db: Connection, webhooks: Iterable[tuple[int, Webhook]]) -> None:
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
