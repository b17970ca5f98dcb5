"""Lakes without Spark: rows of gold tables made by hand, and a week of a small business."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from penstock.lake.histogram import bucket_of
from penstock.lake.location import Lake, fitted
from penstock.lake.queries.window import milliseconds
from penstock.lake.tables import BACKLOG, FAILURES, FLEET, LATENCY, MINUTES, TENANTS, WORKERS, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
#: A Monday at midnight, UTC.
MONDAY = 1_793_577_600_000


def rows_of(table: Table, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Make rows of a table: what is left out is 0, or null; the day is that of the minute."""
    made = pa.Table.from_pylist([_row(table, row) for row in rows], pa.schema([_loose(field) for field in table.schema]))
    return fitted(made, table.schema)


def _loose(field: pa.Field) -> pa.Field:
    return field.with_type(pa.timestamp("ms", tz="UTC")) if pa.types.is_timestamp(field.type) else field


def _row(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    given = {each.name: 0 if each.fold == "sum" else None for each in table.columns} | {"batch": 0, **row}
    if given.get("date") is None and "minute" in given:
        given["date"] = given["minute"] // DAY
    return given


def histogram(values: Iterable[float], **key: Any) -> list[dict[str, Any]]:
    """Make rows of gold/latency of single times, in ms."""
    counts: dict[int, tuple[int, float]] = {}
    for value in values:
        n, total = counts.get(bucket_of(value), (0, 0.0))
        counts[bucket_of(value)] = (n + 1, total + value)
    return [{**key, "bucket": bucket, "n": n, "sum_ms": round(total)} for bucket, (n, total) in counts.items()]


def write(lake: Lake, table: Table, rows: pa.Table) -> None:
    """Add rows to a table of a lake."""
    lake.ensure(table)
    write_deltalake(lake.uri(table), rows, mode="append")


class Business:
    """What some queues did, minute by minute: mornings are busy, one evening mail fell behind, and payments failed."""

    def __init__(
        self, minutes: int = 4 * DAY // MINUTE, seed: int = 7, queues: Sequence[tuple[str, str, float]] = ()
    ) -> None:
        self._chance = random.Random(seed)
        self.start, self.minutes = MONDAY, minutes
        self.end = self.start + self.minutes * MINUTE
        self.queues = queues or (("default", "mail", 40.0), ("default", "payments", 12.0), ("shop", "images", 8.0))
        self.rows: dict[Table, list[dict[str, Any]]] = {
            table: [] for table in (MINUTES, LATENCY, BACKLOG, WORKERS, TENANTS, FAILURES, FLEET)
        }
        for namespace, queue, rate in self.queues:
            self._live(namespace, queue, rate)
        for hour in range(0, self.minutes, 60):
            for namespace, queue, rate in self.queues:
                self.rows[FLEET].append(
                    {"namespace": namespace, "minute": self.start + hour * MINUTE, "worker": f"w-{queue}", "name": "worker",
                     "queues": queue, "concurrency": max(1, round(rate / 6)), "active": 0}
                )  # fmt: skip

    def _live(self, namespace: str, queue: str, rate: float) -> None:
        waiting = 0
        for number in range(self.minutes):
            minute = self.start + number * MINUTE
            hour = (minute % DAY) / HOUR
            load = 1 + 0.8 * math.sin((hour - 4) / 24 * 2 * math.pi)
            arrivals = self._poisson(rate * load)
            slow = queue == "mail" and self.minutes - 300 < number < self.minutes - 40
            room = self._poisson(rate * (0.75 * load if slow else 2.2))
            failing = 0.3 if queue == "payments" and self.minutes - 600 < number < self.minutes - 500 else 0.01
            waiting += arrivals
            done = min(waiting, room)
            failed = sum(self._chance.random() < failing for _ in range(done))
            dead = failed // 3
            waiting -= done - (failed - dead)
            key = {"namespace": namespace, "queue": queue, "minute": minute}
            self._note(key, waiting / rate, arrivals=arrivals, done=done - failed, failed=failed, dead=dead)

    def _note(self, key: dict[str, Any], behind: float, *, arrivals: int, done: int, failed: int, dead: int) -> None:
        namespace, queue, minute = key["namespace"], key["queue"], key["minute"]
        behind *= MINUTE / 2
        waits = [self._chance.expovariate(1 / 150) + behind * self._chance.uniform(0.7, 1.1) for _ in range(done + failed)]
        runs = [self._chance.lognormvariate(6.5, 0.6) for _ in range(done + failed)]
        busy = round(sum(runs))
        self.rows[MINUTES].append(
            {**key, "arrivals": arrivals, "completions": done, "failures": failed, "retries": failed - dead, "dead": dead,
             "bytes_in": arrivals * 400, "bytes_done": done * 400, "waits": len(waits), "wait_ms": round(sum(waits)),
             "runs": len(runs), "run_ms": busy}
        )  # fmt: skip
        self.rows[LATENCY] += histogram(waits, **key, kind="wait")
        self.rows[LATENCY] += histogram(runs, **key, kind="run")
        totals = [wait + run for wait, run in zip(waits[:done], runs[:done], strict=True)]
        self.rows[LATENCY] += histogram(totals, **key, kind="total")
        self.rows[BACKLOG].append({**key, "added": arrivals, "taken": done + dead})
        self.rows[WORKERS].append({**key, "busy_ms": busy, "attempts": len(runs)})
        self.rows[TENANTS].append(
            {"namespace": namespace, "minute": minute, "arrivals": arrivals, "completions": done, "busy_ms": busy,
             "waits": len(waits), "wait_ms": round(sum(waits))}
        )  # fmt: skip
        if failed:
            for number, (pattern, example) in enumerate(ERRORS[queue]):
                n = failed - failed // 4 if number == 0 else failed // 4
                if n:
                    self.rows[FAILURES].append(
                        {"namespace": namespace, "queue": queue, "fingerprint": f"{sum(map(ord, pattern)):016x}",
                         "pattern": pattern, "first_seen": minute, "last_seen": minute + 30_000,
                         "n": n, "example": example, "example_job": f"job-{minute}", "date": minute // DAY}
                    )  # fmt: skip

    def _poisson(self, mean: float) -> int:
        bound, count, chance = math.exp(-mean), 0, self._chance.random()
        while chance > bound:
            count += 1
            chance *= self._chance.random()
        return count

    def table(self, table: Table) -> pa.Table:
        """Return all rows of a table."""
        return rows_of(table, self.rows[table])

    def write(self, directory: Path, pieces: int = 1) -> Lake:
        """Write everything into a lake, in so many batches."""
        lake = Lake(directory)
        for table, rows in self.rows.items():
            for piece in range(pieces):
                mine = [{**row, "batch": piece} for row in rows[piece::pieces]]
                write(lake, table, rows_of(table, mine))
        return lake


#: Patterns and examples; one has something that must not get into a page as it is.
ERRORS = {
    "mail": (
        ("connection to <id> timed out after <n> ms", "connection to mx-7 timed out after 30000 ms"),
        ("mailbox <text> is full", "mailbox 'ann' is full"),
    ),
    "payments": (
        ("card was declined: <text>", "card was declined: <script>alert(1)</script>"),
        ("HTTP <n> from bank", "HTTP 502 from bank"),
    ),
    "images": (("cannot read image <id>", "cannot read image 81c2"), ("out of memory", "out of memory")),
}


def column(table: pa.Table, name: str) -> list[Any]:
    """Return the values of a column; moments as ms."""
    values: list[Any] = (milliseconds(table[name]) if pa.types.is_timestamp(table[name].type) else table[name]).to_pylist()
    return values
