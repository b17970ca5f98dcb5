"""Forecasts on series whose future is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.queries.backlog_forecast import AHEAD, drains, history_of
from penstock.lake.queries.forecasting import POINTS_MIN, forecast, reaches_nothing
from penstock.lake.tables import BACKLOG
from tests.support.lakes import DAY, HOUR, MINUTE, MONDAY, column, rows_of

MAIL = {"namespace": "default", "queue": "mail"}


def test_what_does_not_change_stays() -> None:
    made = forecast([7.0] * 50, 10)
    assert made is not None
    assert made.expected == made.lowest == made.highest == [7.0] * 10
    assert made.error == made.naive_error == 0


def test_a_backlog_that_shrinks_evenly_is_seen_to_end() -> None:
    made = forecast([1000.0 - 10 * step for step in range(90)], 24)  # 110 are left
    assert made is not None
    assert made.model == "holt-damped"
    assert made.error < made.naive_error / 3
    steps = reaches_nothing(made.lowest)
    assert steps is not None
    assert 9 <= steps <= 13  # 11, if it went on just like that; damped trends promise less
    assert made.expected[5] == pytest.approx(1000 - 10 * 95, abs=12)


def test_a_season_is_used_if_it_was_seen_often_enough() -> None:
    season = 24
    values = [100 + 60 * math.sin(step / season * 2 * math.pi) for step in range(season * 8)]
    made = forecast(values, season, season)
    assert made is not None
    assert made.model == "holt-winters"
    truth = [100 + 60 * math.sin(step / season * 2 * math.pi) for step in range(season * 8, season * 9)]
    assert max(abs(said - came) for said, came in zip(made.expected, truth, strict=True)) < 12
    few = forecast(values[: season * 3], season, season)  # two thirds of three are two
    assert few is not None
    assert few.model != "holt-winters"


def test_the_bounds_hold_as_often_as_they_say() -> None:
    chance = random.Random(3)
    held = total = 0
    for _ in range(40):
        values, depth = [], 200.0
        for _ in range(160):
            depth = max(0.0, depth + chance.gauss(0, 5))
            values.append(depth)
        made = forecast(values[:140], 20)
        assert made is not None
        for low, high, came in zip(made.lowest, made.highest, values[140:], strict=True):
            held += low <= came <= high
            total += 1
    assert 0.75 < held / total <= 1


@given(st.lists(st.floats(0, 1e6), max_size=120), st.integers(1, 30), st.sampled_from([0, 12]))
def test_forecasts_are_sane_whatever_happened(values: list[float], steps: int, season: int) -> None:
    made = forecast(values, steps, season)
    if len(values) < POINTS_MIN:
        assert made is None
        return
    assert made is not None
    assert len(made.expected) == len(made.lowest) == len(made.highest) == steps
    for low, said, high in zip(made.lowest, made.expected, made.highest, strict=True):
        assert 0 <= low <= said <= high
        assert math.isfinite(high)
    assert made.error <= made.naive_error or made.model == "last-value"


def test_too_little_is_said_to_be_too_little() -> None:
    assert forecast([1.0] * (POINTS_MIN - 1), 5) is None
    rows = rows_of(BACKLOG, [MAIL | {"minute": MONDAY + step * MINUTE, "added": 1} for step in range(5)])
    (row,) = drains(rows, MONDAY + 5 * MINUTE).to_pylist()
    assert row["note"] == "not enough data: 5 steps of 1 min, 24 are needed"
    assert row["depth"] == 5
    assert row["net_per_minute"] == pytest.approx(5 / 15)
    assert row["expected"] is row["drained_at"] is row["error"] is None


def test_when_a_backlog_will_be_gone() -> None:
    rows = [MAIL | {"minute": MONDAY, "added": 1200}]
    rows += [MAIL | {"minute": MONDAY + step * MINUTE, "taken": 10} for step in range(1, 111)]
    rows += [
        {"namespace": "shop", "queue": "idle", "minute": MONDAY + step * MINUTE, "added": 1, "taken": 1}
        for step in range(111)
    ]
    found = drains(rows_of(BACKLOG, rows), MONDAY + 111 * MINUTE)
    mail = found.slice(0, AHEAD)
    first = mail.to_pylist()[0]
    assert (first["queue"], first["depth"], first["net_per_minute"], first["step_ms"]) == ("mail", 100, -10, MINUTE)
    assert column(mail, "at") == [MONDAY + (111 + step) * MINUTE for step in range(1, AHEAD + 1)]
    gone = column(mail, "drained_at")[0]
    assert MONDAY + 119 * MINUTE <= gone <= MONDAY + 126 * MINUTE  # 121, if it went on just like that
    earliest, latest = column(mail, "drained_earliest")[0], column(mail, "drained_latest")[0]
    assert earliest <= gone
    assert latest is None or gone <= latest
    idle = found.slice(AHEAD)
    assert column(idle, "expected") == [0.0] * AHEAD
    assert set(column(idle, "drained_at")) == {None}  # there is nothing to be gone


def test_steps_are_as_fine_as_the_past_allows() -> None:
    assert history_of(HOUR) == (MINUTE, 6 * HOUR)
    assert history_of(20 * HOUR) == (5 * MINUTE, DAY)
    assert history_of(3 * DAY) == (15 * MINUTE, 4 * DAY)
    assert history_of(400 * DAY) == (HOUR, 28 * DAY)
