"""Jobs door: options that few jobs have are taken, done, and shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.doors.api import Api

#: What a job without any of them does not show.
RARE = {
    "backoffConfig", "repeat", "stacktrace", "stallTimeout", "stackTraceLimit", "keepLogs", "sizeLimit", "deduplicationTtl",
    "deduplicationExtend", "deduplicationReplace", "debounceId", "debounceTtl", "failParentOnFailure",
    "removeDependencyOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
}  # fmt: skip


def test_a_plain_job_shows_none_of_them(api: Api) -> None:
    assert not RARE & api.job(api.push(tags=["a"])).keys()
    assert not RARE & api.pull().keys()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"backoff": 500}, {"backoff": 500}),
        ({"backoff": {"type": "fixed", "delay": 500}}, {"backoff": 500, "backoffConfig": {"type": "fixed", "delay": 500}}),
        (
            {"backoff": {"type": "exponential", "delay": 500, "maxDelay": 900}},
            {"backoff": 500, "backoffConfig": {"type": "exponential", "delay": 500, "maxDelay": 900}},
        ),
        ({"backoff": {"type": "fixed"}}, {"backoff": 1_000, "backoffConfig": {"type": "fixed", "delay": 1_000}}),
        ({"backoff": {"delay": 70.0}}, {"backoff": 70, "backoffConfig": {"type": "exponential", "delay": 70}}),
        ({"stallTimeout": 7_000}, {"stallTimeout": 7_000}),
        ({"stackTraceLimit": 3}, {"stackTraceLimit": 3}),
        ({"keepLogs": 0}, {"keepLogs": 0}),
        ({"sizeLimit": 100}, {"sizeLimit": 100}),
        ({"timestamp": 1_700_000_000_000}, {"createdAt": 1_700_000_000_000}),
        ({"repeat": {"every": 5_000, "limit": 2}}, {"repeat": {"count": 0, "every": 5_000, "limit": 2}}),
        (
            {"repeat": {"pattern": "0 2 * * *", "tz": "Europe/Rome"}},
            {"repeat": {"count": 0, "pattern": "0 2 * * *", "tz": "Europe/Rome"}},
        ),
        ({"failParentOnFailure": True}, {"failParentOnFailure": True}),
        ({"removeDependencyOnFailure": True}, {"removeDependencyOnFailure": True}),
        ({"continueParentOnFailure": True}, {"continueParentOnFailure": True}),
        ({"ignoreDependencyOnFailure": True}, {"ignoreDependencyOnFailure": True}),
        (
            {"uniqueKey": "k", "dedup": {"ttl": 5_000, "extend": True, "replace": True}},
            {"uniqueKey": "k", "deduplicationTtl": 5_000, "deduplicationExtend": True, "deduplicationReplace": True},
        ),
        ({"debounceId": "d", "debounceTtl": 5_000}, {"uniqueKey": "d", "debounceId": "d", "debounceTtl": 5_000}),
    ],
)
def test_what_was_given_is_shown(api: Api, options: dict[str, Any], shown: dict[str, Any]) -> None:
    (job_id,) = api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, **options}]})["ids"]
    job = api.job(job_id)
    assert shown.items() <= job.items()
    if not {"dedup", "debounceId"} & options.keys():  # the same push again would find this one
        assert shown.items() <= api.job(api.push(**options)).items()
    assert shown.items() <= api.pull().items()


def test_null_means_not_given(api: Api) -> None:
    given = dict.fromkeys(
        (
            "dedup",
            "debounceId",
            "debounceTtl",
            "stallTimeout",
            "stackTraceLimit",
            "keepLogs",
            "sizeLimit",
            "timestamp",
            "backoff",
        )
    )
    job = api.job(api.push(**given))
    assert job["backoff"] == 1_000
    assert not RARE & job.keys()


def test_a_key_of_no_time_limit_is_held_as_long_as_its_job_lives(api: Api) -> None:
    first = api.push(uniqueKey="k", dedup={"ttl": 0})
    assert api.push(uniqueKey="k", dedup={"extend": True}) == first
    assert api.push(uniqueKey="k") == first


def test_a_key_is_free_after_its_time(api: Api) -> None:
    first = api.push(uniqueKey="k", dedup={"ttl": 1}, delay=1_000_000)
    while (again := api.push(uniqueKey="k", dedup={"ttl": 1_000_000})) == first:
        time.sleep(0.01)
    assert api.job(first)["uniqueKey"] is None
    assert api.job(again)["uniqueKey"] == "k"
    assert api.push(uniqueKey="k") == again


@pytest.mark.parametrize("key", [{"uniqueKey": "k", "dedup": {"replace": True}}, {"debounceId": "k", "debounceTtl": 60_000}])
def test_a_duplicate_replaces_the_waiting_job(api: Api, key: dict[str, Any]) -> None:
    first = api.push("old", tags=["a"], priority=9, **key)
    assert api.push("new", tags=["b"], delay=60_000, **key) == first
    job = api.job(first)
    assert (job["data"], job["tags"], job["priority"], job["state"]) == ("new", ["b"], 0, "delayed")
    assert api.push("newest", **key) == first
    assert api.pull()["data"] == "newest"
    assert api.push("too late", **key) == first
    assert api.job(first)["data"] == "newest"
    assert api.counts()["waiting"] == 0


def test_a_stack_is_shown_with_the_job_and_among_the_dead(api: Api) -> None:
    job_id = api.active(maxAttempts=1, stackTraceLimit=2)
    api.ok("POST", f"/jobs/{job_id}/fail", {"error": "broken", "stack": ["Error: broken", "at a", "at b"]})
    assert api.job(job_id)["stacktrace"] == ["Error: broken", "at a"]
    (dead,) = api.ok("GET", "{q}/dlq")["jobs"]
    assert (dead["error"], dead["stacktrace"], dead["reason"]) == (
        "broken",
        ["Error: broken", "at a"],
        "max_attempts_exceeded",
    )


@pytest.mark.parametrize(
    ("stack", "error"),
    [
        ("at a", "stack must be an array"),
        ([1], "stack[0] must be a string"),
        (["a\u0000"], "stack[0] contains invalid characters"),
    ],
)
def test_a_stack_is_lines_of_text(api: Api, stack: Any, error: str) -> None:
    job_id = api.active()
    assert api.refused("POST", f"/jobs/{job_id}/fail", {"stack": stack}) == (400, error)
    assert api.state(job_id) == "active"


def test_logs_are_kept_as_the_job_says(api: Api) -> None:
    job_id = api.push(keepLogs=2)
    for message in ("a", "b", "c"):
        api.ok("POST", f"/jobs/{job_id}/logs", {"message": message})
    logs = api.ok("GET", f"/jobs/{job_id}/logs")["data"]["logs"]
    assert [line["message"] for line in logs] == ["b", "c"]


def test_data_stays_within_the_size_limit(api: Api) -> None:
    job_id = api.push("abc", sizeLimit=5)
    api.ok("PUT", f"/jobs/{job_id}/data", {"data": "xyz"})
    status, error = api.refused("PUT", f"/jobs/{job_id}/data", {"data": "wxyz"})
    assert (status, error) == (400, "Job data too large: 6 bytes, and the job's sizeLimit is 5")
    assert api.job(job_id)["data"] == "xyz"


def test_in_bulk_an_error_names_the_job(api: Api) -> None:
    jobs = [{"data": 1}, {"data": 1, "dedup": {"ttl": 5}}]
    assert api.refused("POST", "{q}/jobs/bulk", {"jobs": jobs}) == (400, "jobs[1]: dedup needs a uniqueKey")
    assert api.counts()["waiting"] == 0


def test_a_fixed_backoff_of_nothing_retries_at_once(api: Api) -> None:
    job_id = api.active(backoff={"type": "fixed", "delay": 0})
    api.ok("POST", f"/jobs/{job_id}/fail", {"error": "x"})
    assert api.state(job_id) == "waiting"


def test_a_cron_takes_options_for_its_jobs(api: Api) -> None:
    body = {
        "name": api.queue,
        "queue": api.queue,
        "data": 1,
        "repeatEvery": 60_000,
        "immediately": True,
        "uniqueKey": "mine",
        "dedup": {"ttl": 5_000, "replace": True},
        "jobOptions": {"maxAttempts": 7, "backoff": {"type": "fixed", "delay": 5}, "timeout": 9_000, "stallTimeout": 8_000},
    }
    api.ok("POST", "/crons", body)
    job = api.pull(timeout=10_000)
    shown = {
        "maxAttempts": 7, "backoff": 5, "backoffConfig": {"type": "fixed", "delay": 5}, "timeout": 9_000, "stallTimeout": 8_000,
        "uniqueKey": "mine", "deduplicationTtl": 5_000, "deduplicationReplace": True,
    }  # fmt: skip
    assert shown.items() <= job.items()
    api.ok("DELETE", f"/crons/{api.queue}")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"dedup": {"ttl": 5}, "preventOverlap": False}, "dedup needs a uniqueKey, or preventOverlap"),
        ({"dedup": {"ttl": "5"}}, "dedup.ttl must be a number"),
        ({"jobOptions": {"maxAttempts": 0}}, "jobOptions.maxAttempts must be at least 1"),
        ({"jobOptions": {"backoff": {"type": "x"}}}, "jobOptions.backoff.type must be one of: exponential, fixed"),
        ({"jobOptions": []}, "jobOptions must be an object"),
        ({"skipIfNoWorker": "yes"}, "skipIfNoWorker must be a boolean"),
    ],
)
def test_a_cron_with_wrong_options_is_refused(api: Api, options: dict[str, Any], error: str) -> None:
    body = {"name": api.queue, "queue": api.queue, "data": 1, "repeatEvery": 60_000, **options}
    assert api.refused("POST", "/crons", body) == (400, error)
    assert api.refused("GET", f"/crons/{api.queue}") == (404, "Cron job not found")


def test_a_cron_waits_for_a_worker(api: Api) -> None:
    body = {"name": api.queue, "queue": api.queue, "data": 1, "repeatEvery": 30, "skipIfNoWorker": True}
    nobody = api.ok("POST", "/crons", body)["cron"]
    while api.ok("GET", f"/crons/{api.queue}")["cron"]["nextRun"] == nobody["nextRun"]:
        time.sleep(0.01)
    assert api.counts()["waiting"] == 0
    api.ok("POST", "/workers", {"name": "w", "queues": [api.queue]})
    while api.counts()["waiting"] == 0:
        time.sleep(0.01)
    api.ok("DELETE", f"/crons/{api.queue}")
