"""The state of objectives: attainment, remaining error budget, and burn rate.

A burn rate of 1 uses the error budget exactly within the objective's window. An alert needs two windows, as is common
practice: the long one shows that it matters, the short one that it still continues.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.histogram import bucket_of, value_of
from penstock.lake.queries.window import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    MOMENT,
    Window,
    folded,
    milliseconds,
    of,
    spell_length,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.lake.queries.objectives import Objective


class BurnAlert(NamedTuple):
    """Raised if both windows burn faster than the rate that uses ``budget`` of the whole error budget in the long one."""

    severity: str
    long: int  #: ms
    short: int  #: ms
    budget: float

    def rate(self, window_ms: int) -> float:
        """Return the burn rate of the alert: 14.4 for a page within 30 days, for example."""
        return self.budget * window_ms / self.long


#: The most urgent first. With a window of 30 days: 14.4, 6, 3 and 1.
ALARMS: Final = (
    BurnAlert("page", HOUR_MS, 5 * MINUTE_MS, 0.02),
    BurnAlert("page", 6 * HOUR_MS, 30 * MINUTE_MS, 0.05),
    BurnAlert("ticket", DAY_MS, 2 * HOUR_MS, 0.1),
    BurnAlert("ticket", 3 * DAY_MS, 6 * HOUR_MS, 0.1),
)
#: The windows over which the burn rate is computed.
WINDOWS: Final = tuple(sorted({each for alarm in ALARMS for each in (alarm.long, alarm.short)}))
#: With fewer jobs than this in the long window there is no alert: one failed job would be enough.
JOBS_MIN: Final = 10

SCHEMA: Final = pa.schema(
    [
        ("objective", pa.string()),
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("kind", pa.string()),
        ("within_ms", pa.int64()),
        ("target", pa.float64()),
        ("window_ms", pa.int64()),
        ("at", MOMENT),
        ("jobs", pa.int64()),
        ("good", pa.int64()),
        ("attained", pa.float64()),
        ("budget_left", pa.float64()),
        *((f"burn_{spell_length(each)}", pa.float64()) for each in WINDOWS),
        ("alarm", pa.string()),
    ]
)
Counts = dict[int, tuple[int, int]]  #: good jobs and all jobs, by minute


def attainment(latency: pa.Table, minutes: pa.Table, objectives: Sequence[Objective], at_ms: int) -> pa.Table:
    """Measure objectives up to a moment, for each queue to which they apply: one row each.

    ``attained``: share of good jobs in the objective's window. ``budget_left``: 1 without errors, 0 if the error budget is
    used up, below 0 if there were more errors. ``burn_*``: burn rates, null without jobs. ``alarm``: ``page``, ``ticket``,
    or null.
    """
    rows = []
    for objective in objectives:
        window = Window(at_ms - objective.window_ms, at_ms)
        for (namespace, queue), counts in sorted(good_and_all(latency, minutes, objective, window).items()):
            rows.append(_measure(objective, namespace, queue, counts, at_ms))
    return pa.Table.from_pylist(rows, SCHEMA)


def good_and_all(
    latency: pa.Table, minutes: pa.Table, objective: Objective, window: Window
) -> dict[tuple[str, str], Counts]:
    """Count good jobs and all jobs, by queue and step."""
    counts: dict[tuple[str, str], Counts] = defaultdict(dict)
    if objective.kind == "success":
        found = folded(within(minutes, window), ["namespace", "queue", "at"], ["completions", "dead", "expired"])
        told = zip(*(found[name].to_pylist() for name in found.column_names), strict=True)
        for namespace, queue, at, completed, dead, expired in told:
            if objective.covers(namespace, queue) and completed + dead + expired:
                counts[namespace, queue][at] = (completed, completed + dead + expired)
        return counts
    chosen = within(of(latency, {"kind": objective.kind}), window)
    good = pc.if_else(pc.less_equal(chosen["bucket"], _last_good(objective.within_ms)), chosen["n"], 0)
    found = folded(chosen.append_column("good", good), ["namespace", "queue", "at"], ["good", "n"])
    for namespace, queue, at, well, n in zip(*(found[name].to_pylist() for name in found.column_names), strict=True):
        if objective.covers(namespace, queue):
            counts[namespace, queue][at] = (well, n)
    return counts


def _last_good(within_ms: int) -> int:
    """Return the last bucket of good jobs: that of the limit itself, unless its middle is above the limit."""
    bucket = bucket_of(within_ms)
    return bucket if value_of(bucket) <= within_ms else bucket - 1


def burn_rate(counts: Iterable[tuple[int, int]], target: float) -> float | None:
    """Return the burn rate; None without jobs."""
    good, total = _sum(counts)
    return None if not total else (total - good) / total / (1 - target)


def _measure(objective: Objective, namespace: str, queue: str, counts: Counts, at_ms: int) -> dict[str, Any]:
    good, total = _sum(counts.values())
    rates = {each: burn_rate(_last(counts, at_ms, each), objective.target) for each in WINDOWS}
    budget = (1 - objective.target) * total
    return {
        "objective": objective.name,
        "namespace": namespace,
        "queue": queue,
        "kind": objective.kind,
        "within_ms": objective.within_ms if objective.kind != "success" else None,
        "target": objective.target,
        "window_ms": objective.window_ms,
        "at": at_ms,
        "jobs": total,
        "good": good,
        "attained": good / total if total else None,
        "budget_left": 1 - (total - good) / budget if total else None,
        **{f"burn_{spell_length(each)}": rate for each, rate in rates.items()},
        "alarm": _alarm(objective, counts, rates, at_ms),
    }


def _alarm(objective: Objective, counts: Counts, rates: Mapping[int, float | None], at_ms: int) -> str | None:
    for alarm in ALARMS:
        threshold = alarm.rate(objective.window_ms)
        seen = _sum(_last(counts, at_ms, alarm.long))[1]
        if seen >= JOBS_MIN and all((rates[each] or 0) > threshold for each in (alarm.long, alarm.short)):
            return alarm.severity
    return None


def _last(counts: Counts, at_ms: int, length: int) -> list[tuple[int, int]]:
    return [each for at, each in counts.items() if at >= at_ms - length]


def _sum(counts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    good = total = 0
    for each, every in counts:
        good += each
        total += every
    return good, total


def last_minute(minutes: pa.Table) -> int | None:
    """Return the time up to which the lake has data: the end of the last minute of ``gold/minutes``."""
    if not minutes.num_rows:
        return None
    last: int = max(milliseconds(minutes["minute"]).to_pylist())
    return last + MINUTE_MS


def burn_series(
    latency: pa.Table, minutes: pa.Table, objective: Objective, window: Window, length: int
) -> tuple[list[int], list[float | None]]:
    """Return the burn rate of one queue in the ``length`` ms before the end of each step."""
    reach = Window(window.start - length, window.end)
    counts = [each for queue in good_and_all(latency, minutes, objective, reach).values() for each in queue.items()]
    counts.sort()
    moments, rates = [], []
    first = last = good = total = 0
    for moment in window.moments():
        end = min(moment + window.step, window.end)
        while last < len(counts) and counts[last][0] < end:
            good, total, last = good + counts[last][1][0], total + counts[last][1][1], last + 1
        while first < last and counts[first][0] < end - length:
            good, total, first = good - counts[first][1][0], total - counts[first][1][1], first + 1
        moments.append(moment)
        rates.append(burn_rate([(good, total)], objective.target))
    return moments, rates
