"""Drivers that tests can kill: each consumes what there is, puts it somewhere, and ends."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.main import main as penstock
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.python.authenticate.socketTimeout": "2m",  # a busy machine takes its time to start a Python
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
#: Jobs of a batch.
BATCH = 50
#: How long leases go, unless they are to end.
LEASE = "1h"
#: Events of a batch of the lake.
LAKE_BATCH = 400


def leased(spark: SparkSession, url: str, queue: str, checkpoint: str, *, lease: str, lost: str) -> DataFrame:
    source = {"url": url, "queues": queue, "maxOffsetsPerTrigger": str(BATCH), "minPartitions": "2", "leaseTimeout": lease}
    return spark.readStream.format("penstock").options(checkpointLocation=checkpoint, onLeaseLost=lost, **source).load()


def to_queue(spark: SparkSession, url: str, place: Path, lease: str = LEASE, lost: str = "fail") -> Callable[[], object]:
    """From one queue into another, by our sink. With leases that may end, jobs get keys, so that none comes twice."""
    checkpoint = str(place / "queue")
    columns = ["value"] if lease == LEASE else ["value", "concat('out-', job_id) key"]
    rows = leased(spark, url, "in-queue", checkpoint, lease=lease, lost=lost).selectExpr(*columns)
    writer = rows.writeStream.format("penstock").options(url=url, queue="out", checkpointLocation=checkpoint)
    return writer.trigger(availableNow=True).start().awaitTermination


def to_delta(spark: SparkSession, url: str, place: Path, lease: str = LEASE, lost: str = "fail") -> Callable[[], object]:
    """From a queue into a Delta table: a batch is one commit, which carries the query and the number of the batch."""
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    checkpoint, table = str(place / "delta"), str(place / "table")

    def append(batch: DataFrame, number: int) -> None:
        query = Checkpoint(checkpoint).query_id()
        done = DeltaTable(table).transaction_version(query) if DeltaTable.is_deltatable(table) else None
        if done is None or done < number:
            once = CommitProperties(app_transactions=[Transaction(query, number)])
            write_deltalake(table, batch.toArrow(), mode="append", commit_properties=once)

    rows = leased(spark, url, "in-delta", checkpoint, lease=lease, lost=lost)
    rows = rows.selectExpr("string(value) value", "job_id", "attempt")
    writer = rows.writeStream.foreachBatch(append).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start().awaitTermination


def to_lake(spark: SparkSession, url: str, place: Path, lease: str = LEASE) -> Callable[[], object]:
    """From the journal into the lake, when the others have ended."""
    from penstock.lake.location import Lake
    from penstock.spark import options
    from penstock.spark.pipeline.run import Builder, locked, run

    del lease  # there is none
    lake = Lake(place / "lake")
    given = options.for_batch({"url": url, "table": "journal", "namespace": "*"})

    def work() -> None:
        with locked(lake), closing(Builder(spark, lake, given, batch_events=LAKE_BATCH)) as builder:
            run(builder, lake, every_ms=None, stop=threading.Event(), tell=print)

    return work


QUERIES: dict[str, Callable[[SparkSession, str, Path, str], Callable[[], object]]] = {
    "queue": to_queue,
    "delta": to_delta,
    "lake": to_lake,
}


def main(names: str, url: str, place: str, lease: str = LEASE) -> None:
    if names == "lake":  # the command itself
        conf = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
        where = ["--lake", f"{place}/lake", "--url", url, "--master", "local[2]", f"--batch-events={LAKE_BATCH}"]
        penstock(["pipeline", "run", "--once", *where, *conf])
    spark = session("local[2]", name="driver", settings=SETTINGS)
    running = [QUERIES[name](spark, url, Path(place), lease) for name in names.split(",")]
    for wait in running:
        wait()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
