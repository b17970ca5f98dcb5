"""``readStream`` and ``writeStream``: the journal, queues that are consumed, and jobs made by a stream, each exactly once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark import batch, options, queue_stream
from penstock.spark.journal import EventsLost, JournalStream
from tests.spark.chaos import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.spark.fake import FakeServer

pytestmark = pytest.mark.slow


class Run:
    """A query into a table in memory, or somewhere else, with a checkpoint of its own."""

    def __init__(self, spark: SparkSession, fake: FakeServer, place: Path) -> None:
        self.spark = spark
        self.fake = fake
        self.checkpoint = str(place / "checkpoint")
        self.rows: list[list[Any]] = []

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("penstock").options(url=self.fake.url, **options).load()

    def collect(self, frame: DataFrame, *columns: str, **trigger: Any) -> StreamingQuery:
        """Run it, and note the rows of each batch."""

        def note(batch: DataFrame, number: int) -> None:
            del number
            self.rows.append([row[0] if len(columns) == 1 else tuple(row) for row in batch.selectExpr(*columns).collect()])

        writer = frame.writeStream.foreachBatch(note).option("checkpointLocation", self.checkpoint)
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def to_queue(self, frame: DataFrame, queue: str, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("penstock").options(url=self.fake.url, queue=queue)
        return writer.option("checkpointLocation", self.checkpoint).trigger(**(trigger or {"availableNow": True})).start()


@pytest.fixture
def run(spark: SparkSession, fake: FakeServer, tmp_path: Path) -> Run:
    return Run(spark, fake, tmp_path)


def test_every_event_once(run: Run, fake: FakeServer) -> None:
    fake.push("mail", ["x"] * 250)
    query = run.collect(run.stream(table="journal", maxOffsetsPerTrigger="100"), "seq")
    query.awaitTermination()
    assert [len(rows) for rows in run.rows] == [100, 100, 50]
    assert query.lastProgress is not None
    assert query.lastProgress.sources[0].latestOffset == '{"to": {"0": 250}, "lag": 0}'
    fake.push("mail", ["x"] * 30)
    run.collect(run.stream(table="journal", minPartitions="2"), "seq").awaitTermination()
    assert [seq for rows in run.rows for seq in sorted(rows)] == list(range(280))


class Replayed:
    """A journal stream without Spark: what Spark would ask of it, in the order in which it asks, also after a restart."""

    def __init__(self, fake: FakeServer, **given: str) -> None:
        self.wanted = options.for_stream({"url": fake.url, "table": "journal"} | given)
        self.logged: dict[str, Any] | None = None  # the offset in the checkpoint

    def batch(self) -> list[int]:
        """Start, take one batch, end."""
        reader = JournalStream(self.wanted, StructType([StructField("seq", LongType())]))
        try:
            start = reader.initialOffset() if self.logged is None else self.logged
            assert reader.initialOffset() == reader.initialOffset()
            reader.prepareForTriggerAvailableNow()
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            rows = [] if end == start else [each for part in reader.partitions(start, end) for each in reader.read(part)]
            self.logged = end
            return [seq for batch in rows for seq in batch.column("seq").to_pylist()]
        finally:
            reader.stop()


def test_a_stream_from_the_end_misses_nothing_after_it_began(fake: FakeServer) -> None:
    fake.push("mail", ["x"] * 20)
    stream = Replayed(fake, startingOffsets="latest")
    assert stream.batch() == []
    fake.push("mail", ["x"] * 5)
    assert stream.batch() == [20, 21, 22, 23, 24]


def test_a_stream_from_a_moment_or_an_offset(fake: FakeServer) -> None:
    fake.push("mail", ["x"] * 20)
    for given in ({"startingTimestamp": "2026-01-01T00:00:15Z"}, {"startingOffsets": '{"0": 15}'}):
        stream = Replayed(fake, **given)
        assert stream.batch() == [15, 16, 17, 18, 19]
        assert stream.batch() == []


def test_events_that_are_gone_stop_a_stream_unless_told_otherwise(fake: FakeServer) -> None:
    fake.push("mail", ["x"] * 20)
    stream = Replayed(fake)
    assert len(stream.batch()) == 20
    fake.push("mail", ["x"] * 20)
    fake.journal_first = 30
    with pytest.raises(EventsLost, match="no longer keeps the events from 20 on"):
        stream.batch()
    careless = Replayed(fake, failOnDataLoss="false")
    careless.logged = stream.logged
    assert careless.batch() == list(range(30, 40))


def test_queues_are_consumed(run: Run, fake: FakeServer) -> None:
    fake.push("mail", [f"m{number}" for number in range(250)])
    fake.push("billing", ["b0"])
    fake.push("other", ["o0"])
    frame = run.stream(queues="mail,billing", maxOffsetsPerTrigger="100", minPartitions="2", consumerGroup="etl")
    query = run.collect(frame, "string(value)")
    query.awaitTermination()
    assert [len(rows) for rows in run.rows] == [100, 100, 51]
    assert sorted(value for rows in run.rows for value in rows) == sorted([f"m{number}" for number in range(250)] + ["b0"])
    assert len(fake.values("mail", "completed")) == 250
    assert not fake.values("mail", "active", "waiting")
    assert fake.values("other") == ["o0"]
    assert all(name.startswith("etl-") for name in fake.epochs)


def test_a_stream_begins_with_queues_that_are_empty(run: Run, fake: FakeServer) -> None:
    for given in ({"queues": "mail"}, {"queuesPattern": "mai."}):
        query = run.collect(run.stream(**given), "string(value)")
        query.awaitTermination()
        assert [rows for rows in run.rows if rows] == []
    fake.push("mail", ["m0", "m1"])
    run.collect(run.stream(queues="mail"), "string(value)").awaitTermination()
    assert sorted(value for rows in run.rows for value in rows) == ["m0", "m1"]
    until(lambda: len(fake.values("mail", "completed")) == 2)


def test_more_queues_than_one_claim_may_name(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_stream, "QUEUES_PER_CLAIM", 10)
    monkeypatch.setattr(queue_stream, "QUEUES_COUNTED", 5)
    monkeypatch.setattr(batch, "QUEUES_PER_SNAPSHOT", 20)
    for number in range(25):
        fake.push(f"q{number:02}", ["x"])
    wanted = options.for_stream({"url": fake.url, "queuesPattern": "q.*", "maxOffsetsPerTrigger": "9"})
    reader = queue_stream.LeaseReader(wanted, StructType([StructField("queue", StringType())]))
    offset: dict[str, Any] = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    taken = 0
    try:
        while (following := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
            offset = following
            taken += offset["rows"]
            assert reader.reportLatestOffset() == {"lag": 25 - taken}
        assert taken == 25
    finally:
        keeper = reader._keeper
        reader.stop()
        assert keeper is not None
        keeper.wait(30)
    many = options.for_batch({"url": fake.url, "table": "jobs", "queuesPattern": "q.*"})
    with pytest.raises(options.OptionInvalid, match="Option queuesPattern matches 25 queues, and a snapshot has at most 20"):
        batch.reader(many, StructType([StructField("queue", StringType())])).partitions()


def test_a_run_ends_though_jobs_keep_coming(run: Run, fake: FakeServer) -> None:
    fake.push("mail", ["m0", "m1", "m2"])
    frame = run.stream(queues="mail", maxOffsetsPerTrigger="2")
    queue = run.to_queue(frame.select("value"), "mail")  # each batch makes as many new ones
    queue.awaitTermination()
    assert len(fake.values("mail", "completed")) == 3
    assert len(fake.values("mail")) == 3


def test_a_batch_that_failed_comes_again(run: Run, fake: FakeServer) -> None:
    fake.push("mail", [f"m{number}" for number in range(5)])
    frame = run.stream(queues="mail", maxOffsetsPerTrigger="2")
    with pytest.raises(StreamingQueryException, match="not this one"):
        run.collect(frame, "if(string(value) = 'm3', raise_error('not this one'), string(value))").awaitTermination()
    assert len(fake.values("mail", "completed")) == 2
    assert len(fake.values("mail", "active")) == 2
    run.collect(frame, "string(value)").awaitTermination()
    assert sorted(value for rows in run.rows for value in rows) == ["m0", "m1", "m2", "m3", "m4"]
    assert len(fake.values("mail", "completed")) == 5
    assert len(fake.epochs) == 1


def test_a_claim_that_spark_never_wrote_down_is_found_again(run: Run, fake: FakeServer) -> None:
    """The driver died between the claim and its log. Nothing waits then, and the run takes it up all the same."""
    fake.push("mail", ["m0", "m1"])
    frame = run.stream(queues="mail")
    run.collect(frame, "string(value)").awaitTermination()
    fake.push("mail", ["m2", "m3"])
    (group,) = fake.epochs
    fake.group(group, "claim", {"epoch": 2, "queues": ["mail"], "max": 10})
    run.collect(frame, "string(value)").awaitTermination()
    assert [sorted(rows) for rows in run.rows] == [["m0", "m1"], ["m2", "m3"]]
    assert len(fake.values("mail", "completed")) == 4


def test_leases_that_ended_stop_a_stream_unless_told_otherwise(run: Run, fake: FakeServer) -> None:
    fake.push("mail", ["m0", "m1", "m2"])
    with pytest.raises(StreamingQueryException, match="not yet"):
        run.collect(run.stream(queues="mail"), "raise_error('not yet')").awaitTermination()
    fake.lose(1)
    fake.jobs[0]["queue"] = "elsewhere"
    with pytest.raises(StreamingQueryException, match=r"1 leases of epoch 1 were lost[^\n]*onLeaseLost=skip"):
        run.collect(run.stream(queues="mail"), "string(value)").awaitTermination()
    run.collect(run.stream(queues="mail", onLeaseLost="skip"), "string(value)").awaitTermination()
    assert [sorted(rows) for rows in run.rows] == [["m1", "m2"]]


def test_the_only_batch_of_a_query_is_acknowledged(run: Run, fake: FakeServer) -> None:
    """Nobody asks the source for more after it, and its process is killed: the keeper sees it in the checkpoint."""
    fake.push("mail", ["m0", "m1"])
    frame = run.stream(queues="mail", checkpointLocation=run.checkpoint)
    run.collect(frame, "string(value)", once=True).awaitTermination()
    until(lambda: len(fake.values("mail", "completed")) == 2)
    assert [sorted(rows) for rows in run.rows] == [["m0", "m1"]]


def test_an_idle_stream_has_acknowledged_everything(run: Run, fake: FakeServer) -> None:
    query = run.collect(run.stream(queues="mail", pollTimeout="10ms"), "string(value)", processingTime="0 seconds")
    try:
        fake.push("mail", ["m0", "m1"])
        until(lambda: len(fake.values("mail", "completed")) == 2)
    finally:
        query.stop()


def test_what_is_done_is_acknowledged_without_waiting_for_the_next_trigger(run: Run, fake: FakeServer) -> None:
    fake.push("mail", ["m0", "m1"])
    frame = run.stream(queues="mail", checkpointLocation=f"file://{run.checkpoint}")
    query = run.collect(frame, "string(value)", processingTime="1 hour")
    try:
        until(lambda: len(fake.values("mail", "completed")) == 2)
    finally:
        query.stop()


class Held:
    """A source without Spark that holds one claimed job, and its keeper."""

    def __init__(self, fake: FakeServer) -> None:
        fake.push("mail", ["m0"])
        wanted = options.for_stream({"url": fake.url, "queues": "mail", "retryFor": "1h"})
        self.reader = queue_stream.LeaseReader(wanted, StructType([StructField("queue", StringType())]))
        self._start = self.reader.initialOffset()
        self._end = self.reader.latestOffset(self._start, self.reader.getDefaultReadLimit())

    def plan(self) -> None:
        self.reader.partitions(self._start, self._end)

    def ends_with_its_query(self) -> None:
        keeper = self.reader._keeper
        assert keeper is not None
        self.reader.stop()
        try:
            keeper.wait(60)
        finally:
            keeper.kill()
            keeper.wait()


def _asked(fake: FakeServer, verb: str) -> int:
    return sum(asked[1].endswith(f"/{verb}") for asked in fake.asked)


@pytest.mark.parametrize("planned", [True, False])
def test_a_keeper_ends_with_its_query_though_the_server_refuses_it(fake: FakeServer, planned: bool) -> None:
    """Its request would be made again for an hour. What the source said meanwhile counts."""
    fake.faults += [("/heartbeat", "503")] * 10_000
    held = Held(fake)
    until(lambda: _asked(fake, "heartbeat") >= 2)
    if planned:
        held.plan()
    held.ends_with_its_query()
    assert _asked(fake, "release") == (not planned)
    assert len(fake.values("mail", "active")) == planned


def test_the_last_request_of_a_keeper_is_made_again(fake: FakeServer) -> None:
    fake.faults += [("/release", "503"), ("/release", "drop"), ("/release", "503")]
    Held(fake).ends_with_its_query()
    assert _asked(fake, "release") == 4
    assert fake.values("mail") == ["m0"]


def test_only_a_claim_makes_a_group(fake: FakeServer) -> None:
    """A keeper of an ended query that asks another test's server leaves no trace there."""
    for verb in ("heartbeat", "ack", "release"):
        fake.group("another", verb, {"epoch": 1})
    fake.group("another", "claim", {"epoch": 1, "queues": ["mail"], "max": 1})
    fake.read("another", {"epoch": "1", "split": "0", "splits": "1"})
    assert not fake.epochs


