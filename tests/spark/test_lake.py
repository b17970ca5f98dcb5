"""The lake equals the truth: whatever happens to jobs and to the pipeline, tables that are folded say what the engine says."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, Schema
from pyspark.errors import PySparkException

from penstock.cli.main import main
from penstock.client._clock import now_ms
from penstock.client.errors import ApiError, ConnectionFailed
from penstock.lake import histogram
from penstock.lake.location import Lake
from penstock.lake.maintenance import DETAILED, compact
from penstock.lake.tables import (
    ATTEMPTS,
    BACKLOG,
    EVENTS,
    FAILURES,
    FLEET,
    JOBS,
    LATENCY,
    MINUTES,
    QUARANTINE,
    TABLES,
    TENANTS,
    WORKERS,
    Table,
)
from penstock.lake.transform import DERIVED
from penstock.lake.writer import BATCH_MARK, PartWriter, commit
from penstock.spark import options
from penstock.spark.pipeline.build import rebuild
from penstock.spark.pipeline.lake_info import LakeInvalid
from penstock.spark.pipeline.run import Builder, locked, run
from penstock.spark.pipeline.tasks import stored
from penstock.store.sqlite.store import FILE_NAME
from tests.spark.lifework import Lifework
from tests.support.bulk import Bulk, table_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import httpx2
    from click.testing import Result
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if "PENSTOCK_TEST_LIFE_JOBS" in os.environ else 300)]

#: 100000 for the whole of it.
LIFE_JOBS = int(os.environ.get("PENSTOCK_TEST_LIFE_JOBS", "3000"))
#: How often a pipeline of its own is killed.
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "1"))
COMPARED = (EVENTS, *DERIVED)


def builder(spark: SparkSession, server: ServerProcess, lake: Lake, namespace: str = "*", **more: Any) -> Builder:
    given = options.for_batch({"url": server.url, "table": "journal", "namespace": namespace, "minPartitions": "3"})
    return Builder(spark, lake, given, **more)


def build(made: Builder, lake: Lake) -> list[str]:
    told: list[str] = []
    try:
        run(made, lake, every_ms=None, stop=threading.Event(), tell=told.append)
    finally:
        made.close()
    return told


def contents(lake: Lake, table: Table) -> pa.Table:
    """Return the folded rows of a table, in an order of their own, without what depends on batches."""
    rows = lake.read(table).drop_columns(["batch"])
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


def everything(lake: Lake) -> dict[str, pa.Table]:
    return {table.path: contents(lake, table) for table in COMPARED}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Lifework]]:
    """A server with a past, which knows the lake that is to be."""
    place = tmp_path_factory.mktemp("lived")
    with ServerProcess(place / "data", "--lake", str(place / "lake")) as server:
        work = Lifework(server, LIFE_JOBS)
        work.live()
        yield server, work


@pytest.fixture(scope="module")
def whole(spark: SparkSession, lived: tuple[ServerProcess, Lifework]) -> Lake:
    """The lake of that past, made at once."""
    lake = Lake(lived[0].data.parent / "lake")
    told = build(builder(spark, lived[0], lake), lake)
    assert "up to date" in told[-1]
    return lake


def test_gold_totals_are_what_was_done_to_the_last_job(whole: Lake, lived: tuple[ServerProcess, Lifework]) -> None:
    _, work = lived
    found: dict[tuple[str, str], Counter[str]] = {}
    for row in whole.read(MINUTES).to_pylist():
        counts = found.setdefault((row["namespace"], row["queue"]), Counter())
        counts.update({name: value for name, value in row.items() if isinstance(value, int)})
    assert set(found) == set(work.truth)
    names = (
        "arrivals", "completions", "failures", "retries", "stalls", "releases", "dead", "revived", "replayed", "expired",
        "removed", "forgotten", "bytes_in",
    )  # fmt: skip
    for place, truth in work.truth.items():
        assert {name: found[place][name] for name in names} == {name: truth[name] for name in names}, place
    for name in ("arrivals", "completions", "failures", "dead", "removed", "forgotten", "revived"):
        assert sum(truth[name] for truth in work.truth.values()) > 0, f"the life has no {name}"


def test_what_is_left_is_what_the_engine_has(whole: Lake, lived: tuple[ServerProcess, Lifework]) -> None:
    _, work = lived
    depth: Counter[tuple[str, str]] = Counter()
    for row in whole.read(BACKLOG).to_pylist():
        depth[row["namespace"], row["queue"]] += row["added"] - row["taken"]
    states: dict[tuple[str, str], Counter[str]] = {}
    jobs = whole.read(JOBS).to_pylist()
    for row in jobs:
        states.setdefault((row["namespace"], row["queue"]), Counter())[row["state"]] += 1
    assert len(jobs) == sum(truth["arrivals"] for truth in work.truth.values())
    for place, truth in work.truth.items():
        counts = work.counts(place)
        unfinished = counts["waiting"] + counts["active"] + counts["delayed"] + counts["waiting-children"]
        assert depth[place] == unfinished
        seen = states[place]
        assert (seen["waiting"], seen["delayed"], seen["active"]) == (counts["waiting"], counts["delayed"], counts["active"])
        assert truth["completions"] - truth["replayed"] == seen["completed"]
        assert seen["removed"] == truth["removed"]


def test_the_tables_agree_with_each_other(whole: Lake) -> None:
    minutes, attempts = whole.read(MINUTES).to_pylist(), whole.read(ATTEMPTS).to_pylist()
    outcomes = Counter(row["outcome"] for row in attempts)
    for name, outcome in (
        ("completions", "completed"),
        ("failures", "failed"),
        ("stalls", "stalled"),
        ("releases", "released"),
    ):
        assert sum(row[name] for row in minutes) == outcomes[outcome]
    assert all(row["wait_ms"] >= 0 and row["run_ms"] >= 0 for row in attempts if row["started_at"])
    latency = whole.read(LATENCY).to_pylist()
    for kind, counted, summed in (("wait", "waits", "wait_ms"), ("run", "runs", "run_ms")):
        assert sum(row["n"] for row in latency if row["kind"] == kind) == sum(row[counted] for row in minutes)
        assert sum(row["sum_ms"] for row in latency if row["kind"] == kind) == sum(row[summed] for row in minutes)
    runs = Counter(histogram.bucket_of(row["run_ms"]) for row in attempts if row["outcome"] in ("completed", "failed"))
    found: Counter[int] = Counter()
    for row in latency:
        if row["kind"] == "run":
            found[row["bucket"]] += row["n"]
    assert found == runs
    busy = sum(row["run_ms"] for row in attempts if row["run_ms"] is not None)
    assert sum(row["busy_ms"] for row in whole.read(WORKERS).to_pylist()) == busy
    tenants = whole.read(TENANTS).to_pylist()
    assert sum(row["busy_ms"] for row in tenants) == busy
    assert sum(row["arrivals"] for row in tenants) == sum(row["arrivals"] for row in minutes)
    failures = whole.read(FAILURES).to_pylist()
    assert sum(row["n"] for row in failures) == outcomes["failed"] + outcomes["stalled"]
    assert "Timeout of <n> ms at <text>" in {row["pattern"] for row in failures}
    assert {row["fingerprint"] for row in failures} == {row["fingerprint"] for row in attempts if row["fingerprint"]}
    assert whole.read(QUARANTINE).num_rows == 0


#: Those of ``/insights`` that have rows, as JSON and as Arrow.
INSIGHTS = ("queues", "series", "latency", "failures", "backlog", "workers", "tenants", "slo", "forecast")


class Told:
    """What a server says of its lake."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    def ask(self, path: str, accept: str = "application/json", namespace: str = "*", **query: str) -> httpx2.Response:
        headers = {"X-Namespace": namespace, "Accept": accept}
        reply = self._client.get(f"/insights{path}", params=query, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply

    def rows(self, name: str, **query: str) -> list[dict[str, Any]]:
        """Return the rows of an answer, which are the same in both forms."""
        told: list[dict[str, Any]] = self.ask(f"/{name}", **query).json()["rows"]
        table = table_of(self.ask(f"/{name}", accept="application/vnd.apache.arrow.stream", **query).content)
        assert told
        assert [{column: _plain(value) for column, value in row.items()} for row in table.to_pylist()] == told
        return told


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


def times_of(events: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Work out by hand, in ms and in order, what ``/insights/latency`` is about."""
    found: dict[str, list[int]] = {"wait": [], "run": [], "total": []}
    for event in events:
        if event["kind"] not in ("job:completed", "job:failed", "job:stalled"):
            continue
        at, created, due, started = (event[name] for name in ("at", "created_at", "due_at", "started_at"))
        found["wait"].append(max(0, (started - max(created, due)) // timedelta(milliseconds=1)))
        if event["kind"] != "job:stalled":
            found["run"].append((at - started) // timedelta(milliseconds=1))
        if event["kind"] == "job:completed":
            found["total"].append((at - created) // timedelta(milliseconds=1))
    return {kind: sorted(times) for kind, times in found.items()}


def test_a_server_tells_of_its_lake_what_it_has_acknowledged(lived: tuple[ServerProcess, Lifework], whole: Lake) -> None:
    server, work = lived
    with server.client() as client:
        told = Told(client)
        about = told.ask("").json()
        events = [event for event in Bulk(client, "*").events() if event["seq"] < about["shards"][0]["read_to"]]
        answers = {name: told.rows(name) for name in INSIGHTS}
        latencies = {kind: told.rows("latency", kind=kind, whole="yes", by="all") for kind in ("wait", "run", "total")}
        series = told.rows("series", by="all", step="1d")
        alone = told.ask("/queues", namespace="acme").json()["rows"]
        fair = told.ask("/tenants").json()["jain"]
    assert len(events) == whole.read(EVENTS, columns=["seq"]).num_rows
    assert {each["table"] for each in about["tables"]} >= {table.path for table in COMPARED}
    assert about["known_from"] < about["known_until"]

    # Totals, of each queue and of all.
    queues = {(row["namespace"], row["queue"]): row for row in answers["queues"]}
    assert set(queues) == set(work.truth)
    for place, truth in work.truth.items():
        names = set(queues[place]) & set(truth)
        assert {name: queues[place][name] for name in names} == {name: truth[name] for name in names}, place
        counts = work.counts(place)
        assert queues[place]["depth"] == counts["waiting"] + counts["active"] + counts["delayed"]
    assert [row["queue"] for row in alone] == sorted(queue for namespace, queue in work.truth if namespace == "acme")
    everything_done = sum((truth for truth in work.truth.values()), Counter())
    for rows in (series, answers["series"], answers["tenants"]):
        for name in ("arrivals", "completions"):
            assert sum(row[name] for row in rows) == everything_done[name]

    # Percentiles, against all times in order.
    for kind, times in times_of(events).items():
        (row,) = latencies[kind]
        assert row["n"] == len(times)
        assert row["mean_ms"] == pytest.approx(sum(times) / len(times))
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            assert row[name] == pytest.approx(times[math.ceil(share * len(times)) - 1], rel=0.01), (kind, name)

    # The rest.
    assert sum(row["n"] for row in answers["failures"]) == everything_done["failures"] + everything_done["stalls"]
    pattern = next(row for row in answers["failures"] if row["pattern"] == "Timeout of <n> ms at <text>")
    assert pattern["example"].startswith("Timeout of ")
    assert sum(row["added"] - row["taken"] for row in answers["backlog"]) == sum(row["depth"] for row in queues.values())
    assert sum(row["busy_ms"] for row in answers["workers"]) == sum(row["busy_ms"] for row in answers["tenants"]) > 0
    assert sum(row["share_completions"] for row in answers["tenants"]) == pytest.approx(1)
    assert 0.5 <= fair["completions"] <= 1  # there are two
    for row in answers["slo"]:
        assert row["objective"]
        assert row["good"] <= row["jobs"]
        assert row["attained"] == pytest.approx(row["good"] / row["jobs"])
    assert sum(row["jobs"] for row in answers["slo"]) == latencies["wait"][0]["n"]
    for row in answers["forecast"]:  # minutes are too short a past, and it says so
        assert row["depth"] == queues[row["namespace"], row["queue"]]["depth"]
        assert row["expected"] is not None or row["note"]


class Died(Exception):
    """A pipeline that is gone, from one moment to the next."""


def test_ten_pieces_with_crashes_between_any_two_commits_give_the_same_tables(
    spark: SparkSession, lived: tuple[ServerProcess, Lifework], whole: Lake, tmp_path: Path
) -> None:
    server, _ = lived
    lake = Lake(tmp_path / "lake")
    # An earlier version has made it: some columns are missing.
    lake.put_text("lake.json", json.dumps({"namespace": "*"}))
    for table, lacks in ((MINUTES, {"replayed", "waits"}), (EVENTS, {"extra"})):
        before = pa.schema([field for field in table.schema if field.name not in lacks])
        DeltaTable.create(lake.uri(table), Schema.from_arrow(before), partition_by=["date"])
    events = whole.read(EVENTS, columns=["seq"]).num_rows
    moments = ["fetched", *(table.path for table in COMPARED)]
    random.Random(3).shuffle(moments)
    crashes = 0

    def fault(moment: str) -> None:
        if moments and moment == moments[0]:
            moments.pop(0)
            raise Died

    for _ in range(40):
        try:
            build(builder(spark, server, lake, batch_events=events // 10 + 1, fault=fault), lake)
        except Died:
            crashes += 1
            continue
        break
    assert not moments
    assert crashes == 1 + len(COMPARED)
    assert pc.max(lake.read(EVENTS).column("batch")).as_py() == 9
    expected = everything(whole)
    assert everything(lake) == expected

    # Folding on disk changes nothing that anybody reads, and removes what the crashes have left.
    before = {table.path: lake.open(table).file_uris() for table in COMPARED}  # type: ignore[union-attr]
    kept = {each.table.path: each for each in compact(lake, name="fold", now_ms=0, keep_hours=0)}
    assert everything(lake) == expected
    for table in COMPARED:
        days = pc.unique(contents(lake, table).column("date"))
        found = lake.open(table)
        assert found is not None
        assert len(found.file_uris()) == len(days) <= len(before[table.path])
    assert kept[MINUTES.path].rows_after < kept[MINUTES.path].rows_before
    assert kept[EVENTS.path].removed > 0
    # A table that somebody has removed is made anew, of all events and not just of those that came last.
    shutil.rmtree(Path(lake.uri(MINUTES)))
    assert build(builder(spark, server, lake), lake) == ["built again from bronze, completely: gold/minutes"]
    assert everything(lake) == expected
    # Nothing new: and what was done before the fold is still known to be done.
    assert build(builder(spark, server, lake), lake) == []

    done = rebuild(spark, lake)
    assert done.events == events
    assert everything(lake) == expected


def test_a_pipeline_that_is_killed_goes_on_where_it_was(
    lived: tuple[ServerProcess, Lifework], whole: Lake, tmp_path: Path
) -> None:
    server, _ = lived
    lake = Lake(tmp_path / "lake")
    events = whole.read(EVENTS, columns=["seq"]).num_rows
    chance = random.Random(5)

    def driver(*die_at: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.spark.lake_driver", server.url, lake.address, str(events // 4 + 1), *die_at]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    for number in range(ROUNDS):
        moment = LATENCY.path if number == 0 else chance.choice(["fetched", *(table.path for table in COMPARED)])
        with driver(moment) as process:
            process.communicate(timeout=300)
            assert process.returncode in (-signal.SIGKILL, 0)
    with driver() as process:
        told, _ = process.communicate(timeout=300)
        assert process.returncode == 0, told
    assert everything(lake) == everything(whole)


def test_a_fold_beside_a_batch_loses_nothing_and_two_folds_do_not_both_count(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def add(batch: int) -> None:
        row = dict.fromkeys(MINUTES.schema.names, 0) | {
            "namespace": "n", "queue": "q", "minute": noon, "date": noon.date(), "arrivals": 1, "batch": batch,
        }  # fmt: skip
        writer = PartWriter(lake, MINUTES, f"part{batch}")
        writer.write(pa.Table.from_pylist([row], schema=MINUTES.schema))
        assert commit(lake, MINUTES, writer.close(), marks={BATCH_MARK: batch}, now_ms=0)

    for batch in range(3):
        add(batch)
    opened = Lake(tmp_path)
    stale = opened.open(MINUTES)
    opened.open = lambda table: stale if table is MINUTES else None  # type: ignore[method-assign]
    add(3)
    list(compact(lake, name="one", now_ms=0, keep_hours=None))
    (late,) = compact(opened, name="two", now_ms=0, keep_hours=None)
    assert late.busy
    assert [row["arrivals"] for row in lake.read(MINUTES).to_pylist()] == [4]
    writer = PartWriter(lake, MINUTES, "again")
    assert not commit(lake, MINUTES, writer.close(), marks={BATCH_MARK: 3}, now_ms=0)


def event(seq: int, kind: str, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 1, 31, 23, 58, tzinfo=UTC)
    row = {
        "shard": 0, "seq": seq, "at": at, "kind": kind, "namespace": "n", "queue": "q",
        "job_id": "01980000-0000-7000-8000-000000000001",
    }  # fmt: skip
    return row | more


def test_what_cannot_be_understood_is_put_aside_and_the_rest_counts(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    at = datetime(2026, 1, 31, 23, 58, tzinfo=UTC)
    minute = timedelta(minutes=1)
    times = {"created_at": at - minute, "run_at": at - minute, "attempt": 0}
    given = [
        event(1, "job:pushed", run_at=at, size=3),
        event(2, "job:completed", **times, started_at=at + 10 * minute),
        event(3, "job:teleported"),
        event(4, "job:pushed", job_id=None),
        event(5, "job:pushed", queue=None),
        event(6, "job:pushed", at=None),
        event(7, "queue:paused", job_id=None),
        # Over midnight, and two minutes and a half long.
        event(8, "job:completed", **times, started_at=at + 30 * minute / 60, at=at + 3 * minute, size=5),
    ]
    names = [name for name in EVENTS.schema.names if name not in ("extra", "date", "batch")]
    schema = pa.schema([EVENTS.schema.field(name) for name in names] + [pa.field("colour", pa.string())])
    rows = pa.RecordBatch.from_pylist(
        [{name: each.get(name) for name in names} | {"colour": "blue"} for each in given], schema=schema
    )
    writer = PartWriter(lake, EVENTS, "part")
    writer.write(stored(rows, 0))
    commit(lake, EVENTS, writer.close(), marks={BATCH_MARK: 0}, now_ms=0)
    rebuild(spark, lake)
    aside = {row["seq"]: row for row in lake.read(QUARANTINE).to_pylist()}
    assert {seq: row["reason"] for seq, row in aside.items()} == {
        2: "ended before it started", 3: "unknown kind", 4: "no job", 5: "no queue", 6: "no time",
    }  # fmt: skip
    assert json.loads(aside[3]["row"])["kind"] == "job:teleported"
    assert {row["extra"] for row in lake.read(EVENTS).to_pylist()} == {'{"colour": "blue"}'}
    minutes = lake.read(MINUTES).to_pylist()
    assert sum(row["arrivals"] for row in minutes) == 1
    assert sum(row["completions"] for row in minutes) == 2  # one of them is counted, and not timed
    assert sum(row["runs"] for row in minutes) == 1
    busy = sorted((row["minute"], row["busy_ms"]) for row in lake.read(WORKERS).to_pylist() if row["busy_ms"])
    assert busy == [(at, 30_000), (at + minute, 60_000), (at + 2 * minute, 60_000)]
    assert {row["date"] for row in lake.read(WORKERS).to_pylist()} == {date(2026, 1, 31), date(2026, 2, 1)}
    (job,) = lake.read(JOBS).to_pylist()
    assert (job["state"], job["attempts"]) == ("completed", 2)


def test_a_lake_is_refused_that_is_none_or_somebody_elses(
    spark: SparkSession, lived: tuple[ServerProcess, Lifework], whole: Lake, tmp_path: Path
) -> None:
    server, _ = lived
    (tmp_path / "diary.txt").write_text("dear", encoding="utf-8")
    with (
        closing(builder(spark, server, Lake(tmp_path))) as made,
        pytest.raises(LakeInvalid, match="is not empty, and is not a lake"),
    ):
        made.open()
    with (
        closing(builder(spark, server, whole, namespace="acme")) as made,
        pytest.raises(LakeInvalid, match="is the lake of namespace"),
    ):
        made.open()
    with (
        ServerProcess(tmp_path / "other" / "data") as other,
        closing(builder(spark, other, whole)) as made,
        pytest.raises(LakeInvalid, match=r"another history of shard 0 .*: another server answers"),
    ):
        made.step(made.end())
    with ServerProcess(tmp_path / "small" / "data") as other:
        lake = Lake(tmp_path / "lake")
        with other.client() as client:
            client.post("/queues/mail/jobs", json={"data": 1}).raise_for_status()
        build(builder(spark, other, lake), lake)
        assert build(builder(spark, other, lake), lake) == []
    with (
        closing(builder(spark, server, lake)) as made,
        pytest.raises(LakeInvalid, match=r"another history of shard 0 .*: another server answers"),
    ):
        made.open()  # its journal is longer, and tells of something else
    lake.put_text("lake.json", '{"format": 2, "namespace": "*"}')  # as an earlier version had it: the last event tells
    with (
        closing(builder(spark, server, lake)) as made,
        pytest.raises(LakeInvalid, match="it is another server, or an older"),
    ):
        made.open()
    for card, words in (('{"format": 99, "namespace": "*"}', "by a newer version of Penstock"), ("{", "cannot be read")):
        lake.put_text("lake.json", card)
        with closing(builder(spark, server, lake)) as made, pytest.raises(LakeInvalid, match=words):
            made.open()
    with locked(whole), pytest.raises(LakeInvalid, match=f"process {os.getpid()}"), locked(Lake(whole.address)):
        pass


def test_the_commands_say_what_is_wrong(tmp_path: Path) -> None:
    def says(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["pipeline", *arguments])
        assert result.exit_code in (1, 2)
        return result.output

    assert "--once and --every exclude each other" in says("run", "--lake", str(tmp_path), "--once", "--every", "1m")
    assert "must be a duration such as 30s" in says("run", "--lake", str(tmp_path), "--every", "soon")
    assert "must begin with http" in says("run", "--lake", str(tmp_path), "--url", "localhost")
    (tmp_path / "file").write_text("dear diary", encoding="utf-8")
    assert "is a file, and a lake is a directory" in says("run", "--lake", str(tmp_path / "file"))
    assert "There is no lake at" in says("compact", "--lake", str(tmp_path))
    assert "There is no lake at" in says("rebuild", "--lake", str(tmp_path))
    assert "There is no lake at" in says("forget", "--lake", str(tmp_path), "--keep-days", "30")
    assert "--keep-days" in says("forget", "--lake", str(tmp_path))


def test_a_run_and_upkeep_by_command(
    lived: tuple[ServerProcess, Lifework], whole: Lake, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, work = lived
    stopped: list[bool] = []
    with server.client() as client:
        body = {"name": "w", "queues": ["mail"], "concurrency": 4}
        client.post("/workers", json=body, headers={"X-Namespace": "acme"}).raise_for_status()
    monkeypatch.setattr("penstock.cli.lake._session", lambda *_given: spark)
    monkeypatch.setattr("penstock.cli.lake._listen", lambda _stop: None)
    monkeypatch.setattr(type(spark), "stop", lambda _self: stopped.append(True))
    lake = tmp_path / "lake"
    place = ["--lake", str(lake), "--url", server.url]
    result = CliRunner().invoke(main, ["pipeline", "run", *place, "--namespace", "acme", "--once"])
    assert result.exit_code == 0, result.output
    assert "up to date" in result.output
    assert " events in 1 batches" in result.output
    assert {row["namespace"] for row in Lake(lake).read(MINUTES).to_pylist()} == {"acme"}
    arrivals = sum(truth["arrivals"] for (namespace, _), truth in work.truth.items() if namespace == "acme")
    assert sum(row["arrivals"] for row in Lake(lake).read(MINUTES).to_pylist()) == arrivals
    (worker,) = Lake(lake).read(FLEET).to_pylist()
    assert (worker["namespace"], worker["queues"], worker["concurrency"]) == ("acme", "mail", 4)
    again = CliRunner().invoke(main, ["pipeline", "run", *place, "--namespace", "acme", "--once"])
    assert ": 0 events in 0 batches" in again.output
    for command in ("rebuild", "compact"):
        done = CliRunner().invoke(main, ["pipeline", command, "--lake", str(lake)])
        assert done.exit_code == 0, done.output
    assert stopped
    _forget_by_command(Lake(lake), monkeypatch, ["pipeline", "run", *place, "--namespace", "acme", "--once"])


def _forget_by_command(lake: Lake, monkeypatch: pytest.MonkeyPatch, run: list[str]) -> None:
    """Two days later, a lake that keeps one day has no details left, gold as it was, and goes on where it was."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["pipeline", arguments[0], "--lake", lake.address, *arguments[1:]])

    gold = lake.read(MINUTES)
    events = lake.read(EVENTS).num_rows
    assert "bronze/events: 0 rows in 0 files, 0.0 MB\n" in invoke("forget", "--keep-days", "1").output
    with monkeypatch.context() as later:
        today = now_ms()
        later.setattr("penstock.client._clock.now_ms", lambda: today + 2 * 86_400_000)
        tried = invoke("forget", "--keep-days", "1", "--dry-run")
        assert f"bronze/events: {events:,} rows in " in tried.output
        assert lake.read(EVENTS).num_rows == events
        assert "are deleted" in invoke("forget", "--keep-days", "1").output
    assert [lake.read(table).num_rows for table in DETAILED] == [0, 0, 0, 0]
    assert lake.read(MINUTES).equals(gold)
    again = CliRunner().invoke(main, run)
    assert ": 0 events in 0 batches" in again.output
    refused = invoke("rebuild")
    assert refused.exit_code == 1
    assert "set --lose-forgotten" in refused.output
    assert lake.read(MINUTES).equals(gold)
    assert invoke("rebuild", "--lose-forgotten").exit_code == 0
    assert lake.read(MINUTES).num_rows == 0


def test_a_server_that_cannot_give_the_journal_gets_a_remedy_and_no_traceback(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []

    def start(*_given: object) -> SparkSession:
        started.append(True)
        return spark

    monkeypatch.setattr("penstock.cli.lake._session", start)
    monkeypatch.setattr("penstock.cli.lake._listen", lambda _stop: None)
    monkeypatch.setattr(type(spark), "stop", lambda _self: None)

    def says(server: ServerProcess, *more: str) -> Result:
        return CliRunner().invoke(
            main, ["pipeline", "run", "--lake", str(tmp_path / "lake"), "--url", server.url, "--once", *more]
        )

    launcher = ("-m", "tests.support.arrowless_server")
    with ServerProcess(tmp_path / "arrowless", launcher=launcher) as server:
        result = says(server)
        assert (result.exit_code, started) == (1, [])
        assert "pip install 'penstock-queue[bulk]'" in result.output
        assert isinstance(result.exception, SystemExit)

    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        for number in range(3):
            client.post("/queues/mail/jobs", json={"data": number}).raise_for_status()
        assert says(server).exit_code == 0
        for number in range(20):
            client.post("/queues/mail/jobs", json={"data": number}).raise_for_status()
        server.stop()
        with closing(sqlite3.connect(server.data / FILE_NAME)) as db, db:  # as the server does when it is time
            (first,) = db.execute("select seq from journal order by seq desc limit 1 offset 5").fetchone()
            db.execute("delete from journal where seq < ?", (first,))
        server.start()
        result = says(server)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert f"its journal begins with {first}." in result.output
        assert "keep more (journal_age_ms, journal_bytes_max)" in result.output
        assert "To continue with the rest, set --on-data-loss skip." in result.output
        result = says(server, "--on-data-loss", "skip")
        assert (result.exit_code, "up to date" in result.output) == (0, True), result.output


class Shaky(Builder):
    """A builder whose server comes and goes."""

    def __init__(self, stop: threading.Event, *troubles: Exception) -> None:
        self.stop = stop
        self.troubles = list(troubles)

    def open(self, tell: Any = None) -> int:
        return 0

    def end(self) -> dict[str, int]:
        return {"0": 1}

    def step(self, end: Mapping[str, int]) -> None:
        assert end == {"0": 1}
        if self.troubles:
            raise self.troubles.pop(0)
        self.stop.set()


def test_a_server_that_is_away_for_a_while_does_not_end_a_pipeline(tmp_path: Path) -> None:
    away = ConnectionFailed("No answer to GET /bulk", outcome_unknown=False)
    busy = ApiError(503, "too_many", "Too many bulk reads at once")
    in_a_task = PySparkException(
        "Traceback\npenstock.client.errors.ConnectionFailed: No answer to GET /bulk/journal\n at java"
    )
    stop = threading.Event()
    told: list[str] = []
    run(Shaky(stop, away, busy, in_a_task), Lake(tmp_path), every_ms=1, stop=stop, tell=told.append)
    assert [line.split(":")[1] for line in told] == [
        " No answer to GET /bulk. The next look tries again.",
        " Too many bulk reads at once (503 too_many). The next look tries again.",
        " No answer to GET /bulk/journal. The next look tries again.",
    ]
    with pytest.raises(ConnectionFailed):
        run(Shaky(stop, away), Lake(tmp_path), every_ms=None, stop=threading.Event(), tell=told.append)
    with pytest.raises(LakeInvalid):
        run(Shaky(stop, LakeInvalid("x")), Lake(tmp_path), every_ms=1, stop=threading.Event(), tell=told.append)


def test_every_kind_of_event_is_known() -> None:
    from penstock.core.events import EventKind
    from penstock.lake.transform.event_kinds import JOB_KINDS, OTHER_KINDS

    assert sorted(JOB_KINDS + OTHER_KINDS) == sorted(kind.wire_name for kind in EventKind)
    assert set(TABLES) >= {table.path for table in COMPARED}
