"""PostgreSQL as the store: snapshot and enqueue, beside Spark's JDBC source and sink on the same database.

The driver is Debian's package, fetched into a cache of the benchmark; without it, that part is left out and said to be.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
from tests.support.own_postgres import OwnPostgres

from bench.goals import say
from bench.processes import free_port
from bench.spark import loops
from bench.spark.figures import in_turns
from bench.spark.parts import ENQUEUED, LISTED, LOOPED, SNAPSHOT, in_partitions, loop_of
from bench.spark.place import Usage, cores, rows_of, server, to_nowhere, url_of, waiting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from bench.processes import Penstock
    from bench.spark.parts import Bench

_PACKAGE: Final = "libpostgresql-jdbc-java"
_JAR: Final = "usr/share/java/postgresql.jar"
#: What is the same in both: the jobs with their payloads, joined by the database.
_JOBS: Final = """(select j.id, j.namespace, j.queue, j.state, j.priority, j.attempts, j.max_attempts, j.custom_id,
 j.unique_key, j.group_id, j.created_at, j.run_at, j.started_at, j.finished_at, j.expires_at, j.progress, j.size, p.data
 from penstock.jobs j join penstock.payloads p using (id)) jobs"""


def find_jar() -> str:
    """Return where the JDBC driver of PostgreSQL is, fetched if need be; nothing if it cannot be had."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-bench"
    for place in (Path("/") / _JAR, cache / _JAR):
        if place.exists():
            return str(place)
    if not all(map(shutil.which, ("apt-get", "dpkg-deb"))):
        return ""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            Path(scratch).chmod(0o777)  # who fetches is another user
            subprocess.run(["apt-get", "download", _PACKAGE], cwd=scratch, check=True, capture_output=True, timeout=60)
            package = next(Path(scratch).glob("*.deb"))
            cache.mkdir(parents=True, exist_ok=True)
            subprocess.run(["dpkg-deb", "-x", str(package), str(cache)], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError, StopIteration):
        return ""
    return str(cache / _JAR) if (cache / _JAR).exists() else ""


def postgres(bench: Bench) -> None:
    """Snapshot and enqueue on PostgreSQL, beside JDBC and loops."""
    port, jar = free_port(), find_jar()
    database = OwnPostgres("listen_addresses=127.0.0.1", f"port={port}", "shared_buffers=512MB", "max_wal_size=4GB")
    address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    with database, server("--store", address) as found, Usage(found, bench.figures):
        count = bench.sized(SNAPSHOT)
        say(f"  putting {count:,} jobs on a queue")
        bench.enqueue(found, "many", count)
        reading = Reading(bench, found, port, count, address)
        writing = Writing(bench, found, port)
        steps = [reading.by_source, reading.directly, reading.by_loop, writing.by_sink, writing.by_loop]
        in_turns(bench.rounds, *steps, *([reading.by_jdbc, writing.by_jdbc] if jar else []))
    figures = bench.figures
    figures.beats(reading.SOURCE, reading.loop)
    figures.beats(writing.SINK, writing.loop)
    if jar:
        by_jdbc = figures.ratio(reading.SOURCE, reading.JDBC), figures.ratio(writing.SINK, writing.JDBC)
        direct = figures.ratio(reading.DIRECT, reading.JDBC)
        figures.notes.append(f"read directly: {direct:.2f} x the JDBC source")
        figures.notes.append(f"{by_jdbc[0]:.2f} x the JDBC source, which reads tables that are the server's own")
        figures.notes.append(f"{by_jdbc[1]:.2f} x the JDBC sink, whose rows are no jobs")
    else:
        figures.notes.append(f"JDBC was left out: there is no driver here, and {_PACKAGE} could not be fetched.")


def _jdbc(port: int) -> dict[str, str]:
    url = f"jdbc:postgresql://127.0.0.1:{port}/postgres?reWriteBatchedInserts=true"
    return {"url": url, "user": "postgres", "driver": "org.postgresql.Driver"}


