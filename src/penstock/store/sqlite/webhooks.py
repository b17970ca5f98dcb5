"""The webhooks of the SQLite store: few and read often, so all of them are in memory too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.webhook import WebhookRecord
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

_ALL = """
select w.id, n.name, w.url, w.events, w.queue, w.secret, w.created_at, w.cursor, w.enabled, w.successes, w.failures,
       w.last_triggered
from webhooks w join namespaces n on n.number = w.namespace
"""
_SAVE = """
insert or replace into webhooks (id, namespace, url, events, queue, secret, created_at, cursor, enabled, successes, failures,
                                 last_triggered)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class Webhooks:
    """Filled from the file when it is opened, changed by transactions, which undo their changes when they are rolled back."""

    def __init__(self, db: apsw.Connection) -> None:
        self.by_id: dict[int, WebhookRecord] = {}
        for webhook_id, namespace, url, events, queue, secret, created_at, cursor, enabled, *counters in db.execute(_ALL):
            names = tuple(events.split(","))
            self.by_id[webhook_id] = WebhookRecord(
                webhook_id, namespace, url, names, queue, secret, created_at, cursor, bool(enabled), *counters
            )

    def save(self, db: apsw.Connection, webhooks: Iterable[tuple[int, WebhookRecord]]) -> None:
        """Write webhooks, each with the number of its namespace."""
        for namespace, each in webhooks:
            columns = each.queue, each.secret, each.created_at, each.cursor, int(each.enabled)
            counters = each.successes, each.failures, each.last_triggered
            db.execute(_SAVE, (each.id, namespace, each.url, ",".join(each.events), *columns, *counters))
            self.by_id[each.id] = each

    def remove(self, db: apsw.Connection, ids: Sequence[int]) -> None:
        """Remove webhooks."""
        db.executemany("delete from webhooks where id = ?", [(webhook_id,) for webhook_id in ids])
        for webhook_id in ids:
            self.by_id.pop(webhook_id, None)

    def undo(self) -> Callable[[], None]:
        """Return a function that restores the current webhooks."""
        before = dict(self.by_id)

        def undo() -> None:
            self.by_id = before

        return undo


class SqliteWebhooks(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def webhook_save(self, webhooks: Sequence[WebhookRecord]) -> None:
        self._begin()
        self._undo.append(self._store.webhooks.undo())
        numbered = [(self._open_namespace(each.namespace), each) for each in webhooks]
        self._store.webhooks.save(self._db, numbered)

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        self._begin()
        self._undo.append(self._store.webhooks.undo())
        self._store.webhooks.remove(self._db, ids)
