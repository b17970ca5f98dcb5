"""What the pages on Spark and the lake print runs as it stands there, on addresses of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.client.testing import inline
from penstock.lake.place import Lake
from tests.docs.blocks import runs
from tests.docs.shell import put
from tests.spark.chaos import counts, values_of
from tests.spark.test_lake import build, builder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.server import ServerProcess

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


@runs("docs/lake.md", "python 2", "python 3")
def test_reading_the_lake(
    blocks: list[str],
    spark: SparkSession,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server.client() as client:
        for _ in range(3):
            client.post("/queues/page-lake/jobs", json={"data": 1, "maxAttempts": 1}).raise_for_status()
            pulled = client.get("/queues/page-lake/jobs").json()
            failed = {"token": pulled["token"], "error": "timeout"}
            client.post(f"/jobs/{pulled['job']['id']}/fail", json=failed).raise_for_status()
    lake = Lake(tmp_path / "lake")
    build(builder(spark, server, lake), lake)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "lake.md", "exec"), names)
    assert names["minutes"].num_rows > 0
    assert (names["attempts"].num_rows, names["jobs"].num_rows) >= (3, 3)
    assert names["p99"] >= 0
