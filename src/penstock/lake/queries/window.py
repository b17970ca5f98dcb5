"""Windows of time, and the rows in them. Times are wall-clock milliseconds."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
#: The type of moments in answers.
MOMENT: Final = pa.timestamp("ms", tz="UTC")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS, "w": 7 * DAY_MS}
_LENGTH: Final = re.compile(r"([0-9]{1,12})(ms|[smhdw])")


class Window(NamedTuple):
    """From a moment up to another one, which is not included; in steps of so many milliseconds, whole minutes."""

    start: int
    end: int
    step: int = MINUTE_MS

    @property
    def steps(self) -> int:
        """Number of steps, including an incomplete last one."""
        first = self.start - self.start % self.step
        return max(0, -(-(self.end - first) // self.step))

    def moments(self) -> range:
        """Return the beginning of each step."""
        first = self.start - self.start % self.step
        return range(first, max(first, self.end), self.step)


def length_ms(text: str) -> int:
    """Parse a duration: ``5m``, ``1h``, ``30d``. Raises ValueError."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a length of time: expected one such as 30s, 5m, 1h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def spell_length(ms: int) -> str:
    """Return a duration as text, in the largest unit that fits."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNITS[unit] == 0:
            return f"{ms // _UNITS[unit]}{unit}"
    return f"{ms}ms"


def milliseconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return moments as numbers."""
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    return column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())


def moments(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return numbers as moments."""
    return (
        column.cast(pa.timestamp("ms")).cast(MOMENT) if pa.types.is_integer(column.type) else column.cast(MOMENT, safe=False)
    )


def within(table: pa.Table, window: Window, column: str = "minute") -> pa.Table:
    """Return the rows of a window, with ``at``: the beginning of the step of each row, as a number."""
    at = milliseconds(table[column])
    chosen = pc.and_(pc.greater_equal(at, window.start), pc.less(at, window.end))
    table = table.append_column("at", floored(at, window.step)) if "at" not in table.column_names else table
    return table.filter(chosen)


def floored(at: pa.ChunkedArray, step: int) -> pa.ChunkedArray:
    """Return the beginnings of the steps of moments."""
    return pc.multiply(pc.divide(at, pa.scalar(step, pa.int64())), pa.scalar(step, pa.int64()))


def folded(
    table: pa.Table,
    keys: Sequence[str],
    sums: Iterable[str] = (),
    *,
    lowest: Iterable[str] = (),
    highest: Iterable[str] = (),
) -> pa.Table:
    """Merge rows with the same keys: other columns are added up, or their lowest or highest value is taken. Sorted by keys.

    Without rows the result has no row, even without keys.
    """
    rules = [*((name, "sum") for name in sums), *((name, "min") for name in lowest), *((name, "max") for name in highest)]
    names = [f"{name}_{rule}" for name, rule in rules]
    grouped = table.group_by(list(keys), use_threads=False).aggregate(rules)
    grouped = grouped.select([*keys, *names]).rename_columns([*keys, *(name for name, _ in rules)])
    if not keys:
        return grouped.slice(0, min(1, table.num_rows))
    return grouped.sort_by([(key, "ascending") for key in keys])


def of(table: pa.Table, chosen: Mapping[str, str | None]) -> pa.Table:
    """Return the rows of a namespace, queue, kind and so on; None selects all."""
    for column, value in chosen.items():
        if value is not None:
            table = table.filter(pc.equal(table[column], value))
    return table


def ratio(part: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """Divide; null where the divisor is 0."""
    whole = whole.cast(pa.float64())
    return pc.divide(part.cast(pa.float64()), pc.if_else(pc.equal(whole, 0), pa.scalar(None, pa.float64()), whole))


def since(ms: int) -> pc.Expression:
    """Return a filter on directories: the day of a moment and later ones."""
    return pc.field("date") >= pa.scalar(ms // DAY_MS, pa.date32())


def until(ms: int) -> pc.Expression:
    """Return a filter on directories: the day of a moment and earlier ones."""
    return pc.field("date") <= pa.scalar(ms // DAY_MS, pa.date32())
