"""Makes jobs of staged rows that were committed: on each shard, one bounded slice at a time. See ``staged_writes.py``."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import structlog

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import BulkRecord, Chunk, ChunkDamaged, EntryKind
from penstock.core.errors import NameContested, QueueMoving
from penstock.core.queue import QueueKey
from penstock.engine.bulk.stage_commands import TakeOverChunks
from penstock.engine.jobs.push import Publish, StagedChunk
from penstock.engine.maintenance.service import PeriodicService
from penstock.engine.sharding.engine import ShardedEngine
from penstock.engine.sharding.push import ShardedPush
from penstock.store.contract import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.reservations import Permit
    from penstock.engine.context import EngineContext, ServerContext, ShardedContext
    from penstock.engine.sharding.push import Item

log = structlog.get_logger("penstock.stages")

#: Publishing transactions in progress: while one is being made durable, the next is being written.
_UNDER_WAY: Final = 2


class NamedChunkPush(ShardedPush):
    """Publishes a chunk whose jobs have names, which are checked on all shards."""

    def __init__(self, sharded: ShardedContext, entry: BulkRecord, part: StagedChunk) -> None:
        super().__init__(sharded, [(part.queue, part.jobs)], None)
        self._entry = entry
        self._part = part

    async def _push(self, shard: int, items: Sequence[Item], permit: Permit) -> None:
        allowed = permit if permit.tickets or permit.remote else None
        some = self._part._replace(jobs=[item.new for item in items])
        await self._engines[shard].run(Publish(self._entry, [some], allowed, rows=len(self._part.jobs)))
        self._answers.update((item.place, None) for item in items)


class Publisher(PeriodicService):
    """Makes jobs of the due drafts of one shard, draft by draft.

    The slices are bounded, so that other commands run in between. ``done`` is called after each draft.
    """

    every_ms = 1_000

    def __init__(self, engine: EngineContext, all_: ServerContext, done: Callable[[], None]) -> None:
        super().__init__(engine)
        self._all = all_
        self._sharded = all_ if isinstance(all_, ShardedEngine) and len(all_.engines) > 1 else None
        self._done = done
        self._damaged: set[int] = set()  #: drafts

    async def run_once(self) -> None:
        """Publish all due drafts."""
        while self._engine.leads and self.goes_on():
            self._woken = False
            # Damaged drafts are kept, and do not block the others.
            limit = limits.publish_ahead_chunks + len(self._damaged)
            found = await self._engine.store.entry_list(Search(EntryKind.DUE, limit=limit))
            due = [entry for entry in found if entry.number not in self._damaged]
            stuck = 0
            for entry in due:
                stuck += not await self._publish(entry)
                self._done()
            if not self._woken and (not due or stuck == len(due)):
                break

    async def _publish(self, entry: BulkRecord) -> bool:
        """Publish a draft; False if it has to wait."""
        engine, after = self._engine, -1
        under_way: deque[asyncio.Future[int]] = deque()
        try:
            while self.goes_on():
                chunks = await engine.store.chunk_read(entry.number, after, limits.publish_ahead_chunks)
                if not chunks:
                    break
                after = chunks[-1].number
                if self._sharded is not None:
                    chunks = await self._carried(entry, chunks)
                for some in _slices(chunks):
                    await engine.fair_share.give_way(entry.namespace)
                    parts = [_part(entry, each) for each in some]
                    if self._sharded is not None and any("job_id" in part.fields for part in parts):
                        await self._publish_named(self._sharded, entry, parts)
                        continue
                    if len(under_way) >= _UNDER_WAY:
                        await under_way.popleft()
                    under_way.append(engine.run(Publish(entry, parts)))
            while under_way:
                await under_way.popleft()
            if not self.goes_on():
                return False
            await engine.run(Publish(entry, (), last=True))
        except ChunkDamaged:
            log.error("staged rows are damaged and are not published", draft=entry.number, commit=entry.name)
            self._damaged.add(entry.number)
            return False
        except (QueueMoving, NameContested):  # tried again in the next round
            return False
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
        return True

    async def _carried(self, entry: BulkRecord, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Pass on the chunks of queues that have moved to other shards; return the rest."""
        stays: list[Chunk] = []
        for each in chunks:
            home = self._all.of(QueueKey(entry.namespace, each.queue))
            if home is self._engine:
                stays.append(each)
            else:
                await home.run(TakeOverChunks(entry, [each]))
                await self._engine.run(Publish(entry, [StagedChunk(each.number, QueueKey(entry.namespace, each.queue))]))
        return stays

    async def _publish_named(self, sharded: ShardedContext, entry: BulkRecord, parts: Sequence[StagedChunk]) -> None:
        for part in parts:
            await NamedChunkPush(sharded, entry, part).run()
            # If all names are taken on other shards, there was nothing to push here.
            await self._engine.run(Publish(entry, [part._replace(jobs=())], rows=len(part.jobs)))


def _part(entry: BulkRecord, chunk: Chunk) -> StagedChunk:
    return StagedChunk(chunk.number, QueueKey(entry.namespace, chunk.queue), *bulk_records.unpack(chunk.body))


def _slices(chunks: Sequence[Chunk]) -> list[list[Chunk]]:
    """Combine small chunks, up to the size of one transaction."""
    slices: list[list[Chunk]] = []
    rows = size = 0
    for each in chunks:
        rows, size = rows + each.rows, size + len(each.body)
        if not slices or rows > limits.slice_jobs_max or size > limits.chunk_bytes:
            slices.append([])
            rows, size = each.rows, len(each.body)
        slices[-1].append(each)
    return slices
