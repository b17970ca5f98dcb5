"""``penstock pipeline run`` under steady traffic, by a simulated clock: a batch in each period, an end, and files in bounds."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from penstock.lake.location import Lake
from penstock.lake.maintenance import FILE_BYTES
from penstock.lake.tables import EVENTS, FORECAST, MINUTES, SLO
from penstock.lake.writer import BATCH_MARK, PartWriter, commit, mark_of, parts_of
from penstock.spark.pipeline.run import UPKEEP_FILES, BatchResult, Builder, RunSummary, run
from tests.support.lakes import DAY, MINUTE, MONDAY, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.lake.tables import Table

DAY_S = 86_400
#: Batches from one upkeep to the next: here fewer than by default, and as many as it takes for it to do something.
UPKEEP = 20
assert UPKEEP >= UPKEEP_FILES


class Until(threading.Event):
    """A clock, and a signal to stop that comes at a moment of it. Waiting takes no time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.now = 0.0
        self._end = seconds

    def is_set(self) -> bool:
        return self.now >= self._end

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()

    def clock(self) -> float:
        return self.now


class Traffic(Builder):
    """A lake beside a server where something happens all the time. ``rate``: events a second. A batch takes ``batch_s``."""

    def __init__(self, stop: Until, rate: float, *, before: int = 0, batch_s: float = 0.3, most: int = 2_000_000) -> None:
        self._stop = stop
        self._rate = rate
        self._before = before
        self._batch_s = batch_s
        self._most = most
        self.batches: list[tuple[float, int]] = []
        self.taken = 0
        self.looks: list[float] = []

    def open(self, tell: object = None) -> int:
        del tell
        return 0

    def end(self) -> dict[str, int]:
        return {"0": self._before + int(self._rate * self._stop.now)}

    def step(self, end: Mapping[str, int]) -> BatchResult | None:
        events = min(end["0"] - self.taken, self._most)
        if not events:
            return None
        self.taken += events
        self.batches.append((self._stop.now, events))
        self._stop.now += self._batch_s
        return BatchResult(len(self.batches) - 1, events, 0, self._batch_s, self.end()["0"] - self.taken)

    def look(self) -> int:
        self.looks.append(self._stop.now)
        return 0


def keep(builder: Traffic, lake: Lake, stop: Until, every_ms: int | None, upkeep_batches: int = 0) -> RunSummary:
    said: list[str] = []
    return run(
        builder, lake, every_ms=every_ms, stop=stop, tell=said.append, upkeep_batches=upkeep_batches, clock=stop.clock
    )


def test_a_period_has_one_batch(tmp_path: Path) -> None:
    """What was seen: 183 batches in 70 s with ``--every 30s``."""
    stop = Until(70)
    traffic = Traffic(stop, rate=250, before=1)
    done = keep(traffic, Lake(tmp_path), stop, 30_000)
    assert [at for at, _ in traffic.batches] == [0, 30, 60]
    assert (done.batches, done.events, len(traffic.looks)) == (3, 1 + 60 * 250, 3)


def test_a_day_has_as_many_batches_as_periods(tmp_path: Path) -> None:
    stop = Until(DAY_S)
    traffic = Traffic(stop, rate=250, before=1)
    done = keep(traffic, Lake(tmp_path), stop, 30_000)
    assert done.batches == len(traffic.looks) == 2_880
    assert {events for _, events in traffic.batches[1:]} == {7_500}
    assert traffic.end()["0"] - traffic.taken <= 7_500


def test_a_run_that_is_to_end_ends_with_what_was_there_when_it_began(tmp_path: Path) -> None:
    """Here each batch takes longer than what comes meanwhile takes to come: it never ended."""
    stop = Until(DAY_S)
    traffic = Traffic(stop, rate=1_000, before=5_000, most=2_000)
    done = keep(traffic, Lake(tmp_path), stop, None)
    assert [events for _, events in traffic.batches] == [2_000, 2_000, 1_000]
    assert (done.events, len(traffic.looks)) == (5_000, 1)


def test_what_has_gathered_is_taken_in_full_batches_first(tmp_path: Path) -> None:
    stop = Until(180)
    traffic = Traffic(stop, rate=100, before=50_000, most=20_000)
    keep(traffic, Lake(tmp_path), stop, 60_000)
    assert [events for _, events in traffic.batches] == [20_000, 20_000, 10_000, 6_000, 6_000]


def test_a_round_that_takes_longer_than_a_period_is_followed_by_the_next(tmp_path: Path) -> None:
    stop = Until(600)
    traffic = Traffic(stop, rate=100, before=1, batch_s=25)
    done = keep(traffic, Lake(tmp_path), stop, 10_000)
    assert done.batches == len(traffic.looks) == 24


class Written(Traffic):
    """The same, and rows of each batch are written to two tables of a real lake, as a batch does it."""

    def __init__(self, stop: Until, lake: Lake, rate: float) -> None:
        super().__init__(stop, rate, before=1)
        self._lake = lake
        self.most: Counter[str] = Counter()

    def step(self, end: Mapping[str, int]) -> BatchResult | None:
        found = self._lake.open(EVENTS)
        last = mark_of(found)
        number = 0 if last is None else last + 1
        at_ms = MONDAY + int(self._stop.now * 1000)
        batch = super().step(end)
        if batch is None:
            return None
        event = {"shard": 0, "seq": number, "at": at_ms, "kind": "job:pushed", "date": at_ms // DAY, "batch": number}
        minute = {"namespace": "default", "queue": "q", "minute": at_ms // MINUTE * MINUTE, "arrivals": 7, "batch": number}
        for table, row in ((EVENTS, event), (MINUTES, minute)):
            writer = PartWriter(self._lake, table, f"b{number}")
            writer.write(rows_of(table, [row]))
            commit(self._lake, table, writer.close(), marks={BATCH_MARK: number}, now_ms=at_ms)
            self.most[table.path] = max(self.most[table.path], files(self._lake, table))
        return BatchResult(number, batch.events, 0, batch.seconds, batch.lag)


def files(lake: Lake, table: Table) -> int:
    found = lake.open(table)
    assert found is not None
    parts = parts_of(found, table)
    assert all(part.size <= 2 * FILE_BYTES for part in parts)
    return len(parts)


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True])
def test_files_stay_few_over_a_day_of_traffic(tmp_path: Path, *, once: bool) -> None:
    """96 batches, of one run or of a run each: what a table has is bounded by upkeep, and slo and forecast follow."""
    stop, lake = Until(DAY_S), Lake(tmp_path)
    traffic = Written(stop, lake, rate=1)
    done = RunSummary()
    while not stop.is_set():
        some = keep(traffic, lake, stop, None if once else 900_000, UPKEEP)
        done.batches += some.batches
        if once:
            stop.wait(900 - stop.now % 900)
    assert done.batches == len(traffic.looks) == 96
    for table in (EVENTS, MINUTES):
        assert traffic.most[table.path] <= UPKEEP + 1
    assert lake.read(EVENTS).num_rows == 96
    assert sum(lake.read(MINUTES).column("arrivals").to_pylist()) == 96 * 7
    for table in (SLO, FORECAST):
        found = lake.open(table)
        assert found is not None
        assert found.version() >= 96
