"""Columns are what single values would be, whatever the values are."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.bulkwork.columns import MOMENT, column, moments, named, uuids
from penstock.bulkwork.journal import EVENTS, EventColumns
from penstock.core import events, ids
from penstock.core.events import EventKind
from penstock.core.job import JobRecord
from penstock.store.bulk_reader import Block
from tests.bulkwork.blocks import body_of


@given(st.lists(st.one_of(st.just(0), st.integers(1, ids.ID_MAX)), min_size=1))
def test_ids_are_spelled_as_one_by_one(values: list[int]) -> None:
    assert uuids(values).to_pylist() == [ids.to_uuid(each) if each else None for each in values]
    assert uuids(tuple(values)).type == pa.string()


@given(st.lists(st.one_of(st.none(), st.integers(0, 10**13 - 1)), min_size=1))
def test_moments_are_what_they_were(values: list[int | None]) -> None:
    made = moments(values)
    assert made.type == MOMENT
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    found = [None if each is None else (each - epoch) // dt.timedelta(milliseconds=1) for each in made.to_pylist()]
    assert found == values


@given(st.lists(st.one_of(st.none(), st.text(alphabet="aü\0")), min_size=1))
def test_texts_are_what_they_were(values: list[str | None]) -> None:
    assert column(values, pa.string()).to_pylist() == values


@given(st.lists(st.integers(0, 5), min_size=1))
def test_names_are_found_by_number(values: list[int]) -> None:
    names = {number: f"name {number}" for number in range(6)}
    assert named(values, names).to_pylist() == [names[each] for each in values]


def job(number: int) -> JobRecord:
    return JobRecord(number, 1, 7, 1, 3, 1_000, None, None, None, None, None, 0, 0, 0, 1, 2, size=10)


@given(st.lists(st.lists(st.sampled_from(list(EventKind)), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_every_kind_of_event_has_its_row(kinds: list[list[EventKind]], data: st.DataObject) -> None:
    blocks = []
    seq = 1
    for some in kinds:
        made = [
            (kind.value, 0, 0, "space", {"queue": "q", "more": 1})
            if kind in events.PAYLOAD_KINDS
            else events.job_event(kind, job(seq + index), "note")
            for index, kind in enumerate(some)
        ]
        blocks.append(Block(seq, 1_000 + seq, body_of({7: ("space", "q")}, made)))
        seq += len(some)
    first = data.draw(st.integers(1, seq))
    to = data.draw(st.integers(first, seq))
    columns = EventColumns(3, data.draw(st.sampled_from([None, "space"])), first, to)
    for block in blocks:
        if block.seq < to:
            columns.take(block)
    batch = columns.batch()
    flat = [kind for some in kinds for kind in some]
    rows = [] if batch is None else batch.to_pylist()
    assert [(row["seq"], row["kind"]) for row in rows] == [
        (number, flat[number - 1].wire_name) for number in range(first, to)
    ]
    for row in rows:
        assert (row["shard"], row["namespace"], row["queue"]) == (3, "space", "q")
        assert "token" not in (row["payload"] or "")
    if batch is not None:
        assert batch.schema == EVENTS


def test_events_of_others_are_left_out() -> None:
    made = [events.job_event(EventKind.JOB_WAITING, job(number)) for number in (1, 2)]
    strange = [(*each[:1], 8, *each[2:]) for each in made]
    columns = EventColumns(0, "mine", 1, 9)
    columns.take(Block(1, 5, body_of({7: ("mine", "q"), 8: ("theirs", "q")}, [*made, *strange])))
    assert columns.next == 5
    batch = columns.batch()
    assert batch is not None
    assert batch["seq"].to_pylist() == [1, 2]
    assert columns.batch() is None


def test_an_event_of_an_earlier_version_does_not_say_when_its_attempt_was_due() -> None:
    completed = events.job_event(EventKind.JOB_COMPLETED, job(1))
    failed = events.job_event(EventKind.JOB_FAILED, job(1), "note", 1_234)
    released = events.job_events(EventKind.JOB_RELEASED, [job(1)], [1_235])
    columns = EventColumns(0, None, 1, 9)
    columns.take(Block(1, 5, body_of({7: ("mine", "q")}, [completed, failed, *released, failed[:-1], released[0][:-1]])))
    batch = columns.batch()
    assert batch is not None
    due = [None if each is None else round(each.timestamp() * 1000) for each in batch["due_at"].to_pylist()]
    assert due == [job(1).run_at, 1_234, 1_235, None, None]
    assert batch["error"].to_pylist() == [None, "note", None, "note", None]


def test_what_a_later_version_wrote_is_passed_on_by_number() -> None:
    columns = EventColumns(0, None, 1, 3)
    columns.take(Block(1, 5, body_of({7: ("mine", "q")}, [(999, 7, 1, None, "new"), (3, 7, 1, None)])))
    batch = columns.batch()
    assert batch is not None
    assert batch["kind"].to_pylist() == ["unknown:999", "job:completed"]
