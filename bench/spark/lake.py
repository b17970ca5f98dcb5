"""The lake: from the journal of a server to gold, and gold from bronze."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2
import pyarrow as pa

from bench.goals import say
from bench.spark import loops
from bench.spark.figures import in_turns
from bench.spark.fill import NAMESPACES
from bench.spark.parts import FOLLOWED, in_partitions, loop_of, past
from bench.spark.place import Usage, server, to_nowhere, url_of
from penstock.lake.location import Lake
from penstock.lake.tables import EVENTS, TABLES
from penstock.spark.options import for_batch
from penstock.spark.pipeline.build import DERIVED, rebuild
from penstock.spark.pipeline.run import Builder, keep_up, locked, run

if TYPE_CHECKING:
    from bench.processes import Penstock
    from bench.spark.parts import Bench

BUILT: Final = 10_000_000
_GOLD: Final = [table for table in DERIVED if table.path.startswith("gold/")]


class Size:
    """How large the layers of a lake are: bytes, files and rows of each."""

    def __init__(self, lake: Lake) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self.files: dict[str, int] = defaultdict(int)
        self.rows: dict[str, int] = defaultdict(int)
        for path, table in TABLES.items():
            found = lake.open(table)
            if found is not None:
                layer = path.partition("/")[0]
                files = pa.table(found.get_add_actions(flatten=True))
                self.bytes[layer] += sum(files["size_bytes"].to_pylist())
                self.files[layer] += files.num_rows
                self.rows[path] += sum(files["num_records"].to_pylist())


class Building:
    """Builds a lake from a server's journal, over and over."""

    WHOLE: Final = "whole run: journal to bronze, silver and gold"
    GOLD: Final = "gold from bronze"
    BOTH: Final = "silver and gold from bronze"

    def __init__(self, bench: Bench, found: Penstock, scratch: Path) -> None:
        self.bench, self.found, self.scratch = bench, found, scratch
        shard = httpx2.get(f"{url_of(found)}/bulk").raise_for_status().json()["shards"][0]
        self.events = int(shard["vouched"]) - 1
        self.followed = min(self.events // NAMESPACES // 2, bench.looped(FOLLOWED))
        self.loop = loop_of("loop over GET /events with Last-Event-ID, and nothing made of it", self.followed)
        self.lake = Lake(scratch / "first")
        self.options = {"url": url_of(found), "table": "journal", "namespace": "*"}
        self.batches = 0

    def warm_up(self) -> None:
        """Build a little of a lake, so that all code is loaded."""
        stop = threading.Event()
        with locked(self.lake):
            builder = Builder(self.bench.spark, self.lake, for_batch(self.options), batch_events=max(1, self.events // 50))
            run(builder, self.lake, every_ms=None, stop=stop, tell=lambda _line: stop.set())
            builder.close()

    def whole(self, number: int) -> None:
        """Build everything; the lake of the round before makes room."""
        shutil.rmtree(self.lake.address, ignore_errors=True)
        self.lake = Lake(self.scratch / f"lake{number}")
        builder = Builder(self.bench.spark, self.lake, for_batch(self.options))
        with locked(self.lake), self.bench.figures.timed(self.WHOLE, self.events):
            done = run(builder, self.lake, every_ms=None, stop=threading.Event(), tell=lambda line: say(f"      {line}"))
        builder.close()
        assert (done.events, done.aside) == (self.events, 0), done
        self.batches = done.batches

    def gold(self, _number: int) -> None:
        """Make gold anew, from the bronze of this round."""
        before = Size(self.lake).rows
        with self.bench.figures.timed(self.GOLD, self.events):
            done = rebuild(self.bench.spark, self.lake, tables=_GOLD)
        assert done.events == self.events, done
        assert Size(self.lake).rows["gold/minutes"] <= before["gold/minutes"]
        took = ", ".join(f"{path.removeprefix('gold/')} {each:.1f} s" for path, each in done.took.items())
        self.bench.figures.notes = [f"gold, by table: {took}"]

    def everything(self, _number: int) -> None:
        """Make silver and gold anew."""
        with self.bench.figures.timed(self.BOTH, self.events):
            rebuild(self.bench.spark, self.lake)

    def by_loop(self, _number: int) -> None:
        read = loops.follow_events(url_of(self.found), "tenant0")
        rows = self.bench.spark.createDataFrame([(0, self.followed)], "begin long, wanted long").coalesce(1)
        with self.bench.figures.timed(self.loop, self.followed):
            to_nowhere(in_partitions(rows, read, loops.EVENTS))

    def measure(self) -> None:
        """Note how large the lake of the last round is, and what compaction makes of it."""
        values, before = self.bench.figures.values, Size(self.lake)
        jobs = self.bench.spark.read.parquet(*_files(self.lake)).where("kind = 'job:pushed'").count()
        values["events for a job"] = self.events / jobs
        values["batches of the whole run"] = self.batches
        for layer in ("bronze", "silver", "gold"):
            values[f"files of a batch in {layer}"] = before.files[layer] / self.batches
        with self.bench.figures.timed("compaction of all tables", self.events):
            keep_up(self.lake, lambda line: say(f"      {line}"), least_files=2)
        after = Size(self.lake)
        for layer in ("bronze", "silver", "gold"):
            values[f"bytes for an event in {layer}"] = after.bytes[layer] / self.events
            values[f"bytes for an event in {layer}, before compaction"] = before.bytes[layer] / self.events
            values[f"files in {layer} after compaction"] = after.files[layer]
        # Not all queues have something to tell in every minute of a small day.
        values["bytes for a queue and minute in gold"] = after.bytes["gold"] / after.rows["gold/minutes"]


def _files(lake: Lake) -> list[str]:
    found = lake.open(EVENTS)
    assert found is not None
    return found.file_uris()


def lake(bench: Bench) -> None:
    """Build a lake of a day's events, make its gold anew, and look at how large it is."""
    count = bench.sized(BUILT)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch, past(count) as data, server(data=data) as found:
        building = Building(bench, found, Path(scratch))
        with Usage(found, bench.figures):
            building.warm_up()
            in_turns(bench.rounds, building.whole, building.gold, building.by_loop)
            building.everything(0)
        building.measure()
    figures = bench.figures
    figures.reaches(building.GOLD, 500_000)
    figures.beats(building.WHOLE, building.loop)
