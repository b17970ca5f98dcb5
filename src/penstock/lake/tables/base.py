"""What a table of the lake is: columns, and how rows of one key become one.

All tables but those of the bronze layer and ``silver/attempts`` hold *partials*: each batch adds rows, and rows of the same
key are folded into one, when they are read or when the lake is compacted. So late events, many small batches and one large
one all give the same table once it is folded, and nothing that is written is ever changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: How the values of a column become one: they are the same for all rows of a key (``key``); ``sum``, ``min``, ``max``; the
#: value of the row that comes ``first`` or ``last`` by the table's order. ``row``: tables whose rows stay as they are.
Fold = Literal["key", "sum", "min", "max", "first", "last", "row"]

TEXT: Final = pa.string()
SMALL: Final = pa.int32()
COUNT: Final = pa.int64()
SHARE: Final = pa.float64()
MOMENT: Final = pa.timestamp("us", tz="UTC")
DATE: Final = pa.date32()


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, how it folds, and what it means."""

    name: str
    type: pa.DataType
    fold: Fold
    help: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: ``<lake>/<layer>/<name>``, cut into directories by ``partition``."""

    layer: Literal["bronze", "silver", "gold"]
    name: str
    help: str
    columns: tuple[Column, ...]
    #: The column whose values have a directory each, so that old days can be skipped, folded and thrown away.
    partition: str | None = "date"
    #: By which columns ``first`` and ``last`` are decided.
    order: tuple[str, ...] = ()
    #: Written whole by each run instead of added to.
    is_replaced: bool = False

    @property
    def path(self) -> str:
        """Where it is in the lake: ``gold/minutes``."""
        return f"{self.layer}/{self.name}"

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return pa.schema([pa.field(each.name, each.type) for each in self.columns])

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which rows are folded; none if rows stay as they are."""
        return tuple(each.name for each in self.columns if each.fold == "key")

    @property
    def is_partial(self) -> bool:
        """Tell whether several rows may stand for one."""
        return bool(self.keys) and not self.is_replaced

    def folded(self, rows: pa.Table) -> pa.Table:
        """Make one row of all that have the same key; the columns are those that are given, in the table's order."""
        columns = [each for each in self.columns if each.name in rows.column_names]
        if not self.is_partial or rows.num_rows == 0:
            return rows.select([each.name for each in columns])
        if self.order:
            # Nobody's order of rows may decide, or a fold would not be the same twice.
            rows = rows.sort_by([(name, "ascending") for name in self.order])
        asked = [(each.name, each.fold) for each in columns if each.fold != "key"]
        keys = [each.name for each in columns if each.fold == "key"]
        found = rows.combine_chunks().group_by(keys, use_threads=not self.order).aggregate(asked)
        found = found.rename_columns(_plain(found, asked))
        return found.select([each.name for each in columns]).cast(
            pa.schema([pa.field(each.name, each.type) for each in columns])
        )


def _plain(found: pa.Table, asked: Sequence[tuple[str, Fold]]) -> list[str]:
    """Give aggregates the names of their columns again."""
    names = {f"{name}_{how}": name for name, how in asked}
    return [names.get(name, name) for name in found.column_names]


def key(name: str, kind: pa.DataType, text: str) -> Column:
    """Return a column by which rows are folded."""
    return Column(name, kind, "key", text)


def count(name: str, text: str) -> Column:
    """Return a column that is added up."""
    return Column(name, COUNT, "sum", text)


def rows(*columns: tuple[str, pa.DataType, str]) -> Iterator[Column]:
    """Return columns of a table whose rows stay as they are."""
    for name, kind, text in columns:
        yield Column(name, kind, "row", text)


NAMESPACE: Final = key("namespace", TEXT, "the namespace of the queue")
QUEUE: Final = key("queue", TEXT, "the queue")
MINUTE: Final = key("minute", MOMENT, "the minute it happened in, by its beginning")
DAY: Final = key("date", DATE, "the day of the minute (UTC); a directory each")
BATCH: Final = Column("batch", COUNT, "max", "the number of the batch that wrote the row")
