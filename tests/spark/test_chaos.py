"""Drivers killed at chosen moments; servers killed under streams; answers lost after they took effect; tasks that run twice.

``PENSTOCK_CHAOS_KILLS=10`` kills each query so many times by itself (``make chaos-spark``); otherwise all run in one driver,
and share a few.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.spark.away import Away
from tests.spark.chaos import Chaos, counts, fill, until, values_of
from tests.spark.tap import Tap
from tests.spark.troubled import Troubled
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("PENSTOCK_CHAOS_KILLS", "0"))
SEED = os.environ.get("PENSTOCK_TEST_SEED", "7")
#: With a number of kills each query is alone.
TOGETHER = [["queue"], ["delta"], ["lake"]] if KILLS else [["queue", "delta", "lake"]]


@pytest.mark.timeout(3600 if KILLS else 1200)
@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
def test_a_driver_that_is_killed(names: list[str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        chaos = Chaos(server, tmp_path, names, SEED)
        chaos.run(KILLS or 3)
        chaos.check()
        print(f"seed {SEED}: {chaos.made} jobs, killed at {dict(chaos.killed)}")


@pytest.mark.timeout(3600 if KILLS else 600)
@pytest.mark.parametrize("names", [["queue"], ["delta"]] if KILLS else [["delta"]], ids="+".join)
def test_a_driver_that_is_away_for_longer_than_its_leases(spark: SparkSession, names: list[str], tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        away = Away(spark, server, tmp_path, names, SEED)
        away.run(KILLS or 1)
        away.check()
        assert away.told
        print(f"seed {SEED}: killed at {dict(away.killed)}, told of {dict(away.told)}, twice {dict(away.twice)}")


def test_failures_after_a_commit_took_effect(spark: SparkSession, tmp_path: Path) -> None:
    """The answer to a commit gets lost on its way; then one arrives, and the driver fails right after. Spark aborts then."""
    with ServerProcess(tmp_path / "data") as server, Tap(server.port) as tap:
        spark.dataSource.register(Troubled)
        fill(server, "in", [f"m{number}" for number in range(30)])
        given = {"url": tap.url, "retryFor": "0", "queue": "out", "checkpointLocation": str(tmp_path / "checkpoint")}
        stream = spark.readStream.format("penstock").options(url=tap.url, queues="in", maxOffsetsPerTrigger="10").load()
        writer = (
            stream.select("value").writeStream.format("troubled").options(trouble="commit", place=str(tmp_path), **given)
        )
        tap.at("/commits", after=True, nth=2)
        failures = 0
        while True:
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
                break
            except StreamingQueryException:
                failures += 1
        assert failures == 2
        assert any(path.endswith("/abort") for path in tap.paths)
        until(lambda: counts(server, "out")["waiting"] >= 30)
        assert values_of(server, "out") == sorted(f"m{number}" for number in range(30))
        assert counts(server, "in") == counts(server, "in") | {"completed": 30, "active": 0, "waiting": 0}

        # A whole write, repeated under its key.
        (tmp_path / "commit").unlink()
        rows = spark.range(20).selectExpr("concat('w', id) value").write.format("troubled").mode("append")
        rows = rows.options(trouble="commit", place=str(tmp_path), url=tap.url, queue="whole", idempotencyKey="night-1")
        with pytest.raises(PySparkException, match="it took effect"):
            rows.save()
        rows.save()
        assert values_of(server, "whole") == sorted(f"w{number}" for number in range(20))
