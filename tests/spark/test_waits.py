"""How long jobs waited, attempt by attempt: what the lake says is what the server showed while the attempt ran."""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.lake.location import LAKE_INFO, Lake
from penstock.lake.tables import ATTEMPTS, EVENTS, LATENCY, MINUTES, TENANTS
from penstock.lake.writer import FORGOTTEN_MARK, PartWriter, commit, replace_all
from penstock.spark.pipeline.lake_info import FORMAT
from penstock.spark.pipeline.migrate import WITH_WAITS
from tests.spark.chaos import until
from tests.spark.test_lake import build, builder
from tests.support.lakes import rows_of, write
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

QUEUE = "retries"
#: Each attempt waits for at least so long after it was due, in ms.
WAIT_MS = 40


class Attempts:
    """Takes a job as often as it comes, and works out by hand how long each attempt waited."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client
        self.waits: list[tuple[str, int]] = []

    def push(self, **job: Any) -> str:
        pushed: str = self._ask("POST", f"/queues/{QUEUE}/jobs", data="x", **job)["id"]
        return pushed

    def take(self, job: str, outcome: str, **pull: Any) -> str:
        """Let the job wait for a while once it is due, take it, and note what the server shows then. Return the token."""
        until(lambda: self._shown(job)["state"] == "waiting")
        self._client.get(f"/queues/empty/jobs?timeout={WAIT_MS}")  # the answer comes when that time is over
        pulled = self._ask("POST", f"/queues/{QUEUE}/jobs/pull-batch", count=1, **({"lockTtl": 3_600_000} | pull))
        (shown,) = pulled["jobs"]
        assert shown["id"] == job
        wait = shown["startedAt"] - max(shown["createdAt"], shown["runAt"])
        assert wait >= WAIT_MS
        self.waits.append((outcome, wait))
        return str(pulled["tokens"][0])

    def fail(self, job: str) -> None:
        self._ask("POST", f"/jobs/{job}/fail", error="broken", token=self.take(job, "failed"))

    def stall(self, job: str) -> None:
        """Take a job, and be silent for longer than its lease."""
        self.take(job, "stalled", lockTtl=1)

    def release(self, job: str) -> None:
        self._ask("POST", "/jobs/release-batch", ids=[job], tokens=[self.take(job, "released")])

    def complete(self, job: str) -> None:
        self._ask("POST", f"/jobs/{job}/ack", token=self.take(job, "completed"))

    def _shown(self, job: str) -> dict[str, Any]:
        shown: dict[str, Any] = self._ask("GET", f"/jobs/{job}")["job"]
        return shown

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        reply = self._client.request(method, path, json=body or None)
        assert reply.status_code < 300, (path, reply.text)
        return reply.json()


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, list[tuple[str, int]]]]:
    """A server on which jobs failed and were tried again in all ways there are, and their waits, worked out by hand."""
    place = tmp_path_factory.mktemp("tried")
    with ServerProcess(place / "data", "--lake", str(place / "lake")) as server, server.client() as client:
        work = Attempts(client)
        again = work.push(maxAttempts=9, backoff=1)
        work.fail(again)
        work.stall(again)
        work.fail(again)
        work.release(again)
        work.complete(again)
        at_once = work.push(maxAttempts=3, backoff=0)
        work.fail(at_once)
        work.fail(at_once)
        work.fail(at_once)  # the last one
        late = work.push(delay=5)
        work.complete(late)
        yield server, work.waits


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tried: tuple[ServerProcess, list[tuple[str, int]]]) -> Lake:
    found = Lake(tried[0].data.parent / "lake")
    build(builder(spark, tried[0], found), found)
    return found


def test_waits_of_attempts_that_are_tried_again_are_those_the_server_showed(
    tried: tuple[ServerProcess, list[tuple[str, int]]], lake: Lake
) -> None:
    server, waits = tried
    rows = sorted(lake.read(ATTEMPTS).to_pylist(), key=lambda row: row["seq"])
    assert [(row["outcome"], row["wait_ms"]) for row in rows] == waits
    assert all(row["created_at"] <= row["run_at"] <= row["started_at"] <= row["ended_at"] for row in rows)
    # Totals: what was given back untouched is no wait of its own.
    counted = [wait for outcome, wait in waits if outcome != "released"]
    for table in (MINUTES, TENANTS):
        found = lake.read(table)
        assert (pc.sum(found["waits"]).as_py(), pc.sum(found["wait_ms"]).as_py()) == (len(counted), sum(counted))
    cells = [row for row in lake.read(LATENCY).to_pylist() if row["kind"] == "wait"]
    assert (sum(row["n"] for row in cells), sum(row["sum_ms"] for row in cells)) == (len(counted), sum(counted))
    with server.client() as client:
        (told,) = client.get(f"/insights/latency?queue={QUEUE}&kind=wait&whole=yes").json()["rows"]
        assert (told["n"], told["mean_ms"]) == (len(counted), pytest.approx(sum(counted) / len(counted)))
        # None of them was taken at once, which is what an objective of less than that has to say.
        (objective,) = client.get(f"/insights/slo?queue={QUEUE}").json()["rows"]
        assert objective["jobs"] == len(counted)


def age(lake: Lake) -> None:
    """Make a lake look as an earlier version made it: no ``due_at``, and a wait of 0 where the next attempt's time was told."""
    lake.put_text(LAKE_INFO, json.dumps({"format": 1, "namespace": "*"}))
    for table in (EVENTS, *WITH_WAITS):
        rows = lake.read(table)
        for name in {"due_at", "wait_ms"} & set(rows.column_names):
            value = None if name == "due_at" else 0
            gone = pa.array([value] * rows.num_rows, table.schema.field(name).type)
            rows = rows.set_column(rows.column_names.index(name), name, gone)
        writer = PartWriter(lake, table, "aged")
        writer.write(rows)
        replace_all(lake, table, writer.close(), marks={}, now_ms=0)


