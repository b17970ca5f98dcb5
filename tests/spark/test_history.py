"""Another server, or an emptied or restored one, answers at the same address: streams and lakes notice, and fail."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.lake.location import LAKE_INFO, Lake
from penstock.spark import options
from penstock.spark.journal import JournalReplaced, JournalStream
from penstock.spark.options import OptionInvalid
from penstock.spark.pipeline.lake_info import LakeInvalid
from penstock.spark.pipeline.run import Builder
from penstock.spark.queue_stream import HistoryChanged, LeaseReader
from tests.doors.api import Api
from tests.doors.test_history import restore
from tests.support.ports import free_port
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


class Address:
    """One address, at which another server, or the same one after a restore, can answer."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        self.server = self._serve("first")
        self.url = self.server.url

    def _serve(self, name: str) -> ServerProcess:
        return ServerProcess(self.place / name, port=self.port).start()

    def push(self, jobs: int) -> None:
        with self.server.client() as client:
            Api(client, "q").ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1}] * jobs})

    def change(self, how: str) -> None:
        """Have another server answer here, or restore the store of this one."""
        self.server.stop()
        if how == "restored":
            restore(self.place / "first")
        self.server = self._serve("first" if how == "restored" else "other")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[Address]:
    found = Address(tmp_path)
    yield found
    found.server.stop()


class Journal:
    """A journal stream without Spark: what Spark would ask of it, in the order in which it asks, also after a restart."""

    def __init__(self, address: Address, **given: str) -> None:
        self.wanted = options.for_stream({"url": address.url, "table": "journal"} | given)
        self.logged: dict[str, Any] | None = None  # the offset in the checkpoint

    def batch(self, *, dies: bool = False) -> list[int]:
        """Start, take one batch, end. ``dies``: after the batch is logged, and before it is read."""
        reader = JournalStream(self.wanted, StructType([StructField("seq", LongType())]))
        try:
            start = self.logged or reader.initialOffset()
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            self.logged = end
            return [] if dies or end == start else self.read(start, end)
        finally:
            reader.stop()

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        reader = JournalStream(self.wanted, StructType([StructField("seq", LongType())]))
        try:
            batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
            return [seq for batch in batches for seq in batch.column("seq").to_pylist()]
        finally:
            reader.stop()


@pytest.mark.parametrize(("how", "jobs"), [("another", 3), ("another", 30), ("restored", 3)])
def test_a_stream_of_the_journal_fails_loudly(address: Address, how: str, jobs: int) -> None:
    address.push(10)
    stream = Journal(address)
    assert len(stream.batch()) == 11  # the queue was made
    address.change(how)
    address.push(jobs)
    before = stream.logged
    for _ in range(2):  # and again when it is started again
        with pytest.raises(JournalReplaced, match=r"Shard 0 was read up to 11, and the journal of .* is not the one"):
            stream.batch()
    assert stream.logged == before
    careless = Journal(address, failOnDataLoss="false")
    careless.logged = before
    whole = Journal(address).batch()
    assert whole
    assert careless.batch() == whole
    address.push(2)
    assert careless.batch() == [whole[-1] + 1, whole[-1] + 2]


def test_a_batch_that_is_read_again_after_a_restart_fails_loudly(address: Address) -> None:
    address.push(10)
    stream = Journal(address)
    assert stream.batch(dies=True) == []
    start, end = {"start": "earliest"}, stream.logged
    assert end is not None
    assert len(stream.read(start, end)) == 11
    address.change("another")
    address.push(30)
    with pytest.raises(JournalReplaced, match="another server answers, or its store was emptied"):
        stream.read(start, end)
    assert Journal(address, failOnDataLoss="false").read(start, end) == []


def test_a_task_that_reads_after_the_change_fails_loudly(address: Address) -> None:
    address.push(10)
    stream = Journal(address)
    stream.batch(dies=True)
    assert stream.logged is not None
    reader = JournalStream(stream.wanted, StructType([StructField("seq", LongType())]))
    (part,) = reader.partitions({"start": "earliest"}, stream.logged)
    reader.stop()
    address.change("another")
    address.push(30)
    with pytest.raises(JournalReplaced, match="is not the one that was read"):
        list(reader.read(part))


