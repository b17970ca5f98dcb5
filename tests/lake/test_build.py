"""From events to tables: what each event counts for, and that it makes no difference how events are cut into heaps."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.ids import to_uuid
from penstock.lake.tables import (
    ATTEMPTS,
    EVENTS,
    FAILURES,
    JOBS,
    LATENCY,
    MINUTES,
    QUARANTINE,
    TABLES,
    TENANTS,
    WORKERS,
)
from penstock.lake.transform import DERIVED, make
from penstock.lake.transform.event_kinds import JOB_KINDS
from penstock.lake.transform.rows import NO_ERROR, pattern_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def table(*events: dict[str, Any]) -> pa.Table:
    usual = {"shard": 0, "at": NOON, "namespace": "acme", "queue": "mail", "job_id": to_uuid(1), "batch": 0}
    rows = [dict.fromkeys(EVENTS.schema.names) | usual | {"seq": seq} | each for seq, each in enumerate(events, 1)]
    return pa.Table.from_pylist(rows, schema=EVENTS.schema)


def made(events: pa.Table, *cuts: int) -> dict[str, list[dict[str, Any]]]:
    """Make all tables of events, of the heaps between the cuts each, and fold."""
    parts: dict[str, list[pa.Table]] = {each.path: [each.schema.empty_table()] for each in DERIVED}
    edges = [0, *sorted(cuts), events.num_rows]
    for start, end in itertools.pairwise(edges):
        for each, rows in make(events.slice(start, end - start), 0, frozenset(parts)):
            assert rows.schema == each.schema
            parts[each.path].append(rows)
    found = {}
    for path, some in parts.items():
        folded = TABLES[path].folded(pa.concat_tables(some))
        found[path] = folded.sort_by([(name, "ascending") for name in folded.column_names]).to_pylist()
    return found


def one(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return row


def attempt(**more: Any) -> dict[str, Any]:
    times = {"created_at": NOON - 10 * SECOND, "run_at": NOON - 8 * SECOND, "started_at": NOON - 3 * SECOND}
    return times | {"attempt": 0, "size": 7} | more


def test_an_attempt_has_all_its_times() -> None:
    found = made(table(attempt(kind="job:completed")))
    row = one(found[ATTEMPTS.path])
    assert (row["wait_ms"], row["run_ms"], row["total_ms"], row["attempt"]) == (5_000, 3_000, 10_000, 1)
    assert {(each["kind"], each["sum_ms"], each["n"]) for each in found[LATENCY.path]} == {
        ("wait", 5_000, 1), ("run", 3_000, 1), ("total", 10_000, 1),
    }  # fmt: skip
    minute = one(found[MINUTES.path])
    assert (minute["completions"], minute["bytes_done"], minute["wait_ms"], minute["run_ms"]) == (1, 7, 5_000, 3_000)
    # It began before noon, so the minute before has most of it.
    assert [(each["minute"], each["busy_ms"]) for each in found[WORKERS.path]] == [
        (NOON - 60 * SECOND, 3_000), (NOON, 0),
    ]  # fmt: skip
    assert sum(each["busy_ms"] for each in found[TENANTS.path]) == 3_000


@pytest.mark.parametrize("kind", ["job:failed", "job:stalled"])
def test_the_wait_of_an_attempt_goes_by_its_own_time_and_not_by_that_of_the_next(kind: str) -> None:
    found = made(table(attempt(kind=kind, run_at=NOON + 60 * SECOND, due_at=NOON - 8 * SECOND, attempt=1)))
    row = one(found[ATTEMPTS.path])
    assert (row["run_at"], row["wait_ms"]) == (NOON - 8 * SECOND, 5_000)
    minute = one(found[MINUTES.path])
    assert (minute["waits"], minute["wait_ms"]) == (1, 5_000)
    # A clock that was a little behind makes it no time at all, and it is still a wait that is known.
    found = made(table(attempt(kind=kind, run_at=NOON + 60 * SECOND, due_at=NOON - 2 * SECOND, attempt=1)))
    assert (one(found[MINUTES.path])["waits"], one(found[MINUTES.path])["wait_ms"]) == (1, 0)


def test_an_earlier_server_that_told_the_time_of_the_next_attempt_leaves_the_wait_unknown() -> None:
    found = made(table(attempt(kind="job:failed", run_at=NOON + 60 * SECOND, attempt=1)))
    row = one(found[ATTEMPTS.path])
    assert (row["run_at"], row["wait_ms"], row["run_ms"]) == (None, None, 3_000)
    minute = one(found[MINUTES.path])
    assert (minute["failures"], minute["waits"], minute["wait_ms"], minute["runs"]) == (1, 0, 0, 1)
    assert {each["kind"] for each in found[LATENCY.path]} == {"run"}
    # There is no next attempt after the last one: what it told was its own.
    found = made(table(attempt(kind="job:failed", attempt=1)))
    assert (one(found[ATTEMPTS.path])["wait_ms"], one(found[MINUTES.path])["waits"]) == (5_000, 1)


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ({"kind": "job:pushed", "size": 5}, {"arrivals": 1, "bytes_in": 5}),
        ({"kind": "job:retried", "attempt": 1}, {"retries": 1}),
        ({"kind": "job:retried", "attempt": None}, {"retries": 1}),
        ({"kind": "job:retried", "attempt": 0}, {"replayed": 1}),
        ({"kind": "dlq:added"}, {"dead": 1}),
        ({"kind": "dlq:retried"}, {"revived": 1}),
        ({"kind": "job:expired"}, {"expired": 1}),
        ({"kind": "job:removed", "payload": '{"finished_at":null}'}, {"removed": 1}),
        ({"kind": "job:removed", "payload": '{"finished_at":1800000000000}'}, {"forgotten": 1}),
        ({"kind": "job:removed", "error": "cancel"}, {"removed": 1}),
        ({"kind": "job:removed", "error": "purge"}, {"forgotten": 1}),
        ({"kind": "job:quarantined"}, {"removed": 1}),
        ({"kind": "job:released"}, {}),
        ({"kind": "job:active"}, {}),
        (attempt(kind="job:released"), {"releases": 1}),
    ],
    ids=lambda given: str(given.get("kind", "")),
)
def test_what_an_event_counts_for(event: dict[str, Any], counts: dict[str, int]) -> None:
    rows = made(table(event))[MINUTES.path]
    found = {
        name: value for row in rows for name, value in row.items() if isinstance(value, int) and value and name != "batch"
    }
    assert found == counts


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        (["job:pushed"], "waiting"),
        (["job:pushed", "job:active"], "active"),
        (["job:pushed", "job:active", "job:progress"], "active"),
        (["job:pushed", "job:active", "job:completed"], "completed"),
        (["job:active", "job:failed", "dlq:added"], "dead"),
        (["job:active", "job:failed", "dlq:added", "dlq:retried"], "waiting"),
        (["job:active", "job:stalled"], "waiting"),
        (["job:pushed", "job:expired"], "expired"),
        (["job:pushed", "job:removed"], "removed"),
        (["job:priority-changed"], None),
    ],
    ids=str,
)
def test_how_a_job_stands(kinds: list[str], state: str | None) -> None:
    events = table(*({"kind": kind} for kind in kinds))
    for cuts in ([], [1]):
        assert one(made(events, *cuts)[JOBS.path])["state"] == state


def test_a_finished_job_that_is_cleaned_away_was_finished() -> None:
    cleaned = {"kind": "job:removed", "payload": '{"finished_at":1800000000000}'}
    assert one(made(table(attempt(kind="job:completed"), cleaned))[JOBS.path])["state"] == "completed"


def test_a_delayed_job_is_delayed() -> None:
    row = one(made(table({"kind": "job:pushed", "run_at": NOON + SECOND}))[JOBS.path])
    assert (row["state"], row["pushed_at"]) == ("delayed", NOON)


def test_the_day_of_a_job_is_that_of_its_id() -> None:
    midnight = 1_769_904_000_000  # 2026-02-01
    heads = [f"{ms:012x}" for ms in (midnight - 40_000, midnight - 1, midnight, midnight + 40_000)]
    ids = [f"{head[:8]}-{head[8:]}-7000-8000-000000000000" for head in heads]
    rows = made(table(*({"kind": "job:pushed", "job_id": each} for each in ids)))[JOBS.path]
    assert {row["job_id"]: row["date"].day for row in rows} == dict(zip(ids, (31, 31, 1, 1), strict=True))


def test_what_cannot_be_understood_is_put_aside() -> None:
    found = made(
        table(
            {"kind": "job:teleported"},
            {"kind": "job:pushed", "job_id": None},
            {"kind": "job:pushed", "queue": None},
            {"kind": "job:pushed", "at": None},
            {"kind": None},
            {"kind": "queue:paused", "job_id": None, "queue": None},
            attempt(kind="job:completed", started_at=NOON + 60 * SECOND),
            attempt(kind="job:completed", started_at=NOON + SECOND),  # clocks differ a little
        )
    )
    assert {row["seq"]: row["reason"] for row in found[QUARANTINE.path]} == {
        1: "unknown kind", 2: "no job", 3: "no queue", 4: "no time", 5: "unknown kind", 7: "ended before it started",
    }  # fmt: skip
    minute = one(found[MINUTES.path])
    assert (minute["completions"], minute["runs"], minute["arrivals"]) == (2, 1, 0)


def test_nothing_makes_nothing() -> None:
    assert not any(made(table()).values())
    assert not any(made(table({"kind": "queue:paused", "job_id": None})).values())


@pytest.mark.parametrize(
    ("one_error", "other"),
    [
        ("Timeout of 30 ms", "Timeout of 2,500.5 ms"),
        ("No user 'bob'", "No user 'alice'"),
        ('No user "bob"', 'No user "alice b"'),
        (f"Job {to_uuid(1)} is gone", f"Job {to_uuid(2)} is gone"),
        ("at 0x7f3a", "at 0xdeadbeef"),
        ("commit 4fa0c1d9e", "commit 00ff00ff00ff"),
        ("a\n  b", "a b"),
    ],
)
def test_errors_that_differ_in_nothing_that_matters_are_one(one_error: str, other: str) -> None:
    assert pattern_of(one_error) == pattern_of(other)


def test_errors_that_differ_are_not() -> None:
    patterns = {pattern_of(each) for each in ("Timeout", "No route", "can't read, won't write", "can't write", None)}
    assert len(patterns) == 5
    assert NO_ERROR in patterns


_MOMENTS = st.integers(-200_000, 200_000).map(lambda ms: NOON + timedelta(milliseconds=ms))
_EVENTS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([*JOB_KINDS, "job:teleported", "queue:paused"]),
        "at": _MOMENTS,
        "queue": st.sampled_from(["mail", "billing"]),
        "namespace": st.sampled_from(["acme", "globex"]),
        "job_id": st.integers(1, 4).map(to_uuid),
        "shard": st.integers(0, 1),
        "attempt": st.one_of(st.none(), st.integers(0, 3)),
        "priority": st.one_of(st.none(), st.integers(0, 9)),
        "size": st.one_of(st.none(), st.integers(0, 99)),
        "created_at": st.one_of(st.none(), _MOMENTS),
        "run_at": st.one_of(st.none(), _MOMENTS),
        "started_at": st.one_of(st.none(), _MOMENTS),
        "error": st.one_of(st.none(), st.sampled_from(["purge", "Timeout of 5 ms", "Timeout of 6 ms", "gone"])),
        "custom_id": st.one_of(st.none(), st.just("own")),
    }
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_EVENTS, max_size=30), st.lists(st.integers(0, 30), max_size=4))
def test_it_makes_no_difference_how_events_are_cut(events: list[dict[str, Any]], cuts: list[int]) -> None:
    # The journal of a shard is in order of time; a job stays in its queue.
    for number, each in enumerate(sorted(events, key=lambda event: event["at"])):
        each |= {"seq": number, "queue": "mail" if each["job_id"] < to_uuid(3) else "billing", "namespace": "acme"}
    whole = table(*sorted(events, key=lambda event: int(event["seq"])))
    at_once = made(whole)
    assert made(whole, *(cut for cut in cuts if cut < len(events))) == at_once
    assert sum(row["n"] for row in at_once[FAILURES.path]) == sum(
        row["failures"] + row["stalls"] for row in at_once[MINUTES.path]
    )
