"""Where it is measured: a Spark session, a server, and how much memory both take."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import httpx2
import psutil  # type: ignore[import-untyped]

from bench.processes import Penstock, running
from bench.spark import loops
from penstock.spark.session import session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from bench.spark.figures import Figures

ROOT: Final = Path(__file__).parents[2]
#: Payloads are JSON of 100 bytes.
VALUE: Final = """concat('{"order":"', lpad(id, 10, '0'), '","to":"user@example.com","text":"', repeat('x', 44), '"}')"""
#: The past is kept: what is measured is reading it.
SETTINGS: Final = {
    "PENSTOCK_JOURNAL_BYTES_MAX": str(1 << 40),
    "PENSTOCK_JOURNAL_AGE_MS": str(10 * 86_400_000),
    "PENSTOCK_COMPLETED_MAX": "1000",
    "PENSTOCK_BALLAST_BYTES": "0",
}
#: Kinds of processes.
SERVER, BULK, JVM, PYTHON = "the server", "its bulk processes", "Spark's JVM", "Spark's Python workers"
_SAMPLE_S: Final = 0.2
_MEBIBYTE: Final = 1 << 20


def start_spark(jars: str = "") -> SparkSession:
    """Start Spark here, on all cores, as `penstock.spark.session` does, with memory for the largest part."""
    # Workers find the loops of this benchmark by their module.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.warehouse.dir": tempfile.gettempdir(),
    }
    if jars:
        settings["spark.jars"] = jars
    spark = session("local[*]", name="bench", settings=settings)
    # Loops find their workers running, as the data source does after its first use.
    to_nowhere(spark.range(0, 1_000, 1, 2 * cores()).rdd.mapPartitions(loops.nothing).toDF("id long"))
    return spark


def cores() -> int:
    return os.cpu_count() or 1


def to_nowhere(rows: DataFrame) -> None:
    """Have everything computed, and throw it away."""
    rows.write.format("noop").mode("overwrite").save()


def rows_of(spark: SparkSession, count: int) -> DataFrame:
    """Return rows with a payload each, made where they are needed."""
    return spark.range(0, count, 1, 2 * cores()).selectExpr(f"{VALUE} value")


class Usage:
    """Looks now and then at what the server and Spark take: the most memory at once, and processor time.

    Memory is in MiB, as the system counts it. Processor time says more than time by the clock on a machine that others use.
    """

    def __init__(self, server: Penstock, figures: Figures) -> None:
        self._server = server.process.pid
        self._figures = figures
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._looking = threading.Lock()
        self._kinds: dict[psutil.Process, str | None] = {}
        self._seconds: dict[psutil.Process, float] = {}
        self.peak: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self._figures.processor = self.processor
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._figures.processor = dict
        self._figures.values |= {f"{name}, peak MiB": size for name, size in sorted(self.peak.items())}

    def processor(self) -> dict[str, float]:
        """Return the seconds that each kind of process has had so far; those that have ended count, too."""
        self._look()
        spent: dict[str, float] = {}
        with self._looking:
            for process, seconds in self._seconds.items():
                kind = self._kinds[process]
                assert kind is not None
                spent[kind] = spent.get(kind, 0.0) + seconds
        return spent

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._look()

    def _look(self) -> None:
        sizes: dict[str, float] = {}
        with self._looking:
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # it has ended meanwhile
                    kind = self._kinds.get(process) or self._kind(process)
                    self._kinds[process] = kind
                    if kind is not None:
                        sizes[kind] = sizes.get(kind, 0.0) + process.memory_info().rss / _MEBIBYTE
                        times = process.cpu_times()
                        self._seconds[process] = times.user + times.system
            for kind, size in sizes.items():
                self.peak[kind] = max(self.peak.get(kind, 0.0), size)

    def _kind(self, process: psutil.Process) -> str | None:
        """Tell what a process is; None if it is none of those that are measured, such as the load."""
        if process.pid == self._server:
            return SERVER
        if self._server in [each.pid for each in process.parents()]:
            return BULK
        if process.name() == "java":
            return JVM
        return PYTHON if "pyspark" in " ".join(process.cmdline()) else None


@contextmanager
def server(*more: str, data: Path | None = None, durability: str = "interval") -> Iterator[Penstock]:
    """Run a server that keeps the past; on a directory of its own, unless there is one."""
    with ExitStack() as stack:
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))) / "data"
        found = Penstock(data, durability, *more, settings=SETTINGS)
        stack.enter_context(running(found))
        yield found


def url_of(found: Penstock) -> str:
    return f"http://127.0.0.1:{found.port}"


def waiting(found: Penstock, queue: str) -> int:
    """Return how many jobs of a queue wait."""
    counts = httpx2.get(f"{url_of(found)}/queues/{queue}/counts").raise_for_status().json()["counts"]
    return int(counts["waiting"])
