"""Objectives: the file, attainment, burn rates and alarms."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.lake.queries.objectives import DEFAULT, Objective, ObjectivesInvalid, parse
from penstock.lake.queries.slo import ALARMS, attainment
from penstock.lake.tables import LATENCY, MINUTES
from tests.support.lakes import DAY, HOUR, MINUTE, MONDAY, histogram, rows_of

MAIL = {"namespace": "default", "queue": "mail"}
NOW = MONDAY + 30 * DAY
NONE = rows_of(LATENCY, [])


def measure(objective: Objective, *ago: tuple[int, int, int]) -> dict[str, Any]:
    """Measure jobs of so many ms ago: how many were good, and how many bad (twice as slow as they may)."""
    rows = [
        row
        for back, good, bad in ago
        for row in histogram(
            [objective.within_ms / 2] * good + [objective.within_ms * 2] * bad,
            **MAIL,
            minute=NOW - back,
            kind=objective.kind,
        )
    ]
    found: list[dict[str, Any]] = attainment(rows_of(LATENCY, rows), rows_of(MINUTES, []), [objective], NOW).to_pylist()
    assert len(found) == 1
    return found[0]


def test_attainment_and_what_is_left_of_the_room_for_errors() -> None:
    found = measure(DEFAULT, (20 * DAY, 995, 5), (40 * DAY, 0, 1000))  # the latter are not in the window
    assert (found["jobs"], found["good"], found["attained"]) == (1000, 995, 0.995)
    assert found["budget_left"] == pytest.approx(0.5)
    assert found["burn_3d"] is None
    assert found["alarm"] is None
    assert measure(DEFAULT, (DAY, 970, 30))["budget_left"] == pytest.approx(-2)


def test_burn_rates_over_several_windows() -> None:
    found = measure(DEFAULT, (2 * MINUTE, 90, 10), (2 * HOUR, 300, 0))
    assert found["burn_5m"] == pytest.approx(10)
    assert found["burn_1h"] == pytest.approx(10)
    assert found["burn_6h"] == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("ago", "alarm"),
    [
        ([(2 * MINUTE, 80, 20)], "page"),  # 20 times as fast as it should, now and over the last hour
        ([(30 * MINUTE, 80, 20)], "page"),  # six times in six hours, and it was so half an hour ago
        ([(50 * MINUTE, 80, 20)], "ticket"),  # it was fast, and is over
        ([(2 * MINUTE, 98, 2), (50 * HOUR, 98, 2)], "ticket"),  # slow, and all the time
        ([(2 * MINUTE, 995, 5)], None),
        ([(2 * MINUTE, 1, 1)], None),  # too few to say anything
    ],
)
def test_alarms_need_a_long_and_a_short_window(ago: list[tuple[int, int, int]], alarm: str | None) -> None:
    assert measure(DEFAULT, *ago)["alarm"] == alarm


def test_the_thresholds_are_those_of_the_books() -> None:
    assert [round(alarm.rate(30 * DAY), 6) for alarm in ALARMS] == [14.4, 6, 3, 1]


def test_success_is_about_jobs_that_end() -> None:
    objective = Objective("done", "success", 0.9, queue="mail")
    rows = [MAIL | {"minute": NOW - HOUR, "completions": 16, "dead": 3, "expired": 1, "failures": 50}]
    rows += [{"namespace": "default", "queue": "other", "minute": NOW - HOUR, "dead": 5}]
    (found,) = attainment(NONE, rows_of(MINUTES, rows), [objective], NOW).to_pylist()
    assert (found["jobs"], found["good"], found["attained"]) == (20, 16, 0.8)
    assert found["budget_left"] == pytest.approx(-1)


def test_an_objective_is_measured_for_each_queue_it_is_about() -> None:
    rows = [
        row
        for namespace in ("a", "b")
        for queue in ("x", "y")
        for row in histogram([1], namespace=namespace, queue=queue, minute=NOW - HOUR, kind="run")
    ]
    latency = rows_of(LATENCY, rows)

    def about(**whom: Any) -> list[str]:
        found = attainment(latency, rows_of(MINUTES, []), [Objective("o", "run", 0.5, 10, **whom)], NOW)
        return [row["namespace"] + row["queue"] for row in found.to_pylist()]

    assert about() == ["ax", "ay", "bx", "by"]
    assert about(namespace="b") == ["bx", "by"]
    assert about(namespace="b", queue="y") == ["by"]


def test_the_file() -> None:
    assert parse(None) == [DEFAULT]
    text = """
objectives:
  - {name: prompt, queue: mail, kind: wait, within: 30s, target: 0.99}
  - {name: good, namespace: shop, kind: success, target: 0.999, window: 7d}
"""
    assert parse(text) == [
        Objective("prompt", "wait", 0.99, 30_000, queue="mail"),
        Objective("good", "success", 0.999, namespace="shop", window_ms=7 * DAY),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("objectives: [", "is no YAML"),
        ("- a", "must have a list called objectives"),
        ("objectives: []", "must have a list called objectives"),
        ("objectives: [5]", "objective 1 must be a mapping"),
        ("objectives: [{name: a, kind: wait, within: 1s, target: 1}]", "target must be a share of jobs between 0 and 1"),
        ("objectives: [{name: a, kind: wait, target: 0.9}]", "within must be a length of time"),
        ("objectives: [{name: a, kind: wait, within: soon, target: 0.9}]", "within must be a length of time"),
        ("objectives: [{name: a, kind: speed, within: 1s, target: 0.9}]", "kind must be one of wait, run, total, success"),
        ("objectives: [{name: a, kind: success, within: 1s, target: 0.9}]", "within is for wait, run and total"),
        ("objectives: [{name: a, kind: success, target: 0.9, window: 1m}]", "window must be from 1h to 366d"),
        ("objectives: [{kind: success, target: 0.9}]", "name must be some text"),
        ("objectives: [{name: a, kind: success, target: 0.9, queues: x}]", "has 'queues': expected some of name"),
        (
            "objectives: [{name: a, kind: success, target: 0.9}, {name: a, kind: success, target: 0.8}]",
            "two objectives called",
        ),
    ],
)
def test_mistakes_in_the_file_are_named(text: str, error: str) -> None:
    with pytest.raises(ObjectivesInvalid, match=error):
        parse(text)
