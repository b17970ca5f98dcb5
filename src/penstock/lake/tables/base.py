"""The definition of a table of the lake: columns, and how rows with the same key are folded.

All tables except those of the bronze layer and ``silver/attempts`` hold *partials*: each batch adds rows, and rows with the
same key are folded into one, when they are read or when the lake is compacted. So late events, many small batches and one
large batch give the same table once it is folded, and written rows are never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How the values of a column are folded: ``key``: they are the same in all rows; ``sum``, ``min``, ``max``; ``first``,
#: ``last``: the value of the first or last row in the table's order. ``row``: the rows of the table are not folded.
Fold = Literal["key", "sum", "min", "max", "first", "last", "row"]

TEXT: Final = pa.string()
SMALL: Final = pa.int32()
COUNT: Final = pa.int64()
SHARE: Final = pa.float64()
MOMENT: Final = pa.timestamp("us", tz="UTC")
DATE: Final = pa.date32()


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, its fold, and its description."""

    name: str
    type: pa.DataType
    fold: Fold
    help: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: ``<lake>/<layer>/<name>``, divided into directories by ``partition``."""

    layer: Literal["bronze", "silver", "gold"]
    name: str
    help: str
    columns: tuple[Column, ...]
    #: The column whose values have a directory each, so that old days can be skipped, folded and deleted.
    partition: str | None = "date"
    #: The columns that decide ``first`` and ``last``.
    order: tuple[str, ...] = ()
    #: Whether each run writes the whole table again instead of adding to it.
    is_replaced: bool = False

    @property
    def path(self) -> str:
        """Its path in the lake: ``gold/minutes``."""
        return f"{self.layer}/{self.name}"

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(each.name, each.type) for each in self.columns])

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are folded; empty if rows are not folded."""
        return tuple(each.name for each in self.columns if each.fold == "key")

    @property
    def is_partial(self) -> bool:
        """Return whether several rows may have the same key."""
        return bool(self.keys) and not self.is_replaced

    def folded(self, rows: pa.Table) -> pa.Table:
        """Fold rows with the same key into one; the result has the given columns, in the table's order."""
        columns = [each for each in self.columns if each.name in rows.column_names]
        if not self.is_partial or rows.num_rows == 0:
            return rows.select([each.name for each in columns])
        if self.order:
            # The order of the input must not matter. Otherwise the same fold could have different results.
            rows = rows.sort_by([(name, "ascending") for name in self.order])
        asked = [(each.name, each.fold) for each in columns if each.fold != "key"]
        keys = [each.name for each in columns if each.fold == "key"]
        found = rows.combine_chunks().group_by(keys, use_threads=not self.order).aggregate(asked)
        found = found.rename_columns(_plain(found, asked))
        return found.select([each.name for each in columns]).cast(
            pa.schema([pa.field(each.name, each.type) for each in columns])
        )


def _plain(found: pa.Table, asked: Sequence[tuple[str, Fold]]) -> list[str]:
    """Rename aggregates to the names of their columns."""
    names = {f"{name}_{how}": name for name, how in asked}
    return [names.get(name, name) for name in found.column_names]


def key(name: str, kind: pa.DataType, text: str) -> Column:
    """Return a column by which rows are folded."""
    return Column(name, kind, "key", text)


def count(name: str, text: str) -> Column:
    """Return a column that is added up."""
    return Column(name, COUNT, "sum", text)


def rows(*columns: tuple[str, pa.DataType, str]) -> Iterator[Column]:
    """Return columns of a table whose rows are not folded."""
    for name, kind, text in columns:
        yield Column(name, kind, "row", text)


NAMESPACE: Final = key("namespace", TEXT, "the namespace of the queue")
QUEUE: Final = key("queue", TEXT, "the queue")
MINUTE: Final = key("minute", MOMENT, "the minute it happened in, by its beginning")
DAY: Final = key("date", DATE, "the day of the minute (UTC); a directory each")
BATCH: Final = Column("batch", COUNT, "max", "the number of the batch that wrote the row")
