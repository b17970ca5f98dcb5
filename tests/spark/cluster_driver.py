"""A driver on a cluster: writes, reads, consumes, with tasks that fail after staging and tasks that run twice at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.spark.session import session
from tests.spark.troubled import Troubled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 400
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.python.authenticate.socketTimeout": "2m",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "1s",
}


def main(code: str, url: str, place: str) -> None:
    """Work with the session that ``code`` makes: a line of a page, which gives executors the secret by its name."""
    names: dict[str, Any] = {"session": _session, "token": os.environ["CLUSTER_TOKEN"]}
    exec(compile(code, "spark.md", "exec"), names)
    spark = names["spark"]
    try:
        spark.dataSource.register(Troubled)
        print(json.dumps(work(spark, url, place)))
    finally:
        spark.stop()


def _session(master: str, *, settings: dict[str, str]) -> SparkSession:
    """Start a session of this size. Executors also need to know where this test is."""
    here = {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"]}
    return session(master, name="cluster", settings=SETTINGS | here | settings)


def work(spark: SparkSession, url: str, place: str) -> dict[str, object]:
    server = {"url": url, "tokenEnv": "CLUSTER_TOKEN"}
    found: dict[str, object] = {}
    # Both executors are to be there before anything is said about them.
    found["executors"] = len(set(spark.sparkContext.parallelize(range(8), 8).map(_executor).collect()))
    rows = spark.range(ROWS).selectExpr("concat('m', id) value").repartition(2)
    rows.write.format("troubled").options(trouble="task", place=place, queue="in", **server).mode("append").save()
    jobs = spark.read.format("penstock").options(table="jobs", queues="in", rowsPerPartition="100", **server).load()
    found["partitions"] = jobs.rdd.getNumPartitions()
    found["read"] = sorted(row[0] for row in jobs.selectExpr("string(value)").collect())
    checkpoint = str(Path(place) / "checkpoint")
    taken = spark.readStream.format("penstock").options(queues="in", minPartitions="2", **server).load().select("value")
    writer = taken.writeStream.format("troubled").options(trouble="slow", place=place, queue="out", **server)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    return found


def _executor(_: int) -> str:
    import threading

    threading.Event().wait(0.2)  # so that one of them cannot do all the work
    return os.environ.get("SPARK_EXECUTOR_DIRS", "") + str(os.getppid())


if __name__ == "__main__":
    main(*sys.argv[1:])
