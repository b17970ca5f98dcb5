"""Dead letters and history that are put on a queue once more: exactly once, with their origin, and never by mistake."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import write_deltalake

from penstock.cli.main import main
from penstock.lake.location import Lake, fitted
from penstock.lake.tables import ATTEMPTS, JOBS
from penstock.spark import options
from penstock.spark.http_client import BulkClient
from penstock.spark.replay import HEADER
from tests.spark.chaos import fill, values_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def jobs_of(server: ServerProcess, queue: str) -> list[dict[str, Any]]:
    with BulkClient(options.for_batch({"url": server.url, "table": "jobs"})) as wire:
        taken = wire.post("/bulk/snapshots", {"table": "jobs", "queues": [queue]})
        parts = [f"/bulk/snapshots/{taken['id']}/parts/{each['part']}" for each in taken["parts"]]
        return [row for part in parts for rows in wire.rows(part) for row in rows.to_pylist()]


def test_dead_letters_and_history(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:

        def run(*args: str) -> Result:
            return CliRunner().invoke(main, ["pipeline", "replay", "--url", server.url, *args])

        fill(server, "mail", [json.dumps({"to": number}) for number in range(20)])
        with server.client() as client:
            client.post("/queues/mail/jobs", json={"data": {"to": 20}, "maxAttempts": 1, "metadata": {"who": "me"}})
            for number in range(21):
                pulled = client.get("/queues/mail/jobs").json()
                job, token = pulled["job"], pulled["token"]
                if number % 2:
                    client.post(f"/jobs/{job['id']}/ack", json={"token": token}).raise_for_status()
                else:
                    body = {"error": f"timeout of {number}", "token": token, "unrecoverable": True}
                    client.post(f"/jobs/{job['id']}/fail", json=body).raise_for_status()
        dead = [row for row in jobs_of(server, "mail") if row["state"] == "failed"]
        assert len(dead) == 11

        # What would be done, and mistakes.
        shown = run("--where", "error like 'timeout%'", "--queue", "again", "--dry-run")
        assert shown.exit_code == 0, shown.output
        assert "11 jobs would be put on again" in shown.output
        assert "failed in mail" in shown.output
        assert '{"to":0}' in shown.output.replace(" ", "")
        wrong = run("--where", "eror like 'x'", "--queue", "again")
        assert wrong.exit_code == 2
        assert "--where is no condition on jobs" in wrong.output
        assert "eror" in wrong.output
        assert "The columns are: namespace, queue, id" in wrong.output
        assert "--where is no condition on jobs" in run("--where", "error like", "--queue", "again").output
        assert "--where is empty" in run("--where", " ", "--queue", "again").output
        cast = run("--where", "int(error) > 5", "--queue", "again")
        assert cast.exit_code == 2
        assert "--where cannot be worked out for all jobs: [CAST_INVALID_INPUT] The value 'timeout of" in cast.output
        assert "Traceback" not in cast.output
        assert "Queue name contains invalid characters" in run("--where", "true", "--queue", "no name").output
        assert "of one namespace, so name one" in run("--where", "true", "--queue", "again", "--namespace", "*").output
        assert values_of(server, "again") == []

        # Once, however often it is asked for; a limit takes the oldest.
        few = ("--where", "get_json_object(string(value), '$.to') < 6", "--queue", "again", "--limit", "2")
        assert "2 jobs were put on again." in run(*few).output
        assert "This was done before" in run(*few).output
        found = jobs_of(server, "again")
        assert sorted(json.loads(row["value"])["to"] for row in found) == [0, 2]
        assert {json.loads(row["headers"])[HEADER] for row in found} <= {row["id"] for row in dead}
        assert "2 jobs were put on again." in run(*few, "--again").output
        assert len(jobs_of(server, "again")) == 4
        assert "No job matches" in run("--where", "false", "--queue", "again").output
        done = run("--where", "true", "--queue", "done", "--from-state", "completed", "--from-queue", "mail")
        assert "10 jobs were put on done." in done.output

        # With what the lake knows.
        lake = Lake(tmp_path / "lake")
        assert "there is no table silver/attempts" in run("--where", "true", "--queue", "x", "--lake", lake.address).output
        day, at = date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC)
        base = {"namespace": "default", "date": day, "batch": 1}
        seen = [
            base | {"job_id": row["id"], "failures": 1, "last_at": at, "last_seq": 1, "state": "waiting"} for row in dead
        ]
        seen += [each | {"failures": number, "state": "dead", "last_seq": 2} for number, each in enumerate(seen[:3])]
        tried = [base | {"job_id": dead[0]["id"], "outcome": "stalled", "attempt": 1}]
        for table, rows in ((JOBS, seen), (ATTEMPTS, tried)):
            lake.ensure(table)
            names = [name for name in table.schema.names if name in rows[0]]
            given = pa.Table.from_pylist(rows, schema=pa.schema([table.schema.field(name) for name in names]))
            write_deltalake(lake.uri(table), fitted(given, table.schema), mode="append")
        past = "history.failures >= 2 and history.state = 'dead'"
        assert "2 jobs were put on past." in run("--where", past, "--queue", "past", "--lake", lake.address).output
        stalled = "id in (select job_id from attempts where outcome = 'stalled')"
        assert "1 jobs were put on stalled." in run("--where", stalled, "--queue", "stalled", "--lake", lake.address).output

        # A job that is put back twice says where it came from last, and keeps what else it had.
        with_headers = jobs_of(server, "mail")[-1]
        assert HEADER not in (with_headers["headers"] or "")
        both = run("--where", "true", "--queue", "second", "--from-queue", "again", "--from-state", "waiting")
        assert "4 jobs were put on second." in both.output
        origins = [json.loads(row["headers"]) for row in jobs_of(server, "second")]
        assert {row[HEADER] for row in origins} == {row["id"] for row in jobs_of(server, "again")}


def test_a_server_that_is_not_there_is_noticed_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.lake._PATIENCE_MS", 0)
    monkeypatch.setattr("penstock.cli.replay._session", lambda _master: pytest.fail("Spark was started"))
    said = CliRunner().invoke(main, ["pipeline", "replay", "--url", "http://127.0.0.1:1", "--where", "true", "--queue", "x"])
    assert said.exit_code == 2
    assert "No answer to GET /bulk" in said.output
