"""The same against a real server: every mode, and a server that is killed under a stream."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType
from pyspark.testing import assertDataFrameEqual

from penstock.spark import options
from penstock.spark.batch import JobsReader
from penstock.spark.queue_stream import LeaseReader, Split
from penstock.store.sqlite.store import FILE_NAME
from tests.spark.chaos import counts, fill, until, values_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def test_from_rows_to_jobs_to_rows(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> None:
    url = server.url
    rows = spark.range(500).selectExpr(
        "concat('v', id) value",
        "if(id % 2 = 0, 'spark-even', 'spark-odd') queue",
        "int(id % 5) priority",
        "concat('k', id) key",
    )
    rows.write.format("penstock").options(url=url, maxAttempts="7").mode("append").save()
    jobs = (
        spark.read.format("penstock")
        .options(url=url, table="jobs", queues="spark-even,spark-odd", rowsPerPartition="100")
        .load()
    )
    found = jobs.selectExpr("string(value) value", "queue", "priority", "custom_id key")
    assertDataFrameEqual(found, rows)
    assert jobs.select("state", "max_attempts", "namespace").distinct().collect() == [("waiting", 7, "default")]

    stream = (
        spark.readStream.format("penstock")
        .options(url=url, queues="spark-even,spark-odd", maxOffsetsPerTrigger="200")
        .load()
    )
    out = stream.selectExpr("value", "priority", "map_from_arrays(array('from'), array(queue)) h").selectExpr(
        "value", "priority", "to_json(h) headers"
    )
    writer = out.writeStream.format("penstock").options(url=url, queue="spark-out", checkpointLocation=str(tmp_path / "out"))
    writer.trigger(availableNow=True).start().awaitTermination()
    until(lambda: counts(server, "spark-out")["waiting"] == 500)
    for queue in ("spark-even", "spark-odd"):
        assert counts(server, queue) == counts(server, queue) | {"waiting": 0, "active": 0, "completed": 250}
    assert values_of(server, "spark-out") == sorted(f"v{number}" for number in range(500))

    kinds: Counter[Any] = Counter()
    events = spark.readStream.format("penstock").options(url=url, table="journal", maxOffsetsPerTrigger="700").load()
    mine = events.filter("queue like 'spark-%' and job_id is not null")
    query = mine.writeStream.foreachBatch(lambda batch, _: kinds.update(row["kind"] for row in batch.collect()))
    query.option("checkpointLocation", str(tmp_path / "events")).trigger(availableNow=True).start().awaitTermination()
    assert (kinds["job:pushed"], kinds["job:completed"]) == (1000, 500)
    whole = spark.read.format("penstock").options(url=url, table="journal").load()
    assert whole.filter("queue like 'spark-%' and kind = 'job:completed'").count() == 500


def test_jobs_with_a_priority_are_counted_once(tmp_path: Path) -> None:
    """A stream that ends with what waits would take more than that."""
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        jobs = [{"data": number, "priority": number} for number in range(5)]
        client.post("/queues/q/jobs/bulk", json={"jobs": jobs}).raise_for_status()
        reader = LeaseReader(options.for_stream({"url": server.url, "queues": "q"}), StructType())
        assert reader.reportLatestOffset() == {"lag": 5}
        reader.stop()


def test_a_server_that_is_killed_under_streams(spark: SparkSession, tmp_path: Path) -> None:
    """One consumes a queue and fills another, one reads the journal: both go on, and have everything once."""
    seen: list[tuple[int, str]] = []
    with ServerProcess(tmp_path / "data") as server:
        fill(server, "in", [f"m{number}" for number in range(300)])
        # A server that dies within a claim leaves jobs that are nobody's until their leases end.
        source = {"url": server.url, "queues": "in", "maxOffsetsPerTrigger": "50", "leaseTimeout": "15s"}
        stream = spark.readStream.format("penstock").options(**source).load()
        writer = stream.select("value").writeStream.format("penstock")
        query = writer.options(url=server.url, queue="out", checkpointLocation=str(tmp_path / "checkpoint")).start()
        events = spark.readStream.format("penstock").options(url=server.url, table="journal").load().select("seq", "kind")
        noting = events.writeStream.foreachBatch(lambda batch, _: seen.extend(tuple(row) for row in batch.collect()))
        journal = noting.option("checkpointLocation", str(tmp_path / "journal")).start()
        try:
            for done in (50, 150):
                until(lambda done=done: counts(server, "in")["completed"] >= done)  # type: ignore[misc]
                server.kill()
                server.start()
            until(lambda: counts(server, "in")["completed"] == 300)
            until(lambda: counts(server, "out")["waiting"] == 300)
            until(lambda: sum(kind == "job:pushed" for _, kind in seen) >= 600)
            until(lambda: sum(kind == "job:completed" for _, kind in seen) >= 300)
        finally:
            query.stop()
            journal.stop()
        assert values_of(server, "out") == sorted(f"m{number}" for number in range(300))
        kinds = Counter(kind for _, kind in seen)
        assert (kinds["job:pushed"], kinds["job:completed"]) == (600, 300)
        assert len({seq for seq, _ in seen}) == len(seen)


def test_jobs_that_are_damaged_are_told_of(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ServerProcess(tmp_path / "data") as server:
        fill(server, "mail", [f"m{number}" for number in range(5)])
        server.stop()
        flip_bits(tmp_path / "data", jobs=2)
        server.start()
        given = {"url": server.url, "table": "jobs"}
        jobs = spark.read.format("penstock").options(**given)
        assert sorted(row[0] for row in jobs.load().selectExpr("string(value)").collect()) == ["m1", "m3", "m4"]
        with pytest.raises(PySparkException, match=r"2 jobs are damaged[^\n]*With failOnDataLoss=false the others are read"):
            jobs.option("failOnDataLoss", "true").load().collect()
        assert jobs.option("includePayload", "false").load().count() == 5  # nobody has looked
        # Spark's processes write to another log than ours.
        JobsReader(options.for_batch(given), jobs.load().schema).partitions()
        assert "2 jobs are damaged on the server's disk and left out of this snapshot" in caplog.text
        assert "failOnDataLoss=true" in caplog.text

        stream = spark.readStream.format("penstock").options(url=server.url, queues="mail")
        seen: list[str] = []

        def run(frame: DataFrame) -> None:
            noting = frame.selectExpr("string(value)").writeStream.foreachBatch(
                lambda batch, _: seen.extend(row[0] for row in batch.collect())
            )
            noting.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
                availableNow=True
            ).start().awaitTermination()

        with pytest.raises(StreamingQueryException, match=r"2 were removed, or are damaged[^\n]*onLeaseLost=skip"):
            run(stream.load())
        with server.client() as client:
            (group,) = (each["group"] for each in client.get("/bulk/groups").json())
        careless = options.for_stream({"url": server.url, "queues": "mail", "onLeaseLost": "skip"})
        batches = LeaseReader(careless, stream.load().schema).read(Split(group, epoch=1, split=0, splits=1, rows=5))
        assert sum(batch.num_rows for batch in batches) == 3
        assert f"2 jobs of {group} are left out of epoch 1" in caplog.text
        run(stream.option("onLeaseLost", "skip").load())
        assert sorted(seen) == ["m1", "m3", "m4"]
        assert counts(server, "mail") == counts(server, "mail") | {"waiting": 0, "active": 0, "completed": 3}


def flip_bits(data: Path, jobs: int) -> None:
    """Change what is stored of some jobs behind the server's back: of the first, and every second after it."""
    with closing(sqlite3.connect(data / FILE_NAME)) as db, db:
        rows = db.execute("select id, data from payloads order by id").fetchall()[: 2 * jobs : 2]
        for job, payload in rows:
            db.execute("update payloads set data = ? where id = ?", (bytes([payload[0] ^ 1]) + payload[1:], job))
