"""The data of a report: answers of the lake for one window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.lake.queries.derived import objectives_of
from penstock.lake.queries.slo import burn_series
from penstock.lake.queries.window import HOUR_MS, milliseconds

if TYPE_CHECKING:
    from penstock.lake.queries.api import Insights, Question
    from penstock.lake.queries.window import Window

#: Queues, tenants and kinds of failures that a report lists.
SHOWN_MAX: Final = 12
#: Objectives with a chart of their burn rates.
BURNING_MAX: Final = 3

Row = dict[str, Any]


class Burn(NamedTuple):
    """The burn rate of an objective in a queue, over the hour before each step."""

    name: str
    at: list[int]
    rate: list[float | None]


class ReportData(NamedTuple):
    """Rows of answers, with moments in ms.

    ``series``, ``waits``, ``runs``, ``backlog`` and ``workers``: of all queues in sum, by step.
    """

    namespace: str | None
    queue: str | None
    window: Window
    known_until: int
    last_batch: int | None
    queues: list[Row]
    series: list[Row]
    waits: list[Row]
    runs: list[Row]
    wait_whole: Row
    run_whole: Row
    backlog: list[Row]
    forecast: list[Row]
    forecasts: list[Row]  #: the first step of each queue
    failures: list[Row]
    workers: list[Row]
    tenants: list[Row]
    jain: dict[str, float | None]
    slo: list[Row]
    burns: list[Burn]


def report_data_of(insights: Insights, question: Question) -> ReportData:
    """Run all queries of a report. Raises LakeMissing, QuestionInvalid, ObjectivesInvalid."""
    overview = insights.ask("overview", question).about
    window = insights.window(question)
    fixed = msgspec.structs.replace(question, start=window.start, end=window.end, step=window.step)
    every = msgspec.structs.replace(fixed, by="all")

    def rows(name: str, **more: Any) -> list[Row]:
        return told(insights.ask(name, msgspec.structs.replace(every, **more)).rows)

    tenants = insights.ask("tenants", fixed)
    slo = rows("slo")
    waits, runs = rows("latency", kind="wait"), rows("latency", kind="run")
    forecasts = told(insights.ask("forecast", fixed).rows)
    firsts = {(row["namespace"], row["queue"]): row for row in reversed(forecasts)}
    queues = sorted(
        told(insights.ask("queues", fixed).rows), key=lambda row: (-row["arrivals"], row["namespace"], row["queue"])
    )
    return ReportData(
        question.namespace,
        question.queue,
        window,
        overview["known_until"] or window.end,
        overview["last_batch"],
        queues,
        rows("series"),
        waits,
        runs,
        next(iter(rows("latency-whole", kind="wait")), {}),
        next(iter(rows("latency-whole", kind="run")), {}),
        rows("backlog"),
        rows("forecast"),
        sorted(firsts.values(), key=lambda row: -row["depth"]),
        told(insights.ask("failures", fixed).rows),
        rows("workers"),
        told(tenants.rows),
        tenants.about["jain"],
        slo,
        _burns(insights, fixed, window, slo),
    )


def told(table: pa.Table) -> list[Row]:
    """Return rows with moments in ms."""
    columns = [
        milliseconds(each) if pa.types.is_temporal(each.type) else each for each in map(table.column, table.column_names)
    ]
    found: list[Row] = pa.table(columns, names=table.column_names).to_pylist()
    return found


def _burns(insights: Insights, question: Question, window: Window, slo: list[Row]) -> list[Burn]:
    """Return the burn rates of the objectives with the least error budget left."""
    worst = sorted((row for row in slo if row["budget_left"] is not None), key=lambda row: row["budget_left"])[:BURNING_MAX]
    objectives = {each.name: each for each in objectives_of(insights.lake)}
    found = []
    for row in worst:
        asked = msgspec.structs.replace(question, namespace=row["namespace"], queue=row["queue"])
        latency, minutes = insights.counted(asked, window.start - HOUR_MS, window.end)
        at, rate = burn_series(latency, minutes, objectives[row["objective"]], window, HOUR_MS)
        found.append(Burn(f"{row['namespace']}/{row['queue']}: {row['objective']}", at, rate))
    return found
