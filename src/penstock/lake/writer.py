"""Writing to the lake: Parquet files first, then one commit that adds them to a table.

A file that no commit names is not part of any table: a process that is killed before its commit has added nothing, and
maintenance removes its files. A commit has *marks*: names with a number, which Delta calls application transactions. They
are stored in the table and change with the commit or not at all. So a batch that is built again after a crash is recognized.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table

#: The mark with the last batch of a table.
BATCH_MARK: Final = "penstock:batch"
#: The mark of a fold: a process that has read another number must not fold.
FOLD_MARK: Final = "penstock:fold"
#: The mark of bronze/events with the day before which details were deleted, in days since 1970.
FORGOTTEN_MARK: Final = "penstock:forgotten"
#: Columns with few values, which Parquet stores in a dictionary; ids are stored as they are.
_REPEATED: Final = frozenset(
    {"shard", "kind", "namespace", "queue", "attempt", "priority", "outcome", "state", "fingerprint", "error", "reason",
     "batch", "minute", "bucket", "pattern", "last_shard", "example_shard"}
)  # fmt: skip
#: Bounds that include every text of a search. Exact bounds would cost more than they save.
_ANY_TEXT: Final = ("", "\U0010ffff")
#: Rows of one row group.
_GROUP_ROWS: Final = 1 << 20


class DataFile(NamedTuple):
    """A written file, as a commit describes it."""

    path: str
    size: int
    rows: int
    value: str | None  #: of the partition column
    stats: str  #: lowest and highest values, as JSON


class PartWriter:
    """Writes rows of a table into files, one for each value of the partition column. ``name``: a unique name."""

    def __init__(self, lake: Lake, table: Table, name: str) -> None:
        self._files = lake.files(table)
        self._table = table
        self._name = name
        self._stored = pa.schema([field for field in table.schema if field.name != table.partition])
        self._open: dict[str | None, _Open] = {}

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows with all columns of the table, in any order."""
        if rows.num_rows == 0:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        if self._table.partition is None:
            self._one(None, table)
            return
        values = table.column(self._table.partition)
        least, greatest = pc.min_max(values).values()
        if least.equals(greatest) and values.null_count == 0:
            self._one(str(least.as_py()), table)
            return
        for value in pc.unique(values):
            chosen = pc.is_null(values) if not value.is_valid else pc.equal(values, value)
            self._one(str(value.as_py()) if value.is_valid else None, table.filter(chosen))

    def _one(self, value: str | None, rows: pa.Table) -> None:
        found = self._open.get(value)
        if found is None:
            directory = "" if self._table.partition is None else f"{self._table.partition}={value}/"
            if directory:
                self._files.create_dir(directory.rstrip("/"), recursive=True)
            found = self._open[value] = _Open(
                self._files, f"{directory}{self._name}-{len(self._open)}.parquet", self._stored
            )
        found.write(rows.select(self._stored.names).cast(self._stored))

    def close(self) -> list[DataFile]:
        """Close all files, and return them."""
        return [found.close(value) for value, found in self._open.items()]


class _Open:
    """A file that is being written."""

    def __init__(self, files: Any, path: str, schema: pa.Schema) -> None:
        self._files = files
        self._path = path
        self._rows = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        # Every column has statistics: readers built on delta-rs take a column without statistics, if others have some, for a
        # column in which no search can match.
        self._texts = [field.name for field in schema if pa.types.is_string(field.type)]
        self._telling = [name for name in schema.names if name not in self._texts]
        self._writer = pq.ParquetWriter(
            path,
            schema,
            filesystem=files,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in schema.names if name in _REPEATED],
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=_GROUP_ROWS)
        self._rows += rows.num_rows
        for name in self._telling:
            least, greatest = (each.as_py() for each in pc.min_max(rows.column(name)).values())
            if least is not None:
                self._least[name] = min(least, self._least.get(name, least))
                self._greatest[name] = max(greatest, self._greatest.get(name, greatest))

    def close(self, value: str | None) -> DataFile:
        self._writer.close()
        size = self._files.get_file_info(self._path).size
        stats = {
            "numRecords": self._rows,
            "tightBounds": False,
            "minValues": dict.fromkeys(self._texts, _ANY_TEXT[0])
            | {name: _told(each) for name, each in self._least.items()},
            "maxValues": dict.fromkeys(self._texts, _ANY_TEXT[1])
            | {name: _told(each) for name, each in self._greatest.items()},
        }
        return DataFile(self._path, size, self._rows, value, json.dumps(stats))