def test_leases_are_renewed_while_a_batch_runs(run: Run, fake: FakeServer) -> None:
    fake.push("mail", ["m0"])

    def slowly(batch: DataFrame, number: int) -> None:
        del number
        batch.collect()
        until(lambda: sum(asked[1].endswith("/heartbeat") for asked in fake.asked) >= 3)

    frame = run.stream(queues="mail", leaseTimeout="1s")
    frame.writeStream.foreachBatch(slowly).option("checkpointLocation", run.checkpoint).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert len(fake.values("mail", "completed")) == 1


def test_a_stream_makes_jobs_exactly_once(run: Run, fake: FakeServer) -> None:
    """Answers to commits are lost, more than once, and what Spark then does changes nothing."""
    fake.push("mail", [f"m{number}" for number in range(30)])
    frame = run.stream(queues="mail", maxOffsetsPerTrigger="10", retryFor="0").select("value", "job_id")
    writer = frame.writeStream.format("penstock").options(
        url=fake.url, queue="out", checkpointLocation=run.checkpoint, retryFor="0"
    )
    fake.faults += [("/commits", "drop"), ("/commits", "503")]
    failures = 0
    while True:
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            break
        except StreamingQueryException:
            failures += 1
    assert failures == 2
    assert sorted(fake.values("out")) == sorted(f"m{number}" for number in range(30))
    assert len(fake.values("mail", "completed")) == 30
    assert len(fake.commits) == 3
    assert not any(fake.stages.values())


def test_a_new_checkpoint_is_a_new_query(run: Run, fake: FakeServer, tmp_path: Path, spark: SparkSession) -> None:
    """Batch 0 of it is no repetition of the batch 0 before, and its epochs are its own."""
    for number in range(2):
        fake.push("mail", [f"m{number}"])
        other = Run(spark, fake, tmp_path / str(number))
        other.to_queue(other.stream(queues="mail").select("value"), "out").awaitTermination()
    assert fake.values("out") == ["m0", "m1"]
    assert len(fake.epochs) == 2
