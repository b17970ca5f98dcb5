"""The notebook in examples/: it runs from its first to its last cell, on a real server, a lake, and a Spark of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from nbclient import NotebookClient

from penstock.lake.tables import ATTEMPTS, MINUTES
from tests.support import lakes
from tests.support.lakes import DAY, Business, rows_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from penstock.lake.location import Lake

read: Any = nbformat.read
NOTEBOOK = Path(__file__).parents[2] / "examples" / "lake.ipynb"


def text_of(cell: Any) -> str:
    return "".join(each.get("text", "") for each in cell.get("outputs", []))


def test_the_notebook_is_kept_without_what_it_prints() -> None:
    notebook = read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def lake_in(directory: Path, business: Business) -> Lake:
    """Make a lake by hand, which is quicker than a pipeline; that lakes are as pipelines make them is tested with those."""
    lake = business.write(directory)
    ended = {
        "namespace": "default",
        "queue": "mail",
        "outcome": "failed",
        "wait_ms": 5,
        "run_ms": 7,
        "date": business.start // DAY,
    }
    lakes.write(lake, ATTEMPTS, rows_of(ATTEMPTS, [ended]))
    return lake


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of a kernel and its sockets
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    business = Business(minutes=30, queues=(("default", "mail", 20.0),))
    lake = lake_in(tmp_path / "lake", business)
    with ServerProcess(tmp_path / "data", "--lake", lake.address) as server, server.client() as client:
        jobs = [{"data": {"to": number}, "maxAttempts": 1} for number in range(30)]
        assert client.post("/queues/mail/jobs/bulk", json={"jobs": jobs}).status_code == 200
        for number in range(30):
            pulled = client.get("/queues/mail/jobs").json()
            job, token = pulled["job"]["id"], pulled["token"]
            if number < 20:
                client.post(f"/jobs/{job}/ack", json={"token": token}).raise_for_status()
            else:
                error = {"error": f"connection {number} timed out", "token": token}
                client.post(f"/jobs/{job}/fail", json=error).raise_for_status()

        monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")  # a short run
        monkeypatch.setenv("PENSTOCK_URL", server.url)
        monkeypatch.setenv("PENSTOCK_LAKE", lake.address)
        monkeypatch.setenv("PENSTOCK_REPORT", str(tmp_path / "report.html"))
        notebook = read(NOTEBOOK, as_version=4)
        NotebookClient(
            notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
        ).execute()

        said = "\n".join(text_of(cell) for cell in notebook.cells if cell.cell_type == "code")
        assert "10 dead letters" in said
        assert "10 jobs wait in mail-again" in said
        assert "job:completed" in said
        arrivals, done = (sum(row[name] for row in business.rows[MINUTES]) for name in ("arrivals", "completions"))
        assert f"mail       {arrivals} came, {done} were done" in said
        assert re.search(r"\|\s*mail\|\s*failed\|\s*1\|\s*5\.0\|\s*7\.0\|", said)
        assert re.search(r"mail +wait +n=\d+ +p50=\d+ ms", said)
        assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        counts = client.get("/queues/mail-again/counts").json()["counts"]
        assert counts["waiting"] == 10
        (row,) = client.get("/insights/queues").json()["rows"]
        assert (row["arrivals"], row["completions"]) == (arrivals, done)
