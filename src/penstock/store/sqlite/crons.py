"""Crons in SQLite: statements, and rows as they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from penstock.core import limits
from penstock.core.cron import CronKey, CronPlan, CronRecord
from penstock.core.errors import RowChanged, TooMany
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

_FROM = (
    "select c.number, n.name, c.name, c.plan, c.next_run, c.executions"
    " from crons c join namespaces n on n.number = c.namespace"
)

FIND = f"{_FROM} where n.name = ? and c.name = ?"
LIST = f"{_FROM} where n.name = ? order by c.name"
DUE = f"{_FROM} where c.next_run <= ? order by c.next_run, c.number limit ?"
NEXT = "select min(next_run) from crons where next_run > ?"
INSERT = "insert into crons (namespace, name, plan, next_run, executions) values (?, ?, ?, ?, ?)"
# A write expects the tick that was read: if it has changed since, nothing is written.
UPDATE = "update crons set plan = ?, next_run = ?, executions = ? where number = ? and next_run = ?"
DELETE = "delete from crons where number = ? and next_run = ?"
INSERT_DATA = "insert or replace into cron_data (number, data) values (?, ?)"
SELECT_DATA = "select data from cron_data where number = ?"
DELETE_DATA = "delete from cron_data where number = ?"

log = structlog.get_logger("penstock.store")

encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(CronPlan).decode


def read(db: apsw.Connection, statement: str, parameters: tuple[Any, ...]) -> list[CronRecord]:
    """Read crons. A damaged one is left out: it must not stop the ticks of the others."""
    found = []
    for number, namespace, name, plan, next_run, executions in db.execute(statement, parameters):
        try:
            found.append(CronRecord(number, CronKey(namespace, name), _decode_plan(plan), next_run, executions))
        except msgspec.DecodeError as error:
            log.error("a cron is damaged and does not run; delete it and add it again", cron=name, error=str(error))
    return found


class SqliteCrons(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def cron_load(self, keys: Iterable[CronKey]) -> list[CronRecord]:
        self._begin()
        return [cron for key in keys for cron in read(self._db, FIND, tuple(key))]

    async def cron_due(self, now_ms: int, limit: int) -> list[CronRecord]:
        self._begin()
        found = read(self._db, DUE, (now_ms, limit))
        next_ms = now_ms if len(found) >= limit else next(iter(self._db.execute(NEXT, (now_ms,))))[0]
        self._catalog.horizon.cron_ms = next_ms
        return found

    async def cron_insert(self, crons: Sequence[tuple[CronRecord, bytes]]) -> None:
        self._begin()
        count = self._catalog.crons + self._new_crons
        if count + len(crons) > limits.crons_max:
            raise TooMany(f"There are already {count} cron jobs. Delete some that are not used any more.")
        for cron, data in crons:
            namespace = self._catalog.namespaces[cron.key.namespace]
            plan = encode_plan(cron.plan)
            self._db.execute(INSERT, (namespace, cron.key.name, plan, cron.next_run, cron.executions))
            cron.number = self._db.last_insert_rowid()
            self._db.execute(INSERT_DATA, (cron.number, data))
            self._catalog.record_cron_due(cron)
        self._new_crons += len(crons)

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        self._begin()
        number = self._catalog.namespaces.get(namespace)
        (held,) = next(iter(self._db.execute("select count(*) from crons where namespace = ?", (number,))))
        return self._catalog.crons + self._new_crons, held

    async def cron_save(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        self._write_crons(
            UPDATE,
            [(encode_plan(cron.plan), cron.next_run, cron.executions, cron.number, tick) for cron, tick in crons],
        )
        for cron, _ in crons:
            self._catalog.record_cron_due(cron)

    async def cron_remove(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        self._write_crons(DELETE, [(cron.number, tick) for cron, tick in crons])
        self._db.executemany(DELETE_DATA, [(cron.number,) for cron, _ in crons])
        self._new_crons -= len(crons)

    async def cron_data_save(self, cron: CronRecord, data: bytes) -> None:
        self._begin()
        self._db.execute(INSERT_DATA, (cron.number, data))

    async def cron_data_load(self, crons: Sequence[CronRecord]) -> dict[int, bytes]:
        self._begin()
        found: dict[int, bytes] = {}
        size = 0
        for cron in crons:
            if size >= limits.claim_batch_bytes_max:
                self._catalog.record_cron_due(cron)
                break
            row = next(iter(self._db.execute(SELECT_DATA, (cron.number,))), (b"null",))
            found[cron.number] = bytes(row[0])
            size += len(row[0])
        return found

    def _write_crons(self, statement: str, parameters: list[tuple[Any, ...]]) -> None:
        """Run a write that must change exactly one row for each cron."""
        self._begin()
        before = self._db.total_changes()
        self._db.executemany(statement, parameters)
        changed = self._db.total_changes() - before
        if changed != len(parameters):
            raise RowChanged(f"A write expected to change {len(parameters)} crons and changed {changed}.")
