"""What a job is called: kept with it, and shown wherever the job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TcpClient]:
    with TcpClient(server.tcp_port) as opened:
        yield opened


def listed(c: TcpClient, state: str) -> list[Any]:
    return [job.get("name") for job in c.ok("GetJobs", queue=c.queue, state=state)["jobs"]]


def test_a_worker_and_every_listing_see_the_name(client: TcpClient) -> None:
    c = client
    job_id = c.ok("PUSH", queue=c.queue, name="welcome", data={"name": "inner"}, tags=["a"])["id"]
    nameless = c.push()
    assert listed(c, "waiting") == ["welcome", None]
    job = c.ok("PULL", queue=c.queue)["job"]
    assert (job["id"], job["name"], job["data"]) == (job_id, "welcome", {"name": "inner"})
    assert c.ok("GetJob", id=job_id)["job"]["name"] == "welcome"
    assert "name" not in c.ok("GetJob", id=nameless)["job"]
    c.ok("Update", id=job_id, data=2)
    c.ok("FAIL", id=job_id, error="x", unrecoverable=True)
    assert [entry["job"]["name"] for entry in c.ok("Dlq", queue=c.queue)["entries"]] == ["welcome"]


def test_each_of_a_bulk_has_its_own(client: TcpClient) -> None:
    c = client
    c.ok("PUSHB", queue=c.queue, jobs=[{"name": "one", "data": 1}, {"data": 2}, {"name": "three", "data": 3}])
    assert [job.get("name") for job in c.ok("PULLB", queue=c.queue, count=3)["jobs"]] == ["one", None, "three"]
    long = [{"data": 1}, {"data": 1, "name": "x" * 257}]
    assert c.refused("PUSHB", queue=c.queue, jobs=long) == "jobs[1]: name must be at most 256 characters"


def test_over_http(client: TcpClient, server: ServerProcess) -> None:
    base = f"http://127.0.0.1:{server.port}"
    httpx2.post(f"{base}/queues/{client.queue}/jobs", json={"data": 1, "name": "by-http"}).raise_for_status()
    (job,) = httpx2.get(f"{base}/queues/{client.queue}/jobs/list").json()["jobs"]
    assert job["name"] == "by-http"
    assert httpx2.get(f"{base}/queues/{client.queue}/jobs").json()["job"]["name"] == "by-http"


def test_a_job_that_comes_again_keeps_it(client: TcpClient) -> None:
    c = client
    c.ok("PUSH", queue=c.queue, name="again", data=1, repeat={"every": 3_600_000})
    job_id = c.ok("PULL", queue=c.queue)["job"]["id"]
    c.ok("ACK", id=job_id)
    assert listed(c, "delayed") == ["again"]


def test_the_jobs_of_a_cron_have_its_job_name(client: TcpClient) -> None:
    c = client
    spec = {"queue": c.queue, "data": {}, "repeatEvery": 3_600_000, "immediately": True}
    assert c.ok("Cron", name=f"{c.queue}-named", jobName="sweep", **spec)["cron"]["jobName"] == "sweep"
    assert c.ok("CronGet", name=f"{c.queue}-named")["cron"]["jobName"] == "sweep"
    assert "jobName" not in c.ok("Cron", name=f"{c.queue}-nameless", queue=c.queue, data={}, repeatEvery=3_600_000)["cron"]
    assert c.ok("PULL", queue=c.queue, timeout=10_000)["job"]["name"] == "sweep"


def test_it_outlives_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as first, TcpClient(first.tcp_port) as c:
        queue = c.queue
        c.ok("PUSH", queue=queue, name="kept", data=1)
        c.ok("Cron", name="kept", jobName="ticks", queue=queue, data={}, repeatEvery=3_600_000)
        first.kill()
    with ServerProcess(tmp_path / "data") as second, TcpClient(second.tcp_port) as c:
        assert c.ok("PULL", queue=queue)["job"]["name"] == "kept"
        assert c.ok("CronGet", name="kept")["cron"]["jobName"] == "ticks"
