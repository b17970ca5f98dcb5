"""Jobs door: ack, fail, progress, heartbeat, locks, logs, wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import UNKNOWN_ID, Api

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

NOT_ACTIVE = "Job not found or not active"
NOT_ALIVE = "Job not found or not active (or invalid token)"


def test_an_ack_completes_the_job_and_keeps_the_result(api: Api) -> None:
    job_id = api.active()
    assert api.call("POST", f"/jobs/{job_id}/ack", json={"result": {"sent": True}}).json() == {"ok": True}
    assert api.state(job_id) == "completed"
    assert api.ok("GET", f"/jobs/{job_id}/result") == {"ok": True, "id": job_id, "result": {"sent": True}}
    job = api.job(job_id)
    assert job["completedAt"] >= job["startedAt"]


@pytest.mark.parametrize("content", [b"", b"  ", b"{}", b'{"result":null}'])
def test_an_ack_needs_no_body(api: Api, content: bytes) -> None:
    job_id = api.active()
    assert api.call("POST", f"/jobs/{job_id}/ack", content=content).json() == {"ok": True}
    assert "result" not in api.ok("GET", f"/jobs/{job_id}/result") or content == b'{"result":null}'


def test_an_ack_of_what_is_not_active_is_refused(api: Api) -> None:
    completed = api.completed()
    assert api.refused("POST", f"/jobs/{completed}/ack") == (400, NOT_ACTIVE)
    assert api.refused("POST", f"/jobs/{api.push()}/ack") == (400, NOT_ACTIVE)
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/ack") == (400, NOT_ACTIVE)
    assert api.refused("POST", "/jobs/never-heard-of/ack") == (400, NOT_ACTIVE)


@pytest.mark.parametrize("verb", ["ack", "fail", "heartbeat", "progress"])
def test_a_wrong_or_stale_token_is_refused_and_the_right_one_is_not(api: Api, verb: str) -> None:
    job_id = api.push()
    first, old = api.take(lockTtl=30)
    second, new = api.take(timeout=20_000)
    assert first == second == job_id
    for token in (old, "nonsense", UNKNOWN_ID):
        status, error = api.refused("POST", f"/jobs/{job_id}/{verb}", {"token": token, "progress": 5})
        expected = NOT_ALIVE if verb == "heartbeat" else f"Invalid or expired lock token for job {job_id}"
        assert (status, error) == (400, expected)
    assert api.state(job_id) == "active"
    api.ok("POST", f"/jobs/{job_id}/{verb}", {"token": new, "progress": 5})


@pytest.mark.parametrize("verb", ["ack", "fail", "heartbeat", "progress", "extend-lock"])
def test_an_empty_token_is_no_token(api: Api, verb: str) -> None:
    job_id = api.active()
    api.ok("POST", f"/jobs/{job_id}/{verb}", {"token": "", "progress": 5, "duration": 60_000})


@pytest.mark.parametrize("verb", ["ack-batch", "heartbeat-batch", "extend-locks", "release-batch"])
def test_empty_tokens_of_a_batch_are_no_tokens(api: Api, verb: str) -> None:
    ids = [api.active(), api.active()]
    reply = api.ok("POST", f"/jobs/{verb}", {"ids": ids, "tokens": ["", ""]})
    assert reply.get("data", reply)["count"] == 2


def test_a_batch_of_acks(api: Api) -> None:
    ids = [api.active() for _ in range(3)]
    reply = api.ok("POST", "/jobs/ack-batch", {"ids": ids, "results": [{"a": 1}, None, {"c": 3}]})
    assert reply == {"ok": True, "count": 3, "errors": []}
    assert api.ok("GET", f"/jobs/{ids[2]}/result")["result"] == {"c": 3}
    assert "result" not in api.ok("GET", f"/jobs/{ids[1]}/result")


def test_a_batch_of_acks_says_which_failed(api: Api) -> None:
    good = api.active()
    reply = api.ok("POST", "/jobs/ack-batch", {"ids": [UNKNOWN_ID, good]})
    assert reply == {"ok": True, "count": 1, "errors": [{"id": UNKNOWN_ID, "error": NOT_ACTIVE}]}
    assert api.refused("POST", "/jobs/ack-batch", {"ids": [UNKNOWN_ID, good]}) == (400, NOT_ACTIVE)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "ids is required"),
        ({"ids": "x"}, "ids must be an array"),
        ({"ids": [1]}, "ids[0] must be a string"),
        ({"ids": ["a"], "results": []}, "results must have as many items as ids"),
        ({"ids": ["a"], "tokens": ["x", "y"]}, "tokens must have as many items as ids"),
        ({"ids": ["x"] * 10_001}, "ids must have at most 10000 items"),
    ],
)
def test_a_bad_batch_of_acks_is_refused(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "/jobs/ack-batch", body) == (400, error)


def test_a_failure_is_retried_with_backoff_and_then_dead(api: Api) -> None:
    job_id = api.push(backoff=60, maxAttempts=2)
    api.take()
    api.ok("POST", f"/jobs/{job_id}/fail", {"error": "SMTP connection refused"})
    job = api.job(job_id)
    assert (job["state"], job["attempts"], job["error"]) == ("delayed", 1, "SMTP connection refused")
    again = api.pull(timeout=20_000)
    assert (again["id"], again["attempts"]) == (job_id, 1)
    assert again["startedAt"] - job["runAt"] >= 0
    api.ok("POST", f"/jobs/{job_id}/fail")
    assert api.state(job_id) == "failed"
    (dead,) = api.ok("GET", "{q}/dlq")["jobs"]
    assert (dead["id"], dead["reason"], dead["attempts"]) == (job_id, "max_attempts_exceeded", 2)


def test_a_failure_that_is_wrong_is_refused(api: Api) -> None:
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/fail", {"error": "x"}) == (400, NOT_ACTIVE)
    job_id = api.active()
    assert api.refused("POST", f"/jobs/{job_id}/fail", {"error": 5}) == (400, "error must be a string")
    assert api.refused("POST", f"/jobs/{job_id}/fail", {"error": "a\u0000"}) == (400, "error contains invalid characters")
    response = api.call("POST", f"/jobs/{job_id}/fail", content=b"{")
    assert (response.status_code, response.json()["error"]) == (400, "Invalid JSON body")
    assert api.state(job_id) == "active"


def test_removal_on_completion_and_on_failure(api: Api) -> None:
    done = api.completed(result=5, removeOnComplete=True)
    assert api.refused("GET", f"/jobs/{done}") == (404, "Job not found")
    assert "result" not in api.ok("GET", f"/jobs/{done}/result")
    failed = api.dead(removeOnFail=True)
    assert api.state(failed) == "unknown"
    assert api.counts()["failed"] == 0


def test_progress_is_set_read_and_clamped(api: Api) -> None:
    job_id = api.active()
    assert api.ok("GET", f"/jobs/{job_id}/progress") == {"ok": True, "progress": 0, "message": None}
    for given, kept in ((75, 75), (-5, 0), (1_000, 100), (33.9, 33)):
        api.ok("POST", f"/jobs/{job_id}/progress", {"progress": given, "message": "Processing attachments..."})
        reply = api.ok("GET", f"/jobs/{job_id}/progress")
        assert reply == {"ok": True, "progress": kept, "message": "Processing attachments..."}
    assert api.job(job_id)["progressMessage"] == "Processing attachments..."


def test_progress_that_is_wrong_is_refused(api: Api) -> None:
    waiting = api.push()
    assert api.refused("POST", f"/jobs/{waiting}/progress", {"progress": 5}) == (400, NOT_ACTIVE)
    assert api.refused("GET", f"/jobs/{UNKNOWN_ID}/progress") == (404, "Job not found")
    job_id = api.pull()["id"]
    assert api.refused("POST", f"/jobs/{job_id}/progress", {}) == (400, "progress is required")
    assert api.refused("POST", f"/jobs/{job_id}/progress", {"progress": "50"}) == (400, "progress must be a number")
    long = {"progress": 1, "message": "x" * 4_097}
    assert api.refused("POST", f"/jobs/{job_id}/progress", long) == (400, "message must be at most 4096 characters")


def test_heartbeats(api: Api) -> None:
    job_id = api.active()
    assert api.call("POST", f"/jobs/{job_id}/heartbeat").json() == {"ok": True, "data": {"ok": True}}
    api.ok("POST", f"/jobs/{job_id}/heartbeat", {"duration": 60_000})
    other = api.active()
    reply = api.ok("POST", "/jobs/heartbeat-batch", {"ids": [job_id, other, UNKNOWN_ID]})
    error = "Job not found or not active (or invalid token)"
    assert reply == {"ok": True, "data": {"ok": True, "count": 2, "errors": [{"id": UNKNOWN_ID, "error": error}]}}
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/heartbeat") == (400, error)
    assert api.refused("POST", "/jobs/heartbeat-batch", {"ids": [UNKNOWN_ID]}) == (400, error)
    assert api.refused("POST", "/jobs/heartbeat-batch", {}) == (400, "ids is required")


def test_jobs_that_were_not_begun_are_given_back(api: Api) -> None:
    first, second = api.push(), api.push()
    reply = api.ok("POST", "{q}/jobs/pull-batch", {"count": 2})
    gone = {"id": UNKNOWN_ID, "error": NOT_ACTIVE}
    body = {"ids": [first, second, UNKNOWN_ID], "tokens": [*reply["tokens"], None]}
    assert api.ok("POST", "/jobs/release-batch", body) == {"ok": True, "count": 2, "errors": [gone]}
    assert [api.pull()["id"], api.pull()["id"]] == [first, second]
    assert api.job(first)["attempts"] == 0
    error = f"Invalid or expired lock token for job {first}"
    assert api.refused("POST", "/jobs/release-batch", {"ids": [first], "tokens": reply["tokens"][:1]}) == (400, error)


def test_a_failure_may_say_when_to_try_again(api: Api) -> None:
    job_id, token = api.push(backoff=60_000), api.take()[1]
    api.ok("POST", f"/jobs/{job_id}/fail", {"error": "not yet", "token": token, "delay": 0})
    job_id, token = api.take()
    assert api.job(job_id)["attempts"] == 1
    api.ok("POST", f"/jobs/{job_id}/fail", {"token": token, "delay": 3_600_000})
    job = api.job(job_id)
    assert (job["state"], job["attempts"]) == ("delayed", 2)
    assert 3_590_000 < job["runAt"] - job["createdAt"] < 3_700_000


def test_a_heartbeat_keeps_a_job_that_would_be_lost_without(api: Api) -> None:
    kept, lost = api.push("kept"), api.push("lost")
    reply = api.ok("POST", "{q}/jobs/pull-batch", {"count": 2, "lockTtl": 200})
    api.ok("POST", f"/jobs/{kept}/heartbeat", {"token": reply["tokens"][0], "duration": 60_000})
    assert api.pull(timeout=20_000)["id"] == lost
    assert api.state(kept) == "active"
    assert api.job(lost)["stallCount"] == 1


def test_locks_are_extended(api: Api) -> None:
    job_id = api.push()
    _, token = api.take(lockTtl=60_000)
    assert api.call("POST", f"/jobs/{job_id}/extend-lock", json={"duration": 90_000, "token": token}).json() == {"ok": True}
    other = api.active()
    body = {"ids": [job_id, other], "tokens": [token, None], "durations": [30_000, 60_000]}
    assert api.ok("POST", "/jobs/extend-locks", body) == {"ok": True, "count": 2}


def test_extensions_that_are_wrong_are_refused(api: Api) -> None:
    error = "Lock not found or invalid token"
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/extend-lock", {"duration": 1_000}) == (400, error)
    assert api.refused("POST", "/jobs/extend-locks", {"ids": [UNKNOWN_ID]}) == (400, error)
    job_id = api.active()
    assert api.refused("POST", f"/jobs/{job_id}/extend-lock", {}) == (400, "duration is required")
    assert api.refused("POST", f"/jobs/{job_id}/extend-lock", {"duration": 0}) == (400, "duration must be at least 1")
    body = {"ids": [job_id], "durations": [1, 2]}
    assert api.refused("POST", "/jobs/extend-locks", body) == (400, "durations must have as many items as ids")


def test_logs(api: Api) -> None:
    job_id = api.push()
    assert api.ok("GET", f"/jobs/{job_id}/logs") == {"ok": True, "data": {"logs": [], "count": 0}}
    assert api.ok("POST", f"/jobs/{job_id}/logs", {"message": "Connecting..."}) == {"ok": True, "data": {"added": True}}
    api.ok("POST", f"/jobs/{job_id}/logs", {"message": "Oops", "level": "error"})
    logs = api.ok("GET", f"/jobs/{job_id}/logs")["data"]["logs"]
    assert [(line["level"], line["message"]) for line in logs] == [("info", "Connecting..."), ("error", "Oops")]
    assert logs[0]["timestamp"] > 1_700_000_000_000
    assert api.ok("DELETE", f"/jobs/{job_id}/logs") == {"ok": True}
    assert api.ok("GET", f"/jobs/{job_id}/logs")["data"]["logs"] == []


def test_logs_that_are_wrong_are_refused(api: Api) -> None:
    job_id = api.push()
    assert api.refused("POST", f"/jobs/{job_id}/logs", {}) == (400, "message is required")
    assert api.refused("POST", f"/jobs/{job_id}/logs", {"message": 5}) == (400, "message must be a string")
    bad = {"message": "x", "level": "loud"}
    assert api.refused("POST", f"/jobs/{job_id}/logs", bad) == (400, "level must be one of: error, info, warn")
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/logs", {"message": "x"}) == (400, "Job not found")
    assert api.refused("GET", f"/jobs/{UNKNOWN_ID}/logs") == (404, "Job not found")
    assert api.refused("DELETE", f"/jobs/{UNKNOWN_ID}/logs") == (404, "Job not found")


def test_waiting_for_a_job(api: Api, server: ServerProcess) -> None:
    done = api.completed({"sent": True})
    assert api.ok("POST", f"/jobs/{done}/wait") == {"ok": True, "completed": True, "result": {"sent": True}}
    job_id = api.push()
    assert api.ok("POST", f"/jobs/{job_id}/wait", {"timeout": 10}) == {"ok": True, "completed": False}
    answers: list[Any] = []

    def wait() -> None:
        with server.client() as client:
            answers.append(Api(client, api.queue).ok("POST", f"/jobs/{job_id}/wait", {"timeout": 20_000}))

    waiting = threading.Thread(target=wait)
    waiting.start()
    api.take()
    api.ok("POST", f"/jobs/{job_id}/ack", {"result": [1, 2]})
    waiting.join(20)
    assert answers == [{"ok": True, "completed": True, "result": [1, 2]}]


def test_waiting_that_is_wrong_is_refused(api: Api) -> None:
    assert api.refused("POST", f"/jobs/{UNKNOWN_ID}/wait") == (404, "Job not found")
    job_id = api.push()
    assert api.refused("POST", f"/jobs/{job_id}/wait", {"timeout": -1}) == (400, "timeout must be at least 0")
    assert api.refused("POST", f"/jobs/{job_id}/wait", {"timeout": 600_001}) == (400, "timeout must be at most 600000")


def test_a_result_that_is_nested_too_deeply_is_refused_and_the_job_stays(api: Api) -> None:
    job_id = api.active()
    response = api.call("POST", f"/jobs/{job_id}/ack", content=b'{"result":' + b"[" * 100 + b"]" * 100 + b"}")
    assert response.status_code == 400
    assert api.state(job_id) == "active"


def test_jobs_may_be_given_back_for_later(api: Api) -> None:
    """No attempt is counted, and since when that goes on is kept until an attempt fails."""
    job_id, token = api.push(jobId=f"{api.queue}-x", maxAttempts=2, backoff=0), api.take()[1]
    assert api.ok("POST", "/jobs/release-batch", {"ids": [job_id], "tokens": [token], "delay": 60_000})["count"] == 1
    job = api.job(job_id)
    assert (job["state"], job["attempts"], job["stallCount"]) == ("delayed", 0, 0)
    assert job["runAt"] - job["deferredSince"] == 60_000
    api.ok("POST", f"/jobs/{job_id}/promote")
    token = api.take()[1]
    api.ok("POST", "/jobs/release-batch", {"ids": [job_id], "tokens": [token], "delay": 30_000})
    again = api.job(job_id)
    assert (again["deferredSince"], again["attempts"]) == (job["deferredSince"], 0)
    api.ok("POST", f"/jobs/{job_id}/promote")
    pulled = api.ok("GET", "{q}/jobs")
    assert pulled["job"]["deferredSince"] == job["deferredSince"]
    api.ok("POST", f"/jobs/{job_id}/fail", {"token": pulled["token"]})
    assert "deferredSince" not in api.job(job_id)
    refused = api.refused("POST", "/jobs/release-batch", {"ids": [job_id], "delay": -1})
    assert refused == (400, "delay must be at least 0")


def test_which_jobs_are_still_held(api: Api) -> None:
    held, held_token = api.push(jobId=f"{api.queue}-held"), api.take()[1]
    done, done_token = api.push(), api.take()[1]
    api.ok("POST", f"/jobs/{done}/ack", {"token": done_token})
    error = "Job not found or not active (or invalid token)"
    body = {"ids": [held, done, UNKNOWN_ID], "tokens": [held_token, done_token, None]}
    lost = [{"id": done, "error": error}, {"id": UNKNOWN_ID, "error": error}]
    assert api.ok("POST", "/jobs/held-batch", body) == {"ok": True, "count": 1, "errors": lost}
    stale = {"ids": [held], "tokens": [done_token]}
    assert api.ok("POST", "/jobs/held-batch", stale)["errors"] == [{"id": held, "error": error}]
    assert api.ok("POST", "/jobs/held-batch", {"ids": [held], "tokens": [held_token]})["errors"] == []
    assert api.ok("POST", "/jobs/held-batch", {"ids": [], "timeout": 60_000}) == {"ok": True, "count": 0, "errors": []}
    long = {"ids": [held], "timeout": 60_001}
    assert api.refused("POST", "/jobs/held-batch", long) == (400, "timeout must be at most 60000")


@pytest.mark.parametrize("verb", ["cancel", "discard", "obliterate"])
def test_a_job_that_is_lost_ends_the_wait(api: Api, verb: str) -> None:
    """Those who ask wait until one of their jobs is taken away; what its holder does to it does not wake them."""
    jobs = [(api.push(jobId=f"{api.queue}-{name}"), api.take()[1]) for name in "abc"]
    body = {"ids": [job_id for job_id, _ in jobs], "tokens": [token for _, token in jobs], "timeout": 60_000}
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(api.ok, "POST", "/jobs/held-batch", body) for _ in range(2)]
        assert api.ok("POST", "/jobs/held-batch", body | {"timeout": 1})["errors"] == []  # after which the time is over
        api.ok("POST", f"/jobs/{jobs[0][0]}/heartbeat", {"token": jobs[0][1]})
        assert not any(each.done() for each in waiting)
        if verb == "cancel":
            api.ok("DELETE", f"/jobs/{jobs[1][0]}")
        elif verb == "discard":
            api.ok("POST", f"/jobs/{jobs[1][0]}/discard")
        else:
            api.ok("POST", "{q}/obliterate")
        for each in waiting:
            lost = {error["id"] for error in each.result(60)["errors"]}
            assert lost >= {jobs[1][0]}
            assert verb == "obliterate" or lost == {jobs[1][0]}
