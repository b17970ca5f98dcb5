"""The tables of the lake: what folding does, and that a lake of an earlier version is widened."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from penstock.lake.location import Lake
from penstock.lake.tables import FAILURES, JOBS, MINUTES, TABLES, Table

if TYPE_CHECKING:
    from pathlib import Path

DAY = date(2026, 1, 31)
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rows(table: Table, *given: dict[str, Any]) -> pa.Table:
    names = table.schema.names
    return pa.Table.from_pylist([{name: each.get(name) for name in names} for each in given], schema=table.schema)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_is_documented_and_made_as_it_says(table: Table, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert all(each.help for each in table.columns)
    assert table.partition is None or table.partition in table.schema.names
    assert all(name in table.schema.names for name in table.order)
    made = lake.ensure(table)
    assert [field.name for field in made.schema().fields] == table.schema.names
    assert lake.ensure(table).version() == made.version()
    assert lake.read(table).schema == table.schema


def test_rows_of_one_key_fold_into_one_whatever_their_order() -> None:
    key = {"namespace": "", "queue": "mail", "minute": NOON, "date": DAY}
    one = rows(
        MINUTES, key | {"arrivals": 2, "batch": 0}, key | {"arrivals": 3, "batch": 1}, key | {"queue": "x", "arrivals": 1}
    )
    for order in ([0, 1, 2], [2, 1, 0]):
        folded = MINUTES.folded(one.take(order)).sort_by("queue").to_pylist()
        assert [(each["queue"], each["arrivals"]) for each in folded] == [("mail", 5), ("x", 1)]
        assert folded[0]["batch"] == 1


def test_the_state_of_a_job_is_that_of_its_last_event() -> None:
    key = {"namespace": "", "job_id": "j", "date": DAY, "queue": "mail", "last_shard": 0}
    parts = [
        key | {"state": "waiting", "last_at": NOON, "last_seq": 1, "attempts": 0},
        key | {"state": "completed", "last_at": NOON, "last_seq": 3, "attempts": 1},
        key | {"state": "active", "last_at": NOON, "last_seq": 2, "attempts": 0},
        key | {"last_shard": None, "priority": 4},  # an event that says nothing of how it stands
    ]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        (folded,) = JOBS.folded(rows(JOBS, *parts).take(order)).to_pylist()
        assert (folded["state"], folded["last_seq"], folded["attempts"], folded["priority"]) == ("completed", 3, 1, 4)


def test_the_example_of_a_failure_is_the_first() -> None:
    key = {"namespace": "", "queue": "mail", "fingerprint": "f", "date": DAY, "example_shard": 0, "n": 1}
    parts = [key | {"first_seen": NOON, "example_seq": seq, "example": str(seq)} for seq in (7, 5, 6)]
    (folded,) = FAILURES.folded(rows(FAILURES, *parts)).to_pylist()
    assert (folded["example"], folded["n"]) == ("5", 3)


def test_a_fold_of_folds_is_the_fold_of_all() -> None:
    key = {"namespace": "", "queue": "mail", "minute": NOON, "date": DAY}
    parts = rows(MINUTES, *(key | {"arrivals": each, "batch": each} for each in range(10)))
    halves = pa.concat_tables([MINUTES.folded(parts.slice(0, 4)), MINUTES.folded(parts.slice(4))])
    assert MINUTES.folded(halves).equals(MINUTES.folded(parts))


def test_a_table_of_an_earlier_version_is_widened_and_keeps_its_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    before = pa.schema([field for field in MINUTES.schema if field.name not in ("replayed", "waits")])
    DeltaTable.create(lake.uri(MINUTES), Schema.from_arrow(before), partition_by=["date"])
    key = {"namespace": "", "queue": "mail", "minute": NOON, "date": DAY, "arrivals": 2}
    old = rows(MINUTES, key).select(before.names)
    write_deltalake(lake.uri(MINUTES), old, mode="append")
    assert lake.read(MINUTES).to_pylist()[0]["arrivals"] == 2  # a reader that is newer than the lake
    made = lake.ensure(MINUTES)
    assert {field.name for field in made.schema().fields} == set(MINUTES.schema.names)
    write_deltalake(lake.uri(MINUTES), rows(MINUTES, key | {"replayed": 4}), mode="append")
    (folded,) = lake.read(MINUTES).to_pylist()
    assert (folded["arrivals"], folded["replayed"]) == (4, 4)


def test_where_there_is_no_lake_nothing_is_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "nowhere")
    assert not lake.exists()
    assert lake.read(MINUTES).num_rows == 0