class Reading:
    """Reads all jobs of a queue in several ways."""

    SOURCE: Final = "PostgreSQL: spark.read.format('penstock'), table=jobs"
    DIRECT: Final = "PostgreSQL: the same with directUrlFile, by ADBC"
    JDBC: Final = "PostgreSQL: Spark's JDBC source, jobs and payloads"

    def __init__(self, bench: Bench, found: Penstock, port: int, count: int, address: str) -> None:
        self.bench, self.found, self.count = bench, found, count
        self.listed = bench.looped(LISTED)
        self.loop = loop_of("PostgreSQL: loop over GET /queues/q/jobs/list of 10,000", self.listed)
        self.first, self.last = asyncio.run(_ids(address))
        self.address_file = found.data.parent / "address"
        self.address_file.write_text(address, encoding="utf-8")
        self.jdbc = _jdbc(port) | {
            "dbtable": _JOBS,
            "fetchsize": "20000",
            "partitionColumn": "id",
            "numPartitions": str(cores()),
            "lowerBound": str(self.first),
            "upperBound": str(self.last),
        }
        to_nowhere(self.rows())
        to_nowhere(self.rows(directUrlFile=self.address_file))

    def rows(self, **more: object) -> DataFrame:
        return self.bench.source(self.found, table="jobs", queues="many", **more)

    def by_source(self, _number: int) -> None:
        with self.bench.figures.timed(self.SOURCE, self.count):
            to_nowhere(self.rows())

    def directly(self, _number: int) -> None:
        with self.bench.figures.timed(self.DIRECT, self.count):
            to_nowhere(self.rows(directUrlFile=self.address_file))

    def by_loop(self, _number: int) -> None:
        read = loops.list_jobs(url_of(self.found), "many", 10_000)
        with self.bench.figures.timed(self.loop, self.listed):
            to_nowhere(in_partitions(self.bench.stretches(0, self.listed), read, loops.LISTED))

    def by_jdbc(self, _number: int) -> None:
        rows = self.bench.spark.read.format("jdbc").options(**self.jdbc).load()
        with self.bench.figures.timed(self.JDBC, self.count):
            to_nowhere(rows.where(f"id between {self.first} and {self.last}"))  # not what was written since


class Writing:
    """Puts rows on a queue, or into a table, in several ways."""

    SINK: Final = "PostgreSQL: df.write.format('penstock')"
    JDBC: Final = "PostgreSQL: Spark's JDBC sink, a plain table"

    def __init__(self, bench: Bench, found: Penstock, port: int) -> None:
        self.bench, self.found, self.jdbc = bench, found, _jdbc(port) | {"dbtable": "plain", "batchsize": "10000"}
        self.count, self.looped = bench.sized(ENQUEUED), bench.looped(LOOPED)
        self.loop = loop_of("PostgreSQL: loop over POST /queues/q/jobs", self.looped)

    def by_sink(self, number: int) -> None:
        with self.bench.figures.timed(self.SINK, self.count):
            self.bench.enqueue(self.found, f"bulk{number}", self.count)
        assert waiting(self.found, f"bulk{number}") == self.count

    def by_loop(self, number: int) -> None:
        rows = rows_of(self.bench.spark, self.looped).coalesce(cores())
        with self.bench.figures.timed(self.loop, self.looped):
            rows.foreachPartition(loops.push_each(url_of(self.found), f"loop{number}"))

    def by_jdbc(self, _number: int) -> None:
        rows = rows_of(self.bench.spark, self.count)
        with self.bench.figures.timed(self.JDBC, self.count):
            rows.write.format("jdbc").options(**self.jdbc).mode("overwrite").save()


async def _ids(address: str) -> tuple[int, int]:
    db = await asyncpg.connect(address)
    try:
        first, last = await db.fetchrow("select min(id), max(id) from penstock.jobs")
        return int(first), int(last)
    finally:
        await db.close()
