"""A forecast of the backlog, and of the time when it is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.lake.queries.backlog import depths
from penstock.lake.queries.forecasting import POINTS_MIN, SEASONS_MIN, forecast, reaches_nothing
from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS, MOMENT, Window, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.lake.queries.forecasting import Forecast

#: The length of the past for a forecast, by the length of its steps: the first one that covers the available data, or the
#: last one.
HISTORIES: Final = ((MINUTE_MS, 6 * HOUR_MS), (5 * MINUTE_MS, DAY_MS), (15 * MINUTE_MS, 4 * DAY_MS), (HOUR_MS, 28 * DAY_MS))
#: The time over which the growth of the backlog is measured.
LATE_MS: Final = 15 * MINUTE_MS
#: The number of forecast steps.
AHEAD: Final = 24
#: Queues with a forecast: those with the largest backlogs.
QUEUES_MAX: Final = 200

SCHEMA: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("queue", pa.string()),
        ("made_at", MOMENT),
        ("at", MOMENT),
        ("step_ms", pa.int64()),
        ("depth", pa.int64()),
        ("net_per_minute", pa.float64()),
        ("expected", pa.float64()),
        ("lowest", pa.float64()),
        ("highest", pa.float64()),
        ("model", pa.string()),
        ("error", pa.float64()),
        ("naive_error", pa.float64()),
        ("drained_at", MOMENT),
        ("drained_earliest", MOMENT),
        ("drained_latest", MOMENT),
        ("note", pa.string()),
    ]
)


def drains(table: pa.Table, at_ms: int, by: Sequence[str] = ("namespace", "queue"), ahead: int = AHEAD) -> pa.Table:
    """Return a forecast of the backlog of each queue from ``gold/backlog``, from a moment on: a row for each step.

    ``depth``: the present backlog; ``net_per_minute``: its recent growth. ``expected``: the forecast for ``at``; in nine
    cases of ten between ``lowest`` and ``highest``, according to the past. ``error``: the average error of such forecasts in
    jobs, measured on the past; ``naive_error``: that of the forecast that nothing changes. ``drained_at``: when the backlog
    is empty, if the forecast reaches that; earliest and latest by the bounds. Without enough data there is one row with a
    ``note``, and no forecast.
    """
    if not table.num_rows:
        return SCHEMA.empty_table()
    first = min(milliseconds(table["minute"]).to_pylist())
    rows: list[dict[str, Any]] = []
    step, past = history_of(at_ms - first)
    start = max(at_ms - past, first - first % step)
    end = at_ms - at_ms % step if at_ms - at_ms % step > start else at_ms
    window = Window(start, end, step)
    late = {each.key: each for each in depths(table, Window(at_ms - LATE_MS, at_ms, LATE_MS), by)}
    queues = sorted(depths(table, window, by), key=lambda each: -each.depth[-1] if each.depth else 0)[:QUEUES_MAX]
    for each in sorted(queues):
        known = dict(zip(by, each.key, strict=True))
        values = _since_first(each.depth, each.added)
        about = {**known, "made_at": window.end, "step_ms": step, "depth": each.depth[-1] if each.depth else 0}
        about["net_per_minute"] = (sum(late[each.key].added) - sum(late[each.key].taken)) / (LATE_MS / MINUTE_MS)
        made = forecast(values, ahead, DAY_MS // step)
        if made is None:
            note = f"not enough data: {len(values)} steps of {step // MINUTE_MS} min, {POINTS_MIN} are needed"
            rows.append({**about, "note": note})
        else:
            rows += _told(about, made, window.end, step)
    return pa.Table.from_pylist(
        rows, pa.schema([field for field in SCHEMA if field.name not in {"namespace", "queue"} - set(by)])
    )


def history_of(known_ms: int) -> tuple[int, int]:
    """Return the length of steps, and of the past: the finest steps whose past covers all available data.

    Then the number of steps to learn from is about the same, however old the lake is. With data of enough days, the steps
    are such that a day is a season.
    """
    for step, past in HISTORIES:
        if known_ms <= past:
            return step, past
    return HISTORIES[-1]


def _since_first(depth: list[int], added: list[int]) -> list[float]:
    """Return the depths without the time before the first job."""
    first = next((place for place, each in enumerate(depth) if each or added[place]), len(depth))
    return [float(each) for each in depth[first:]]


def _told(about: dict[str, Any], made: Forecast, at_ms: int, step: int) -> list[dict[str, Any]]:
    gone = {
        name: None if steps is None else at_ms + steps * step
        for name, steps in (
            ("drained_at", reaches_nothing(made.expected)),
            ("drained_earliest", reaches_nothing(made.lowest)),
            ("drained_latest", reaches_nothing(made.highest)),
        )
    }
    if not about["depth"]:
        gone = dict.fromkeys(gone)  # the backlog is empty already
    told = {"model": made.model, "error": made.error, "naive_error": made.naive_error, **gone}
    bounds = zip(made.expected, made.lowest, made.highest, strict=True)
    return [
        {**about, **told, "at": at_ms + number * step, "expected": expected, "lowest": lowest, "highest": highest}
        for number, (expected, lowest, highest) in enumerate(bounds, 1)
    ]


__all__ = ["AHEAD", "HISTORIES", "QUEUES_MAX", "SCHEMA", "SEASONS_MIN", "drains", "history_of"]