def _told(value: Any) -> Any:
    return value if isinstance(value, int | float) else value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shard_mark(shard: str) -> str:
    """Return the name of the mark of bronze/events with the next event of a shard."""
    return f"penstock:shard:{shard}"


def mark_of(found: DeltaTable | None, name: str = BATCH_MARK) -> int | None:
    """Return the number of a mark of a table; None if it is not set."""
    return None if found is None else found.transaction_version(name)


def commit(lake: Lake, table: Table, parts: Sequence[DataFile], *, marks: Mapping[str, int], now_ms: int) -> bool:
    """Add files to a table, all at once; False, without a change, if the table has the batch already.

    ``marks``: numbers to store with it; BATCH_MARK decides. Raises CommitFailedError if another process does the same now.
    """
    found = lake.ensure(table)
    before = mark_of(found)
    if before is not None and before >= marks.get(BATCH_MARK, before + 1):
        return False
    _commit(found, table, [_added(table, each, now_ms) for each in parts], marks)
    return True


def replace(found: DeltaTable, table: Table, parts: Sequence[DataFile], gone: Sequence[DataFile], *, now_ms: int) -> None:
    """Replace files by others with the same rows. Files that were added after ``found`` was opened stay.

    Raises CommitFailedError if another process has done so meanwhile. Without this check, Delta would allow both
    replacements.
    """
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(each.path, False, now_ms, each.size, _values(table, each)) for each in gone
    ]
    actions += [_added(table, each, now_ms, is_new=False) for each in parts]
    _commit(found, table, actions, {FOLD_MARK: found.version()})


def remove(found: DeltaTable, table: Table, gone: Sequence[DataFile], *, marks: Mapping[str, int], now_ms: int) -> None:
    """Remove files from a table, with their rows. Raises CommitFailedError if another process folds them meanwhile."""
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(each.path, True, now_ms, each.size, _values(table, each)) for each in gone
    ]
    _commit(found, table, actions, {FOLD_MARK: found.version(), **marks})


def replace_all(
    lake: Lake,
    table: Table,
    parts: Sequence[DataFile],
    *,
    marks: Mapping[str, int],
    now_ms: int,
    since: str | None = None,
) -> None:
    """Replace all files of a table; with ``since``: those of this day and later ones (2026-01-31)."""
    found = lake.ensure(table)
    actions: list[AddAction | RemoveAction] = [
        RemoveAction(each.path, True, now_ms, each.size, _values(table, each))
        for each in parts_of(found, table)
        if is_since(each, since)
    ]
    actions += [_added(table, each, now_ms) for each in parts]
    _commit(found, table, actions, {FOLD_MARK: found.version(), **marks})


def is_since(part: DataFile, day: str | None) -> bool:
    """Return whether a file is of a day or a later one (2026-01-31). None: of any. A file without a day is of none."""
    return day is None or (part.value is not None and part.value >= day)


def parts_of(found: DeltaTable, table: Table) -> list[DataFile]:
    """Return the files of a table."""
    parts = []
    for each in pa.table(found.get_add_actions()).to_pylist():
        value = None if table.partition is None else each["partition"][table.partition]
        parts.append(
            DataFile(each["path"], each["size_bytes"], each["num_records"], None if value is None else str(value), "{}")
        )
    return parts


def paths_of_batch(found: DeltaTable, batch: int) -> list[str]:
    """Return the files that may have rows of a batch."""
    actions = pa.table(found.get_add_actions(flatten=True)).select(["path", "min.batch", "max.batch"]).to_pylist()
    return [each["path"] for each in actions if each["min.batch"] <= batch <= each["max.batch"]]


def _values(table: Table, part: DataFile) -> dict[str, str | None]:
    return {} if table.partition is None else {table.partition: part.value}


def _added(table: Table, part: DataFile, now_ms: int, *, is_new: bool = True) -> AddAction:
    return AddAction(part.path, part.size, _values(table, part), now_ms, is_new, part.stats)


def _commit(found: DeltaTable, table: Table, actions: list[AddAction | RemoveAction], marks: Mapping[str, int]) -> None:
    found.create_write_transaction(
        actions,
        "append",
        found.schema(),
        partition_by=[table.partition] if table.partition else None,
        commit_properties=CommitProperties(app_transactions=[Transaction(name, number) for name, number in marks.items()]),
    )
