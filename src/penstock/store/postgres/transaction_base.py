"""Code that the topics of a transaction on a PostgreSQL shard share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import RowChanged
from penstock.store.transaction_base import TransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from penstock.store.contract import Horizon
    from penstock.store.postgres.catalog import PostgresCatalog  # noqa: F401 - of the base class, by name: it imports webhooks
    from penstock.store.postgres.job_groups import PostgresJobGroups
    from penstock.store.postgres.store import PostgresStore

_OPEN_NAMESPACE = (
    "with made as (insert into namespaces (name) values ($1) on conflict (name) do nothing returning number)"
    " select number from made union all select number from namespaces where name = $1 limit 1"
)
LOCK = "select pg_advisory_xact_lock($1, $2)"


def changed_rows(status: str) -> int:
    """Return the number of rows that a statement changed."""
    return int(status.rpartition(" ")[2])


class PostgresTransactionBase(TransactionBase["PostgresCatalog"]):
    """Base of the topics: the catalog, its version, and guarded writes."""

    now_ms: int
    steady_ms: int
    wrote: bool
    _db: Connection
    _store: PostgresStore
    _groups: PostgresJobGroups
    _own_horizon: Horizon
    _fronts: set[int]  #: queues in which a job got a position that other servers may count as empty
    _new_crons: int
    _webhooks_changed: bool
    _changed: set[int]  #: queues that other servers must read again
    _emptied: set[int]
    _known: int
    _young: int
    _announced: set[int]  #: queues that get a ready list in this transaction
    _unlisted: set[int]  #: queues that must not have got a ready list since it began

    async def _open_namespace(self, name: str) -> int:
        number = self._catalog.namespaces.get(name)
        if number is None:
            opened: int | None = await self._db.fetchval(_OPEN_NAMESPACE, name)
            if opened is None:  # another server created it just before, and this statement could not see it yet
                raise RowChanged
            number = self._add_namespace(name, opened)
        return number

    async def _next_version(self) -> int:
        """Increment the version of the catalog. No other transaction can do so until this one ends."""
        self._store.stay_alone()
        self.wrote = True
        version: int = await self._db.fetchval("update catalog set version = version + 1 returning version")
        if version != self._known + 1:  # another server was first, and may have done the same
            raise RowChanged
        before, self._known = self._known, version

        def undo() -> None:
            self._catalog.version = before

        self._undo.append(undo)
        self._catalog.version = version
        return version

    async def _guarded(self, statement: str, parameters: Sequence[Any], expected: int, what: str = "rows") -> None:
        """Run a write that must change exactly this many rows."""
        self.wrote = True
        changed = changed_rows(await self._db.execute(statement, *parameters))
        if changed != expected:
            raise RowChanged(f"A write expected to change {expected} {what} and changed {changed}.")

    async def _put_groups_right(self) -> None:
        queues = self._groups.queues
        if queues:
            for queue in queues:
                self._fronts.add(queue)
                self._store.fronts.forget(queue)
            await self._groups.put_right(self._db, self.steady_ms)
