"""The tasks of a bulk process."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw
import asyncpg
import msgspec

from penstock.bulkwork import stage_rows
from penstock.bulkwork.arrow_files import FilePart, Spooler
from penstock.bulkwork.epoch_rows import SCHEMA, epoch_batch
from penstock.bulkwork.jobs import JOBS, jobs_batch
from penstock.bulkwork.journal import EVENTS, EventColumns
from penstock.core import bulk_records
from penstock.core.errors import EpochUnknown, InvalidInput, JournalGone, LakeUnavailable, SpoolFull, StorageFailed
from penstock.core.lifecycle import State
from penstock.store.bulk_reader import JobsWanted
from penstock.store.postgres.bulk import PostgresBulk
from penstock.store.sqlite.bulk import SqliteBulk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.store.bulk_reader import BulkReader

Doing = Callable[..., Coroutine[Any, Any, Any]]


async def snapshot(
    *, source: str, shard: int, wanted: dict[str, Any], states: dict[int, str], directory: str, rows_per_part: int, room: int
) -> dict[str, Any]:
    """Write the jobs of one shard into files. Return the files, and the number of omitted, damaged jobs.

    ``states``: the public names of states, by number.
    """
    choice = msgspec.convert(wanted, JobsWanted)
    async with _reader(source) as reader, reader.jobs(choice) as found:
        with Spooler(directory, f"shard{shard}", JOBS, rows_max=rows_per_part, room=room) as spooler:
            async for rows in found.chunks:
                if rows:
                    spooler.write(jobs_batch(rows, found.queues, states, shard))
    return {"parts": _listed(spooler.parts), "damaged": reader.damaged}


async def journal(
    *, source: str, shard: int, namespace: str | None, seq: int, to: int, directory: str, room: int
) -> dict[str, Any]:
    """Write a range of the journal of one shard into one file, and return it.

    Raises JournalGone if its start is no longer stored, and InvalidInput if its end is not written yet.
    """
    columns = EventColumns(shard, namespace, seq, to)
    with Spooler(directory, "journal", EVENTS, rows_max=max(1, to - seq), room=room, bytes_max=room + 1) as spooler:
        spooler.begin()
        async with _reader(source) as reader:
            async for block in reader.journal(seq, to):
                if block.seq > columns.next:
                    raise JournalGone(f"The journal starts at {block.seq}, and {seq} was requested.", first=block.seq)
                columns.take(block)
                if columns.is_full:
                    _write(spooler, columns)
        if columns.next < to:
            raise InvalidInput(f"to is {to}, and only what is before {columns.next} is there (vouched, see GET /bulk)")
        _write(spooler, columns)
    return _listed(spooler.parts)[0]


async def epoch(
    *,
    sources: list[str],
    namespace: str,
    entry: str,
    wanted: list[tuple[int, int, int, int, int]],
    skip_lost: bool,
    directory: str,
    room: int,
) -> dict[str, Any]:
    """Write jobs of an epoch into one file. Return the file, and the ``missing`` jobs: removed or damaged.

    ``entry``: the name under which the slices of the epoch are stored. ``wanted``: for each slice the shard, its number, its
    position in the epoch, and the rows. No file is returned if leases are lost and must not be skipped.
    """
    rows = sum(end - first for *_, first, end in wanted)
    lost = 0
    missing: list[int] = []
    async with AsyncExitStack() as stack:
        readers: dict[int, BulkReader] = {}
        spooler = stack.enter_context(
            Spooler(directory, "epoch", SCHEMA, rows_max=max(1, rows), room=room, bytes_max=room + 1)
        )
        spooler.begin()

        async def at(shard: int) -> BulkReader:
            if shard not in readers:
                readers[shard] = await stack.enter_async_context(_reader(sources[shard]))
            return readers[shard]

        for shard, number, offset, first, end in wanted:
            if shard >= len(sources):  # there are fewer shards now
                lost += end - first
                continue
            body = await (await at(shard)).slice(namespace, entry, number)
            if body is None:
                raise EpochUnknown("The epoch was acknowledged or released meanwhile.")
            jobs, tokens = bulk_records.decode_slice(body).leases()
            left = {job_id: (token, offset + row) for row, (job_id, token) in enumerate(zip(jobs, tokens, strict=True))}
            left = {job_id: left[job_id] for job_id in jobs[first:end]}
            seen: set[int] = set()
            # Some jobs may have moved to another shard with their queue.
            for place in (shard, *(each for each in range(len(sources)) if each != shard)):
                if not left:
                    break
                reader = await at(place)
                queues = await reader.queues()
                async for some in reader.fetch(list(left)):
                    seen.update(job.id for job in some)
                    mine = [job for job in some if job.token == left[job.id][0] and job.state == State.ACTIVE.value]
                    if mine:
                        spooler.write(epoch_batch(mine, [left.pop(job.id)[1] for job in mine], queues, place))
            lost += len(left)
            missing += [job_id for job_id in left if job_id not in seen]
            if lost and not skip_lost:
                break
    if lost and not skip_lost:
        return {"missing": missing}
    return {**_listed(spooler.parts)[0], "missing": missing}


async def pack(*, path: str, constants: dict[str, str], directory: str, room: int) -> dict[str, Any]:
    """Pack the rows of an Arrow file: one file with all chunks, and the queue, rows and bytes of each."""
    packed = stage_rows.pack(Path(path), constants)
    if sum(len(each.body) for each in packed) > room:
        raise SpoolFull
    made = Path(directory) / "chunks"
    with made.open("wb") as file:
        file.writelines(each.body for each in packed)
    return {"path": str(made), "chunks": [(each.queue, each.rows, len(each.body)) for each in packed]}


async def journal_at(*, source: str, at_ms: int) -> int | None:
    """Return the first event at or after a time."""
    async with _reader(source) as reader:
        return await reader.journal_at(at_ms)


def _write(spooler: Spooler, columns: EventColumns) -> None:
    batch = columns.batch()
    if batch is not None:
        spooler.write(batch)


def _listed(parts: list[FilePart]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(part) for part in parts]


@asynccontextmanager
async def _reader(source: str) -> AsyncIterator[BulkReader]:
    try:
        reader: BulkReader
        if source.startswith("sqlite:"):
            reader = SqliteBulk(source.removeprefix("sqlite:"))
        else:
            reader = await PostgresBulk.open(source)
        try:
            yield reader
        finally:
            await reader.close()
    except (apsw.Error, asyncpg.PostgresError, OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise StorageFailed(f"The store cannot be read in bulk ({error}). Retry in a moment.") from error


async def insight(**given: Any) -> dict[str, Any]:
    """Execute a query of the lake; see ``lake_queries``, which is imported on first use."""
    try:
        from penstock.bulkwork.lake_queries import answer  # noqa: PLC0415 - the lake is an extra, and large
    except ImportError:
        raise LakeUnavailable from None
    return answer(**given)


TASKS: Final[dict[str, Doing]] = {each.__name__: each for each in (snapshot, journal, journal_at, epoch, pack, insight)}
