"""The tables computed from other gold tables, for readers of Delta: gold/slo, gold/forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import write_deltalake

from penstock.lake.location import fitted
from penstock.lake.queries.backlog_forecast import drains
from penstock.lake.queries.delta_log import days_of
from penstock.lake.queries.objectives import FILE, parse
from penstock.lake.queries.slo import attainment, last_minute
from penstock.lake.queries.window import DAY_MS, since
from penstock.lake.tables import BACKLOG, FORECAST, LATENCY, MINUTES, SLO

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.lake.location import Lake
    from penstock.lake.queries.objectives import Objective
    from penstock.lake.tables import Table


def objectives_of(lake: Lake) -> list[Objective]:
    """Read the objectives of a lake. Raises ObjectivesInvalid."""
    return parse(lake.text(FILE), f"{lake.shown}/{FILE}")


def write_derived(lake: Lake, at_ms: int | None = None) -> dict[str, int]:
    """Write gold/slo and gold/forecast again, and return the number of rows of each. Raises ObjectivesInvalid.

    ``at_ms``: the end of the measurement of objectives and the start of the forecast, wall clock; by default, the end of the
    last minute in the lake. Reads gold tables only: the forecast needs all of gold/backlog, objectives the days of their
    windows. Call it at the end of a run, when the other tables are committed.
    """
    objectives = objectives_of(lake)
    end = _known_until(lake) if at_ms is None else at_ms
    if end is None:
        return {}
    days = since(end - max(each.window_ms for each in objectives))
    latency = lake.read(LATENCY, columns=["namespace", "queue", "minute", "kind", "bucket", "n"], filters=days, folded=False)
    minutes = lake.read(
        MINUTES, columns=["namespace", "queue", "minute", "completions", "dead", "expired"], filters=days, folded=False
    )
    backlog = lake.read(BACKLOG, columns=["namespace", "queue", "minute", "added", "taken"], folded=False)
    return {
        SLO.path: _replace(lake, SLO, attainment(latency, minutes, objectives, end)),
        FORECAST.path: _replace(lake, FORECAST, drains(backlog, end)),
    }


def _known_until(lake: Lake) -> int | None:
    minutes = lake.open(MINUTES)
    if minutes is None or not (days := days_of(minutes)):
        return None
    return last_minute(lake.read(MINUTES, columns=["minute"], filters=since(max(days) * DAY_MS), folded=False))


def _replace(lake: Lake, table: Table, rows: pa.Table) -> int:
    lake.ensure(table)
    write_deltalake(
        lake.uri(table),
        fitted(rows, table.schema),
        mode="overwrite",
        schema_mode="overwrite",
        storage_options=lake.storage_options,
    )
    count: int = rows.num_rows
    return count
