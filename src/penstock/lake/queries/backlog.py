"""The number of unfinished jobs, and the age of the oldest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS, MOMENT, floored, folded, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.lake.queries.window import Window

SCHEMA = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("at", MOMENT),
        ("depth", pa.int64()),
        ("age_ms", pa.int64()),
        ("added", pa.int64()),
        ("taken", pa.int64()),
    ]
)


class Depths(NamedTuple):
    """The depth and age of a queue at the end of each step."""

    key: tuple[str, ...]
    depth: list[int]
    age_ms: list[int]
    added: list[int]
    taken: list[int]
    before: int  #: jobs from before the lake began, as far as the data shows


def depths(table: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue")) -> Iterator[Depths]:
    """Yield the depths of each queue, from ``gold/backlog`` from its beginning to the end of a window.

    Depth is the sum of added minus taken jobs, from the beginning of the lake. If that would be negative, jobs existed
    before the lake began: the needed number is added from the start. Age is an estimate: the age of the oldest job if jobs
    leave in the order in which they arrive. Then it is exact to the minute, or to the hour if the job arrived more than a
    day before the window. Priorities, delays and retries make it wrong.
    """
    columns = folded(table.append_column("at", _moments(table, window)), [*by, "at"], ["added", "taken"])
    rows = list(zip(*(columns[name].to_pylist() for name in (*by, "at", "added", "taken")), strict=True))
    place = 0
    while place < len(rows):
        key = rows[place][: len(by)]
        mine = []
        while place < len(rows) and rows[place][: len(by)] == key:
            if rows[place][len(by)] < window.end:
                mine.append(rows[place][len(by) :])
            place += 1
        if mine:
            yield _run(key, mine, window)


def _moments(table: pa.Table, window: Window) -> pa.ChunkedArray:
    """Return the minutes of rows; long before a window the hours, because a lake may be years old."""
    at = milliseconds(table["minute"])
    return pc.if_else(pc.less(at, window.start - DAY_MS), floored(at, HOUR_MS), at)


def _run(key: tuple[str, ...], rows: list[tuple[int, int, int]], window: Window) -> Depths:
    running = lowest = 0
    for _, added, taken in rows:
        running += added - taken
        lowest = min(lowest, running)
    before = -lowest
    found = Depths(key, [], [], [], [], before)
    came = [(rows[0][0] - MINUTE_MS, before)] if before else []  #: when, and how many had arrived by then
    came_total, gone_total, oldest, place = before, 0, 0, 0
    for moment in window.moments():
        end = min(moment + window.step, window.end)
        added_here = taken_here = 0
        while place < len(rows) and rows[place][0] < end:
            at, added, taken = rows[place]
            place += 1
            came_total += added
            gone_total += taken
            if added:
                came.append((at, came_total))
            if at >= window.start:
                added_here += added
                taken_here += taken
        while oldest < len(came) and came[oldest][1] <= gone_total:
            oldest += 1
        depth = came_total - gone_total
        found.depth.append(depth)
        found.age_ms.append(max(0, end - came[oldest][0]) if depth > 0 and oldest < len(came) else 0)
        found.added.append(added_here)
        found.taken.append(taken_here)
    return found


def backlog(table: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue")) -> pa.Table:
    """Return depth and age of each queue at the end of each step. See ``depths``."""
    columns: dict[str, list[Any]] = {name: [] for name in (*by, "at", "depth", "age_ms", "added", "taken")}
    moments = list(window.moments())
    for each in depths(table, window, by):
        for name, value in zip(by, each.key, strict=True):
            columns[name] += [value] * len(moments)
        columns["at"] += moments
        for name in ("depth", "age_ms", "added", "taken"):
            columns[name] += getattr(each, name)
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    return pa.table(columns, schema)
