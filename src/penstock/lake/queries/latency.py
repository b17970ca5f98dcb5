"""Percentiles over any window, from merged buckets."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.lake.histogram import value_of
from penstock.lake.queries.window import MOMENT, folded, of, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.lake.queries.window import Window

KINDS: Final = ("wait", "run", "total")
QUANTILES: Final = (0.5, 0.95, 0.99)


def column_of(quantile: float) -> str:
    """Return the name of a percentile's column: ``p50``, ``p99``, ``p99.9``."""
    return f"p{quantile * 100:.6g}"


def latency(
    buckets: pa.Table,
    window: Window,
    kind: str,
    quantiles: Sequence[float] = QUANTILES,
    *,
    by: Sequence[str] = ("namespace", "queue"),
    whole: bool = False,
) -> pa.Table:
    """Return percentiles of ``gold/latency``, in milliseconds, by step and queue. ``whole``: of the whole window.

    The error of each is at most 1 %. ``n``: the number of values; ``mean_ms``: their mean, which is exact.
    """
    chosen = within(of(buckets, {"kind": kind}), window)
    keys = [*by] if whole else [*by, "at"]
    merged = folded(chosen, [*keys, "bucket"], ["n", "sum_ms"])
    counts = merged["n"].to_pylist()
    running = list(accumulate(counts))
    names = [column_of(each) for each in quantiles]
    rows: list[dict[str, Any]] = []
    for first, end in _groups(merged, keys):
        before = running[first - 1] if first else 0
        n = running[end - 1] - before
        row = {key: merged[key][first].as_py() for key in keys}
        row |= {"n": n, "mean_ms": sum(merged["sum_ms"][first:end].to_pylist()) / n if n else None}
        for name, quantile in zip(names, quantiles, strict=True):
            place = bisect_left(running, before + max(1, ceil(quantile * n)), first, end) if n else None
            row[name] = None if place is None else float(value_of(merged["bucket"][place].as_py()))
        rows.append(row)
    schema = [*((key, MOMENT if key == "at" else pa.string()) for key in keys), ("n", pa.int64()), ("mean_ms", pa.float64())]
    return pa.Table.from_pylist(rows, pa.schema([*schema, *((name, pa.float64()) for name in names)]))


def _groups(table: pa.Table, keys: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last positions of rows with the same keys, in a table in the order of its keys."""
    if not table.num_rows:
        return []
    columns = [table[key].to_pylist() for key in keys]
    if not columns:
        return [(0, table.num_rows)]
    every = list(zip(*columns, strict=True))
    starts = [0, *(place for place in range(1, len(every)) if every[place] != every[place - 1])]
    return list(zip(starts, [*starts[1:], len(every)], strict=True))
