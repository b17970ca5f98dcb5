"""Questions to a lake, and their answers: the rows that each reads, and the computation.

Rows are cached for the next question, as long as their table has not changed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.location import LAKE_INFO, LakeMissing, fitted
from penstock.lake.queries.backlog import backlog
from penstock.lake.queries.backlog_forecast import drains
from penstock.lake.queries.delta_log import days_of, highest, rows_of
from penstock.lake.queries.derived import objectives_of
from penstock.lake.queries.failures import failures
from penstock.lake.queries.latency import KINDS, QUANTILES, latency
from penstock.lake.queries.series import COLUMNS, series, totals
from penstock.lake.queries.slo import attainment, last_minute
from penstock.lake.queries.tenants import jain, tenants
from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS, Window, milliseconds, since, until
from penstock.lake.queries.workers import workers
from penstock.lake.tables import BACKLOG, EVENTS, FAILURES, FLEET, LATENCY, MINUTES, TABLES, TENANTS, WORKERS
from penstock.lake.writer import mark_of, shard_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltalake import DeltaTable

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table

#: The size of the cache for rows, in bytes.
KEPT_BYTES: Final = 64 * 1024 * 1024
KEPT_MAX: Final = 64
#: The default steps: the finest one with no more than STEPS steps in the window.
STEPS: Final = (MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS)
STEPS_GOOD: Final = 300
#: The default window: the last day of the lake.
WINDOW_MS: Final = DAY_MS
#: The largest number of shards of a server.
SHARDS_MAX: Final = 64
#: The factor by which more rows may be read for one queue: most of them are skipped.
ONE_QUEUE: Final = 10
BY: Final = {"queue": ("namespace", "queue"), "namespace": ("namespace",), "all": ()}


class QuestionInvalid(ValueError):
    """The question is invalid."""


class Question(msgspec.Struct, kw_only=True):
    """A question. Times are wall-clock milliseconds; fields that are None get a default from the data."""

    namespace: str | None = None  #: None: all
    queue: str | None = None  #: None: all
    start: int | None = None
    end: int | None = None  #: not included
    now: int | None = None  #: the end, if a namespace has no data and no end is given
    step: int | None = None  #: ms, whole minutes
    by: str = "queue"  #: or namespace, or all
    kind: str = "wait"
    quantiles: list[float] = msgspec.field(default_factory=lambda: list(QUANTILES))
    columns: list[str] = msgspec.field(default_factory=lambda: list(COLUMNS))
    steps_max: int = 10_000
    rows_max: int = 100_000
    read_rows_max: int = 50_000_000
    limit: int | None = None  #: rows of the answer, from its beginning


class Answer(NamedTuple):
    """Rows, and further fields: ``from``, ``to`` and ``step_ms``, if they exist."""

    rows: pa.Table
    about: dict[str, Any]


class _CachedTable(NamedTuple):
    rows: pa.Table
    version: int


class Insights:
    """Answers questions to one lake. Raises LakeMissing, QuestionInvalid, ObjectivesInvalid."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._tables: dict[str, DeltaTable] = {}
        self._logs: dict[str, tuple[int, int] | None] = {}  #: the identity of each table's log
        self._kept: OrderedDict[tuple[Any, ...], _CachedTable] = OrderedDict()
        self.reads = 0  #: number of file reads

    def ask(self, name: str, question: Question) -> Answer:
        """Answer a question by its name, see QUESTIONS."""
        return QUESTIONS[name](self, question)

    # Questions.

    def overview(self, question: Question) -> Answer:
        """Return the tables, and their age: rows of table, version, time of the last write."""
        rows = []
        for path, table in TABLES.items():
            found = self._open(table)
            if found is not None:
                rows.append({"table": path, "version": found.version(), "written_at": _written_at(found)})
        if not rows:
            raise LakeMissing(self.lake.address)
        schema = pa.schema([("table", pa.string()), ("version", pa.int64()), ("written_at", pa.int64())])
        minutes = self._open(MINUTES)
        first = min(
            (milliseconds(each["minute"]).to_pylist()[0] for each in self._edge(question, newest=False)), default=None
        )
        about = {
            "last_batch": None if minutes is None else highest(minutes, "batch"),
            "known_from": first,
            "known_until": self._last_minute(question),
            "offsets": self._offsets(),
            "histories": self._histories(),
        }
        return Answer(pa.Table.from_pylist(rows, schema), about)

    def queues(self, question: Question) -> Answer:
        """Return the totals of each queue in a window."""
        window = self.window(question)
        whole = window._replace(step=max(MINUTE_MS, window.end - window.start))
        rows = totals(self._rows(MINUTES, question, window.start, window.end), window, _by(question))
        depth = backlog(self._rows(BACKLOG, question, None, window.end), whole, _by(question))
        last = {tuple(row[name] for name in _by(question)): row for row in depth.to_pylist()}
        found = [last.get(tuple(row[name] for name in _by(question)), {}) for row in rows.to_pylist()]
        rows = rows.append_column("depth", pa.array([each.get("depth", 0) for each in found], pa.int64()))
        rows = rows.append_column("age_ms", pa.array([each.get("age_ms", 0) for each in found], pa.int64()))
        return self._answer(rows, question, window, stepped=False)

    def series(self, question: Question) -> Answer:
        """Return counts by step."""
        unknown = next((each for each in question.columns if each not in COLUMNS), None)
        if unknown is not None:
            raise QuestionInvalid(f"columns has {unknown!r}: expected some of {', '.join(COLUMNS)}")
        window = self.window(question)
        rows = self._rows(MINUTES, question, window.start, window.end)
        return self._answer(series(rows, window, _by(question), question.columns), question, window)

    def latency(self, question: Question) -> Answer:
        """Return percentiles by step."""
        return self._latency(question, whole=False)

    def latency_whole(self, question: Question) -> Answer:
        """Return percentiles of the whole window."""
        return self._latency(question, whole=True)

    def _latency(self, question: Question, *, whole: bool) -> Answer:
        if question.kind not in KINDS:
            raise QuestionInvalid(f"kind must be one of {', '.join(KINDS)}")
        wrong = next((each for each in question.quantiles if not 0 <= each <= 1), None)
        if wrong is not None:
            raise QuestionInvalid(f"q has {wrong}: expected shares from 0 to 1, such as 0.5,0.99")
        window = self.window(question)
        rows = self._rows(LATENCY, question, window.start, window.end)
        found = latency(rows, window, question.kind, question.quantiles, by=_by(question), whole=whole)
        return self._answer(found, question, window, stepped=not whole)

    def failures(self, question: Question) -> Answer:
        """Return failures."""
        window = self.window(question)
        rows = self._rows(FAILURES, question, window.start, window.end)
        return self._answer(failures(rows, window, _by(question)), question, window, stepped=False)

    def backlog(self, question: Question) -> Answer:
        """Return depth and age by step."""
        window = self.window(question)
        return self._answer(
            backlog(self._rows(BACKLOG, question, None, window.end), window, _by(question)), question, window
        )

    def workers(self, question: Question) -> Answer:
        """Return the utilisation of workers, by step."""
        window = self.window(question)
        rows = self._rows(WORKERS, question, window.start, window.end)
        # From a snapshot on another day, the number of workers may still be the best known value.
        fleet = self._rows(FLEET, msgspec.structs.replace(question, queue=None), window.start - DAY_MS, window.end)
        return self._answer(workers(rows, fleet, window, _by(question)), question, window)

    def tenants(self, question: Question) -> Answer:
        """Return the share of each tenant, and Jain's index. For one namespace, no shares: they would reveal others."""
        window = self.window(question)
        rows = tenants(self._rows(TENANTS, question, window.start, window.end), window)
        fair: dict[str, float | None] = dict.fromkeys(("busy_ms", "completions", "served"))
        if question.namespace is None:
            fair = {name: jain(rows[name].to_pylist()) for name in fair}
        else:
            for name in [each for each in rows.column_names if each.startswith("share_")]:
                place = rows.column_names.index(name)
                rows = rows.set_column(place, name, pa.nulls(rows.num_rows, pa.float64()))
        answer = self._answer(rows, question, window, stepped=False)
        answer.about["jain"] = fair
        return answer

    def slo(self, question: Question) -> Answer:
        """Return the state of the objectives."""
        end = self.window(question).end
        objectives = [
            each for each in objectives_of(self.lake)
            if each.covers(question.namespace or each.namespace, question.queue or each.queue)
        ]  # fmt: skip
        start = end - max((each.window_ms for each in objectives), default=0)
        rows = attainment(*self.counted(question, start, end), objectives, end)
        return self._answer(rows, question, Window(start, end), stepped=False)

    def forecast(self, question: Question) -> Answer:
        """Return a forecast of the backlog."""
        end = self.window(question).end
        rows = drains(self._rows(BACKLOG, question, None, end), end, _by(question))
        return self._answer(rows, question, Window(end, end), stepped=False)

    def counted(self, question: Question, start: int, end: int) -> tuple[pa.Table, pa.Table]:
        """Return the rows with which objectives are measured: of gold/latency and of gold/minutes."""
        return self._rows(LATENCY, question, start, end), self._rows(MINUTES, question, start, end)

    # Implementation.

    def window(self, question: Question) -> Window:
        """Return the window of a question; by default, the last day of the lake."""
        end = question.end if question.end is not None else self._known_until(question)
        start = question.start if question.start is not None else end - WINDOW_MS
        if start >= end:
            raise QuestionInvalid("from must be before to")
        step = question.step or next((each for each in STEPS if end - start <= STEPS_GOOD * each), STEPS[-1])
        if step < MINUTE_MS or step % MINUTE_MS:
            raise QuestionInvalid("step must be whole minutes, such as 1m, 5m, 1h or 1d: the lake has no shorter ones")
        window = Window(start, end, step)
        if window.steps > question.steps_max:
            raise QuestionInvalid(
                f"from {start} to {end} are {window.steps} steps of {step} ms, and at most {question.steps_max} "
                "can be requested (insight_steps_max). Request longer steps, or less time."
            )
        return window

    def _known_until(self, question: Question) -> int:
        known = self._last_minute(question)
        if known is None and self._open(MINUTES) is not None:
            known = question.now  # a namespace without data is valid, and must not learn the times of others
        if known is None:
            raise LakeMissing(self.lake.address)
        return known

    def _last_minute(self, question: Question) -> int | None:
        return next((last_minute(each) for each in self._edge(question, newest=True)), None)

    def _edge(self, question: Question, *, newest: bool) -> Iterator[pa.Table]:
        """Find the last, or first, day with data of a namespace; yield its minutes, in order of time."""
        found = self._open(MINUTES)
        if found is None:
            return
        about = msgspec.structs.replace(question, queue=None)
        for day in sorted(days_of(found), reverse=newest):
            rows = self._rows(MINUTES, about, day * DAY_MS, day * DAY_MS, ("minute",))
            if rows.num_rows:
                yield rows.sort_by("minute")
                return

    def _answer(self, rows: pa.Table, question: Question, window: Window, *, stepped: bool = True) -> Answer:
        if question.limit is not None:
            rows = rows.slice(0, question.limit)
        if rows.num_rows > question.rows_max:
            raise QuestionInvalid(
                f"The answer has {rows.num_rows} rows, and at most {question.rows_max} are returned (insight_rows_max). "
                "Name a queue, or request longer steps, less time, or by=namespace."
            )
        about: dict[str, Any] = {"from": window.start, "to": window.end}
        return Answer(rows, about | {"step_ms": window.step} if stepped else about)

    def _open(self, table: Table) -> DeltaTable | None:
        """Return the present version of a table."""
        found = self._tables.get(table.path)
        if found is not None:
            try:
                if self.lake.log_of(table, found.version()) != self._logs[table.path]:
                    found = None  # another table has replaced it, with lower or equal versions
                else:
                    found.update_incremental()
            except Exception:  # noqa: BLE001 - it may have been removed and made anew, in any number of ways
                found = None
        if found is None:
            self._forget(table)
            found = self.lake.open(table)
            if found is None:
                return None
            self._tables[table.path] = found
        self._logs[table.path] = self.lake.log_of(table, found.version())
        return found

    def _forget(self, table: Table) -> None:
        self._tables.pop(table.path, None)
        for key in [key for key in self._kept if key[0] == table.path]:
            del self._kept[key]

    def _rows(
        self, table: Table, question: Question, start: int | None, end: int | None, columns: tuple[str, ...] | None = None
    ) -> pa.Table:
        """Return the rows for a question, of whole days. More rows than needed are allowed."""
        found = self._open(table)
        wanted = (
            list(columns) if columns is not None else [name for name in table.schema.names if name not in ("date", "batch")]
        )
        if table is FAILURES:
            wanted.append("date")
        if found is None:
            return table.schema.empty_table().select(wanted)
        days = (None if start is None else max(0, start) // DAY_MS, None if end is None else end // DAY_MS)
        has_queue = question.queue is not None and "queue" in table.schema.names
        key = (table.path, question.namespace, question.queue if has_queue else None, days, columns)
        kept = self._kept.get(key)
        if kept is not None and kept.version == found.version():
            self._kept.move_to_end(key)
            return kept.rows
        chosen = [
            *([pc.field("namespace") == question.namespace] if question.namespace is not None else []),
            *([pc.field("queue") == question.queue] if has_queue else []),
            *([since(days[0] * DAY_MS)] if days[0] is not None else []),
            *([until(days[1] * DAY_MS)] if days[1] is not None else []),
        ]
        here = {field.name for field in found.schema().fields}
        count = rows_of(found, days)
        if count > question.read_rows_max * (ONE_QUEUE if has_queue else 1):
            raise QuestionInvalid(
                f"{table.path} has {count} rows for that time, and at most {question.read_rows_max} are read for one question "
                "(insight_read_rows_max). Request less time, or fold the table: penstock pipeline compact."
            )
        self.reads += 1
        rows = found.to_pyarrow_table(
            columns=[name for name in wanted if name in here], filters=reduce(and_, chosen) if chosen else None
        )
        rows = fitted(rows, pa.schema([table.schema.field(name) for name in wanted]))
        self._keep(key, _CachedTable(rows, found.version()))
        return rows

    def _keep(self, key: tuple[Any, ...], kept: _CachedTable) -> None:
        self._kept.pop(key, None)
        self._kept[key] = kept
        while len(self._kept) > KEPT_MAX or sum(each.rows.nbytes for each in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
            if not self._kept:
                break

    def _offsets(self) -> dict[str, int]:
        """Return the next event of each shard's journal that the lake does not have yet."""
        events = self._open(EVENTS)
        marks = {str(shard): mark_of(events, shard_mark(str(shard))) for shard in range(SHARDS_MAX)}
        return {shard: place for shard, place in marks.items() if place is not None}

    def _histories(self) -> dict[str, str]:
        """Return the history of these events, for each shard; empty for a lake of an earlier version."""
        try:
            found = json.loads(self.lake.text(LAKE_INFO) or "{}").get("histories", {})
            return {str(shard): str(history) for shard, history in found.items()}
        except (ValueError, AttributeError):  # another program has changed it; the pipeline reports that when it runs
            return {}


def _by(question: Question) -> tuple[str, ...]:
    if question.by not in BY:
        raise QuestionInvalid(f"by must be one of {', '.join(BY)}")
    return BY[question.by]


def _written_at(table: DeltaTable) -> int | None:
    history = table.history(1)
    moment = history[0].get("timestamp") if history else None
    return int(moment) if moment is not None else None


#: All questions.
QUESTIONS: Final[dict[str, Callable[[Insights, Question], Answer]]] = {
    "overview": Insights.overview,
    "queues": Insights.queues,
    "series": Insights.series,
    "latency": Insights.latency,
    "latency-whole": Insights.latency_whole,
    "failures": Insights.failures,
    "backlog": Insights.backlog,
    "workers": Insights.workers,
    "tenants": Insights.tenants,
    "slo": Insights.slo,
    "forecast": Insights.forecast,
}
