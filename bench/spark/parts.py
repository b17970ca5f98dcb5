"""The parts that need a server on SQLite and nothing else: enqueue, snapshot, journal, lease, disturb."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pyarrow as pa

from bench.goals import say
from bench.processes import load
from bench.spark import loops
from bench.spark.figures import Figures, in_turns
from bench.spark.fill import NAMESPACES
from bench.spark.place import Usage, cores, rows_of, server, to_nowhere, url_of, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from bench.processes import Penstock

#: What is asked for by the issue; --scale makes all of it smaller.
ENQUEUED: Final = 1_000_000
SNAPSHOT: Final = 1_000_000
EVENTS: Final = 5_000_000
LEASED: Final = 500_000
#: Loops do at least this, even at small scales.
LOOPED_LEAST: Final = 2_000
#: Loops do a part of it, and their rates are taken for the whole: they would take minutes.
LOOPED: Final = 20_000
LOOPED_IN_HUNDREDS: Final = 100_000
LISTED: Final = 100_000
FOLLOWED: Final = 100_000


class Bench:
    """What all parts are given."""

    def __init__(self, spark: SparkSession, scale: float, rounds: int, seconds: float) -> None:
        self.spark = spark
        self.scale = scale
        self.rounds = rounds
        self.seconds = seconds
        self.figures = Figures(scale)

    def sized(self, count: int) -> int:
        """Return how many rows that is at this scale; a whole number of hundreds for every core."""
        step = 100 * cores()
        return max(step, int(count * self.scale) // step * step)

    def source(self, found: Penstock, **options: object) -> DataFrame:
        """Return what the data source reads."""
        options = {"url": url_of(found)} | options
        return self.spark.read.format("penstock").options(**{name: str(each) for name, each in options.items()}).load()

    def stretches(self, first: int, count: int) -> DataFrame:
        """Return one row for each core, with the stretch that it reads."""
        each = count // cores()
        rows = [(first + number * each, first + (number + 1) * each) for number in range(cores())]
        return self.spark.createDataFrame(rows, "begin long, end long").repartition(cores(), "begin")

    def enqueue(self, found: Penstock, queue: str, count: int) -> None:
        """Put rows on a queue through the sink; back when all can be taken."""
        options = {"url": url_of(found), "queue": queue, "publishWait": "10m"}
        rows_of(self.spark, count).write.format("penstock").options(**options).mode("append").save()

    def looped(self, count: int) -> int:
        """Return how many rows a loop does: not so few that starting it is all that is measured."""
        return min(count, max(LOOPED_LEAST, self.sized(count)))


def loop_of(name: str, count: int) -> str:
    """Return the name of a loop's figure, which says what its rate was taken from."""
    return f"{name} ({count:,} rows)"


def in_partitions(stretches: DataFrame, read: Any, schema: str) -> DataFrame:
    """Return the rows that a loop makes of each partition."""
    return stretches.rdd.mapPartitions(read).toDF(schema)


