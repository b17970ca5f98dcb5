"""Shares of namespaces, and their fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.lake.queries.window import folded, ratio, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.lake.queries.window import Window

COLUMNS = ("arrivals", "completions", "busy_ms", "waits", "wait_ms")


def tenants(table: pa.Table, window: Window) -> pa.Table:
    """Return the totals of each namespace from ``gold/tenants`` in a window, the busiest first.

    ``share_*``: of the sum over the answer. ``served``: completions per arrival; older jobs count, too.
    """
    found = folded(within(table, window), ["namespace"], COLUMNS)
    for name in ("arrivals", "completions", "busy_ms"):
        total = sum(found[name].to_pylist())
        whole = pa.chunked_array([pa.array([total] * found.num_rows, pa.int64())])
        found = found.append_column(f"share_{name}", ratio(found[name], whole))
    found = found.append_column("served", ratio(found["completions"], found["arrivals"]))
    found = found.append_column("wait_ms_mean", ratio(found["wait_ms"], found["waits"]))
    return found.sort_by([("busy_ms", "descending"), ("namespace", "ascending")])


def jain(shares: Iterable[float | None]) -> float | None:
    """Return Jain's index: 1 if all are equal, 1/n if one of n has everything; None if all are 0."""
    known = [each for each in shares if each is not None]
    squares = sum(each * each for each in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else None
