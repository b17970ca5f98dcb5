"""Information from the log of a Delta table, without reading a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.queries.window import DAY_MS, milliseconds

if TYPE_CHECKING:
    from deltalake import DeltaTable


def files_of(table: DeltaTable) -> pa.Table:
    """Return the files of a table, with their statistics."""
    return pa.table(table.get_add_actions(flatten=True))


def rows_of(table: DeltaTable, days: tuple[int | None, int | None]) -> int:
    """Return the number of rows between two days, both included and counted from 1970; None: no limit."""
    files = files_of(table)
    if "num_records" not in files.column_names:
        return 0
    if "partition.date" in files.column_names:
        for day, keeps in zip(days, (pc.greater_equal, pc.less_equal), strict=True):
            if day is not None:
                files = files.filter(keeps(files["partition.date"], pa.scalar(day, pa.date32())))
    return int(pc.sum(files["num_records"]).as_py() or 0)


def days_of(table: DeltaTable) -> set[int]:
    """Return the days, counted from 1970, for which a table has files."""
    files = files_of(table)
    if "partition.date" not in files.column_names:
        return set()
    return {each // DAY_MS for each in milliseconds(files["partition.date"]).to_pylist() if each is not None}


def highest(table: DeltaTable, column: str) -> Any:
    """Return the highest value of a column from the statistics; None if they do not contain it."""
    files = files_of(table)
    name = f"max.{column}"
    return pc.max(files[name]).as_py() if name in files.column_names else None
