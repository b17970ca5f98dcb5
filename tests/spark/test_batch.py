"""``spark.read`` and ``df.write``: snapshots of jobs, stretches of the journal, and bulk enqueueing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.testing import assertDataFrameEqual

from penstock.spark import options, sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.fake import FakeServer

pytestmark = pytest.mark.slow


def load(spark: SparkSession, fake: FakeServer, table: str, **more: str) -> DataFrame:
    return spark.read.format("penstock").options(url=fake.url, table=table, **more).load()


def test_jobs_in_parts(spark: SparkSession, fake: FakeServer) -> None:
    fake.push("mail", [f"m{number}" for number in range(250)])
    fake.push("billing", ["b0"])
    jobs = load(spark, fake, "jobs", rowsPerPartition="100", columns="queue,id,state,value,created_at")
    assert jobs.rdd.getNumPartitions() == 3
    expected = [("mail", f"id-{number}", "waiting", f"m{number}") for number in range(250)] + [
        ("billing", "id-250", "waiting", "b0")
    ]
    found = jobs.selectExpr("queue", "id", "state", "string(value) value")
    assertDataFrameEqual(found, spark.createDataFrame(expected, found.schema))
    assert str(jobs.selectExpr("min(created_at) at").first()["at"]) == "2026-01-01 00:00:00"  # type: ignore[index]


def test_jobs_of_some_queues_and_states(spark: SparkSession, fake: FakeServer) -> None:
    fake.push("mail", ["m0", "m1"])
    fake.push("billing", ["b0"])
    fake.push("old", ["o0"], state="failed")
    assert load(spark, fake, "jobs", queues="mail, old").count() == 3
    assert load(spark, fake, "jobs", states="failed", includePayload="false").select("queue", "value").collect() == [
        ("old", None)
    ]
    assert load(spark, fake, "jobs", queues="nothing").count() == 0


#: Filters of a query, in SQL: also of what there is not, of moments far away, and of nulls.
FILTERS = (
    "state = 'waiting'",
    "state in ('failed', 'no such state', null)",
    "queue = 'mail' and id is not null",
    "queue <=> null or state != 'failed'",
    "created_at >= timestamp'1600-01-01' and created_at < timestamp'9999-12-31 23:59:59'",
    "created_at <= timestamp'2026-01-01 00:00:00'",
)
CHOICES: tuple[dict[str, str], ...] = ({}, {"states": "failed"}, {"queues": "mail"}, {"createdFrom": "2025-12-31"})


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_filters_options_and_time_zones_in_all_combinations(spark: SparkSession, fake: FakeServer, zone: str) -> None:
    """One DataFrame for each choice of options, and all filters on it in turn: each is right, and the whole afterwards."""
    fake.push("mail", ["m0", "m1"])
    fake.push("billing", ["b0", "b1", "b2"], state="failed")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for chosen in CHOICES:
            jobs = load(spark, fake, "jobs", **chosen)
            rows = jobs.collect()
            plain = spark.createDataFrame(rows, jobs.schema) if rows else jobs.limit(0)
            tallies = [f"count_if({each}) f{number}" for number, each in enumerate(FILTERS)]
            (expected,) = plain.selectExpr(*tallies).collect()
            counts = [jobs.where(each).count() for each in FILTERS]
            assert counts == list(expected), chosen
            assert jobs.count() == len(rows)
            assert jobs.where(FILTERS[0]).union(jobs).count() == expected[0] + len(rows)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def test_a_filter_that_contradicts_an_option_finds_nothing(spark: SparkSession, fake: FakeServer) -> None:
    fake.push("mail", ["m0"] * 5)
    fake.push("mail", ["m1"] * 3, state="failed")
    failed = load(spark, fake, "jobs", states="failed")
    assert failed.where("state = 'waiting'").count() == 0
    assert failed.count() == 3


def test_who_wants_filters_pushed_down_is_told_what_to_use() -> None:
    for name in ("pushDown", "pushdown"):
        with pytest.raises(options.OptionInvalid, match=r"pushDown was removed.*queues, states, createdFrom"):
            options.for_batch({"url": "http://127.0.0.1:1", "table": "jobs", name: "true"})


def test_a_frame_is_one_snapshot(spark: SparkSession, fake: FakeServer) -> None:
    """As docs/spark.md says; if Spark changes this, the docs have to change, too."""
    fake.push("mail", ["m0"])
    jobs = load(spark, fake, "jobs")
    assert jobs.count() == 1
    fake.push("mail", ["m1"])
    assert (jobs.count(), load(spark, fake, "jobs").count()) == (1, 2)


def test_the_journal_from_here_to_there(spark: SparkSession, fake: FakeServer) -> None:
    fake.push("mail", ["x"] * 100)

    def seqs(**more: str) -> list[int]:
        return sorted(row["seq"] for row in load(spark, fake, "journal", columns="seq", **more).collect())

    assert seqs() == list(range(100))
    assert seqs(startingOffsets='{"0": 90}', endingOffsets='{"0": 95}', minPartitions="3") == [90, 91, 92, 93, 94]
    assert seqs(startingTimestamp="2026-01-01T00:01:35Z", endingTimestamp="2026-01-01T00:01:37Z") == [95, 96]
    fake.journal_first = 98
    assert seqs() == [98, 99]
    assert seqs(startingOffsets='{"0": 5}', failOnDataLoss="false") == [98, 99]
    with pytest.raises(PySparkException, match="no longer keeps the events from 5 on"):
        seqs(startingOffsets='{"0": 5}')
    with pytest.raises(PySparkException, match="Option startingOffsets names a shard 7: the server has the shards 0"):
        seqs(startingOffsets='{"7": 5}')


def test_rows_become_jobs(spark: SparkSession, fake: FakeServer) -> None:
    rows: list[tuple[Any, ...]] = [(f"v{number}", f"k{number}", number % 3) for number in range(1000)]
    frame = spark.createDataFrame(rows, "value string, key string, priority int").repartition(3)
    frame.write.format("penstock").options(url=fake.url, queue="out", maxAttempts="5").mode("append").save()
    assert sorted(fake.values("out")) == sorted(row[0] for row in rows)
    assert {(job["value"].decode(), job["key"], job["priority"]) for job in fake.jobs.values()} == set(rows)
    assert {job["max_attempts"] for job in fake.jobs.values()} == {"5"}
    assert len(fake.commits) == 1


def test_large_rows_are_sent_in_parts_that_a_server_takes(fake: FakeServer) -> None:
    """Spark makes batches of 10,000 rows, however large these are; a server takes 64 MiB at once."""
    rows = pa.record_batch({"value": [f"{number:04}" + "x" * 100_000 for number in range(400)]})
    wanted = options.for_write({"url": fake.url, "queue": "out"}, overwrite=False)
    staged = sink.BatchWriter(wanted, StructType([StructField("value", StringType())])).write(iter([rows]))
    assert isinstance(staged, sink.Staged)
    parts = [fake.stages[staged.txn][number] for number in sorted(fake.stages[staged.txn])]
    assert [row["value"] for part in parts for row in part] == rows.column("value").to_pylist()
    assert max(sum(len(row["value"]) for row in part) for part in parts) < 2 * sink.PART_BYTES


def test_a_write_with_a_key_happens_once(spark: SparkSession, fake: FakeServer) -> None:
    frame = spark.createDataFrame([("a", "one"), ("b", "two")], "value string, queue string")
    for _ in range(2):
        frame.write.format("penstock").options(url=fake.url, idempotencyKey="load-7").mode("append").save()
    assert (fake.values("one"), fake.values("two")) == (["a"], ["b"])
    assert not fake.stages


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, fake: FakeServer) -> None:
    spark.range(100).selectExpr("string(id) value").createOrReplaceTempView("numbers")
    frame = spark.sql("select if(value = '99', raise_error('no more'), value) value from numbers")
    with pytest.raises(PySparkException, match="no more"):
        frame.write.format("penstock").options(url=fake.url, queue="out").mode("append").save()
    assert not fake.jobs
    assert not fake.commits


def test_errors_name_the_option(spark: SparkSession, fake: FakeServer) -> None:
    with pytest.raises(PySparkException, match=r"Option stats is unknown\. Is it states\?"):
        load(spark, fake, "jobs", stats="x").count()
    with pytest.raises(PySparkException, match="Option table must be one of"):
        load(spark, fake, "job")
    frame = spark.createDataFrame([(1,)], "value int")
    with pytest.raises(PySparkException, match="Column value must be binary or string, not int"):
        frame.write.format("penstock").options(url=fake.url, queue="q").mode("append").save()
    with pytest.raises(PySparkException, match="Option tokenEnv: NO_SUCH_VARIABLE is not set"):
        load(spark, fake, "jobs", tokenEnv="NO_SUCH_VARIABLE").count()


def test_sql_knows_it_too(spark: SparkSession, fake: FakeServer) -> None:
    fake.push("mail", ["m0", "m1"])
    spark.sql(f"create or replace temporary view jobs using penstock options (url '{fake.url}', table 'jobs')")
    assert spark.sql("select queue, count(*) n from jobs group by queue").collect() == [("mail", 2)]
