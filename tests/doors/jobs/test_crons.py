"""Jobs door: crons, and jobs that repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.doors.api import Api
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

NIGHTLY = {"schedule": "0 2 * * *", "timezone": "America/New_York"}


def add(api: Api, name: str = "", **more: Any) -> Any:
    body = {"name": name or api.queue, "queue": api.queue, "data": {"task": "clean"}, **more}
    return api.ok("POST", "/crons", body)["cron"]


def test_a_cron_is_added_found_listed_and_deleted(api: Api) -> None:
    added = add(api, **NIGHTLY)
    assert added == {
        "name": api.queue, "queue": api.queue, "schedule": "0 2 * * *", "repeatEvery": None, "nextRun": added["nextRun"],
        "timezone": "America/New_York",
    }  # fmt: skip
    shown = {**added, "executions": 0, "maxLimit": None}
    assert api.ok("GET", f"/crons/{api.queue}") == {"ok": True, "cron": shown}
    assert shown in api.ok("GET", "/crons")["crons"]
    assert api.ok("DELETE", f"/crons/{api.queue}") == {"ok": True}
    assert shown not in api.ok("GET", "/crons")["crons"]
    assert api.refused("GET", f"/crons/{api.queue}") == (404, "Cron job not found")
    assert api.refused("DELETE", f"/crons/{api.queue}") == (404, "Cron job not found")


def test_an_interval_in_utc_is_the_other_way(api: Api) -> None:
    added = add(api, repeatEvery=60_000, maxLimit=3, schedule=None, priority=5)
    assert (added["schedule"], added["repeatEvery"], added["timezone"]) == (None, 60_000, "UTC")
    assert api.ok("GET", f"/crons/{api.queue}")["cron"]["maxLimit"] == 3


@pytest.mark.parametrize("name", ["a/b", "with space", "ü?#%", "custom/deep/name", "x" * 256])
def test_names_are_peoples_own(api: Api, name: str) -> None:
    name = f"{api.queue[:20]}{name}"[:256]
    add(api, name, **NIGHTLY)
    path = f"/crons/{quote(name, safe='')}"
    assert api.ok("GET", path)["cron"]["name"] == name
    assert api.ok("DELETE", path) == {"ok": True}
    assert api.refused("GET", path) == (404, "Cron job not found")


def test_a_cron_pushes_jobs_and_is_gone_at_its_limit(api: Api) -> None:
    add(api, repeatEvery=20, maxLimit=2, priority=5)
    for _ in range(2):
        job = api.pull(timeout=10_000)
        assert (job["data"], job["priority"], job["uniqueKey"]) == ({"task": "clean"}, 5, f"cron:{api.queue}")
        api.ok("POST", f"/jobs/{job['id']}/ack", {})
    assert api.refused("GET", f"/crons/{api.queue}") == (404, "Cron job not found")
    assert api.counts()["completed"] == 2


def test_immediately_and_an_update_that_keeps_the_count(api: Api) -> None:
    first = add(api, repeatEvery=3_600_000, immediately=True)
    assert api.pull(timeout=10_000)["data"] == {"task": "clean"}
    again = add(api, repeatEvery=7_200_000, immediately=True)
    shown = api.ok("GET", f"/crons/{api.queue}")["cron"]
    assert (shown["executions"], shown["repeatEvery"]) == (1, 7_200_000)
    assert again["nextRun"] > first["nextRun"] + 3_600_000
    assert api.pull() is None


def test_crons_are_apart_by_namespace(api: Api) -> None:
    add(api, **NIGHTLY)
    elsewhere = {"X-Namespace": f"ns-{api.queue}"}
    assert api.ok("GET", "/crons", headers=elsewhere)["crons"] == []
    assert api.refused("DELETE", f"/crons/{api.queue}", headers=elsewhere) == (404, "Cron job not found")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": None}, "name is required"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "x" * 257}, "name must be at most 256 characters"),
        ({"name": "a\x00b"}, "name contains invalid characters"),
        ({"name": 5}, "name must be a string"),
        ({"queue": None}, "queue is required"),
        ({"queue": ""}, "Queue name is required"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
        ({"queue": "q" * 257}, "Queue name too long (max 256 characters)"),
        ({"schedule": None}, "Cron job must have either schedule or repeatEvery"),
        ({"repeatEvery": 1_000}, "Cron job must have either schedule or repeatEvery"),
        ({"schedule": "nonsense"}, "Invalid cron expression: Wrong number of fields"),
        ({"schedule": ""}, "Invalid cron expression: Wrong number of fields"),
        ({"schedule": "99 * * * *"}, "Invalid cron expression: Bad minute"),
        ({"schedule": "0 0 30 2 *"}, "Invalid cron expression: Bad day-of-month"),
        ({"schedule": 5}, "schedule must be a string"),
        ({"schedule": "* " * 300}, "schedule must be at most 256 characters"),
        ({"timezone": "Mars/Olympus"}, "Invalid timezone: Mars/Olympus"),
        ({"schedule": None, "repeatEvery": 0}, "repeatEvery must be at least 1"),
        ({"schedule": None, "repeatEvery": 1.5}, "repeatEvery must be an integer"),
        ({"schedule": None, "repeatEvery": "x"}, "repeatEvery must be a number"),
        ({"priority": 1.5}, "priority must be an integer"),
        ({"priority": 1_000_001}, "priority must be at most 1000000"),
        ({"maxLimit": 0}, "maxLimit must be at least 1"),
        ({"preventOverlap": "no"}, "preventOverlap must be a boolean"),
        ({"data": "x" * (10 * 1024 * 1024)}, "Job data too large (max 10MB)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_cron_is_refused(api: Api, change: dict[str, Any], error: str) -> None:
    body = {"name": api.queue, "queue": api.queue, "data": 1, **NIGHTLY, **change}
    assert api.refused("POST", "/crons", body) == (400, error)
    assert api.refused("GET", f"/crons/{api.queue}") == (404, "Cron job not found")


def test_a_cron_needs_data_and_json(api: Api) -> None:
    assert api.refused("POST", "/crons", {"name": "a", "queue": "b", **NIGHTLY}) == (400, "data is required")
    assert api.refused("POST", "/crons", content=b"{") == (400, "Invalid JSON body")
    assert api.refused("POST", "/crons", content=b"") == (400, "Invalid JSON body")


def test_crons_are_counted(api: Api) -> None:
    add(api, **NIGHTLY)
    lines = api.http.get("/prometheus").text.splitlines()
    (line,) = (line for line in lines if line.startswith("bunqueue_cron_jobs_total "))
    assert float(line.split()[1]) >= 1


@pytest.mark.parametrize(
    "repeat", [{"every": 10, "limit": 1}, {"cron": "* * * * * *", "limit": 1}, {"pattern": "* * * * * *"}]
)
def test_a_job_comes_again_under_a_new_id(api: Api, repeat: dict[str, Any]) -> None:
    first = api.push({"n": 1}, repeat=repeat, tags=["a"])
    assert api.pull()["id"] == first
    api.ok("POST", f"/jobs/{first}/ack", {})
    again = api.pull(timeout=10_000)
    assert again["id"] != first
    assert (again["data"], again["tags"]) == ({"n": 1}, ["a"])
    api.ok("POST", f"/jobs/{again['id']}/ack", {})
    if "limit" in repeat:
        assert api.pull(timeout=50) is None
    else:
        api.ok("POST", "{q}/drain")


def test_a_cron_survives_a_crash_with_its_count_and_fires_nothing_for_it(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    with server, server.client() as client:
        api = Api(client, "crash")
        add(api, "often", repeatEvery=3_600_000, immediately=True)
        job = api.pull(timeout=10_000)
        api.ok("POST", f"/jobs/{job['id']}/ack", {})
        add(api, "nightly", **NIGHTLY)
        crons = api.ok("GET", "/crons")["crons"]
        assert [cron["executions"] for cron in crons] == [0, 1]
        server.kill()
    with server, server.client() as client:
        api = Api(client, "crash")
        assert api.ok("GET", "/crons")["crons"] == crons
        assert api.pull() is None


def test_no_repeat_is_no_repeat(api: Api) -> None:
    job_id = api.push(repeat=None)
    api.pull()
    api.ok("POST", f"/jobs/{job_id}/ack", {})
    assert api.pull() is None
