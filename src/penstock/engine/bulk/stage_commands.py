"""Stores staged writes: chunks and drafts, parts, commits, and which shards have received them. See ``staged_writes.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import BulkRecord, Chunk, Commit, EntryKind, Stage
from penstock.core.errors import StageUnknown
from penstock.engine.command import Command, NamespaceCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class AddChunks(NamespaceCommand[None]):
    """Store some rows of a draft. ``begins``: these are the first rows of the draft on this shard."""

    __slots__ = ("begins", "chunks", "draft", "durable")

    grows = True

    def __init__(self, namespace: str, draft: int, chunks: Sequence[Chunk], *, begins: bool, durable: bool) -> None:
        super().__init__(namespace)
        self.begins = begins
        self.draft = draft
        self.chunks = chunks
        self.durable = durable

    def weight(self) -> int:
        """Return the weight of its chunks: each is written as one row."""
        return 1 + sum(len(chunk.body) for chunk in self.chunks) // limits.weight_bytes


class SaveStage(NamespaceCommand[Stage | None]):
    """Record that a part is staged, in place of an earlier attempt.

    Answers that attempt, so that its chunks can be dropped.
    """

    __slots__ = ("part", "stage", "txn")

    grows = True
    durable = True

    def __init__(self, namespace: str, txn: str, part: int, stage: Stage) -> None:
        super().__init__(namespace)
        self.txn = txn
        self.part = part
        self.stage = stage


class CommitStages(NamespaceCommand[tuple[Commit, bool]]):
    """Commit staged writes under a key. Answers the commit of that key, and whether it existed already.

    Refused with StageUnknown if nothing is staged under one of the names.
    """

    __slots__ = ("key", "txns")

    grows = True
    durable = True

    def __init__(self, namespace: str, key: str, txns: Sequence[str]) -> None:
        super().__init__(namespace)
        self.key = key
        self.txns = txns

    def weight(self) -> int:
        """Return the number of its staged writes, and one for the commit."""
        return 1 + len(self.txns)


class RecordCommit(NamespaceCommand[None]):
    """Record on a shard that drafts were committed, so they are due. Doing it twice is allowed."""

    __slots__ = ("drafts", "key")

    durable = True

    def __init__(self, namespace: str, key: str, drafts: Sequence[int]) -> None:
        super().__init__(namespace)
        self.key = key
        self.drafts = drafts

    def weight(self) -> int:
        """Return the number of its drafts, and one for the commit."""
        return 1 + len(self.drafts)


class TakeOverChunks(Command[None]):
    """Take over chunks of a due draft from the shard that their queue has left. Doing it twice is allowed."""

    __slots__ = ("chunks", "entry")

    grows = True
    durable = True

    def __init__(self, entry: BulkRecord, chunks: Sequence[Chunk]) -> None:
        self.entry = entry
        self.chunks = chunks

    def tenant(self) -> str | None:
        """Return the namespace of the draft."""
        return self.entry.namespace

    def weight(self) -> int:
        """Return the weight of its chunks."""
        return 1 + sum(len(chunk.body) for chunk in self.chunks) // limits.weight_bytes


class RecordPublished(NamespaceCommand[bool]):
    """Record on the first shard which shards have a commit, or that all of it is published; answers the latter."""

    __slots__ = ("key", "published", "shards")

    def __init__(self, namespace: str, key: str, shards: Sequence[int], *, published: bool) -> None:
        super().__init__(namespace)
        self.key = key
        self.shards = shards
        self.published = published


class AbortStage(NamespaceCommand[list[Stage]]):
    """Remove what is staged under a name and was not committed. Answers it, so that its chunks can be dropped."""

    __slots__ = ("before_ms", "txn")

    def __init__(self, namespace: str, txn: str, before_ms: int | None = None) -> None:
        super().__init__(namespace)
        self.txn = txn
        self.before_ms = before_ms


class DropDraft(NamespaceCommand[bool]):
    """Delete a slice of a draft that is not needed any more; answers whether more of it is left."""

    __slots__ = ("draft",)

    def __init__(self, namespace: str, draft: int) -> None:
        super().__init__(namespace)
        self.draft = draft


class PruneRecords(Command[None]):
    """Delete records that were kept for long enough."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[BulkRecord]) -> None:
        self.entries = entries

    def weight(self) -> int:
        """Return the number of its records."""
        return len(self.entries)


async def add_chunks(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AddChunks]) -> None:
    """Apply a batch of staged rows."""
    for command in commands:
        drafts = await work.tx.entry_load(EntryKind.DRAFT, command.namespace, "", command.draft)
        if not drafts and not command.begins:  # it took so long that the draft was dropped
            work.refuse(command, StageUnknown("The draft has expired. Stage the part again."))
            continue
        draft = drafts[0] if drafts else BulkRecord(EntryKind.DRAFT, command.namespace, "", command.draft, 0)
        await work.tx.entry_save([draft._replace(at=work.now_ms)])
        await work.tx.chunk_add(command.chunks)
        if command.durable:
            work.answer(command, None)
        else:  # the record of the part, which is written last, waits for the disk
            work.answer_early(command, None)


async def save_stage(_engine: EngineContext, work: UnitOfWork, commands: Sequence[SaveStage]) -> None:
    """Apply a batch of staged parts."""
    for command in commands:
        name = (EntryKind.STAGE, command.namespace, command.txn, command.part)
        found = await work.tx.entry_load(*name)
        version = found[0].version if found else 0
        entry = BulkRecord(*name, work.now_ms, bulk_records.encode(command.stage), command.stage.bytes, version)
        await work.tx.entry_save([entry])
        work.answer(command, bulk_records.decode_stage(found[0].body) if found else None)


