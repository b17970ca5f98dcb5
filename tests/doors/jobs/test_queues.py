"""Jobs door: queues, dead letters, limits, settings."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.doors.api import UNKNOWN_ID, Api
from tests.support import stores


def test_queues_are_listed_once_a_job_was_pushed_and_until_obliterated(api: Api) -> None:
    assert api.queue not in api.ok("GET", "/queues")["queues"]
    api.ok("POST", "{q}/pause")
    assert api.queue not in api.ok("GET", "/queues")["queues"]
    api.push()
    assert api.queue in api.ok("GET", "/queues")["queues"]
    api.ok("POST", "{q}/drain")
    assert api.queue in api.ok("GET", "/queues")["queues"]
    assert api.ok("POST", "{q}/obliterate") == {"ok": True}
    assert api.queue not in api.ok("GET", "/queues")["queues"]
    assert api.ok("GET", "{q}/paused")["paused"] is False


@pytest.mark.skipif(stores.chosen() == "redis", reason="what is on a ready list counts as active, see docs/redis.md")
def test_listing_by_state_in_order_of_priority(api: Api) -> None:
    done, dead = api.completed(), api.dead()
    active = api.active(priority=3)
    low, high = api.push("low"), api.push("high", priority=9)
    delayed = api.push("later", delay=60_000, priority=5)

    def listed(**query: Any) -> list[str]:
        return [job["id"] for job in api.ok("GET", "{q}/jobs/list", params=query)["jobs"]]

    assert listed(state="waiting") == [high, low]
    assert listed(state="delayed") == [delayed]
    assert listed(state="active") == [active]
    assert listed(state="completed") == [done]
    assert listed(state="failed") == [dead]
    assert listed(state="waiting,delayed") == [high, delayed, low]
    assert listed()[:3] == [high, delayed, active]
    assert len(listed()) == 6
    assert listed(state="waiting", limit=1) == [high]
    assert listed(state="waiting", limit=1, offset=1) == [low]
    assert listed(state="waiting", offset=5) == []
    assert listed(limit=0) == []
    assert api.ok("GET", "{q}/jobs/list")["jobs"][0]["state"] == "waiting"
    assert listed(state="prioritized") == [high]
    assert listed(state="prioritized,delayed") == [high, delayed]
    assert listed(state="paused") == []
    counts = api.counts()
    for state, count in counts.items():
        assert len(listed(state=state)) == count
    api.ok("POST", "{q}/pause")
    assert listed(state="paused") == listed(state="waiting") == [high, low]
    counts = api.counts()
    assert (counts["waiting"], counts["prioritized"], counts["paused"]) == (2, 1, 2)


def test_figures_of_the_dead_letters(api: Api) -> None:
    assert api.ok("GET", "{q}/dlq/stats")["stats"]["total"] == 0
    api.dead()
    api.dead()
    stats = api.ok("GET", "{q}/dlq/stats")["stats"]
    assert (stats["total"], stats["byReason"]["max_attempts_exceeded"], stats["byQueue"]) == (2, 2, {api.queue: 2})
    assert stats["oldestEntry"] <= stats["newestEntry"]


def test_all_queues_are_summed_up_in_one_answer(api: Api) -> None:
    api.dead()
    api.push(priority=5)
    api.ok("POST", "{q}/pause")
    (found,) = [each for each in api.call("GET", "/queues/summary").json() if each["name"] == api.queue]
    counts = {"waiting": 1, "active": 0, "delayed": 0, "completed": 0, "failed": 1}
    assert found == {"name": api.queue, "paused": True, "counts": counts}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (
            {"state": "nonsense"},
            "state must be one of: waiting, delayed, active, completed, failed, waiting-children, prioritized, paused",
        ),
        ({"limit": -1}, "limit must be at least 0"),
        ({"limit": "NaN"}, "limit must be a finite number"),
        ({"limit": 1.5}, "limit must be an integer"),
        ({"offset": "x"}, "offset must be a number"),
        ({"offset": -1}, "offset must be at least 0"),
    ],
)
def test_a_bad_listing_is_refused(api: Api, query: dict[str, Any], error: str) -> None:
    assert api.refused("GET", "{q}/jobs/list", params=query) == (400, error)


def test_an_unknown_queue_is_an_empty_one(api: Api) -> None:
    assert api.ok("GET", "{q}/jobs/list")["jobs"] == []
    assert api.counts() == {
        "waiting": 0,
        "active": 0,
        "delayed": 0,
        "completed": 0,
        "failed": 0,
        "waiting-children": 0,
        "prioritized": 0,
        "paused": 0,
    }
    assert api.ok("GET", "{q}/count") == {"ok": True, "count": 0}
    assert api.ok("GET", "{q}/priority-counts") == {"ok": True, "queue": api.queue, "counts": {}}
    assert api.ok("GET", "{q}/paused") == {"ok": True, "paused": False}
    assert api.ok("GET", "{q}/dlq") == {"ok": True, "jobs": []}
    for route in ("drain", "dlq/retry", "dlq/purge", "promote-jobs", "retry-completed"):
        assert api.ok("POST", f"{{q}}/{route}") == {"ok": True, "count": 0}


def test_counting(api: Api) -> None:
    api.completed()
    api.active()
    for priority in (0, 0, 5):
        api.push(priority=priority)
    api.push(delay=60_000, priority=5)
    expected = {
        "waiting": 3,
        "active": 1,
        "delayed": 1,
        "completed": 1,
        "failed": 0,
        "waiting-children": 0,
        "prioritized": 1,
        "paused": 0,
    }
    while stores.chosen() == "redis" and api.counts() != expected:
        time.sleep(0.01)  # a job on a ready list counts as active until the list is given back
    assert api.counts() == expected
    assert api.ok("GET", "{q}/count")["count"] == 5
    assert api.ok("GET", "{q}/priority-counts")["counts"] == {"0": 2, "5": 2}


def test_pausing_and_resuming(api: Api) -> None:
    api.push()
    assert api.ok("POST", "{q}/pause") == {"ok": True}
    assert api.ok("GET", "{q}/paused")["paused"] is True
    assert api.pull() is None
    assert api.ok("POST", "{q}/resume") == {"ok": True}
    assert api.pull() is not None


def test_draining_leaves_active_jobs(api: Api) -> None:
    active = api.active()
    api.push()
    api.push(delay=60_000)
    assert api.ok("POST", "{q}/drain") == {"ok": True, "count": 2}
    api.ok("POST", f"/jobs/{active}/ack")


def test_cleaning(api: Api) -> None:
    jobs = [api.push() for _ in range(3)]
    done = api.completed(priority=5)
    assert api.ok("POST", "{q}/clean", {"grace": 3_600_000}) == {"ok": True, "count": 0, "ids": []}
    assert api.ok("POST", "{q}/clean", {"limit": 2})["ids"] == jobs[:2]
    assert api.ok("POST", "{q}/clean") == {"ok": True, "count": 1, "ids": [jobs[2]]}
    assert api.ok("POST", "{q}/clean", {"state": "completed"})["ids"] == [done]
    parent = api.push(dependsOn=[api.push()])
    assert api.ok("POST", "{q}/drain")["count"] == 1
    assert api.ok("POST", "{q}/clean")["count"] == 0
    assert api.ok("POST", "{q}/clean", {"state": "waiting-children"})["ids"] == [parent]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"grace": -1}, "grace must be at least 0"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": 100_001}, "limit must be at most 100000"),
        ({"state": "nonsense"}, "state must be one of: waiting, delayed, completed, failed, waiting-children"),
        ({"grace": 1e300}, "grace must be at most 3153600000000"),
        ({"state": "active"}, "state must be one of: waiting, delayed, completed, failed, waiting-children"),
    ],
)
def test_a_bad_cleaning_is_refused(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "{q}/clean", body) == (400, error)


def test_promoting_many(api: Api) -> None:
    for delay in (60_000, 70_000, 80_000):
        api.push(delay=delay)
    assert api.ok("POST", "{q}/promote-jobs", {"count": 2}) == {"ok": True, "count": 2}
    assert api.ok("POST", "{q}/promote-jobs") == {"ok": True, "count": 1}
    assert api.refused("POST", "{q}/promote-jobs", {"count": 0}) == (400, "count must be at least 1")


def test_retrying_completed_jobs(api: Api) -> None:
    done = [api.completed(result=n) for n in range(3)]
    assert api.ok("POST", "{q}/retry-completed", {"id": done[1]}) == {"ok": True, "count": 1}
    assert api.pull()["id"] == done[1]
    assert api.ok("POST", "{q}/retry-completed") == {"ok": True, "count": 2}
    assert api.ok("POST", "{q}/retry-completed", {"id": UNKNOWN_ID}) == {"ok": True, "count": 0}
    assert api.refused("POST", "{q}/retry-completed", {"id": 5}) == (400, "id must be a string")


# Dead letters.


def test_dead_letters_are_listed_retried_and_purged(api: Api) -> None:
    dead = [api.dead(data=n) for n in range(3)]
    jobs = api.ok("GET", "{q}/dlq")["jobs"]
    assert [job["id"] for job in jobs] == dead
    assert jobs[0]["error"] == "broken"
    assert jobs[0]["failedAt"] >= jobs[0]["createdAt"]
    assert len(api.ok("GET", "{q}/dlq", params={"count": 2})["jobs"]) == 2
    assert api.ok("POST", "{q}/dlq/retry", {"jobId": dead[1]}) == {"ok": True, "count": 1}
    again = api.pull()
    assert (again["id"], again["attempts"]) == (dead[1], 0)
    assert api.ok("POST", "{q}/dlq/retry", {"jobId": dead[1]}) == {"ok": True, "count": 0}
    assert api.ok("POST", "{q}/dlq/retry") == {"ok": True, "count": 2}
    dying = api.dead(priority=9)
    assert api.ok("POST", "{q}/dlq/purge") == {"ok": True, "count": 1}
    assert api.state(dying) == "unknown"


def test_a_dead_letter_of_another_queue_is_left_alone(api: Api) -> None:
    dead = api.dead()
    mine, api.queue = api.queue, api.queue + "-other"
    assert api.ok("POST", "{q}/dlq/retry", {"jobId": dead}) == {"ok": True, "count": 0}
    api.queue = mine
    assert api.state(dead) == "failed"


def test_bad_dead_letter_requests_are_refused(api: Api) -> None:
    assert api.refused("GET", "{q}/dlq", params={"count": "x"}) == (400, "count must be a number")
    assert api.refused("POST", "{q}/dlq/retry", {"jobId": 5}) == (400, "jobId must be a string")
    assert api.call("POST", "{q}/dlq/retry", content=b"[").status_code == 400


def test_a_dead_letter_whose_unique_key_is_taken_is_refused(api: Api) -> None:
    dead = api.dead(uniqueKey="k")
    api.push(uniqueKey="k")
    status, error = api.refused("POST", "{q}/dlq/retry", {"jobId": dead})
    assert (status, error) == (400, "Another unfinished job has this job's uniqueKey.")


# Limits.


def test_a_rate_limit(api: Api) -> None:
    for _ in range(5):
        api.push()
    assert api.ok("PUT", "{q}/rate-limit", {"limit": 2}) == {"ok": True}
    assert [api.pull() is not None for _ in range(3)] == [True, True, False]
    assert api.pull(timeout=20_000) is not None
    assert api.ok("DELETE", "{q}/rate-limit") == {"ok": True}
    assert [api.pull() is not None for _ in range(2)] == [True, True]


def test_a_concurrency_limit(api: Api) -> None:
    first = api.push()
    api.push()
    assert api.ok("PUT", "{q}/concurrency", {"limit": 1}) == {"ok": True}
    assert api.pull()["id"] == first
    assert api.pull() is None
    api.ok("POST", f"/jobs/{first}/ack")
    assert api.pull() is not None
    assert api.ok("DELETE", "{q}/concurrency") == {"ok": True}


@pytest.mark.parametrize("route", ["rate-limit", "concurrency"])
def test_a_limit_that_is_set_can_be_read(api: Api, route: str) -> None:
    assert api.ok("GET", f"{{q}}/{route}") == {"ok": True, "limit": None}
    api.ok("PUT", f"{{q}}/{route}", {"limit": 7})
    assert api.ok("GET", f"{{q}}/{route}") == {"ok": True, "limit": 7}
    other = {"rate-limit": "concurrency", "concurrency": "rate-limit"}[route]
    assert api.ok("GET", f"{{q}}/{other}") == {"ok": True, "limit": None}
    api.ok("DELETE", f"{{q}}/{route}")
    assert api.ok("GET", f"{{q}}/{route}") == {"ok": True, "limit": None}


@pytest.mark.parametrize("route", ["rate-limit", "concurrency"])
def test_bad_limits_are_refused(api: Api, route: str) -> None:
    assert api.refused("PUT", f"{{q}}/{route}", {}) == (400, "limit is required")
    assert api.refused("PUT", f"{{q}}/{route}", {"limit": 0}) == (400, "limit must be at least 1")
    assert api.refused("PUT", f"{{q}}/{route}", {"limit": "5"}) == (400, "limit must be a number")
    assert api.call("PUT", f"{{q}}/{route}", content=b"").status_code == 400


# Settings.


def test_the_stall_rule(api: Api) -> None:
    default = {"enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}
    assert api.ok("GET", "{q}/stall-config") == {"ok": True, "config": default}
    assert api.ok("PUT", "{q}/stall-config", {"config": {"stallInterval": 40, "gracePeriod": 0}}) == {"ok": True}
    api.ok("PUT", "{q}/stall-config", {"maxStalls": 1})
    expected = default | {"stallInterval": 40, "gracePeriod": 0, "maxStalls": 1}
    assert api.ok("GET", "{q}/stall-config")["config"] == expected
    job_id = api.active()
    api.ok("POST", f"/jobs/{job_id}/wait", {"timeout": 20_000})
    (dead,) = api.ok("GET", "{q}/dlq")["jobs"]
    assert (dead["reason"], dead["stallCount"]) == ("stalled", 1)


def test_the_stall_rule_can_be_switched_off(api: Api) -> None:
    api.ok("PUT", "{q}/stall-config", {"config": {"enabled": False, "stallInterval": 1, "gracePeriod": 0}})
    job_id = api.active()
    assert api.pull(timeout=100) is None
    assert api.state(job_id) == "active"


def test_the_dead_letter_rule(api: Api) -> None:
    default = {
        "autoRetry": False, "autoRetryInterval": 3_600_000, "maxAutoRetries": 3, "maxAge": 604_800_000, "maxEntries": 10_000
    }  # fmt: skip
    assert api.ok("GET", "{q}/dlq-config") == {"ok": True, "config": default}
    api.ok("PUT", "{q}/dlq-config", {"config": {"autoRetry": True, "maxAge": None}})
    assert api.ok("GET", "{q}/dlq-config")["config"] == default | {"autoRetry": True, "maxAge": None}
    api.ok("PUT", "{q}/dlq-config", {"maxEntries": 5, "maxAge": 1_000.0})
    assert api.ok("GET", "{q}/dlq-config")["config"] == default | {"autoRetry": True, "maxAge": 1_000, "maxEntries": 5}


@pytest.mark.parametrize(
    ("route", "body", "error"),
    [
        ("stall-config", {"config": {"stallInterval": 0}}, "config.stallInterval must be at least 1"),
        ("stall-config", {"maxStalls": "x"}, "maxStalls must be a number"),
        ("stall-config", {"config": 5}, "config must be an object"),
        ("dlq-config", {"config": {"autoRetry": 1}}, "config.autoRetry must be a boolean"),
        ("dlq-config", {"maxEntries": -1}, "maxEntries must be at least 0"),
    ],
)
def test_bad_settings_are_refused(api: Api, route: str, body: Any, error: str) -> None:
    assert api.refused("PUT", f"{{q}}/{route}", body) == (400, error)
