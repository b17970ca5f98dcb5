"""Jobs door: looking jobs up, and intervening in their lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import UNKNOWN_ID, Api
from tests.support import stores

if TYPE_CHECKING:
    from tests.support.server import ServerProcess


@pytest.mark.skipif(stores.chosen() == "redis", reason="what is on a ready list counts as active, see docs/redis.md")
def test_a_job_can_be_looked_up_in_every_state(api: Api) -> None:
    jobs = {
        "waiting": api.push(priority=-9),
        "delayed": api.push(delay=60_000),
        "completed": api.completed(),
        "failed": api.dead(),
        "active": api.active(),
    }
    for state, job_id in jobs.items():
        assert api.ok("GET", f"/jobs/{job_id}/state") == {"ok": True, "id": job_id, "state": state}
        assert api.job(job_id)["state"] == state


@pytest.mark.parametrize("job_id", [UNKNOWN_ID, "order-nobody", "0", "x" * 2_000, "%00", "ä", "{}", "a b"])
def test_an_unknown_job_is_not_found_anywhere(api: Api, job_id: str) -> None:
    assert api.refused("GET", f"/jobs/{job_id}") == (404, "Job not found")
    assert api.refused("GET", f"/jobs/custom/{job_id}") == (404, "Job not found")
    assert api.refused("DELETE", f"/jobs/{job_id}") == (404, "Job not found")
    assert api.call("GET", f"/jobs/{job_id}/state").json()["state"] == "unknown"
    assert "result" not in api.ok("GET", f"/jobs/{job_id}/result")


def test_only_a_completed_job_has_a_result(api: Api) -> None:
    assert set(api.ok("GET", f"/jobs/{api.push()}/result")) == {"ok", "id"}


@pytest.mark.parametrize("kind", ["waiting", "delayed", "active"])
def test_cancelling(api: Api, kind: str) -> None:
    job_id = {"waiting": api.push, "delayed": lambda: api.push(delay=60_000), "active": api.active}[kind]()
    assert api.call("DELETE", f"/jobs/{job_id}").json() == {"ok": True}
    assert api.state(job_id) == "unknown"
    assert api.refused("POST", f"/jobs/{job_id}/ack") == (400, "Job not found or not active")


def test_a_finished_job_cannot_be_cancelled(api: Api) -> None:
    assert api.refused("DELETE", f"/jobs/{api.completed()}") == (400, "Job not found or cannot be cancelled")


def test_data_is_replaced_as_a_whole(api: Api) -> None:
    for job_id in (api.push({"a": 1, "b": 2}), api.push({"a": 1}, delay=60_000)):
        api.ok("PUT", f"/jobs/{job_id}/data", {"data": {"a": 3}})
        assert api.job(job_id)["data"] == {"a": 3}
    error = "Job not found or cannot be updated"
    assert api.refused("PUT", f"/jobs/{UNKNOWN_ID}/data", {"data": 1}) == (400, error)
    assert api.refused("PUT", f"/jobs/{job_id}/data", {}) == (400, "data is required")
    assert api.call("PUT", f"/jobs/{job_id}/data", content=b"x").status_code == 400


def test_data_of_an_active_job_is_replaced_and_of_a_finished_one_is_not(api: Api) -> None:
    job_id = api.active(data=1)
    api.ok("PUT", f"/jobs/{job_id}/data", {"data": 2})
    assert api.job(job_id)["data"] == 2
    error = "Job not found or cannot be updated"
    assert api.refused("PUT", f"/jobs/{api.completed()}/data", {"data": 1}) == (400, error)


def test_priority_changes_the_order(api: Api) -> None:
    api.push("first")
    second = api.push("second")
    api.ok("PUT", f"/jobs/{second}/priority", {"priority": 100})
    assert api.pull()["data"] == "second"
    error = "Job not found or not in queue"
    assert api.refused("PUT", f"/jobs/{second}/priority", {"priority": 1}) == (400, error)
    assert api.refused("PUT", f"/jobs/{UNKNOWN_ID}/priority", {"priority": 1}) == (400, error)
    assert api.refused("PUT", f"/jobs/{second}/priority", {}) == (400, "priority is required")
    assert api.refused("PUT", f"/jobs/{second}/priority", {"priority": 1.5}) == (400, "priority must be an integer")


@pytest.mark.parametrize("route", ["promote", "move-to-wait"])
def test_promoting(api: Api, route: str) -> None:
    job_id = api.push(delay=60_000)
    assert api.call("POST", f"/jobs/{job_id}/{route}").json() == {"ok": True}
    error = (400, "Job not found or not delayed")
    assert api.refused("POST", f"/jobs/{job_id}/{route}") == error
    assert api.pull()["id"] == job_id
    assert api.refused("POST", f"/jobs/{job_id}/{route}") == error
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/{route}") == error


def test_moving_an_active_job_to_delayed(api: Api) -> None:
    job_id = api.active()
    api.ok("POST", f"/jobs/{job_id}/move-to-delayed", {"delay": 100})
    assert api.state(job_id) == "delayed"
    again = api.pull(timeout=20_000)
    assert (again["id"], again["attempts"]) == (job_id, 0)
    error = (400, "Job not found or not active")
    assert api.refused("POST", f"/jobs/{api.push()}/move-to-delayed", {"delay": 1}) == error
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/move-to-delayed", {"delay": 1}) == error
    assert api.refused("POST", f"/jobs/{job_id}/move-to-delayed", {}) == (400, "delay is required")


def test_changing_a_delay(api: Api) -> None:
    job_id = api.push(delay=60_000)
    before = api.job(job_id)["runAt"]
    api.ok("PUT", f"/jobs/{job_id}/delay", {"delay": 30_000})
    assert api.job(job_id)["runAt"] < before
    api.ok("PUT", f"/jobs/{job_id}/delay", {"delay": 0})
    assert api.pull(timeout=20_000)["id"] == job_id
    error = (400, "Job not found or cannot change delay")
    assert api.refused("PUT", f"/jobs/{job_id}/delay", {"delay": 5}) == error
    assert api.refused("PUT", f"/jobs/{UNKNOWN_ID}/delay", {"delay": 5}) == error
    assert api.refused("PUT", f"/jobs/{job_id}/delay", {"delay": -5}) == (400, "delay must be at least 0")


@pytest.mark.parametrize("kind", ["waiting", "delayed", "active"])
def test_discarding(api: Api, kind: str) -> None:
    job_id = {"waiting": api.push, "delayed": lambda: api.push(delay=60_000), "active": api.active}[kind]()
    assert api.call("POST", f"/jobs/{job_id}/discard").json() == {"ok": True}
    (dead,) = api.ok("GET", "{q}/dlq")["jobs"]
    assert (dead["id"], dead["state"], dead["reason"]) == (job_id, "failed", "discarded")
    assert api.refused("POST", f"/jobs/{job_id}/discard")[0] == 400
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/discard") == (400, "Job not found")


def test_a_lifetime_ends_a_job_that_nobody_wants(api: Api) -> None:
    job_id = api.push(ttl=50)
    waited = api.ok("POST", f"/jobs/{job_id}/wait", {"timeout": 20_000})
    assert waited["completed"] is False
    assert api.state(job_id) == "unknown"
    assert api.counts()["failed"] == 0


def test_a_timeout_takes_a_job_from_its_worker(api: Api) -> None:
    job_id = api.push(timeout=50, maxAttempts=1)
    api.take(lockTtl=60_000)
    api.ok("POST", f"/jobs/{job_id}/wait", {"timeout": 20_000})
    (dead,) = api.ok("GET", "{q}/dlq")["jobs"]
    assert (dead["error"], dead["reason"]) == ("Job timeout exceeded", "timeout")


# Namespaces.


def test_another_namespace_sees_nothing_of_it(api: Api, server: ServerProcess) -> None:
    job_id = api.push(1, jobId=f"own-{api.queue}")
    uuid = api.push(2)
    with server.client(headers={"X-Namespace": "other"}) as client:
        other = Api(client, api.queue)
        for known in (job_id, uuid):
            assert other.refused("GET", f"/jobs/{known}") == (404, "Job not found")
            assert other.state(known) == "unknown"
            assert other.refused("POST", f"/jobs/{known}/discard") == (400, "Job not found")
        assert other.pull() is None
        assert other.counts()["waiting"] == 0
        assert api.queue not in other.ok("GET", "/queues")["queues"]
        assert other.push(3, jobId=f"own-{api.queue}") == job_id
        assert other.pull()["data"] == 3
    assert api.counts()["waiting"] == 2


@pytest.mark.parametrize("name", ["a b", "ä".encode(), "x" * 129, "a/b"])
def test_a_bad_namespace_is_refused(api: Api, name: Any) -> None:
    status, error = api.refused("GET", "{q}/jobs", headers={"X-Namespace": name})
    assert (status, error) == (400, "X-Namespace contains invalid characters or is too long")
