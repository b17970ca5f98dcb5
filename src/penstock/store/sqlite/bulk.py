"""Bulk reads of the file, on a read-only connection in another process. A snapshot is one statement in one read transaction."""

from __future__ import annotations

from array import array
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import apsw
import msgspec

from penstock.core import limits
from penstock.core.bulk_records import EntryKind
from penstock.core.queue import MoveStep
from penstock.store.bulk_reader import HEAD, Block, Jobs, JobsWanted, Leased, Row
from penstock.store.sqlite import rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_CACHE_KIB: Final = 16 * 1024
_QUEUES: Final = (
    "select q.number, n.name, q.name from queues q join namespaces n on n.number = q.namespace"
    " where (?1 is null or n.name = ?1)"
)
_SEEN: Final = f"j.queue not in (select number from queues where standing > {MoveStep.LEAVING.value})"  # noqa: S608
_SIZE: Final = HEAD.index("size")
_OPTIONS: Final = len(HEAD)
_DATA: Final = len(HEAD) + 1
_RESULT: Final = len(HEAD) + 2
_JOURNAL: Final = (
    "select seq, at, body from journal where seq >= coalesce((select max(seq) from journal where seq <= ?1), 0) and seq < ?2"
    " order by seq"
)


_SLICE: Final = "select body from ledger where kind = ? and namespace = ? and name = ? and number = ?"
_FETCH: Final = (
    f"select {rows.HEAD}, {rows.BODY} from carray(?) k cross join jobs j on j.id = k.value"  # noqa: S608
    " left join payloads p on p.id = j.id"
)
_leased = itemgetter(*(rows.FIELDS.index(name) for name in Leased._fields[:-2]))


class SqliteBulk:
    """See ``store.bulk_reader.BulkReader``."""

    def __init__(self, path: str) -> None:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_NOMUTEX
        self._db = apsw.Connection(path, flags=flags)
        self._db.set_busy_timeout(5_000)
        self._db.pragma("cache_size", -_CACHE_KIB)
        self.damaged = 0

    async def close(self) -> None:
        self._db.close()

    @asynccontextmanager
    async def jobs(self, wanted: JobsWanted) -> AsyncIterator[Jobs]:
        db = self._db
        db.execute("begin")
        try:
            queues = {number: (namespace, name) for number, namespace, name in db.execute(_QUEUES, (wanted.namespace,))}
            results = bool(db.execute("select exists (select 1 from results)").get)
            statement, bounds = _statement(wanted, queues, results=results)
            yield Jobs(queues, self._chunks(db.execute(statement, bounds), compare=wanted.payload))
        finally:
            db.execute("rollback")

    async def _chunks(self, cursor: apsw.Cursor, *, compare: bool) -> AsyncIterator[list[Row]]:
        chunk: list[Row] = []
        room_rows, room = limits.bulk_chunk_rows, limits.bulk_chunk_bytes
        size = 0
        for row in cursor:
            chunk.append(row)
            size += row[_SIZE]
            if row[_RESULT] is not None:
                size += len(row[_RESULT])
            if size >= room or len(chunk) >= room_rows:
                yield self._sound(chunk) if compare else chunk
                chunk, size = [], 0
        if chunk:
            yield self._sound(chunk) if compare else chunk

    def _sound(self, chunk: list[Row]) -> list[Row]:
        """Return the rows whose payloads match their checksums, and count the others."""
        found = rows.sound_bodies(chunk, _OPTIONS, _DATA)
        self.damaged += len(chunk) - len(found)
        return found

    async def queues(self) -> dict[int, tuple[str, str]]:
        return {number: (namespace, name) for number, namespace, name in self._db.execute(_QUEUES, (None,))}

    async def slice(self, namespace: str, name: str, number: int) -> bytes | None:
        for (body,) in self._db.execute(_SLICE, (EntryKind.SLICE, namespace, name, number)):
            return bytes(body)
        return None

    async def fetch(self, ids: Sequence[int]) -> AsyncIterator[list[Leased]]:
        found: list[Leased] = []
        size = 0
        for row in self._db.execute(_FETCH, (apsw.carray(array("q", ids)),)):
            if not rows.is_sound(row):
                continue
            found.append(Leased._make((*_leased(row), row[-2], row[-1])))
            size += len(row[-1])
            if size >= limits.bulk_chunk_bytes:
                yield found
                found, size = [], 0
        if found:
            yield found

    async def journal(self, seq: int, to: int) -> AsyncIterator[Block]:
        for row in self._db.execute(_JOURNAL, (seq, to)):
            yield Block(*row)

    async def journal_at(self, at_ms: int) -> int | None:
        for (seq,) in self._db.execute("select seq from journal where at >= ? and count > 0 order by seq limit 1", (at_ms,)):
            return int(seq)
        return None


def _statement(wanted: JobsWanted, queues: dict[int, tuple[str, str]], *, results: bool) -> tuple[str, dict[str, Any]]:
    conditions = [_SEEN]
    bounds: dict[str, Any] = {"from": wanted.created_from, "to": wanted.created_to}
    if wanted.namespace is not None or wanted.queues is not None:
        names = None if wanted.queues is None else set(wanted.queues)
        chosen = [number for number, (_, name) in queues.items() if names is None or name in names]
        conditions.append("j.queue in (select value from json_each(:queues))")
        bounds["queues"] = msgspec.json.encode(chosen).decode()
    if wanted.states is not None:
        conditions.append(f"j.state in ({', '.join(map(str, map(int, wanted.states)))})")
    if wanted.created_from is not None:
        conditions.append("j.created_at >= :from")
    if wanted.created_to is not None:
        conditions.append("j.created_at < :to")
    head = ", ".join(f"j.{name}" for name in HEAD)
    more, joins = "null, null, null", ""
    if wanted.payload:
        more = f"p.options, p.data, {'r.data' if results else 'null'}, p.checksum"
        joins = "left join payloads p on p.id = j.id"
        if results:
            joins += " left join results r on r.id = j.id"
    where = " and ".join(conditions)
    return f"select {head}, {more} from jobs j not indexed {joins} where {where} order by j.id", bounds  # noqa: S608
