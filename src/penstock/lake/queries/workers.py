"""The utilisation of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.lake.queries.window import MOMENT, folded, milliseconds, within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.lake.queries.window import Window

SCHEMA = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("at", MOMENT),
        ("busy_ms", pa.int64()),
        ("attempts", pa.int64()),
        ("busy", pa.float64()),
        ("places", pa.int64()),
        ("utilisation", pa.float64()),
    ]
)


def workers(table: pa.Table, fleet: pa.Table, window: Window, by: Sequence[str] = ("namespace", "queue")) -> pa.Table:
    """Return the utilisation of the workers of each queue, by step, from ``gold/workers`` and ``gold/fleet``.

    ``busy``: jobs that ran at the same time, on average. ``places``: the capacity of the queue's workers at the last
    snapshot, in this step or before; null if there was none. ``utilisation``: busy / places. A worker of several queues
    counts for each of them, so a queue's utilisation may be lower than that of its workers.
    """
    found = folded(within(table, window), [*by, "at"], ["busy_ms", "attempts"])
    looks = _looks(fleet, window, by)
    rows: list[dict[str, Any]] = []
    for row in found.to_pylist():
        length = min(row["at"] + window.step, window.end) - max(row["at"], window.start)
        busy = row["busy_ms"] / length
        places = _places_at(looks.get(tuple(row[name] for name in by), ()), row["at"] + window.step)
        rows.append({**row, "busy": busy, "places": places, "utilisation": busy / places if places else None})
    return pa.Table.from_pylist(
        rows, pa.schema([field for field in SCHEMA if field.name not in {"namespace", "queue"} - set(by)])
    )


def _looks(fleet: pa.Table, window: Window, by: Sequence[str]) -> Mapping[tuple[str, ...], Sequence[tuple[int, int]]]:
    """Return the times of snapshots and the places of each queue then, in order of time."""
    counted: dict[tuple[str, ...], dict[int, int]] = {}
    minutes = milliseconds(fleet["minute"]).to_pylist()
    for row, at in zip(fleet.to_pylist(), minutes, strict=True):
        if at >= window.end:
            continue
        names = [{"namespace": row["namespace"], "queue": queue} for queue in (row["queues"] or "").split(",")]
        for key in {tuple(name[each] for each in by) for name in names}:
            looks = counted.setdefault(key, {})
            looks[at] = looks.get(at, 0) + (row["concurrency"] or 0)
    return {key: sorted(looks.items()) for key, looks in counted.items()}


def _places_at(looks: Sequence[tuple[int, int]], end: int) -> int | None:
    found = None
    for at, places in looks:
        if at >= end:
            break
        found = places
    return found
