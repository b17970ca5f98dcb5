"""What people ask of a lake, on rows whose answers are known."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.queries.backlog import backlog, depths
from penstock.lake.queries.failures import failures
from penstock.lake.queries.latency import latency
from penstock.lake.queries.series import series, totals
from penstock.lake.queries.tenants import jain, tenants
from penstock.lake.queries.window import Window, length_ms, spell_length
from penstock.lake.queries.workers import workers
from penstock.lake.tables import BACKLOG, FAILURES, FLEET, LATENCY, MINUTES, TENANTS, WORKERS
from tests.support.lakes import DAY, HOUR, MINUTE, MONDAY, column, histogram, rows_of

MAIL = {"namespace": "default", "queue": "mail"}
SHOP = {"namespace": "shop", "queue": "mail"}
HOURLY = Window(MONDAY, MONDAY + 2 * HOUR, HOUR)


def at(minute: int) -> dict[str, int]:
    return {"minute": MONDAY + minute * MINUTE}


def test_partial_rows_are_added_up_step_by_step_for_each_queue() -> None:
    rows = rows_of(
        MINUTES,
        [
            MAIL | at(0) | {"arrivals": 3},
            MAIL | at(0) | {"arrivals": 4, "batch": 1},
            MAIL | at(59) | {"arrivals": 1, "completions": 2},
            MAIL | at(60) | {"arrivals": 5},
            MAIL | at(120) | {"arrivals": 100},  # not in the window
            MAIL | at(-1) | {"arrivals": 100},
            SHOP | at(7) | {"arrivals": 9},
        ],
    )
    found = series(rows, HOURLY, columns=("arrivals", "completions"))
    assert found.column_names == ["namespace", "queue", "at", "arrivals", "completions"]
    told = list(zip(*(column(found, name) for name in ("namespace", "at", "arrivals", "completions")), strict=True))
    assert told == [("default", MONDAY, 8, 2), ("default", MONDAY + HOUR, 5, 0), ("shop", MONDAY, 9, 0)]
    every = series(rows, HOURLY, by=(), columns=("arrivals",))
    assert column(every, "arrivals") == [17, 5]


def test_the_figures_of_a_window() -> None:
    rows = rows_of(
        MINUTES,
        [
            MAIL
            | at(0)
            | {"completions": 6, "failures": 1, "stalls": 1, "waits": 4, "wait_ms": 100, "runs": 2, "run_ms": 30},
            MAIL | at(9) | {"completions": 2, "waits": 1, "wait_ms": 50},
            SHOP | at(3) | {"arrivals": 1},
        ],
    )
    mail, shop = totals(rows, HOURLY).to_pylist()
    assert (mail["completions"], mail["failure_rate"], mail["wait_ms_mean"], mail["run_ms_mean"]) == (8, 0.2, 30.0, 15.0)
    assert (shop["failure_rate"], shop["wait_ms_mean"]) == (None, None)
    assert column(totals(rows, HOURLY), "first") == [MONDAY, MONDAY + 3 * MINUTE]
    assert column(totals(rows, HOURLY), "last") == [MONDAY + 9 * MINUTE, MONDAY + 3 * MINUTE]


@given(
    st.lists(st.integers(0, 10_000_000), min_size=1, max_size=200),
    st.floats(0, 1),
    st.integers(1, 7),
)
def test_percentiles_are_off_by_one_in_a_hundred_at_most_however_the_buckets_come(
    values: list[int], quantile: float, pieces: int
) -> None:
    parts = [
        row
        for piece in range(pieces)
        for row in histogram(values[piece::pieces], **MAIL, **at(piece * 11), kind="wait")
    ]  # fmt: skip
    table = rows_of(LATENCY, parts)
    (row,) = latency(table, HOURLY, "wait", [quantile], whole=True).to_pylist()
    exact = sorted(values)[max(1, -int(-quantile * len(values) // 1)) - 1]
    (name,) = (each for each in row if each.startswith("p"))
    assert abs(row[name] - exact) <= 0.0101 * exact
    assert row["n"] == len(values)
    assert row["mean_ms"] == pytest.approx(sum(values) / len(values))
    whole = rows_of(LATENCY, histogram(values, **MAIL, **at(0), kind="wait"))
    assert latency(whole, HOURLY, "wait", [quantile], whole=True).to_pylist() == [row]


def test_percentiles_of_each_step_and_queue() -> None:
    rows = rows_of(
        LATENCY,
        [
            *histogram([10] * 99 + [40], **MAIL, **at(0), kind="wait"),
            *histogram([20], **MAIL, **at(60), kind="wait"),
            *histogram([30], **SHOP, **at(60), kind="wait"),
            *histogram([999], **MAIL, **at(0), kind="run"),
        ],
    )
    found = latency(rows, HOURLY, "wait", [0.5, 0.99, 0.999]).to_pylist()
    told = [(row["namespace"], row["n"], row["p50"], row["p99"], row["p99.9"]) for row in found]
    assert told == [("default", 100, 10, 10, 40), ("default", 1, 20, 20, 20), ("shop", 1, 30, 30, 30)]
    (every,) = latency(rows, HOURLY, "wait", [0.5], by=(), whole=True).to_pylist()
    assert (every["n"], every["p50"]) == (102, 10)
    assert latency(rows, Window(0, MINUTE), "wait").num_rows == 0


def test_failures_of_one_fingerprint_are_one_over_days_and_batches() -> None:
    def failure(day: int, first: int, n: int, **more: Any) -> dict[str, Any]:
        seen = {"first_seen": first, "last_seen": first + 5, "date": MONDAY // DAY + day, "n": n}
        return MAIL | {"fingerprint": "f", "pattern": "broken <n>", "example": f"broken {first}"} | seen | more

    rows = rows_of(
        FAILURES,
        [
            failure(0, MONDAY + 50, 2),
            failure(0, MONDAY + 10, 3),
            failure(1, MONDAY + DAY, 4),
            failure(0, MONDAY + 20, 1, fingerprint="g", pattern="other", example="other"),
            failure(-1, MONDAY - DAY, 50),
            failure(0, MONDAY + 1, 30, queue="post"),
        ],
    )
    found = failures(rows, Window(MONDAY + HOUR, MONDAY + 2 * DAY))
    told = [(row["queue"], row["fingerprint"], row["n"], row["share"], row["example"]) for row in found.to_pylist()]
    assert told == [
        ("post", "f", 30, 0.75, f"broken {MONDAY + 1}"),
        ("mail", "f", 9, 0.225, f"broken {MONDAY + 10}"),
        ("mail", "g", 1, 0.025, "other"),
    ]
    assert (column(found, "first_seen")[1], column(found, "last_seen")[1]) == (MONDAY + 10, MONDAY + DAY + 5)
    every = failures(rows, Window(MONDAY, MONDAY + 2 * DAY), by=()).to_pylist()
    assert [(row["fingerprint"], row["n"]) for row in every] == [("f", 39), ("g", 1)]


def test_depth_is_what_came_less_what_went_and_age_that_of_the_oldest() -> None:
    rows = rows_of(
        BACKLOG,
        [
            MAIL | at(-5) | {"added": 4},
            MAIL | at(0) | {"added": 2, "taken": 3},
            MAIL | at(1) | {"taken": 1},
            MAIL | at(1) | {"taken": 1},
            MAIL | at(3) | {"added": 1, "taken": 2},
        ],
    )
    found = backlog(rows, Window(MONDAY, MONDAY + 4 * MINUTE))
    assert column(found, "depth") == [3, 1, 1, 0]
    # At the end of minute 0 the fourth job of minute -5 is the oldest, then the second one of minute 0.
    assert column(found, "age_ms") == [6 * MINUTE, 2 * MINUTE, 3 * MINUTE, 0]
    assert column(found, "added") == [2, 0, 0, 1]
    assert column(found, "taken") == [3, 2, 0, 2]
    assert column(found, "at") == [MONDAY + number * MINUTE for number in range(4)]


def test_what_came_long_before_a_window_counts_and_is_known_by_the_hour() -> None:
    days = 24 * 60
    moves = [(-100 * days + 17, {"added": 3}), (-100 * days + 45, {"taken": 2}), (-2 * days, {"added": 5, "taken": 1})]
    found = backlog(rows_of(BACKLOG, [MAIL | at(minute) | each for minute, each in moves]), Window(MONDAY, MONDAY + MINUTE))
    assert column(found, "depth") == [5]
    assert column(found, "age_ms") == [2 * days * MINUTE + MINUTE]
    left = backlog(
        rows_of(BACKLOG, [MAIL | at(minute) | each for minute, each in moves[:2]]), Window(MONDAY, MONDAY + MINUTE)
    )
    assert column(left, "age_ms") == [100 * days * MINUTE + MINUTE]


def test_jobs_that_were_there_before_the_lake_began_are_counted_in() -> None:
    rows = rows_of(BACKLOG, [MAIL | at(0) | {"taken": 2}, MAIL | at(1) | {"added": 1}, MAIL | at(2) | {"taken": 1}])
    (found,) = depths(rows, Window(MONDAY, MONDAY + 3 * MINUTE))
    assert (found.before, found.depth) == (2, [0, 1, 0])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_depth_does_not_depend_on_the_steps(moves: list[tuple[int, int, int]]) -> None:
    rows = rows_of(BACKLOG, [MAIL | at(minute) | {"added": added, "taken": taken} for minute, added, taken in moves])
    fine = column(backlog(rows, Window(MONDAY, MONDAY + 30 * MINUTE)), "depth")
    coarse = column(backlog(rows, Window(MONDAY, MONDAY + 30 * MINUTE, 5 * MINUTE)), "depth")
    assert coarse == fine[4::5]
    assert all(each >= 0 for each in fine)


def test_utilisation_is_busy_time_by_the_places_there_were() -> None:
    rows = rows_of(WORKERS, [MAIL | at(0) | {"busy_ms": 90_000, "attempts": 3}, MAIL | at(1) | {"busy_ms": 30_000}])
    looks = [
        {"namespace": "default", **at(-30), "worker": "a", "queues": "mail,post", "concurrency": 2},
        {"namespace": "default", **at(-30), "worker": "b", "queues": "post", "concurrency": 9},
        {"namespace": "default", **at(1), "worker": "a", "queues": "mail", "concurrency": 1},
        {"namespace": "default", **at(1), "worker": "c", "queues": "mail", "concurrency": 1},
    ]
    found = workers(rows, rows_of(FLEET, looks), Window(MONDAY, MONDAY + 2 * MINUTE)).to_pylist()
    assert [(row["busy"], row["places"], row["utilisation"]) for row in found] == [(1.5, 2, 0.75), (0.5, 2, 0.25)]
    (unknown, _) = workers(rows, rows_of(FLEET, []), Window(MONDAY, MONDAY + 2 * MINUTE)).to_pylist()
    assert (unknown["busy"], unknown["places"], unknown["utilisation"]) == (1.5, None, None)


def test_shares_of_tenants_and_how_even_they_are() -> None:
    rows = rows_of(
        TENANTS,
        [
            {"namespace": "a", **at(0), "arrivals": 4, "completions": 2, "busy_ms": 30, "waits": 2, "wait_ms": 10},
            {"namespace": "b", **at(1), "arrivals": 4, "completions": 4, "busy_ms": 60, "waits": 4, "wait_ms": 40},
            {"namespace": "b", **at(2), "busy_ms": 30},
        ],
    )
    found = tenants(rows, HOURLY).to_pylist()
    assert [(row["namespace"], row["share_busy_ms"], row["served"], row["wait_ms_mean"]) for row in found] == [
        ("b", 0.75, 1.0, 10.0),
        ("a", 0.25, 0.5, 5.0),
    ]
    assert jain([1, 1, 1]) == 1
    assert jain([1, 0, 0]) == pytest.approx(1 / 3)
    assert jain([3, 1]) == pytest.approx(0.8)
    assert jain([]) is jain([0, 0]) is None


def test_nothing_gives_nothing() -> None:
    window = Window(MONDAY, MONDAY + HOUR)
    assert not series(rows_of(MINUTES, []), window).num_rows
    assert not totals(rows_of(MINUTES, []), window).num_rows
    assert not totals(rows_of(MINUTES, []), window, by=()).num_rows, "not a row of nulls"
    assert not latency(rows_of(LATENCY, []), window, "wait").num_rows
    assert not failures(rows_of(FAILURES, []), window).num_rows
    assert not backlog(rows_of(BACKLOG, []), window).num_rows
    assert not workers(rows_of(WORKERS, []), rows_of(FLEET, []), window).num_rows
    assert not tenants(rows_of(TENANTS, []), window).num_rows
    assert isinstance(series(rows_of(MINUTES, []), window), pa.Table)


@pytest.mark.parametrize(
    ("text", "ms"), [("30s", 30_000), ("5m", 300_000), ("1h", HOUR), ("30d", 30 * DAY), ("2w", 14 * DAY)]
)
def test_lengths(text: str, ms: int) -> None:
    assert length_ms(text) == ms
    assert length_ms(spell_length(ms)) == ms


@pytest.mark.parametrize("text", ["", "5", "m", "-1m", "1.5h", "1y", "9999999999999m"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a length of time"):
        length_ms(text)
