"""What the pages on Spark and the lake print runs as it stands there, on addresses of this machine."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.testing import inline
from penstock.lake.location import Lake
from tests.docs.blocks import runs
from tests.docs.shell import commands, put
from tests.spark.chaos import counts, until, values_of
from tests.spark.console import Console
from tests.spark.test_lake import build, builder
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@runs("docs/spark.md", "python 1")
@pytest.mark.usefixtures("spark")
def test_getting_started(blocks: list[str], server: ServerProcess, tmp_path: Path) -> None:
    """It ends when it is done: what it says is stored by then."""
    changes = {
        "http://127.0.0.1:6790": server.url,
        "/tmp/squares": str(tmp_path / "squares"),
        '"numbers"': '"page-numbers"',
        '"squares"': '"page-squares"',
    }
    exec(compile(put(blocks[0], changes), "spark.md", "exec"), {})
    assert counts(server, "page-numbers")["completed"] == 1_000
    assert counts(server, "page-squares")["waiting"] == 1_000
    assert {'{"square":4.0}', '{"square":998001.0}'} <= set(values_of(server, "page-squares"))


@runs("docs/lake.md", "python 1")
def test_the_task_that_keeps_the_lake(blocks: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is enqueued and run; what it would start is looked at, and run by the tests of the pipeline."""
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, *, check: started.append(command[1:] if check else []))
    names: dict[str, Any] = {"__name__": "upkeep"}
    exec(compile(blocks[0], "lake.md", "exec"), names)
    with inline(names["tasks"]):
        assert names["lake"].enqueue().result() is None
    assert names["lake"].queue == "upkeep"
    assert started == [["-m", "penstock", "pipeline", "run", "--lake", "/data/lake", "--once"]]


@contextmanager
def stopped_in_its_first_batch(lake: Path) -> Iterator[None]:
    """Send this process SIGTERM, as a service manager does, when a pipeline in it has written its first events."""
    first = lake / "bronze" / "events" / "_delta_log" / f"{1:020}.json"
    ended = threading.Event()

    def stop() -> None:
        until(lambda: first.exists() or ended.is_set())
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    watching = threading.Thread(target=stop)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def fail_one(client: httpx2.Client, queue: str, error: str) -> None:
    pulled = client.get(f"/queues/{queue}/jobs").json()
    failed = {"token": pulled["token"], "error": error}
    client.post(f"/jobs/{pulled['job']['id']}/fail", json=failed).raise_for_status()


@runs("docs/lake.md", "sh", "python 2", "python 3")
def test_making_and_reading_a_lake(
    blocks: list[str], spark: SparkSession, server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client:
        for _ in range(3):
            client.post("/queues/page-lake/jobs", json={"data": 1, "maxAttempts": 1}).raise_for_status()
            fail_one(client, "page-lake", "timeout")
    monkeypatch.chdir(tmp_path)
    console = Console(spark, monkeypatch, server.url)
    install, keep, once, *others = commands(blocks[0])
    console.run(install)
    with stopped_in_its_first_batch(tmp_path / "lake"):
        said = console.run(put(keep, {"http://127.0.0.1:6790": server.url}))
        assert "Stopping after this batch" in said
        assert " events in 1 batches" in said
        assert ": 0 events in 0 batches" in console.run(once)
    for command in others:
        console.run(command)
    names: dict[str, Any] = {}
    for block in blocks[1:]:
        exec(compile(block, "lake.md", "exec"), names)
    assert names["minutes"].num_rows > 0
    assert (names["attempts"].num_rows, names["jobs"].num_rows) >= (3, 3)
    assert names["p99"] >= 0


@runs("docs/replay.md", "sh")
def test_jobs_once_more(blocks: list[str], spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ServerProcess(tmp_path / "data") as server:
        with server.client() as client:
            job = {"data": {"country": "NL"}, "maxAttempts": 6, "backoff": 0}
            client.post("/queues/mail/jobs", json=job).raise_for_status()
            for number in range(6):
                fail_one(client, "mail", "timeout" if number else "connection reset by peer")
        assert counts(server, "mail")["failed"] == 1
        lake = Lake("lake")
        build(builder(spark, server, lake), lake)
        console = Console(spark, monkeypatch, server.url)
        (look, do), by_columns, by_past = (commands(each) for each in blocks)
        assert "1 jobs would be put on mail" in console.run(look)
        for command in (put(by_columns[0], {"2026-11-01": "2020-01-01"}), *by_columns[1:], *by_past):
            assert "1 jobs would be put on mail" in console.run(command), command
        assert "1 jobs were put on mail." in console.run(do)
        assert counts(server, "mail")["waiting"] == 1


@runs("docs/spark.md", "sh 1")
def test_the_doctor(blocks: list[str], spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it counts with the session there is; that one starts is seen by all tests of this directory."""
    console = Console(spark, monkeypatch)
    said = [console.run(command) for command in commands(blocks[0])]
    assert f"{spark.version} starts and counts" in said[-1]
