"""Staged writes: rows that are stored and not visible, until one small commit publishes them.

A part of a staged write is a draft: chunks of rows, each on the shard of its queue. When all of them are stored, the first
shard records the part under the name of its transaction. A commit is a record on the first shard under an idempotency key.
From then on its drafts are due, and each shard publishes its own. The transaction that makes jobs of a chunk also deletes
the chunk, so that each row becomes one job even after a crash.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import Chunk, EntryKind, Stage
from penstock.core.errors import CommitUnknown, ServerError, TooMany
from penstock.core.pool_shares import ALL
from penstock.core.queue import QueueKey
from penstock.engine.bulk.publisher import Publisher
from penstock.engine.bulk.stage_commands import (
    AbortStage,
    AddChunks,
    CommitStages,
    DropDraft,
    PruneRecords,
    RecordCommit,
    RecordPublished,
    SaveStage,
)
from penstock.engine.maintenance.service import PeriodicService
from penstock.store.contract import Search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext, ServerContext


class PackedRows(NamedTuple):
    """Rows for one queue, packed."""

    queue: str
    rows: int
    body: bytes  #: see ``core.bulk_records.pack``


class Committed(NamedTuple):
    """The state of a commit."""

    rows: int
    published: bool
    duplicate: bool = False
    known: int = 0  #: rows that made no new jobs so far, because another job has their custom id or unique key


class StagedWrites(PeriodicService):
    """The staged writes of a whole server: a service of the first shard. It finishes commits and deletes expired parts."""

    every_ms = 1_000

    def __init__(self, engine: ServerContext) -> None:
        super().__init__(engine.engines[0])
        self._all = engine
        self._home = engine.engines[0]
        self._publishers = [Publisher(each, engine, self.wake) for each in engine.engines]
        self._waiting: dict[tuple[str, str], set[asyncio.Future[None]]] = {}
        self._checked_ms = 0

    def start(self) -> None:
        """Start. What an earlier run of the server left is published at once."""
        super().start()
        for publisher in self._publishers:
            publisher.start()
            publisher.wake()

    def answer_all_waiters(self) -> None:
        """Answer all callers that wait for a commit to be published, because the server is closing."""
        self._stopping = True
        for future in [future for waiting in self._waiting.values() for future in waiting]:
            _wake(future)

    async def stop(self) -> None:
        """Stop after the current slices."""
        self.answer_all_waiters()
        await asyncio.gather(*(publisher.stop() for publisher in self._publishers))
        await super().stop()

    # Requests.

    async def stage(self, namespace: str, txn: str, part: int, rows: Sequence[PackedRows]) -> Stage:
        """Store the rows of a part, in place of what was staged as this part before.

        They count for the quota of their namespace from now on. Raises QuotaExceeded, TooMany, NamespaceLimit,
        or InvalidInput.
        """
        count = {namespace: sum(each.rows for each in rows)}
        quotas = self._all.quotas
        if quotas is None:
            return await self._stage(namespace, txn, part, rows)
        await quotas.admit(count)
        try:
            return await self._stage(namespace, txn, part, rows)
        except ServerError:  # even if it may be stored: then the same part is sent again, and is counted again
            quotas.refund(count)
            raise

    async def _stage(self, namespace: str, txn: str, part: int, rows: Sequence[PackedRows]) -> Stage:
        count, size = await self._home.store.entry_totals(EntryKind.STAGE)
        if count >= limits.stages_max or size >= limits.staged_bytes_max:
            raise TooMany(
                f"{count} parts with {size} bytes are staged and not committed. Commit or abort some, or let them expire."
            )
        pool_shares = self._home.pool_shares
        if pool_shares.percent < ALL:
            held, held_bytes = await self._home.store.entry_totals(EntryKind.STAGE, namespace)
            pool_shares.check("staged parts", namespace, most=limits.stages_max, taken=count, held=held)
            pool_shares.check("staged bytes", namespace, most=limits.staged_bytes_max, taken=size, held=held_bytes)
        draft = self._home.ids.next(self._home.clock.now_ms())
        by_shard: dict[int, list[Chunk]] = {}
        for number, each in enumerate(rows):
            shard = self._all.of(QueueKey(namespace, each.queue)).store.shard
            by_shard.setdefault(shard, []).append(Chunk(draft, number, each.queue, each.rows, each.body))
        for shard, chunks in by_shard.items():
            await self._add(self._all.engines[shard], namespace, draft, chunks)
        stage = Stage(draft, sum(each.rows for each in rows), sum(len(each.body) for each in rows), sorted(by_shard))
        before = await self._home.run(SaveStage(namespace, txn, part, stage))
        if before is not None:
            self._uncount(namespace, before.rows)
            await self._drop(namespace, before)
        return stage

    def _uncount(self, namespace: str, rows: int) -> None:
        if self._all.quotas is not None:
            self._all.quotas.refund({namespace: rows})

    async def commit(self, namespace: str, key: str, txns: Sequence[str], wait_ms: int) -> Committed:
        """Commit staged writes under a key, waiting up to ``wait_ms`` for them to be published. Raises StageUnknown."""
        commit, duplicate = await self._home.run(CommitStages(namespace, key, txns))
        if not commit.published:
            self._wake_publishers()
            if commit.untold:
                self.wake()
            if wait_ms > 0:
                published = await self._wait(namespace, key, wait_ms)
                return Committed(commit.rows, published, duplicate, await self._known(namespace, key))
        return Committed(commit.rows, commit.published, duplicate, await self._known(namespace, key) if duplicate else 0)

    async def state(self, namespace: str, key: str) -> Committed:
        """Return the state of a commit. Raises CommitUnknown."""
        found = await self._home.store.entry_list(Search(EntryKind.COMMIT, namespace, key, limit=1))
        if not found:
            raise CommitUnknown
        commit = bulk_records.decode_commit(found[0].body)
        return Committed(commit.rows, commit.published, known=await self._known(namespace, key))

    async def _is_published(self, namespace: str, key: str) -> bool:
        found = await self._home.store.entry_list(Search(EntryKind.COMMIT, namespace, key, limit=1))
        return bool(found) and bulk_records.decode_commit(found[0].body).published

    async def _known(self, namespace: str, key: str) -> int:
        search = Search(EntryKind.KNOWN, namespace, key, bodies=False)
        return sum([each.weight for engine in self._all.engines for each in await engine.store.entry_list(search)])

    async def abort(self, namespace: str, txn: str) -> int:
        """Remove what is staged under a name and was not committed; return the number of rows."""
        stages = await self._home.run(AbortStage(namespace, txn))
        rows = sum(each.rows for each in stages)
        self._uncount(namespace, rows)
        for each in stages:
            await self._drop(namespace, each)
        return rows

    async def _add(self, engine: EngineContext, namespace: str, draft: int, chunks: Sequence[Chunk]) -> None:
        """Store chunks in slices, one after the other."""
        slices: list[list[Chunk]] = [[]]
        size = 0
        for each in chunks:
            if size >= limits.stage_slice_bytes:
                slices.append([])
                size = 0
            slices[-1].append(each)
            size += len(each.body)
        for place, some in enumerate(slices):
            # The fsync for the record of the part on the first shard makes all of it durable.
            durable = engine is not self._home and place == len(slices) - 1
            await engine.run(AddChunks(namespace, draft, some, begins=place == 0, durable=durable))

    async def _drop(self, namespace: str, stage: Stage) -> None:
        for shard in stage.shards:
            await self._drop_draft(self._all.engines[shard], namespace, stage.draft)

    @staticmethod
    async def _drop_draft(engine: EngineContext, namespace: str, draft: int) -> None:
        while await engine.run(DropDraft(namespace, draft)):
            pass

    def _wake_publishers(self) -> None:
        for publisher in self._publishers:
            publisher.wake()

    async def _wait(self, namespace: str, key: str, wait_ms: int) -> bool:
        """Wait until a commit is published; False if that took too long."""
        clock = self._home.clock
        until = clock.steady_ms() + wait_ms
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault((namespace, key), set())
            waiting.add(future)
            # Another server may publish it.
            look_ms = (
                min(until, clock.steady_ms() + limits.commit_look_ms) if self._home.store.capabilities.is_shared else until
            )
            alarm = clock.call_at(look_ms, partial(_wake, future))
            try:
                if await self._is_published(namespace, key):
                    return True
                if clock.steady_ms() >= until or self._stopping:
                    return False
                await future
            finally:
                alarm.cancel()
                waiting.discard(future)
                if not waiting:
                    self._waiting.pop((namespace, key), None)

    # Background work.

    async def run_once(self) -> None:
        """Finish commits. From time to time, delete what has expired."""
        while self._home.leads and self.goes_on():
            self._woken = False
            for entry in await self._home.store.entry_list(Search(EntryKind.OPEN)):
                await self._finish(entry.namespace, entry.name)
            if not self._woken:
                break
        if self._home.leads and self._home.clock.steady_ms() - self._checked_ms >= limits.MINUTE_MS:
            self._checked_ms = self._home.clock.steady_ms()
            await self._expire()

    async def _finish(self, namespace: str, key: str) -> None:
        """Send a commit to the shards that do not have it yet, and record when everything is published."""
        found = await self._home.store.entry_list(Search(EntryKind.COMMIT, namespace, key, limit=1))
        if not found:
            return
        commit = bulk_records.decode_commit(found[0].body)
        if commit.untold:
            for shard in commit.untold:
                drafts = [draft for draft, where in commit.drafts if where == shard]
                await self._all.engines[shard].run(RecordCommit(namespace, key, drafts))
            await self._home.run(RecordPublished(namespace, key, commit.untold, published=False))
            self._wake_publishers()
        for engine in self._all.engines:  # chunks may have been moved to a shard that had none
            if await engine.store.entry_list(Search(EntryKind.DUE, namespace, key, limit=1, bodies=False)):
                return
        if await self._home.run(RecordPublished(namespace, key, (), published=True)):
            for future in self._waiting.pop((namespace, key), set()):
                _wake(future)

    async def _expire(self) -> None:
        """Delete what was not committed in time, parts that were not completed, and keys that were kept for long enough."""
        now_ms, store = self._home.clock.now_ms(), self._home.store
        before = now_ms - limits.stage_ms
        for entry in await store.entry_list(Search(EntryKind.STAGE, before_ms=before, bodies=False)):
            for stage in await self._home.run(AbortStage(entry.namespace, entry.name, before)):
                await self._drop(entry.namespace, stage)
        for engine in self._all.engines:
            drafts = await engine.store.entry_list(Search(EntryKind.DRAFT, before_ms=before))
            if drafts:
                wanted = await self._wanted()
                for entry in drafts:
                    if entry.number not in wanted:
                        await self._drop_draft(engine, entry.namespace, entry.number)
        count, _ = await store.entry_totals(EntryKind.COMMIT)
        kept_ms = limits.commit_kept_ms if count <= limits.commits_max else limits.HOUR_MS
        old = await store.entry_list(Search(EntryKind.COMMIT, before_ms=now_ms - kept_ms, limit=limits.slice_jobs_max))
        done = [entry for entry in old if bulk_records.decode_commit(entry.body).published]
        if done:
            await self._home.run(PruneRecords(done))
        for engine in self._all.engines:
            for kind in (EntryKind.CARRIED, EntryKind.KNOWN):
                search = Search(kind, before_ms=now_ms - limits.commit_kept_ms, limit=limits.slice_jobs_max)
                if kept := await engine.store.entry_list(search):
                    await engine.run(PruneRecords(kept))

    async def _wanted(self) -> set[int]:
        """Return the drafts that are staged, or committed and not yet recorded on their shard."""
        store = self._home.store
        wanted = {bulk_records.decode_stage(each.body).draft for each in await store.entry_list(Search(EntryKind.STAGE))}
        for entry in await store.entry_list(Search(EntryKind.OPEN)):
            for each in await store.entry_list(Search(EntryKind.COMMIT, entry.namespace, entry.name, limit=1)):
                wanted |= {draft for draft, _ in bulk_records.decode_commit(each.body).drafts}
        return wanted


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
