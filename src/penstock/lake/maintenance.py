"""Maintenance of the lake: fold partials on disk, merge small files, remove unused files, delete the details of old days.

It may run while a batch is written: new files stay as they are, and are folded next time. A fold is one commit that replaces
files by another one, so a reader sees either the old files or the new one, with the same content. It needs no Spark.
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

#: Tables with a row for each event, attempt or job. Bronze comes first, so that its mark is set before any row is missing.
DETAILED: Final = (EVENTS, QUARANTINE, ATTEMPTS, JOBS)
_DAY_MS: Final = 86_400_000
#: Rows that are folded at once at most: they are in memory. A day with more rows stays in several files.
FOLD_ROWS_MAX: Final = 10_000_000
#: The target size of files of a table that is not folded, in bytes.
FILE_BYTES: Final = 128 << 20
#: How long files are kept that are no longer part of a table, in hours: a reader may use them, or a writer may commit them.
KEEP_HOURS: Final = 168


@dataclass(slots=True)
class Kept:
    """The result of maintenance for a table."""

    table: Table
    files_before: int = 0
    files_after: int = 0
    rows_before: int = 0  #: of the folded rows
    rows_after: int = 0
    removed: int = 0  #: files that were not used any more
    busy: bool = False  #: another process folded it, so it was skipped


class Forgotten(NamedTuple):
    """The details that were deleted from a table."""

    table: Table
    files: int
    rows: int
    bytes: int


def compact(
    lake: Lake, *, name: str, now_ms: int, least_files: int = 2, keep_hours: int | None = KEEP_HOURS
) -> Iterator[Kept]:
    """Fold and merge the files of all tables, and yield the result for each.

    ``name``: a unique name for new files. ``least_files``: days with fewer files are skipped. ``keep_hours``: remove unused
    files that are older; None: remove none.
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
            # Only another process that folds can cause a conflict, and then the work is done.
            kept.busy = True
        if keep_hours is not None:
            kept.removed = len(
                found.vacuum(retention_hours=keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
            )
        found.update_incremental()
        kept.files_after = len(found.file_uris())
        yield kept


def forgotten_before(lake: Lake) -> str | None:
    """Return the day before which details were deleted (2026-01-31); None if everything is kept."""
    days = mark_of(lake.open(EVENTS), FORGOTTEN_MARK)
    return None if days is None else _text(days)


def forget(lake: Lake, keep_days: int, *, now_ms: int, dry_run: bool = False) -> Iterator[Forgotten]:
    """Delete all days except today and the ``keep_days`` before it (UTC) from the tables with details.

    Gold stays: it is small, and its rows of those days are still correct. ``compact`` removes the files later, when no
    reader can use them any more. No other process may write to the lake at the same time. If this is interrupted, a
    repetition completes it. Bronze records that silver and gold cannot be built again in full.
    """
    first = now_ms // _DAY_MS - keep_days
    for table in DETAILED:
        found = lake.open(table)
        if found is None:
            continue
        gone = [part for part in parts_of(found, table) if part.value is not None and part.value < _text(first)]
        if gone and not dry_run:
            mark = max(first, mark_of(found, FORGOTTEN_MARK) or first)  # a late part may belong to a day before it
            remove(found, table, gone, marks={FORGOTTEN_MARK: mark}, now_ms=now_ms)
        yield Forgotten(table, len(gone), sum(part.rows for part in gone), sum(part.size for part in gone))


def _text(days: int) -> str:
    """Return a day since 1970 in the form of directory names."""
    return str(pa.scalar(days, pa.int32()).cast(pa.date32()).as_py())


def _fold(lake: Lake, found: DeltaTable, kept: Kept, *, name: str, now_ms: int, least_files: int) -> None:
    table = kept.table
    for number, value in enumerate(_days(found, table)):
        # The present files: the replacement must be built from the same files that the commit is checked against.
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
    """Return which files of a day to merge: the small ones, up to the limit of rows; of partials all, if they fit."""
    chosen: list[DataFile] = []
    size = rows = 0
    for each in sorted(files, key=lambda part: (part.size, part.path)):
        size, rows = size + each.size, rows + each.rows
        if rows > FOLD_ROWS_MAX or (size > FILE_BYTES and not table.is_partial):
            break
        chosen.append(each)
    return chosen


def _days(found: DeltaTable, table: Table) -> dict[str | None, list[DataFile]]:
    """Return the files of a table by their directories."""
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
