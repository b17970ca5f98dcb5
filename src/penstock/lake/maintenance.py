"""Keeping the lake small: partials are folded on disk, small files put together, files of no use removed, old days forgotten.

It may run while a batch is written: what comes meanwhile stays as it is, and is folded next time. A fold is one commit that
puts a file in the place of others, so a reader sees the ones or the other, which say the same. No Spark is needed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError

from penstock.lake.location import fitted
from penstock.lake.tables import ATTEMPTS, EVENTS, JOBS, QUARANTINE, TABLES
from penstock.lake.writer import FORGOTTEN_MARK, PartWriter, mark_of, parts_of, remove, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table
    from penstock.lake.writer import DataFile

#: Tables with a row for each event, attempt or job. Bronze comes first, so that its mark is there before anything is missing.
DETAILED: Final = (EVENTS, QUARANTINE, ATTEMPTS, JOBS)
_DAY_MS: Final = 86_400_000
#: Rows that are folded at once at most: they are in memory. A day that has more stays in several files.
FOLD_ROWS_MAX: Final = 10_000_000
#: How large files of a table that is not folded are made, in bytes.
FILE_BYTES: Final = 128 << 20
#: How long files are kept that are no longer part of a table, in hours: somebody may be reading them, or about to commit them.
KEEP_HOURS: Final = 168


@dataclass(slots=True)
class Kept:
    """What upkeep has done to a table."""

    table: Table
    files_before: int = 0
    files_after: int = 0
    rows_before: int = 0  #: of what was folded
    rows_after: int = 0
    removed: int = 0  #: files that nobody needed any more
    busy: bool = False  #: somebody else was at it, so it was left alone


class Forgotten(NamedTuple):
    """What was taken out of a table."""

    table: Table
    files: int
    rows: int
    bytes: int


def compact(
    lake: Lake, *, name: str, now_ms: int, least_files: int = 2, keep_hours: int | None = KEEP_HOURS
) -> Iterator[Kept]:
    """Fold and tidy all tables, and say what was done to each.

    ``name``: for new files, one that nobody else has. ``least_files``: days with fewer are left alone. ``keep_hours``: remove
    files that are part of nothing and older than that; None: remove none.
    """
    for table in TABLES.values():
        found = lake.open(table)
        if found is None:
            continue
        kept = Kept(table, files_before=len(found.file_uris()))
        try:
            if not table.is_replaced:
                _fold(lake, found, kept, name=name, now_ms=now_ms, least_files=least_files)
        except CommitFailedError:
            # Only another one who folds can be in the way, and then it is done.
            kept.busy = True
        if keep_hours is not None:
            kept.removed = len(
                found.vacuum(retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            )
        found.update_incremental()
        kept.files_after = len(found.file_uris())
        yield kept


def forgotten_before(lake: Lake) -> str | None:
    """Return the day before which details were forgotten (2026-01-31), or None if everything is kept."""
    days = mark_of(lake.open(EVENTS), FORGOTTEN_MARK)
    return None if days is None else _text(days)


def forget(lake: Lake, keep_days: int, *, now_ms: int, dry_run: bool = False) -> Iterator[Forgotten]:
    """Take all days but today and the ``keep_days`` before it (UTC) out of the tables that have details.

    Gold stays: it is small, and what it says of those days is still true. The files themselves are removed by ``compact``, when
    nobody can be reading them any more. Nobody may add to the lake meanwhile. If this is interrupted, doing it again does the
    rest. It is noted in bronze that silver and gold cannot be made anew as they are.
    """
    first = now_ms // _DAY_MS - keep_days
    for table in DETAILED:
        found = lake.open(table)
        if found is None:
            continue
        gone = [part for part in parts_of(found, table) if part.value is not None and part.value < _text(first)]
        if gone and not dry_run:
            mark = max(first, mark_of(found, FORGOTTEN_MARK) or first)  # a part that came late may be of a day before it
            remove(found, table, gone, marks={FORGOTTEN_MARK: mark}, now_ms=now_ms)
        yield Forgotten(table, len(gone), sum(part.rows for part in gone), sum(part.size for part in gone))


def _text(days: int) -> str:
    """Spell a day since 1970, as directories do."""
    return str(pa.scalar(days, pa.int32()).cast(pa.date32()).as_py())


def _fold(lake: Lake, found: DeltaTable, kept: Kept, *, name: str, now_ms: int, least_files: int) -> None:
    table = kept.table
    for number, value in enumerate(_days(found, table)):
        # As they are by now: what is put in their place must be made of the same files that the commit is checked against.
        files = _chosen(table, _days(found, table).get(value, []))
        rows = sum(each.rows for each in files)
        if len(files) < least_files:
            continue
        folded = table.folded(_read(lake, table, files, value))
        writer = PartWriter(lake, table, f"{name}-{number}")
        writer.write(folded)
        replace(found, table, writer.close(), files, now_ms=now_ms)
        found.update_incremental()
        kept.rows_before += rows
        kept.rows_after += folded.num_rows


def _chosen(table: Table, files: list[DataFile]) -> list[DataFile]:
    """Return which files of a day are made one: the small ones, up to as many rows as fit; of partials all, if they do."""
    chosen: list[DataFile] = []
    size = rows = 0
    for each in sorted(files, key=lambda part: (part.size, part.path)):
        size, rows = size + each.size, rows + each.rows
        if rows > FOLD_ROWS_MAX or (size > FILE_BYTES and not table.is_partial):
            break
        chosen.append(each)
    return chosen


def _days(found: DeltaTable, table: Table) -> dict[str | None, list[DataFile]]:
    """Return the files of a table, by the directory they are in."""
    days: dict[str | None, list[DataFile]] = {}
    for part in parts_of(found, table):
        days.setdefault(part.value, []).append(part)
    return days


def _read(lake: Lake, table: Table, files: list[DataFile], value: str | None) -> pa.Table:
    stored = pa.schema([field for field in table.schema if field.name != table.partition])
    found = lake.files(table)
    # Files of earlier versions have fewer columns.
    rows = pa.concat_tables(
        [fitted(pq.read_table(unquote(each.path), filesystem=found, partitioning=None), stored) for each in files]
    )
    if table.partition is None:
        return rows
    day = pa.scalar(value, pa.string()).cast(table.schema.field(table.partition).type)
    rows = rows.append_column(table.partition, pa.repeat(day, rows.num_rows))
    return rows.select(table.schema.names)
