"""Bulk reads of a database, on a connection in another process. A snapshot is one read-only, repeatable-read transaction."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.core import limits
from penstock.core.bulk_records import EntryKind
from penstock.core.queue import MoveStep
from penstock.store.bulk_reader import HEAD, Block, Jobs, JobsWanted, Leased, Row
from penstock.store.postgres.connect import connect
from penstock.store.postgres.reads import ZERO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from asyncpg import Connection

#: Heads fetched in one round trip.
_HEADS: Final = 5_000
#: Blocks of the journal fetched in one round trip.
_BLOCKS: Final = 64
_QUEUES: Final = (
    "select q.number, n.name, q.name from queues q join namespaces n on n.number = q.namespace"  # noqa: S608
    f" where not q.removed and q.standing <= {MoveStep.LEAVING.value} and ($1::text is null or n.name = $1)"
)
_JOBS: Final = f"""
select {", ".join(f"j.{name}" for name in HEAD)} from jobs j
where j.queue = any ($1::int[]) and ($2::smallint[] is null or j.state = any ($2))
  and ($3::bigint is null or j.created_at >= $3) and ($4::bigint is null or j.created_at < $4)
"""  # noqa: S608 - put together from names of our own
_BODIES: Final = (
    "select p.id, p.options, p.data, r.data from payloads p left join results r on r.id = p.id"
    " where p.id = any ($1::bigint[])"
)
_JOURNAL: Final = (
    "select seq, at, body from journal where count > 0 and seq < $2"
    " and seq >= coalesce((select max(seq) from journal where count > 0 and seq <= $1), 0) order by seq"
)
_SLICE: Final = "select body from ledger where kind = $1 and namespace = $2 and name = $3 and number = $4"
_LEASED: Final = (
    "select id, size, queue, state, token, priority, attempts, custom_id, created_at from jobs where id = any ($1::bigint[])"
)
_SIZE: Final = HEAD.index("size")
_NO_BODY: Final = (None, None, None)


class PostgresBulk:
    """See ``store.bulk_reader.BulkReader``."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self.damaged = 0  # the database checks its own pages

    @classmethod
    async def open(cls, url: str) -> PostgresBulk:
        """Connect. Raises StorageFailed."""
        return cls(await connect(url, bulk=True))

    async def close(self) -> None:
        await self._db.close()

    @asynccontextmanager
    async def jobs(self, wanted: JobsWanted) -> AsyncIterator[Jobs]:
        async with self._db.transaction(isolation="repeatable_read", readonly=True):
            known: dict[int, tuple[str, str]] = {
                number: (namespace, name) for number, namespace, name in await self._db.fetch(_QUEUES, wanted.namespace)
            }
            yield Jobs(known, self._chunks(wanted, known))

    async def _chunks(self, wanted: JobsWanted, known: dict[int, tuple[str, str]]) -> AsyncIterator[list[Row]]:
        names = None if wanted.queues is None else {name for name in wanted.queues if ZERO not in name}
        chosen = [number for number, (_, name) in known.items() if names is None or name in names]
        cursor = await self._db.cursor(_JOBS, chosen, wanted.states, wanted.created_from, wanted.created_to)
        while heads := await cursor.fetch(_HEADS):
            if not wanted.payload:
                yield [(*head, *_NO_BODY) for head in heads]
                continue
            for some in _by_size(heads):
                bodies = {row[0]: row[1:] for row in await self._db.fetch(_BODIES, [head[0] for head in some])}
                yield [(*head, *bodies.get(head[0], _NO_BODY)) for head in some]

    async def queues(self) -> dict[int, tuple[str, str]]:
        return {number: (namespace, name) for number, namespace, name in await self._db.fetch(_QUEUES, None)}

    async def slice(self, namespace: str, name: str, number: int) -> bytes | None:
        body: bytes | None = await self._db.fetchval(_SLICE, EntryKind.SLICE, namespace, name, number)
        return body

    async def fetch(self, ids: Sequence[int]) -> AsyncIterator[list[Leased]]:
        heads = {head[0]: head for head in await self._db.fetch(_LEASED, ids)}
        for some in _by_size([heads[job_id] for job_id in ids if job_id in heads], 1):
            bodies = {row[0]: row[1:3] for row in await self._db.fetch(_BODIES, [head[0] for head in some])}
            yield [Leased(head[0], *head[2:], *bodies[head[0]]) for head in some if head[0] in bodies]

    async def journal(self, seq: int, to: int) -> AsyncIterator[Block]:
        async with self._db.transaction(readonly=True):
            async for row in self._db.cursor(_JOURNAL, seq, to, prefetch=_BLOCKS):
                yield Block(*row)

    async def journal_at(self, at_ms: int) -> int | None:
        found: int | None = await self._db.fetchval(
            "select seq from journal where count > 0 and at >= $1 order by seq limit 1", at_ms
        )
        return found


def _by_size(heads: list[Any], column: int = _SIZE) -> list[list[Any]]:
    """Split heads so that the payloads of each part fit into a chunk, or are a single one."""
    parts: list[list[Any]] = [[]]
    size = 0
    for head in heads:
        size += head[column]
        if parts[-1] and size > limits.bulk_chunk_bytes:
            parts.append([])
            size = head[column]
        parts[-1].append(head)
    return parts
