"""Workers that read PostgreSQL themselves: the same as through the server, never more than it vouches for, no secrets told."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.testing import assertDataFrameEqual

from penstock.doors.jobs.mapping import STATE_NAMES
from penstock.spark import direct, options
from penstock.spark.journal import EventsLost, Range, read_range
from penstock.spark.options import OptionInvalid
from tests.docs.blocks import runs
from tests.docs.shell import put
from tests.spark.test_http_client import JOURNAL
from tests.support import postgres
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def databases(count: int) -> list[str]:
    with ThreadPoolExecutor(1) as thread:
        return [thread.submit(lambda: asyncio.run(postgres.make_database())).result() for _ in range(count)]


def test_states_are_called_as_the_server_calls_them() -> None:
    assert direct.STATES == STATE_NAMES


def test_addresses_are_read_in_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": "http://127.0.0.1:1", "table": "jobs"}
    monkeypatch.delenv("MY_STORES", raising=False)
    wanted = options.for_batch(given | {"directUrlEnv": "MY_STORES"})
    with pytest.raises(OptionInvalid, match=r"Option directUrlEnv: MY_STORES is not set.*spark\.executorEnv\.MY_STORES"):
        direct._urls(wanted, None)
    monkeypatch.setenv("MY_STORES", "postgresql://me:hush@a/x, postgresql://me:hush@b/x")
    assert len(direct._urls(wanted, [0, 1])) == 2
    with pytest.raises(OptionInvalid, match="Option directUrlEnv has 2 addresses, and the server has 1 shards") as caught:
        direct._urls(wanted, [0])
    assert "hush" not in str(caught.value)
    with pytest.raises(OptionInvalid, match=r"Option directUrlFile: .*missing cannot be read here"):
        direct._urls(options.for_batch(given | {"directUrlFile": str(tmp_path / "missing")}), None)
    with pytest.raises(OptionInvalid, match="Option directUrl: do not put a secret"):
        options.for_batch(given | {"directUrl": "postgresql://me:hush@a/x"})
    with pytest.raises(OptionInvalid, match="Option directUrlEnv is for jobs and journal"):
        options.for_stream({"url": "http://127.0.0.1:1", "queues": "q", "directUrlEnv": "X"})


@pytest.mark.slow
@runs("docs/spark.md", "python 3")
def test_the_same_as_through_the_server(blocks: list[str], spark: SparkSession, tmp_path: Path) -> None:
    urls = databases(2)
    with ServerProcess(tmp_path / "data", env={"PENSTOCK_STORES": ",".join(urls)}) as server:
        # Queues on both shards; jobs waiting, delayed, completed, failed, with everything a job can have.
        rows = spark.range(300).selectExpr(
            "concat('v', id) value",
            "concat('q', id % 4) queue",
            "int(id % 3) priority",
            "if(id % 7 = 0, concat('k', id), null) key",
            "if(id % 11 = 0, bigint(3600000), null) delay",
            """if(id % 5 = 0, '{"a": 1}', null) headers""",
        )
        rows.write.format("penstock").options(url=server.url, maxAttempts="1").mode("append").save()
        with server.client() as client:
            for number in range(20):
                pulled = client.get(f"/queues/q{number % 4}/jobs").json()
                verb, body = ("fail", {"error": "no"}) if number % 2 else ("ack", {"result": {"n": number}})
                path = f"/jobs/{pulled['job']['id']}/{verb}"
                client.post(path, json=body | {"token": pulled["token"]}).raise_for_status()

        (tmp_path / "urls").write_text(",".join(urls))
        names: dict[str, Any] = {"spark": spark, "U": server.url}
        exec(compile(put(blocks[0], {"/run/secrets/stores": str(tmp_path / "urls")}), "spark.md", "exec"), names)
        assert names["jobs"].count() == 300
        (tmp_path / "urls").write_text("\n".join(urls))

        def both(**more: Any) -> tuple[DataFrame, DataFrame]:
            given = {"url": server.url} | more
            read = spark.read.format("penstock").options(**given)
            return read.options(directUrlFile=str(tmp_path / "urls")).load(), spark.read.format("penstock").options(
                **given
            ).load()

        found, through = both(table="jobs", rowsPerPartition="40")
        assertDataFrameEqual(found, through)
        assert found.rdd.getNumPartitions() >= 8
        assert {row[0] for row in found.select("shard").distinct().collect()} == {0, 1}
        assert found.filter("state in ('completed', 'failed')").count() == 20
        some = {"table": "jobs", "queues": "q1,q2", "states": "waiting,failed", "columns": "id,value,error,headers"}
        assertDataFrameEqual(*both(**some))
        none, _ = both(table="jobs", queues="nothing")
        assert none.count() == 0
        found, through = both(table="journal", minPartitions="5")
        assertDataFrameEqual(found, through)
        assert found.count() >= 340
        assert both(table="jobs", namespace="other")[0].count() == 0

        wanted = options.for_batch({"url": server.url, "table": "journal", "directUrlFile": str(tmp_path / "urls")})
        with pytest.raises(EventsLost, match="is not in the database of directUrlFile"):
            list(read_range(wanted, JOURNAL, Range(0, 1, 1_000_000)))
        (tmp_path / "urls").write_text("\n".join(reversed(urls)))
        jobs = options.for_batch({"url": server.url, "table": "jobs", "directUrlFile": str(tmp_path / "urls")})
        with pytest.raises(OptionInvalid, match="address 1 is that of shard 1, not of shard 0"):
            direct.job_ranges(jobs)
        (tmp_path / "urls").write_text("postgresql://me:hush@127.0.0.1:1/x " * 2)
        with pytest.raises(OptionInvalid, match="cannot be reached from this worker") as caught:
            direct.job_ranges(jobs)
        assert "hush" not in str(caught.value)
