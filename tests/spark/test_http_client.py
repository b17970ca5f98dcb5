"""What goes wrong between Spark and a server: answers that are cut off, lost or wrong are never taken for whole ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.client.errors import ApiError, ConnectionFailed
from penstock.spark import options
from penstock.spark.http_client import BulkClient, RowsMissing
from penstock.spark.journal import EventsLost, Range, ranges_of, read_range
from penstock.spark.schemas import _ARROW, COLUMNS
from penstock.spark.sink import BatchWriter

if TYPE_CHECKING:
    from tests.spark.fake import FakeServer

JOURNAL = pa.schema([pa.field(name, _ARROW[kind]) for name, kind in COLUMNS["journal"].items()])


def wire_to(fake: FakeServer, **more: str) -> BulkClient:
    return BulkClient(options.for_batch({"url": fake.url, "table": "jobs", "retryFor": "5s"} | more))


def seqs(wire: BulkClient, start: int, end: int) -> list[int]:
    rows = wire.rows("/bulk/journal", shard=0, **{"from": start, "to": end})
    return [seq for batch in rows for seq in batch.column("seq").to_pylist()]


def test_rows_are_counted(fake: FakeServer) -> None:
    fake.push("q", ["x"] * 1000)
    with wire_to(fake) as wire:
        assert seqs(wire, 0, 1000) == list(range(1000))
        assert seqs(wire, 5, 5) == []
        fake.faults.append(("/journal", "lie"))
        with pytest.raises(RowsMissing, match="has 1000 rows, and says it has 1001"):
            seqs(wire, 0, 1000)
        fake.faults.append(("/journal", "no trailer"))
        with pytest.raises(RowsMissing, match="no count of its rows"):
            seqs(wire, 0, 1000)


def test_an_answer_that_breaks_off_is_gone_on_with(fake: FakeServer) -> None:
    fake.push("q", ["x"] * 1000)
    fake.faults += [("/journal", "cut"), ("/journal", "503"), ("/journal", "cut"), ("/journal", "drop")]
    with wire_to(fake) as wire:
        assert seqs(wire, 0, 1000) == list(range(1000))
    assert not fake.faults


def test_a_lost_answer_is_asked_for_again(fake: FakeServer) -> None:
    fake.push("q", ["x"] * 10)
    fake.faults += [("/claim", "drop"), ("/claim", "503")]
    with wire_to(fake) as wire:
        claim = {"epoch": 1, "queues": ["q"], "max": 4, "lease_ms": 1000, "wait_ms": 0}
        assert wire.post("/bulk/groups/g/claim", claim)["rows"] == 4
    assert len(fake.values("q", "active")) == 4


def test_a_server_that_is_not_there(fake: FakeServer) -> None:
    with BulkClient(options.for_batch({"url": "http://127.0.0.1:1", "table": "jobs", "retryFor": "0"})) as wire:
        with pytest.raises(ConnectionFailed):
            wire.get("/bulk")
        with pytest.raises(ConnectionFailed):
            list(wire.rows("/bulk/journal"))
    with wire_to(fake) as wire, pytest.raises(ApiError, match="no route"):
        list(wire.rows("/bulk/nothing"))


def test_rows_that_made_no_jobs_are_told_of(fake: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    fake.known = 2
    schema = StructType([StructField("value", StringType()), StructField("key", StringType())])
    writer = BatchWriter(options.for_write({"url": fake.url, "queue": "q", "idempotencyKey": "k"}, overwrite=False), schema)
    rows = pa.record_batch({"value": ["a", "b", "c"], "key": ["1", "1", "1"]})
    writer.commit([writer.write(iter([rows]))])
    assert "2 of 3 rows of the commit k made no new jobs" in caplog.text


def test_pieces_of_a_journal() -> None:
    assert ranges_of({"0": 5}, {"0": 5}, 4) == []
    assert ranges_of({"0": 0, "1": 7}, {"0": 10, "1": 9}, None) == [Range(0, 0, 10), Range(1, 7, 9)]
    pieces = ranges_of({"0": 0}, {"0": 600_000}, None)
    assert [(each.start, each.end) for each in pieces] == [(0, 200_000), (200_000, 400_000), (400_000, 600_000)]
    many = ranges_of({"0": 3}, {"0": 13}, 4)
    assert len(many) >= 4
    assert [seq for each in many for seq in range(each.start, each.end)] == list(range(3, 13))


def test_events_that_went_after_planning(fake: FakeServer) -> None:
    fake.push("q", ["x"] * 100)
    fake.journal_first = 40
    given = {"url": fake.url, "table": "journal"}
    with pytest.raises(EventsLost, match=r"its journal begins with 40\. With failOnDataLoss=false"):
        list(read_range(options.for_batch(given), JOURNAL, Range(0, 10, 60)))
    batches = read_range(options.for_batch(given | {"failOnDataLoss": "false"}), JOURNAL, Range(0, 10, 60))
    assert [seq for each in batches for seq in each.column("seq").to_pylist()] == list(range(40, 60))
