"""Counts of queues, by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.queries.window import folded, milliseconds, moments, ratio, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.lake.queries.window import Window

#: The columns that are counted, and those that are added up.
COLUMNS: Final = (
    "arrivals", "completions", "failures", "retries", "stalls", "releases", "dead", "revived", "replayed", "expired", "removed",
    "forgotten", "bytes_in", "bytes_done", "waits", "wait_ms", "runs", "run_ms",
)  # fmt: skip


def series(
    minutes: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue"), columns: Sequence[str] = COLUMNS
) -> pa.Table:
    """Add up ``gold/minutes`` by step, for each queue, or by the columns in ``by``. A step without data has no row."""
    found = folded(within(minutes, window), [*by, "at"], columns)
    return found.set_column(len(by), "at", moments(found["at"]))


def totals(minutes: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue")) -> pa.Table:
    """Add up ``gold/minutes`` over a window, for each queue, with the first and last minute with data, and shares.

    ``failure_rate``: attempts that failed or stalled, divided by those that ended. ``wait_ms_mean``, ``run_ms_mean``: of the
    jobs with known times.
    """
    chosen = within(minutes, window)
    chosen = chosen.append_column("first", milliseconds(chosen["minute"])).append_column(
        "last", milliseconds(chosen["minute"])
    )
    found = folded(chosen, by, COLUMNS, lowest=["first"], highest=["last"])
    bad = pc.add(found["failures"], found["stalls"])
    found = found.append_column("failure_rate", ratio(bad, pc.add(found["completions"], bad)))
    for name, count in (("wait_ms", "waits"), ("run_ms", "runs")):
        found = found.append_column(f"{name}_mean", ratio(found[name], found[count]))
    for name in ("first", "last"):
        found = found.set_column(found.column_names.index(name), name, moments(found[name]))
    return found