def enqueue(bench: Bench) -> None:
    """Bulk enqueue through ``df.write``, beside ``foreachPartition`` with a loop over the REST API."""
    figures, count = bench.figures, bench.sized(ENQUEUED)
    single, hundreds = bench.looped(LOOPED), bench.looped(LOOPED_IN_HUNDREDS)
    source, loop = "df.write.format('penstock')", loop_of("loop over POST /queues/q/jobs", single)
    fairer = loop_of("loop over POST /queues/q/jobs/bulk of 100", hundreds)
    with server() as found, Usage(found, bench.figures):
        bench.enqueue(found, "warm", bench.sized(ENQUEUED // 50))

        def by_source(number: int) -> None:
            with figures.timed(source, count):
                bench.enqueue(found, f"bulk{number}", count)
            assert waiting(found, f"bulk{number}") == count

        def by_loop(number: int) -> None:
            rows = rows_of(bench.spark, single).coalesce(cores())
            with figures.timed(loop, single):
                rows.foreachPartition(loops.push_each(url_of(found), f"loop{number}"))

        def by_hundreds(number: int) -> None:
            rows = rows_of(bench.spark, hundreds).coalesce(cores())
            with figures.timed(fairer, hundreds):
                rows.foreachPartition(loops.push_hundreds(url_of(found), f"hundreds{number}"))

        in_turns(bench.rounds, by_source, by_loop, by_hundreds)
    figures.reaches(source, 150_000)
    figures.beats(source, loop)
    figures.notes.append(f"{figures.ratio(source, fairer):.1f} x the loop that sends 100 rows in each request")


def fetch_snapshot(url: str) -> int:
    """Take a snapshot and fetch it, without Spark: what the server alone can do. Return its rows."""
    with httpx2.Client(base_url=url, timeout=600) as http:
        made = http.post("/bulk/snapshots", json={"table": "jobs"}).raise_for_status().json()
        rows = 0
        for part in made["parts"]:
            body = http.get(f"/bulk/snapshots/{made['id']}/parts/{part['part']}").raise_for_status().content
            rows += pa.ipc.open_stream(memoryview(body)[:-16]).read_all().num_rows
        http.delete(f"/bulk/snapshots/{made['id']}")
    return rows


def snapshot(bench: Bench) -> None:
    """A snapshot of all jobs, beside ``mapPartitions`` with a loop over the listing of the queue."""
    figures, count = bench.figures, bench.sized(SNAPSHOT)
    listed = min(count, bench.looped(LISTED))
    source, plain = "spark.read.format('penstock'), table=jobs", "the same snapshot with httpx2 and pyarrow, no Spark"
    bare, loop = "spark.read, includePayload=false", loop_of("loop over GET /queues/q/jobs/list of 10,000", listed)
    with server() as found, Usage(found, bench.figures):
        say(f"  putting {count:,} jobs on a queue")
        bench.enqueue(found, "many", count)
        to_nowhere(bench.source(found, table="jobs"))

        def by_source(_number: int) -> None:
            with figures.timed(source, count):
                to_nowhere(bench.source(found, table="jobs"))

        def without_payload(_number: int) -> None:
            with figures.timed(bare, count):
                to_nowhere(bench.source(found, table="jobs", includePayload="false"))

        def without_spark(_number: int) -> None:
            with figures.timed(plain, count):
                rows = fetch_snapshot(url_of(found))
            assert rows == count, rows

        def by_loop(_number: int) -> None:
            read = loops.list_jobs(url_of(found), "many", 10_000)
            with figures.timed(loop, listed):
                to_nowhere(in_partitions(bench.stretches(0, listed), read, loops.LISTED))

        in_turns(bench.rounds, by_source, by_loop, without_payload, without_spark)
        assert bench.source(found, table="jobs", columns="id").count() == count
    figures.reaches(source, 300_000)
    figures.beats(source, loop)
    figures.notes.append("The loop lists the first jobs only; the further a page is, the longer it takes.")


@contextmanager
def past(events: int) -> Iterator[Path]:
    """Give a data directory with so many events, made anew."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        data = Path(directory) / "data"
        say(f"  writing a day of {events:,} events into a journal")
        subprocess.run([sys.executable, "-m", "bench.spark.fill", str(data), str(events)], check=True)
        yield data


def journal(bench: Bench) -> None:
    """The journal, beside ``mapPartitions`` with a loop over the event stream."""
    figures, count = bench.figures, bench.sized(EVENTS)
    followed = min(count // NAMESPACES // 2, bench.looped(FOLLOWED))
    source, stream = "spark.read.format('penstock'), table=journal", "spark.readStream, availableNow, table=journal"
    loop = loop_of("loop over GET /events with Last-Event-ID", followed)
    with (
        past(count) as data,
        server(data=data) as found,
        Usage(found, bench.figures),
        tempfile.TemporaryDirectory() as scratch,
    ):
        shard = httpx2.get(f"{url_of(found)}/bulk").raise_for_status().json()["shards"][0]
        assert shard["vouched"] > count, shard
        ends = f'{{"0": {count + 1}}}'
        everything: dict[str, object] = {"table": "journal", "namespace": "*", "startingOffsets": '{"0": 1}'}
        assert bench.source(found, **everything, endingOffsets=ends, columns="seq").count() == count

        def by_source(_number: int) -> None:
            with figures.timed(source, count):
                to_nowhere(bench.source(found, **everything, endingOffsets=ends))

        def by_stream(number: int) -> None:
            rows = shard["vouched"] - 1
            options = {"url": url_of(found), "table": "journal", "namespace": "*", "maxOffsetsPerTrigger": "1000000"}
            with figures.timed(stream, rows):
                events = bench.spark.readStream.format("penstock").options(**options).load()
                writer = events.writeStream.format("noop").option("checkpointLocation", f"{scratch}/{number}")
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination()
            assert sum(each["numInputRows"] for each in query.recentProgress) == rows

        def by_loop(_number: int) -> None:
            # One reader, because the stream of a server is one: numbers of several shards or readers are not known before.
            read = loops.follow_events(url_of(found), "tenant0")
            rows = bench.spark.createDataFrame([(0, followed)], "begin long, wanted long").coalesce(1)
            with figures.timed(loop, followed):
                to_nowhere(in_partitions(rows, read, loops.EVENTS))

        in_turns(bench.rounds, by_source, by_stream, by_loop)
        figures.values["bytes on disk for an event in the server's journal"] = _journal_bytes(data) / shard["vouched"]
    figures.beats(source, loop)
    figures.beats(stream, loop)


def _journal_bytes(data: Path) -> int:
    return sum(each.stat().st_size for each in data.rglob("*.db"))


def lease(bench: Bench) -> None:
    """Consume queues with a lease stream, beside ``mapPartitions`` with a loop of pull and acknowledge."""
    figures, count = bench.figures, bench.sized(LEASED)
    single, hundreds = bench.looped(LOOPED // 2), bench.looped(LOOPED_IN_HUNDREDS // 2)
    source = "spark.readStream.format('penstock'), queues, availableNow"
    loop = loop_of("loop over GET /queues/q/jobs and POST /jobs/id/ack", single)
    fairer = loop_of("loop over pull-batch and ack-batch of 100", hundreds)
    with server() as found, Usage(found, bench.figures), tempfile.TemporaryDirectory() as scratch:

        def consume(queue: str) -> int:
            options = {"url": url_of(found), "queues": queue, "checkpointLocation": f"{scratch}/{queue}"}
            taken = bench.spark.readStream.format("penstock").options(**options).load()
            writer = taken.writeStream.format("noop").option("checkpointLocation", f"{scratch}/{queue}")
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return sum(int(each["numInputRows"]) for each in query.recentProgress)

        def by_source(number: int) -> None:
            queue = f"leased{number}"
            bench.enqueue(found, queue, count)
            with figures.timed(source, count):
                rows = consume(queue)
            assert rows == count, rows
            counts = httpx2.get(f"{url_of(found)}/queues/{queue}/counts").raise_for_status().json()["counts"]
            assert (counts["waiting"], counts["active"]) == (0, 0), counts

        def by_loop(name: str, rows: int, read: Any) -> None:
            partitions = bench.spark.range(0, cores(), 1, cores())
            with figures.timed(name, rows):
                to_nowhere(in_partitions(partitions, read, loops.PULLED))

        def one_by_one(number: int) -> None:
            bench.enqueue(found, f"single{number}", single)
            by_loop(loop, single, loops.pull_each(url_of(found), f"single{number}", single // cores()))
            assert waiting(found, f"single{number}") == 0

        def in_hundreds(number: int) -> None:
            bench.enqueue(found, f"hundreds{number}", hundreds)
            by_loop(fairer, hundreds, loops.pull_hundreds(url_of(found), f"hundreds{number}", hundreds // cores()))

        bench.enqueue(found, "warm", bench.sized(LEASED // 50))
        consume("warm")
        in_turns(bench.rounds, by_source, one_by_one, in_hundreds)
    figures.beats(source, loop)
    figures.notes.append(f"{figures.ratio(source, fairer):.1f} x the loop that takes 100 jobs in each request")


def disturb(bench: Bench) -> None:
    """Pushes and pulls while a snapshot is read over and over, beside the same undisturbed.

    The reader is another machine, as a rule; here it is a process that takes what the others leave of the processor. With
    Spark itself on the same cores, the figures say more about the cores than about the server.
    """
    figures, count = bench.figures, bench.sized(SNAPSHOT)
    with server() as found, Usage(found, bench.figures):
        say(f"  putting {count:,} jobs on a queue")
        bench.enqueue(found, "many", count)
        to_nowhere(bench.source(found, table="jobs"))

        def measure(how: str, number: int) -> None:
            for script, name in (("push", "pushes"), ("pull_ack", "pulls with their acknowledgements")):
                with figures.counted(f"{name}, {how}") as count_rows:
                    rate = load(found.port, script, connections=32, seconds=bench.seconds, queue=f"work{number % 2}")
                    count_rows(int(rate["jobs"]), rate["jobs"] / rate["rate"])

        def undisturbed(number: int) -> None:
            measure("undisturbed", number)

        def while_read(number: int) -> None:
            with _reading(found) as read:
                measure("while a snapshot is read", number)
            figures.values["snapshots read meanwhile"] = figures.values.get("snapshots read meanwhile", 0) + read()

        def while_spark_reads(number: int) -> None:
            with _spark_reading(bench, found):
                measure("while Spark reads a snapshot on the same cores", number)

        in_turns(bench.rounds, undisturbed, while_read, while_spark_reads)
    for name in ("pushes", "pulls with their acknowledgements"):
        still, read = f"{name}, undisturbed", f"{name}, while a snapshot is read"
        figures.beats(read, still, 0.6)
        spark = figures.ratio(f"{name}, while Spark reads a snapshot on the same cores", still)
        figures.notes.append(f"{name} while Spark reads on the same {cores()} cores: {spark:.2f} x undisturbed")


@contextmanager
def _reading(found: Penstock) -> Iterator[Any]:
    """Read snapshots in a process of little priority. The value tells how many were read, once it has ended."""
    command = ["nice", "-n", "19", sys.executable, "-m", "bench.spark.reader", url_of(found)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    try:
        yield lambda: float(said[-1])
    finally:
        process.stdin.close()
        said += process.stdout.read().split()
        process.wait()


@contextmanager
def _spark_reading(bench: Bench, found: Penstock) -> Iterator[None]:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            to_nowhere(bench.source(found, table="jobs"))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
