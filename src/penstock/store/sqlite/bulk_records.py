"""The ledger in the SQLite store: see core/bulk_records.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.bulk_records import BulkRecord, Chunk
from penstock.core.errors import RowChanged
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from penstock.store.contract import Search

_KEY = "kind = ? and namespace = ? and name = ? and number = ?"
_LOAD = (
    "select kind, namespace, name, number, at, body, weight, version from ledger"
    " where kind = ?1 and namespace = ?2 and name = ?3 and (?4 is null or number = ?4) order by number"
)
_LIST = (
    "select kind, namespace, name, number, at, iif(?6, body, x''), weight, version from ledger"
    " where kind = ?1 and (?2 is null or namespace = ?2) and (?3 is null or name = ?3) and (?4 is null or at < ?4)"
    " order by at, number limit ?5"
)
_TOTALS = "select count(*), coalesce(sum(weight), 0) from ledger where kind = ?1 and (?2 is null or namespace = ?2)"
_ADD = (
    "insert into ledger (kind, namespace, name, number, at, weight, version, body) values (?, ?, ?, ?, ?, ?, 1, ?)"
    " on conflict do nothing"
)
_SAVE = f"update ledger set at = ?, weight = ?, version = version + 1, body = ? where {_KEY} and version = ?"  # noqa: S608
_REMOVE = f"delete from ledger where {_KEY} and version = ?"  # noqa: S608
_READ_CHUNKS = "select owner, number, queue, rows, body from chunks where owner = ? and number > ? order by number limit ?"


class SqliteBulkRecords(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def entry_load(self, kind: int, namespace: str, name: str, number: int | None = None) -> list[BulkRecord]:
        self._begin()
        return [BulkRecord(*row) for row in self._db.execute(_LOAD, (kind, namespace, name, number))]

    async def entry_load_all(self, kind: int, namespace: str, places: Sequence[tuple[str, int | None]]) -> list[BulkRecord]:
        self._begin()
        keys = [(kind, namespace, name, number) for name, number in places]
        return sorted(BulkRecord(*row) for row in self._db.executemany(_LOAD, keys))

    async def entry_save(self, entries: Sequence[BulkRecord]) -> None:
        self._begin()
        for each in entries:
            if each.version:
                self._db.execute(_SAVE, (each.at, each.weight, each.body, *each[:4], each.version))
            else:
                self._db.execute(_ADD, (*each[:5], each.weight, each.body))
            self._check_written()

    async def entry_remove(self, entries: Sequence[BulkRecord]) -> None:
        self._begin()
        for each in entries:
            self._db.execute(_REMOVE, (*each[:4], each.version))
            self._check_written()

    def _check_written(self) -> None:
        if self._db.changes() != 1:
            raise RowChanged

    async def chunk_add(self, chunks: Sequence[Chunk]) -> None:
        self._begin()
        self._db.executemany("insert into chunks (owner, number, queue, rows, body) values (?, ?, ?, ?, ?)", chunks)

    async def chunk_take(self, owner: int, numbers: Sequence[int]) -> set[int]:
        self._begin()
        keys = [(owner, number) for number in numbers]
        taken = self._db.executemany("delete from chunks where owner = ? and number = ? returning number", keys)
        return {number for (number,) in taken}

    async def chunk_drop(self, owner: int, limit: int) -> int:
        self._begin()
        self._db.execute(
            "delete from chunks where rowid in (select rowid from chunks where owner = ? limit ?)", (owner, limit)
        )
        return self._db.changes()


def entries(db: apsw.Connection, search: Search) -> list[BulkRecord]:
    """Read entries, oldest first."""
    return [BulkRecord(*row) for row in db.execute(_LIST, search)]


def totals(db: apsw.Connection, kind: int, namespace: str | None) -> tuple[int, int]:
    """Count entries and add up their weights."""
    count, weight = next(iter(db.execute(_TOTALS, (kind, namespace))))
    return count, weight


def chunks(db: apsw.Connection, owner: int, after: int, limit: int) -> list[Chunk]:
    """Read the next chunks of an owner, up to a number of bytes."""
    found: list[Chunk] = []
    size = 0
    for row in db.execute(_READ_CHUNKS, (owner, after, limit)):
        found.append(Chunk(*row))
        size += len(found[-1].body)
        if size >= limits.claim_batch_bytes_max:
            break
    return found
