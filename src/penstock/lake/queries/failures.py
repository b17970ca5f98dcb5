"""Failures by fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.lake.queries.window import DAY_MS, MOMENT, Window, milliseconds, within

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("fingerprint", pa.string()),
        ("pattern", pa.string()),
        ("n", pa.int64()),
        ("share", pa.float64()),
        ("first_seen", MOMENT),
        ("last_seen", MOMENT),
        ("example", pa.string()),
        ("example_job", pa.string()),
    ]
)


def failures(table: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue")) -> pa.Table:
    """Return failures of ``gold/failures`` by fingerprint, the most frequent first.

    The table is by day, so a window extends to the ends of its first and last day. ``share``: of all failures in the answer.
    ``example``: the first error of that kind, unchanged.
    """
    first = window.start - window.start % DAY_MS
    chosen = within(table, Window(first, window.end, DAY_MS), "date")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    seen = [milliseconds(chosen[name]).to_pylist() for name in ("first_seen", "last_seen")]
    for row, first_ms, last_ms in zip(chosen.to_pylist(), *seen, strict=True):
        key = (*(row[name] for name in by), row["fingerprint"])
        known = found.get(key)
        if known is None:
            found[key] = {**row, "first_seen": first_ms, "last_seen": last_ms}
            continue
        known["n"] += row["n"]
        known["last_seen"] = max(known["last_seen"], last_ms)
        if first_ms < known["first_seen"]:
            known |= {"first_seen": first_ms, "example": row["example"], "example_job": row["example_job"]}
    count = sum(row["n"] for row in found.values())
    rows = sorted(found.values(), key=lambda row: (-row["n"], *(str(row[name]) for name in (*by, "fingerprint"))))
    schema = pa.schema([field for field in SCHEMA if field.name not in {"namespace", "queue"} - set(by)])
    return pa.Table.from_pylist([{**row, "share": row["n"] / count} for row in rows], schema)