def test_a_lake_of_an_earlier_version_is_migrated_and_tells_no_waits_it_does_not_know(
    spark: SparkSession, tried: tuple[ServerProcess, list[tuple[str, int]]], tmp_path: Path
) -> None:
    server, waits = tried
    lake = Lake(tmp_path / "lake")
    build(builder(spark, server, lake), lake)
    age(lake)
    # Of an earlier day only gold is left: bronze has forgotten it.
    forgotten = {"namespace": "default", "queue": QUEUE, "minute": 0, "waits": 1, "wait_ms": 0}
    write(lake, MINUTES, rows_of(MINUTES, [forgotten]))
    first = min(lake.read(EVENTS, columns=["date"])["date"].to_pylist())
    commit(lake, EVENTS, [], marks={FORGOTTEN_MARK: (first - date(1970, 1, 1)).days}, now_ms=0)

    told = build(builder(spark, server, lake), lake)
    (line,) = [each for each in told if "took waits of attempts that were tried again for 0" in each]
    assert f"Days before {first} stay as they are" in line
    card = json.loads(lake.text(LAKE_INFO) or "")
    assert (card["format"], card["namespace"]) == (FORMAT, "*")
    rows = sorted(lake.read(ATTEMPTS).to_pylist(), key=lambda row: row["seq"])
    again = {"failed", "stalled"}
    known = [
        None if outcome in again and not is_last else wait
        for (outcome, wait), is_last in zip(waits, [False] * 7 + [True, False], strict=True)
    ]
    assert [row["wait_ms"] for row in rows] == known
    assert [row["run_at"] is None for row in rows] == [wait is None for wait in known]
    counted = [wait for (outcome, _), wait in zip(waits, known, strict=True) if wait is not None and outcome != "released"]
    minutes = lake.read(MINUTES)
    assert (pc.sum(minutes["waits"]).as_py(), pc.sum(minutes["wait_ms"]).as_py()) == (len(counted) + 1, sum(counted))
    assert pc.sum(lake.read(TENANTS)["wait_ms"]).as_py() == sum(counted)
    # Once is enough, and what comes next goes on as ever.
    with server.client() as client:
        assert client.post(f"/queues/{QUEUE}/jobs", json={"data": "x"}).status_code == 200
    (line,) = build(builder(spark, server, lake), lake)
    assert line.startswith("batch 1: ")
