"""The ledger in PostgreSQL: see core/bulk_records.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.bulk_records import BulkRecord, Chunk
from penstock.core.errors import RowChanged
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from penstock.store.contract import Search

_LOAD = (
    "select kind, namespace, name, number, at, body, weight, version from ledger"
    " where kind = $1 and namespace = $2 and name = $3 and ($4::bigint is null or number = $4) order by number for update"
)
_LOAD_ALL = (
    "select l.kind, l.namespace, l.name, l.number, l.at, l.body, l.weight, l.version"
    " from unnest($3::text[], $4::bigint[]) as u (name, number) join ledger l on l.kind = $1 and l.namespace = $2"
    " and l.name = u.name and (u.number is null or l.number = u.number) order by l.name, l.number for update of l"
)
_LIST = (
    "select kind, namespace, name, number, at, case when $6::bool then body else ''::bytea end, weight, version from ledger"
    " where kind = $1 and ($2::text is null or namespace = $2) and ($3::text is null or name = $3)"
    " and ($4::bigint is null or at < $4) order by at, number limit $5"
)
_TOTALS = (
    "select count(*), coalesce(sum(weight), 0)::bigint from ledger where kind = $1 and ($2::text is null or namespace = $2)"
)
_ENTRIES = (
    "unnest($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bigint[], $8::int[])"
    " as u (kind, namespace, name, number, at, body, weight, version)"
)
_SAME = "l.kind = u.kind and l.namespace = u.namespace and l.name = u.name and l.number = u.number"
# Each entry in one of two ways: a new one is inserted, an entry that was read is replaced.
_SAVE = f"""
with added as (
  insert into ledger (kind, namespace, name, number, at, weight, version, body)
  select kind, namespace, name, number, at, weight, 1, body from {_ENTRIES} where version = 0
  on conflict do nothing returning 1),
changed as (
  update ledger l set at = u.at, weight = u.weight, version = l.version + 1, body = u.body from {_ENTRIES}
  where {_SAME} and l.version = u.version and u.version > 0 returning 1)
select (select count(*) from added) + (select count(*) from changed)
"""  # noqa: S608
_REMOVE = f"with gone as (delete from ledger l using {_ENTRIES} where {_SAME} and l.version = u.version returning 1) select count(*) from gone"  # noqa: S608, E501
_ADD_CHUNKS = (
    "insert into chunks (owner, number, queue, rows, body)"
    " select * from unnest($1::bigint[], $2::int[], $3::text[], $4::int[], $5::bytea[])"
)
_TAKE = "delete from chunks where owner = $1 and number = any ($2::int[]) returning number"
_DROP = (
    "with first as (select number from chunks where owner = $1 limit $2),"
    " gone as (delete from chunks where owner = $1 and number in (select number from first) returning 1)"
    " select count(*) from gone"
)
_READ_CHUNKS = """
select owner, number, queue, rows, body from (
  select *, sum(length(body)) over (order by number) - length(body) as ahead from (
    select * from chunks where owner = $1 and number > $2 order by number limit $3) as first) as c
where ahead < $4 order by number
"""


class PostgresBulkRecords(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def entry_load(self, kind: int, namespace: str, name: str, number: int | None = None) -> list[BulkRecord]:
        return [BulkRecord(*row) for row in await self._db.fetch(_LOAD, kind, namespace, name, number)]

    async def entry_load_all(self, kind: int, namespace: str, places: Sequence[tuple[str, int | None]]) -> list[BulkRecord]:
        columns = [list(column) for column in zip(*places, strict=True)] if places else ([], [])
        return [BulkRecord(*row) for row in await self._db.fetch(_LOAD_ALL, kind, namespace, *columns)]

    async def entry_save(self, entries: Sequence[BulkRecord]) -> None:
        await self._write(_SAVE, entries)

    async def entry_remove(self, entries: Sequence[BulkRecord]) -> None:
        await self._write(_REMOVE, entries)

    async def _write(self, statement: str, entries: Sequence[BulkRecord]) -> None:
        if not entries:
            return
        self.wrote = True
        columns = [list(column) for column in zip(*entries, strict=True)]
        if await self._db.fetchval(statement, *columns) != len(entries):
            raise RowChanged

    async def chunk_add(self, chunks: Sequence[Chunk]) -> None:
        self.wrote = True
        await self._db.execute(_ADD_CHUNKS, *[list(column) for column in zip(*chunks, strict=True)])

    async def chunk_take(self, owner: int, numbers: Sequence[int]) -> set[int]:
        self.wrote = True
        return {row[0] for row in await self._db.fetch(_TAKE, owner, numbers)}

    async def chunk_drop(self, owner: int, limit: int) -> int:
        self.wrote = True
        dropped: int = await self._db.fetchval(_DROP, owner, limit)
        return dropped


async def entries(db: Connection, search: Search) -> list[BulkRecord]:
    """Read entries, oldest first."""
    return [BulkRecord(*row) for row in await db.fetch(_LIST, *search)]


async def totals(db: Connection, kind: int, namespace: str | None) -> tuple[int, int]:
    """Count entries and add up their weights."""
    count, weight = await db.fetchrow(_TOTALS, kind, namespace)
    return count, weight


async def chunks(db: Connection, owner: int, after: int, limit: int) -> list[Chunk]:
    """Read the next chunks of an owner, up to a number of bytes."""
    return [Chunk(*row) for row in await db.fetch(_READ_CHUNKS, owner, after, limit, limits.claim_batch_bytes_max)]
