"""Crons in PostgreSQL: statements, and rows as they are read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core import limits
from penstock.core.cron import CronKey, CronPlan, CronRecord
from penstock.core.errors import TooMany
from penstock.store.postgres import commit_notice
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

_FROM = (
    "select c.number, n.name, c.name, c.plan, c.next_run, c.executions"
    " from crons c join namespaces n on n.number = c.namespace"
)
FIND: Final = f"{_FROM} where n.name = $1 and c.name = $2"
LOAD: Final = (
    f"{_FROM} join unnest($1::text[], $2::text[]) as u (namespace, name) on n.name = u.namespace and c.name = u.name"
    " order by c.number for update of c"
)
LIST: Final = f'{_FROM} where n.name = $1 order by c.name collate "C"'
# A cron that another server is processing now is skipped.
DUE: Final = f"{_FROM} where c.next_run <= $1 order by c.next_run, c.number limit $2 for update of c skip locked"
NEXT: Final = "select min(next_run) from crons where next_run > $1"
INSERT: Final = (
    "insert into crons (namespace, name, plan, next_run, executions, data) values ($1, $2, $3, $4, $5, $6) returning number"
)
# A write expects the tick that was read: if it has changed since, nothing is written.
UPDATE: Final = (
    "update crons c set plan = u.plan, next_run = u.next_run, executions = u.executions"
    " from unnest($1::int[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[])"
    " as u (number, tick, plan, next_run, executions) where c.number = u.number and c.next_run = u.tick"
)
DELETE: Final = (
    "delete from crons c using unnest($1::int[], $2::bigint[]) as u (number, tick)"
    " where c.number = u.number and c.next_run = u.tick"
)
SELECT_DATA: Final = """
select number, data from (
  select c.number, c.data, u.place, sum(length(c.data)) over (order by u.place) - length(c.data) as ahead
  from unnest($1::int[]) with ordinality as u (number, place) join crons c on c.number = u.number) as line
where ahead < $2 order by place
"""

encode_plan = msgspec.msgpack.Encoder().encode
_decode_plan = msgspec.msgpack.Decoder(CronPlan).decode


def read(rows: Iterable[Record]) -> list[CronRecord]:
    """Make crons from rows."""
    return [
        CronRecord(number, CronKey(namespace, name), _decode_plan(plan), next_run, executions)
        for number, namespace, name, plan, next_run, executions in rows
    ]


class PostgresCrons(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def cron_load(self, keys: Iterable[CronKey]) -> list[CronRecord]:
        wanted = list(keys)
        names = [key.namespace for key in wanted], [key.name for key in wanted]
        return read(await self._db.fetch(LOAD, *names))

    async def cron_due(self, now_ms: int, limit: int) -> list[CronRecord]:
        with self._catalog.track_commits() as meanwhile:
            found = read(await self._db.fetch(DUE, now_ms, limit))
            next_ms = now_ms if len(found) >= limit else await self._db.fetchval(NEXT, now_ms)
        self._catalog.horizon.cron_ms = commit_notice.earlier(next_ms, meanwhile.cron_ms)
        return found

    async def cron_insert(self, crons: Sequence[tuple[CronRecord, bytes]]) -> None:
        self.wrote = True
        count = await self._db.fetchval("select count(*) from crons")
        if count + len(crons) > limits.crons_max:
            raise TooMany(f"There are already {count} cron jobs. Delete some that are not used any more.")
        for cron, data in crons:
            namespace = self._catalog.namespaces[cron.key.namespace]
            plan = encode_plan(cron.plan)
            values = namespace, cron.key.name, plan, cron.next_run, cron.executions, data
            cron.number = await self._db.fetchval(INSERT, *values)
            self._book_cron(cron)
        self._new_crons += len(crons)

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        number = self._catalog.namespaces.get(namespace)
        taken, held = await self._db.fetchrow("select count(*), count(*) filter (where namespace = $1) from crons", number)
        return taken, held

    async def cron_save(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        await self._write_crons(
            UPDATE,
            [
                [encode_plan(cron.plan) for cron, _ in crons],
                [cron.next_run for cron, _ in crons],
                [cron.executions for cron, _ in crons],
            ],
            crons,
        )
        for cron, _ in crons:
            self._book_cron(cron)

    async def cron_remove(self, crons: Sequence[tuple[CronRecord, int]]) -> None:
        await self._write_crons(DELETE, [], crons)
        self._new_crons -= len(crons)

    async def cron_data_save(self, cron: CronRecord, data: bytes) -> None:
        self.wrote = True
        await self._db.execute("update crons set data = $1 where number = $2", data, cron.number)

    async def cron_data_load(self, crons: Sequence[CronRecord]) -> dict[int, bytes]:
        numbers = [cron.number for cron in crons]
        found = dict(await self._db.fetch(SELECT_DATA, numbers, limits.claim_batch_bytes_max))
        for cron in crons:
            if cron.number not in found:
                self._book_cron(cron)
                break
        return found

    async def _write_crons(self, statement: str, values: list[Any], crons: Sequence[tuple[CronRecord, int]]) -> None:
        """Run a write that must change exactly one row for each cron."""
        guards = [cron.number for cron, _ in crons], [tick for _, tick in crons]
        await self._guarded(statement, [*guards, *values], len(crons), "crons")

    def _book_cron(self, cron: CronRecord) -> None:
        self._catalog.record_cron_due(cron)
        own = self._own_horizon
        if own.cron_ms is None or cron.next_run < own.cron_ms:
            own.cron_ms = cron.next_run