async def commit_stages(engine: EngineContext, work: UnitOfWork, commands: Sequence[CommitStages]) -> None:
    """Apply a batch of commits."""
    for command in commands:
        namespace, key = command.namespace, command.key
        known = await work.tx.entry_load(EntryKind.COMMIT, namespace, key, 0)
        if known:
            work.answer(command, (bulk_records.decode_commit(known[0].body), True))
            continue
        txns = {txn: place for place, txn in enumerate(dict.fromkeys(command.txns))}
        staged = await work.tx.entry_load_all(EntryKind.STAGE, namespace, [(txn, None) for txn in txns])
        staged.sort(key=lambda entry: txns[entry.name])  # in the order of the names in the command
        here = {entry.name for entry in staged}
        missing = next((txn for txn in txns if txn not in here), None)
        if missing is not None:
            work.refuse(
                command,
                StageUnknown(
                    f"Nothing is staged under {missing!r}: it has expired, was aborted or was committed under another key. "
                    "Stage it again."
                ),
            )
            continue
        stages = [bulk_records.decode_stage(each.body) for each in staged]
        drafts = [(each.draft, shard) for each in stages for shard in each.shards]
        shard_here = engine.store.shard
        untold = sorted({shard for _, shard in drafts if shard != shard_here})
        commit = Commit(sum(each.rows for each in stages), drafts, untold, published=not drafts)
        entries = [BulkRecord(EntryKind.COMMIT, namespace, key, 0, work.now_ms, bulk_records.encode(commit))]
        if drafts:
            entries.append(BulkRecord(EntryKind.OPEN, namespace, key, 0, work.now_ms))
        await work.tx.entry_save(entries)
        await work.tx.entry_remove(staged)
        await _record_commit(work, namespace, key, [draft for draft, shard in drafts if shard == shard_here])
        work.answer(command, (commit, False))


async def record_commit(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordCommit]) -> None:
    """Apply a batch of confirmed commits."""
    for command in commands:
        await _record_commit(work, command.namespace, command.key, command.drafts)
        work.answer(command, None)


async def _record_commit(work: UnitOfWork, namespace: str, key: str, drafts: Sequence[int]) -> None:
    # A draft that is not found is due already, or published.
    found = await work.tx.entry_load_all(EntryKind.DRAFT, namespace, [("", draft) for draft in dict.fromkeys(drafts)])
    await work.tx.entry_remove(found)
    await work.tx.entry_save([BulkRecord(EntryKind.DUE, namespace, key, each.number, work.now_ms) for each in found])


async def take_over_chunks(_engine: EngineContext, work: UnitOfWork, commands: Sequence[TakeOverChunks]) -> None:
    """Apply a batch of chunks from other shards.

    Each chunk that came leaves a record, because the chunk itself may be published and deleted already.
    """
    for command in commands:
        namespace, name = command.entry.namespace, str(command.entry.number)
        known = {each.number for each in await work.tx.entry_load(EntryKind.CARRIED, namespace, name)}
        new = [each for each in command.chunks if each.number not in known]
        if new:
            await work.tx.chunk_add(new)
            entries = [BulkRecord(EntryKind.CARRIED, namespace, name, each.number, work.now_ms) for each in new]
            if not await work.tx.entry_load(*command.entry[:4]):
                entries.append(command.entry._replace(at=work.now_ms, version=0))
            await work.tx.entry_save(entries)
        work.answer(command, None)


async def record_published(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordPublished]) -> None:
    """Apply a batch of records about commits."""
    for command in commands:
        found = await work.tx.entry_load(EntryKind.COMMIT, command.namespace, command.key, 0)
        if not found:
            work.answer(command, True)
            continue
        commit = bulk_records.decode_commit(found[0].body)
        commit.untold = [shard for shard in commit.untold if shard not in command.shards]
        if command.published and not commit.published and not commit.untold:
            commit.published = True
            commit.drafts = []
            await work.tx.entry_remove(await work.tx.entry_load(EntryKind.OPEN, command.namespace, command.key, 0))
        await work.tx.entry_save([found[0]._replace(body=bulk_records.encode(commit))])
        work.answer(command, commit.published)


async def abort_stage(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AbortStage]) -> None:
    """Apply a batch of aborts."""
    for command in commands:
        found = await work.tx.entry_load(EntryKind.STAGE, command.namespace, command.txn)
        if command.before_ms is not None:
            found = [each for each in found if each.at < command.before_ms]
        await work.tx.entry_remove(found)
        work.answer(command, [bulk_records.decode_stage(each.body) for each in found])


async def drop_draft(_engine: EngineContext, work: UnitOfWork, commands: Sequence[DropDraft]) -> None:
    """Apply a batch of drafts that are not needed. A draft that is due by now is not deleted."""
    for command in commands:
        found = await work.tx.entry_load(EntryKind.DRAFT, command.namespace, "", command.draft)
        more = False
        if found:
            limit = limits.slice_jobs_max // 10  # each has many rows
            more = await work.tx.chunk_drop(command.draft, limit) == limit
            if not more:
                await work.tx.entry_remove(found)
        work.answer(command, more)


async def prune_records(_engine: EngineContext, work: UnitOfWork, commands: Sequence[PruneRecords]) -> None:
    """Apply a batch of records to be deleted."""
    for command in commands:
        await work.tx.entry_remove(command.entries)
        work.answer(command, None)