def test_a_checkpoint_of_an_earlier_version_is_accepted_once(address: Address, caplog: pytest.LogCaptureFixture) -> None:
    address.push(10)
    stream = Journal(address)
    stream.batch()
    assert stream.logged is not None
    assert set(stream.logged.pop("histories")) == {"0"}
    address.push(2)
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        assert stream.batch() == [12, 13]
        assert "written by an earlier version" in caplog.text
        caplog.clear()
        address.push(1)
        assert stream.batch() == [14]
        assert caplog.text == ""
    address.change("another")
    address.push(30)
    with pytest.raises(JournalReplaced):
        stream.batch()


def test_an_offset_beyond_the_end_is_refused(address: Address) -> None:
    address.push(3)
    with pytest.raises(OptionInvalid, match=r"startingOffsets: the journal of shard 0 ends before 5, and 900 is beyond it"):
        Journal(address, startingOffsets='{"0": 900}').batch()


@pytest.mark.parametrize("how", ["another", "restored"])
def test_a_stream_that_consumes_queues_fails_loudly(address: Address, how: str, caplog: pytest.LogCaptureFixture) -> None:
    address.push(5)
    logged: dict[str, Any] | None = None

    def batch(**more: str) -> int:
        nonlocal logged
        wanted = options.for_stream({"url": address.url, "queues": "q", "pollTimeout": "1ms"} | more)
        reader = LeaseReader(wanted, StructType([StructField("queue", StringType())]))
        try:
            start = logged or reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            rows = (
                0
                if end == start
                else sum(each.num_rows for part in reader.partitions(start, end) for each in reader.read(part))
            )
            logged = end
            return rows
        finally:
            keeper = reader._keeper
            reader.stop()
            if keeper is not None:
                keeper.wait()

    assert batch() == 5
    assert batch() == 0
    address.change(how)
    address.push(7)
    for _ in range(2):
        with pytest.raises(HistoryChanged, match="is not the one that was read"):
            batch()
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        assert batch(onLeaseLost="skip") == 7
        assert "continues with the jobs that are in the store now" in caplog.text
    address.push(2)
    assert batch() == 2


def test_a_query_of_spark_fails_loudly(spark: SparkSession, address: Address, tmp_path: Path) -> None:
    seen: list[int] = []

    def run() -> None:
        events = spark.readStream.format("penstock").options(url=address.url, table="journal").load()
        writer = events.writeStream.foreachBatch(lambda batch, _: seen.extend(row["seq"] for row in batch.collect()))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    address.push(10)
    run()
    address.push(2)
    run()
    assert sorted(seen) == list(range(1, 14))
    address.change("another")
    address.push(30)
    with pytest.raises(StreamingQueryException, match="JournalReplaced"):
        run()
    assert len(seen) == 13


@pytest.mark.parametrize("how", ["another", "restored"])
def test_a_lake_fails_loudly(spark: SparkSession, address: Address, tmp_path: Path, how: str) -> None:
    lake = Lake(tmp_path / "lake")
    wanted = options.for_batch({"url": address.url, "table": "journal", "namespace": "*", "failOnDataLoss": "false"})
    address.push(10)
    with closing(Builder(spark, lake, wanted)) as builder:
        builder.open()
        batch = builder.step(builder.end())
        assert batch is not None
        assert batch.events == 11
        card = json.loads(lake.text(LAKE_INFO) or "")
        assert set(card.pop("histories")) == {"0"}
        lake.put_text(LAKE_INFO, json.dumps(card))  # as an earlier version had it
    address.push(1)
    said: list[str] = []
    with closing(Builder(spark, lake, wanted)) as builder:
        builder.open(said.append)
        assert builder.step(builder.end()) is not None
    assert any("an earlier version did not note whose journal this is" in line for line in said)
    with closing(Builder(spark, lake, wanted)) as builder:
        builder.open()
        address.change(how)
        address.push(30)
        with pytest.raises(LakeInvalid, match="another history of shard 0"):
            builder.step(builder.end())
    with closing(Builder(spark, lake, wanted)) as builder, pytest.raises(LakeInvalid, match="another history of shard 0"):
        builder.open()
