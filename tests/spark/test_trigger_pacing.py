"""Batches that wait until they are worth their while."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.spark import options
from penstock.spark.journal import JournalStream
from penstock.spark.queue_stream import LeaseReader
from penstock.spark.trigger_pacing import TriggerPacing

if TYPE_CHECKING:
    from tests.spark.fake import FakeServer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_batch_waits_for_enough_rows_or_for_long_enough() -> None:
    clock = Clock()
    pace = TriggerPacing(10, 60_000, clock)
    assert not pace.holds(1)  # the first does not
    pace.went()
    assert pace.holds(9)
    assert not pace.holds(10)
    clock.now += 59
    assert pace.holds(9)
    clock.now += 1
    assert not pace.holds(9)
    pace.went()
    assert pace.holds(9)
    free = TriggerPacing(None, 1)
    free.went()
    assert not free.holds(0)
    assert not free.asks


def test_a_journal_that_waits(fake: FakeServer) -> None:
    given = {"url": fake.url, "table": "journal", "minOffsetsPerTrigger": "10", "maxTriggerDelay": "1m"}
    reader = JournalStream(options.for_stream(given), StructType([StructField("seq", LongType())]))
    clock = Clock()
    reader._pace = TriggerPacing(10, 60_000, clock)
    fake.push("q", ["x"] * 3)
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert at["to"] == {"0": 3}
    fake.push("q", ["x"] * 9)
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    clock.now += 60
    at = reader.latestOffset(at, ReadAllAvailable())
    assert at["to"] == {"0": 12}
    fake.push("q", ["x"] * 9)
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert reader.reportLatestOffset() == {"to": {"0": 21}, "lag": 9}
    fake.push("q", ["x"])
    at = reader.latestOffset(at, ReadAllAvailable())
    assert at["to"] == {"0": 22}
    fake.push("q", ["x"])
    reader.prepareForTriggerAvailableNow()  # such a run takes what there is
    assert reader.latestOffset(at, ReadAllAvailable())["to"] == {"0": 23}
    reader.stop()


def test_queues_that_wait_and_come_by_a_pattern(fake: FakeServer) -> None:
    given = {"url": fake.url, "queuesPattern": "mail-.*", "minOffsetsPerTrigger": "10", "pollTimeout": "0"}
    reader = LeaseReader(options.for_stream(given), StructType([StructField("key", StringType())]))
    clock = Clock()
    reader._pace = TriggerPacing(10, 60_000, clock)
    limit = ReadMaxRows(100)
    try:
        at = reader.initialOffset()
        assert reader.latestOffset(at, limit) == at
        fake.push("mail-a", ["x"] * 3)
        fake.push("other", ["x"] * 3)
        at = reader.latestOffset(at, limit)
        assert (at["epoch"], at["rows"]) == (1, 3)
        fake.push("mail-b", ["x"] * 9)  # a queue that is new
        assert reader.latestOffset(at, limit) == at
        assert len(fake.values("mail-a", "completed")) == 3  # what is done is acknowledged all the same
        assert reader.reportLatestOffset() == {"lag": 9}
        fake.push("mail-a", ["x"])
        at = reader.latestOffset(at, limit)
        assert (at["epoch"], at["rows"]) == (2, 10)
        assert fake.values("other") == ["x"] * 3
    finally:
        keeper = reader._keeper
        reader.stop()
        assert keeper is not None
        keeper.wait(30)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"queues": "a", "queuesPattern": "b"}, "Options queues and queuesPattern exclude each other"),
        ({"queuesPattern": "a("}, "Option queuesPattern must be a regular expression"),
        ({"queues": "a", "maxTriggerDelay": "1m"}, "Option maxTriggerDelay is of use only with minOffsetsPerTrigger"),
        (
            {"queues": "a", "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"},
            r"Option minOffsetsPerTrigger \(10\) must not be above maxOffsetsPerTrigger \(9\)",
        ),
        ({"queues": "a", "minOffsetPerTrigger": "10"}, "Option minOffsetPerTrigger is unknown. Is it minOffsetsPerTrigger"),
    ],
)
def test_wishes_that_do_not_fit(given: dict[str, str], says: str) -> None:
    with pytest.raises(options.OptionInvalid, match=says):
        options.for_stream({"url": "http://127.0.0.1:1"} | given)
