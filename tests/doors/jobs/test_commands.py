"""Every command of the table over a real socket: what it answers when it works, and when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import UNKNOWN_ID
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient, all_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_QUEUE = "Queue name is required"
NOT_ACTIVE = "Job not found or not active"
NOT_ALIVE = "Job not found or not active (or invalid token)"
NOT_LOCKED = "Lock not found or invalid token"
NOT_FOUND = "Job not found"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[TcpClient]:
    with TcpClient(server.tcp_port) as opened:
        yield opened


# How each command works. Each function is named after its command.


def push(c: TcpClient) -> None:
    assert c.push({"a": 1}, jobId=f"{c.queue}-own") == f"{c.queue}-own"


def pushb(c: TcpClient) -> None:
    jobs = [{"data": 1, "customId": f"{c.queue}-1"}, {"data": 2, "jobId": f"{c.queue}-2"}, {"data": 3}]
    ids = c.ok("PUSHB", queue=c.queue, jobs=jobs)["ids"]
    assert ids[:2] == [f"{c.queue}-1", f"{c.queue}-2"]
    assert len(ids) == 3


def pull(c: TcpClient) -> None:
    assert c.ok("PULL", queue=c.queue) == {"ok": True, "job": None}
    pushed = c.push({"n": [1, 2.5, None]}, priority=3)
    reply = c.ok("PULL", queue=c.queue, owner="me", lockTtl=5_000.0, timeout=10)
    job = reply["job"]
    assert (job["id"], job["data"], job["priority"], job["state"]) == (pushed, {"n": [1, 2.5, None]}, 3, "active")
    assert reply["token"]


def pullb(c: TcpClient) -> None:
    pushed = [c.push(n) for n in range(3)]
    reply = c.ok("PULLB", queue=c.queue, count=10, timeout=10)
    assert [job["id"] for job in reply["jobs"]] == pushed
    assert len(reply["tokens"]) == 3
    assert c.ok("PULLB", queue=c.queue, count=1) == {"ok": True, "jobs": [], "tokens": []}


def ack(c: TcpClient) -> None:
    job_id, token = c.active()
    assert c.ok("ACK", id=job_id, token=token, result={"r": 1}) == {"ok": True}
    assert c.ok("GetResult", id=job_id)["result"] == {"r": 1}
    removed, token = c.active()
    c.ok("ACK", id=removed, token=token, removeOnComplete=True)
    assert c.state(removed) == "unknown"


def ackb(c: TcpClient) -> None:
    (a, token_a), (b, token_b) = c.active(), c.active()
    reply = c.ok("ACKB", ids=[a, UNKNOWN_ID, b], tokens=[token_a, None, token_b], results=[1, 2, None])
    assert reply["count"] == 2
    assert reply["errors"] == [{"id": UNKNOWN_ID, "error": NOT_ACTIVE}]
    assert c.ok("GetResult", id=a)["result"] == 1
    a, b = c.active()[0], c.active()[0]
    c.ok("ACKB", ids=[a, b], removeOnCompletes=[True, None])
    assert [c.state(each) for each in (a, b)] == ["unknown", "completed"]
    uneven = c.refused("ACKB", ids=[a, b], removeOnCompletes=[True])
    assert uneven == "removeOnCompletes must have as many items as ids"


def fail(c: TcpClient) -> None:
    removed, token = c.active(maxAttempts=2, backoff=0)
    c.ok("FAIL", id=removed, token=token, error="oops", removeOnFail=True)
    assert c.state(removed) == "waiting"
    c.ok("FAIL", id=c.ok("PULL", queue=c.queue)["job"]["id"], error="oops", removeOnFail=True)
    assert c.state(removed) == "unknown"
    job_id, token = c.active(maxAttempts=5, backoff=60_000)
    c.ok("FAIL", id=job_id, token=token, error="oops", stack=["line 1"])
    assert c.state(job_id) == "delayed"
    hopeless, token = c.active(maxAttempts=5)
    c.ok("FAIL", id=hopeless, token=token, error="no use", unrecoverable=True)
    (dead,) = c.ok("Dlq", queue=c.queue)["jobs"]
    assert (dead["id"], dead["attempts"], dead["error"], dead["reason"]) == (hopeless, 1, "no use", "explicit_fail")


def progress(c: TcpClient) -> None:
    job_id, token = c.active()
    c.ok("Progress", id=job_id, progress=140, message="nearly", token=token)
    reply = c.ok("GetProgress", id=job_id)
    assert (reply["progress"], reply["message"]) == (100, "nearly")


def job_heartbeat(c: TcpClient) -> None:
    job_id, token = c.active()
    assert c.ok("JobHeartbeat", id=job_id, token=token, duration=1_000)["data"] == {"ok": True}


def job_heartbeat_b(c: TcpClient) -> None:
    job_id, token = c.active()
    assert c.ok("JobHeartbeatB", ids=[job_id], tokens=[token])["data"]["count"] == 1


def extend_lock(c: TcpClient) -> None:
    job_id, token = c.active()
    c.ok("ExtendLock", id=job_id, token=token, duration=60_000)


def extend_locks(c: TcpClient) -> None:
    job_id, token = c.active()
    assert c.ok("ExtendLocks", ids=[job_id], tokens=[token], durations=[60_000])["count"] == 1


def get_job(c: TcpClient) -> None:
    job_id = c.push({"x": "ü"})
    job = c.ok("GetJob", id=job_id)["job"]
    assert (job["id"], job["queue"], job["data"], job["state"]) == (job_id, c.queue, {"x": "ü"}, "waiting")


def get_job_by_custom_id(c: TcpClient) -> None:
    c.push(jobId=f"{c.queue}-mine")
    assert c.ok("GetJobByCustomId", customId=f"{c.queue}-mine")["job"]["customId"] == f"{c.queue}-mine"


def get_state(c: TcpClient) -> None:
    assert c.ok("GetState", id=c.push())["state"] == "waiting"
    assert c.ok("GetState", id=c.push(priority=1))["state"] == "prioritized"
    assert c.ok("GetState", id=UNKNOWN_ID) == {"ok": True, "id": UNKNOWN_ID, "state": "unknown"}


def get_result(c: TcpClient) -> None:
    job_id = c.completed([1, "two"])
    assert c.ok("GetResult", id=job_id) == {"ok": True, "id": job_id, "result": [1, "two"]}
    assert c.ok("GetResult", id=UNKNOWN_ID) == {"ok": True, "id": UNKNOWN_ID}


def get_progress(c: TcpClient) -> None:
    assert c.ok("GetProgress", id=c.push()) == {"ok": True, "progress": 0, "message": None}


def wait_job(c: TcpClient) -> None:
    assert c.ok("WaitJob", id=c.completed({"r": 1}), timeout=10) == {"ok": True, "completed": True, "result": {"r": 1}}
    assert c.ok("WaitJob", id=c.push(), timeout=0) == {"ok": True, "completed": False}


def cancel(c: TcpClient) -> None:
    job_id = c.push()
    c.ok("Cancel", id=job_id)
    assert c.state(job_id) == "unknown"


def update(c: TcpClient) -> None:
    job_id = c.push(1)
    c.ok("Update", id=job_id, data={"new": True})
    assert c.ok("GetJob", id=job_id)["job"]["data"] == {"new": True}


def change_priority(c: TcpClient) -> None:
    job_id = c.push()
    c.ok("ChangePriority", id=job_id, priority=7.0)
    assert c.ok("GetJob", id=job_id)["job"]["priority"] == 7


def promote(c: TcpClient) -> None:
    job_id = c.push(delay=60_000)
    c.ok("Promote", id=job_id)
    assert c.state(job_id) == "waiting"


def move_to_delayed(c: TcpClient) -> None:
    job_id, _ = c.active()
    c.ok("MoveToDelayed", id=job_id, delay=60_000)
    assert c.state(job_id) == "delayed"


def move_to_waiting_children(c: TcpClient) -> None:
    failing = c.push(maxAttempts=1, continueParentOnFailure=True)
    other = c.push()
    parent = c.push(dependsOn=[failing, other])
    c.ok("FAIL", id=c.ok("PULL", queue=c.queue)["job"]["id"], error="broken")
    held = c.ok("PULL", queue=c.queue)
    assert held["job"]["id"] == other
    active = c.ok("PULL", queue=c.queue)
    assert active["job"]["id"] == parent  # it may run before the other one is done
    assert c.ok("MoveToWaitingChildren", id=parent, token=active["token"])["data"] == {"moved": True}
    assert c.state(parent) == "waiting-children"
    assert "not active" in c.refused("ACK", id=parent, token=active["token"])
    c.ok("ACK", id=other, token=held["token"])
    again = c.ok("PULL", queue=c.queue, timeout=10_000)
    assert (again["job"]["id"], again["job"]["attempts"]) == (parent, 0)
    # Nothing is open any more: its worker keeps it, however often it asks, and no other worker gets it.
    for _ in range(3):
        refused = c.call("MoveToWaitingChildren", id=parent, token=again["token"])
        assert (refused["ok"], refused["code"]) == (False, "nothing_to_await")
    assert c.ok("PULL", queue=c.queue)["job"] is None
    assert c.state(parent) == "active"
    c.ok("ACK", id=parent, token=again["token"])


def change_delay(c: TcpClient) -> None:
    job_id = c.push(delay=60_000)
    before = c.ok("GetJob", id=job_id)["job"]["runAt"]
    c.ok("ChangeDelay", id=job_id, delay=31_000_000_000.0)
    assert c.ok("GetJob", id=job_id)["job"]["runAt"] > before


def move_to_wait(c: TcpClient) -> None:
    for job_id in (c.active()[0], c.dead(), c.push(delay=60_000), c.push()):
        c.ok("MoveToWait", id=job_id)
        assert c.state(job_id) == "waiting"
        c.ok("Cancel", id=job_id)
    assert c.refused("MoveToWait", id=c.completed()) == "Cannot move job from state 'completed' to waiting"


def discard(c: TcpClient) -> None:
    job_id = c.push()
    c.ok("Discard", id=job_id)
    assert c.state(job_id) == "failed"


def add_log(c: TcpClient) -> None:
    assert c.ok("AddLog", id=c.push(), message="hello", level="warn")["data"] == {"added": True}


def get_logs(c: TcpClient) -> None:
    job_id = c.push()
    for word in ("a", "b", "c"):
        c.ok("AddLog", id=job_id, message=word)
    assert [line["message"] for line in c.ok("GetLogs", id=job_id)["data"]["logs"]] == ["a", "b", "c"]
    assert [line["message"] for line in c.ok("GetLogs", id=job_id, start=1, end=2)["data"]["logs"]] == ["b", "c"]
    assert [line["message"] for line in c.ok("GetLogs", id=job_id, start=-2)["data"]["logs"]] == ["b", "c"]
    assert [line["message"] for line in c.ok("GetLogs", id=job_id, start=0, end=-2)["data"]["logs"]] == ["a", "b"]
    assert c.ok("GetLogs", id=job_id, start=0, end=0)["data"]["count"] == 3


def clear_logs(c: TcpClient) -> None:
    job_id = c.push()
    for word in ("a", "b", "c"):
        c.ok("AddLog", id=job_id, message=word)
    c.ok("ClearLogs", id=job_id, keepLogs=1)
    assert [line["message"] for line in c.ok("GetLogs", id=job_id)["data"]["logs"]] == ["c"]
    c.ok("ClearLogs", id=job_id)
    assert c.ok("GetLogs", id=job_id)["data"]["logs"] == []


def list_queues(c: TcpClient) -> None:
    c.push()
    assert c.queue in c.ok("ListQueues")["queues"]


def get_jobs(c: TcpClient) -> None:
    waiting, delayed = c.push(), c.push(delay=60_000)
    both = c.ok("GetJobs", queue=c.queue, state=["waiting", "delayed"])["jobs"]
    assert {job["id"] for job in both} == {waiting, delayed}
    assert [job["id"] for job in c.ok("GetJobs", queue=c.queue, state="delayed", limit=5.0)["jobs"]] == [delayed]
    assert len(c.ok("GetJobs", queue=c.queue, offset=1, limit=10)["jobs"]) == 1
    high = c.push(priority=1)

    def listed(state: Any, **more: Any) -> list[str]:
        return [job["id"] for job in c.ok("GetJobs", queue=c.queue, state=state, **more)["jobs"]]

    # As bunqueue's server has it: each waiting job is in one of three states.
    assert (listed("waiting"), listed("prioritized"), listed("paused")) == ([waiting], [high], [])
    assert listed(["prioritized", "waiting"]) == [high, waiting]
    assert listed(["prioritized", "waiting"], asc=False) == [waiting, high]
    assert listed(["prioritized", "delayed"]) == [high, delayed]
    c.ok("ACK", id=c.ok("PULL", queue=c.queue)["job"]["id"], result={"sum": 3})
    (job,) = c.ok("GetJobs", queue=c.queue, state="completed")["jobs"]
    assert (job["id"], job["returnvalue"], job["progress"]) == (high, {"sum": 3}, 100)
    high = c.push(priority=1)
    c.ok("Pause", queue=c.queue)
    assert (listed("waiting"), listed("prioritized"), listed("paused")) == ([], [], [high, waiting])


def get_job_counts(c: TcpClient) -> None:
    c.dead()
    c.push()
    counts = c.ok("GetJobCounts", queue=c.queue)["counts"]
    assert {"waiting": 1, "active": 0, "delayed": 0, "completed": 0, "failed": 1}.items() <= counts.items()
    c.push(priority=5)
    c.push(priority=-5)
    counts = c.ok("GetJobCounts", queue=c.queue)["counts"]
    assert {"waiting": 2, "prioritized": 1, "paused": 0}.items() <= counts.items()
    c.ok("Pause", queue=c.queue)
    counts = c.ok("GetJobCounts", queue=c.queue)["counts"]
    assert {"waiting": 0, "prioritized": 0, "paused": 3}.items() <= counts.items()


def get_counts_per_priority(c: TcpClient) -> None:
    c.push(priority=2)
    assert c.ok("GetCountsPerPriority", queue=c.queue) == {"ok": True, "queue": c.queue, "counts": {"2": 1}}


def count(c: TcpClient) -> None:
    c.push()
    assert c.ok("Count", queue=c.queue)["count"] == 1


def is_paused(c: TcpClient) -> None:
    assert c.ok("IsPaused", queue=c.queue)["paused"] is False


def pause(c: TcpClient) -> None:
    c.push()
    c.ok("Pause", queue=c.queue)
    assert c.ok("IsPaused", queue=c.queue)["paused"] is True
    assert c.ok("PULL", queue=c.queue)["job"] is None


def resume(c: TcpClient) -> None:
    pause(c)
    c.ok("Resume", queue=c.queue)
    assert c.ok("PULL", queue=c.queue)["job"] is not None


def drain(c: TcpClient) -> None:
    c.push()
    assert c.ok("Drain", queue=c.queue)["count"] == 1


def obliterate(c: TcpClient) -> None:
    c.push()
    c.ok("Obliterate", queue=c.queue)
    assert c.queue not in c.ok("ListQueues")["queues"]


def clean(c: TcpClient) -> None:
    job_id = c.completed()
    reply = c.ok("Clean", queue=c.queue, grace=0, state="completed", limit=10)
    assert (reply["count"], reply["ids"]) == (1, [job_id])


def promote_jobs(c: TcpClient) -> None:
    for _ in range(3):
        c.push(delay=60_000)
    assert c.ok("PromoteJobs", queue=c.queue, count=2)["count"] == 2


def retry_completed(c: TcpClient) -> None:
    job_id = c.completed()
    assert c.ok("RetryCompleted", queue=c.queue, id=job_id)["count"] == 1
    assert c.state(job_id) == "waiting"
    c.ok("ACK", id=c.ok("PULL", queue=c.queue)["job"]["id"])
    c.completed()
    assert c.ok("RetryCompleted", queue=c.queue, timestamp=1)["count"] == 0
    assert c.ok("RetryCompleted", queue=c.queue, count=1)["count"] == 1
    assert c.ok("GetJobCounts", queue=c.queue)["counts"]["completed"] == 1


def dlq(c: TcpClient) -> None:
    job_id = c.dead()
    reply = c.ok("Dlq", queue=c.queue, count=5)
    (dead,), (entry,) = reply["jobs"], reply["entries"]
    assert (dead["id"], dead["error"], dead["reason"]) == (job_id, "broken", "max_attempts_exceeded")
    assert (entry["job"], entry["error"], entry["enteredAt"]) == (dead, "broken", dead["failedAt"])
    (attempt,) = entry["attempts"]
    assert (attempt["attempt"], attempt["error"], attempt["failedAt"]) == (1, "broken", dead["failedAt"])
    for none in ({"reason": "stalled"}, {"olderThan": 1}, {"expired": True}, {"retriable": True}, {"offset": 1}):
        assert c.ok("Dlq", queue=c.queue, filter=none)["entries"] == []
    assert len(c.ok("Dlq", queue=c.queue, filter={"reason": "max_attempts_exceeded", "newerThan": 1})["entries"]) == 1


def get_dlq_stats(c: TcpClient) -> None:
    assert c.ok("GetDlqStats", queue=c.queue)["data"]["stats"]["total"] == 0
    c.dead()
    c.dead()
    stats = c.ok("GetDlqStats", queue=c.queue)["data"]["stats"]
    assert (stats["total"], stats["byReason"]["max_attempts_exceeded"], stats["byQueue"]) == (2, 2, {c.queue: 2})
    assert stats["oldestEntry"] <= stats["newestEntry"]


def remove_dlq_job(c: TcpClient) -> None:
    dead, waiting = c.dead(), c.push()
    assert c.ok("RemoveDlqJob", queue=c.queue, jobId=dead)["data"] == {"removed": True}
    assert c.state(dead) == "unknown"
    for other in (dead, waiting):
        assert c.ok("RemoveDlqJob", queue=c.queue, jobId=other)["data"] == {"removed": False}
    assert c.state(waiting) == "waiting"


def retry_dlq(c: TcpClient) -> None:
    one, two, three = c.dead(), c.dead(), c.dead()
    assert c.ok("RetryDlq", queue=c.queue, jobId=two)["count"] == 1
    assert c.ok("RetryDlq", queue=c.queue, count=1)["count"] == 1
    assert [c.state(job_id) for job_id in (one, two, three)] == ["waiting", "waiting", "failed"]
    assert c.ok("RetryDlq", queue=c.queue)["count"] == 1
    c.ok("Drain", queue=c.queue)
    dead = [c.dead() for _ in range(3)]
    for none in ({"reason": "stalled"}, {"olderThan": 1}):
        assert c.ok("RetryDlq", queue=c.queue, filter=none)["count"] == 0
    some = {"reason": "max_attempts_exceeded", "offset": 1, "limit": 1}
    assert c.ok("RetryDlq", queue=c.queue, filter=some)["count"] == 1
    assert [c.state(job_id) for job_id in dead] == ["failed", "waiting", "failed"]


def purge_dlq(c: TcpClient) -> None:
    c.dead()
    assert c.ok("PurgeDlq", queue=c.queue)["count"] == 1


def rate_limit(c: TcpClient) -> None:
    c.ok("RateLimit", queue=c.queue, limit=1)
    c.push()
    c.push()
    assert len(c.ok("PULLB", queue=c.queue, count=2)["jobs"]) == 1


def limits_of(c: TcpClient, **more: Any) -> Any:
    return c.ok("GetQueueLimits", queue=c.queue, **more)["data"]["limits"]


def get_queue_limits(c: TcpClient) -> None:
    none = {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}
    assert limits_of(c) == none
    c.ok("SetConcurrency", queue=c.queue, limit=1)
    c.ok("RateLimit", queue=c.queue, limit=2, duration=3_600_000)
    assert limits_of(c) == none | {"rateLimit": {"max": 2, "duration": 3_600_000}, "rateLimitTtl": 0, "concurrencyLimit": 1}
    c.active()
    assert limits_of(c)["maxed"] is True
    c.ok("ClearConcurrency", queue=c.queue)
    c.active()
    # Two an hour were taken: the next one passes half an hour later, however long the second is.
    assert 1_790_000 < limits_of(c)["rateLimitTtl"] <= 1_800_000
    assert limits_of(c, maxJobs=3)["rateLimitTtl"] == 0
    c.push()
    assert c.ok("PULL", queue=c.queue)["job"] is None
    c.ok("RateLimit", queue=c.queue, limit=5, duration=60_000)  # another span of time: it begins anew
    assert limits_of(c)["rateLimitTtl"] == 0
    assert c.ok("PULL", queue=c.queue)["job"] is not None


def get_deduplication_job_id(c: TcpClient) -> None:
    job_id = c.push(uniqueKey="once")
    ask = {"queue": c.queue, "deduplicationId": "once"}
    assert c.ok("GetDeduplicationJobId", **ask)["data"] == {"jobId": job_id}
    assert c.ok("GetDeduplicationJobId", queue=c.queue, deduplicationId="never")["data"] == {"jobId": None}
    c.ok("Cancel", id=job_id)
    assert c.ok("GetDeduplicationJobId", **ask)["data"] == {"jobId": None}


def remove_deduplication_key(c: TcpClient) -> None:
    first = c.push(uniqueKey="once")
    ask = {"queue": c.queue, "deduplicationId": "once"}
    assert c.ok("RemoveDeduplicationKey", **ask)["data"] == {"count": 1}
    assert c.ok("RemoveDeduplicationKey", **ask)["data"] == {"count": 0}
    second = c.push(uniqueKey="once")
    assert second != first
    assert [c.state(each) for each in (first, second)] == ["waiting", "waiting"]
    # Also of a job that a worker has.
    assert c.ok("PULLB", queue=c.queue, count=2)["jobs"][1]["uniqueKey"] == "once"
    assert c.ok("RemoveDeduplicationKey", **ask)["data"] == {"count": 1}
    assert c.ok("ACKB", ids=[first, second])["count"] == 2


def remove_job_deduplication_key(c: TcpClient) -> None:
    first = c.push(uniqueKey="once")
    assert c.ok("RemoveJobDeduplicationKey", id=first)["data"] == {"removed": True}
    second = c.push(uniqueKey="once")
    assert c.ok("RemoveJobDeduplicationKey", id=first)["data"] == {"removed": False}
    assert c.push(uniqueKey="once") == second


def rate_limit_clear(c: TcpClient) -> None:
    c.ok("RateLimit", queue=c.queue, limit=1)
    c.ok("RateLimitClear", queue=c.queue)
    c.push()
    c.push()
    assert len(c.ok("PULLB", queue=c.queue, count=2)["jobs"]) == 2


def set_concurrency(c: TcpClient) -> None:
    c.ok("SetConcurrency", queue=c.queue, limit=1)
    c.push()
    c.push()
    assert len(c.ok("PULLB", queue=c.queue, count=2)["jobs"]) == 1


def clear_concurrency(c: TcpClient) -> None:
    set_concurrency(c)
    c.ok("ClearConcurrency", queue=c.queue)
    assert c.ok("PULL", queue=c.queue)["job"] is not None


def set_stall_config(c: TcpClient) -> None:
    c.ok("SetStallConfig", queue=c.queue, config={"stallInterval": 7_000})
    assert c.ok("GetStallConfig", queue=c.queue)["config"]["stallInterval"] == 7_000


def get_stall_config(c: TcpClient) -> None:
    config = {"enabled": True, "stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}
    assert c.ok("GetStallConfig", queue=c.queue)["config"] == config


def set_dlq_config(c: TcpClient) -> None:
    c.ok("SetDlqConfig", queue=c.queue, config={"maxAge": None, "maxEntries": 5})
    config = c.ok("GetDlqConfig", queue=c.queue)["config"]
    assert (config["maxAge"], config["maxEntries"]) == (None, 5)


def get_dlq_config(c: TcpClient) -> None:
    assert c.ok("GetDlqConfig", queue=c.queue)["config"]["maxEntries"] == 10_000


def ping(c: TcpClient) -> None:
    assert c.ok("Ping")["data"]["pong"] is True


def stats(c: TcpClient) -> None:
    c.dead()
    c.push()
    found = c.ok("Stats")["stats"]
    assert found["waiting"] >= 1
    assert {"active", "delayed", "dlq", "completed", "uptime", "pushPerSec", "pullPerSec"} <= found.keys()
    assert found["failed"] >= 1


def metrics(c: TcpClient) -> None:
    dead = c.dead()
    c.push()
    found = c.ok("Metrics")["metrics"]
    assert found["totalPushed"] >= 1
    assert found["memoryUsageMb"] >= 1
    assert found["activeConnections"] >= 1
    assert found["avgLatencyMs"] > 0
    assert {"avgProcessingMs", "sqliteSizeMb"} <= found.keys()
    ended_at = c.ok("GetJob", id=dead)["job"]["timeline"][-1]["timestamp"]
    failed = {"meta": {"count": 1, "prevTS": ended_at, "prevCount": 1}, "data": [1], "count": 1}
    assert c.ok("Metrics", queue=c.queue, type="failed", start=0, end=-1)["data"] == failed
    assert c.ok("Metrics", queue=c.queue, type="failed", start=1, end=2)["data"] == failed | {"data": []}
    none = {"meta": {"count": 0, "prevTS": 0, "prevCount": 0}, "data": [], "count": 0}
    assert c.ok("Metrics", queue=c.queue, type="completed")["data"] == none
    assert c.ok("Metrics", queue="nobody-knows-it", type="completed")["data"] == none


def prometheus(c: TcpClient) -> None:
    assert "penstock_" in c.ok("Prometheus")["data"]["metrics"]


def storage_status(c: TcpClient) -> None:
    assert {"diskFull": False, "error": None, "since": None}.items() <= c.ok("StorageStatus")["data"].items()


def compact_memory(c: TcpClient) -> None:
    c.ok("CompactMemory")


def _flow(c: TcpClient, **options: Any) -> tuple[str, str]:
    """Push a child and a parent that needs it."""
    child = c.ok("PUSH", queue=c.queue, data=1, maxAttempts=1, **options)["id"]
    parent = c.ok("PUSH", queue=c.queue, data=2, dependsOn=[child], childrenIds=[child])["id"]
    assert c.ok("UpdateParent", childId=child, parentId=parent)["ok"] is True
    return child, parent


def pushf(c: TcpClient) -> None:
    child, parent = f"{c.queue}-child", f"{c.queue}-parent"
    needs = {"dependsOn": [child], "childrenIds": [child]}
    jobs = [
        {"id": parent, "queue": c.queue, "input": {"data": {"p": 1}, **needs}},
        {"id": child, "queue": f"{c.queue}-2", "input": {"data": {"c": 1}, "parentId": parent, "priority": 3}},
    ]
    stored = c.ok("PUSHF", jobs=jobs)["data"]["jobs"]
    assert [(job["id"], job["queue"], job["state"]) for job in stored] == [
        (parent, c.queue, "waiting-children"),
        (child, f"{c.queue}-2", "waiting"),
    ]
    assert stored[1]["parentId"] == parent
    assert c.ok("PULL", queue=c.queue)["job"] is None
    c.ok("ACK", id=c.ok("PULL", queue=f"{c.queue}-2")["job"]["id"], result=7)
    assert c.ok("PULL", queue=c.queue, timeout=30_000)["job"]["id"] == parent  # on several shards a moment later


def subscribe_events(c: TcpClient) -> None:
    c.ok("SubscribeEvents", queue=c.queue)
    with TcpClient(c.port, c.queue) as other:
        job_id = other.push()
    event = c.read()
    assert event["type"] == "event"
    assert event["event"].items() >= {"eventType": "pushed", "queue": c.queue, "jobId": job_id}.items()


def unsubscribe_events(c: TcpClient) -> None:
    c.ok("SubscribeEvents", queue=c.queue)
    c.ok("UnsubscribeEvents")
    c.push()
    assert c.ok("Ping")["data"]["pong"] is True


def dashboard_queues(c: TcpClient) -> None:
    c.push()
    c.push(priority=3)
    c.push(delay=60_000)
    (row,) = [each for each in c.ok("DashboardQueues")["data"]["queues"] if each["name"] == c.queue]
    counts = {"waiting": 1, "prioritized": 1, "delayed": 1, "active": 0, "dlq": 0}
    assert row == {"name": c.queue, "paused": False, **counts}
    c.ok("Pause", queue=c.queue)
    (row,) = [each for each in c.ok("DashboardQueues")["data"]["queues"] if each["name"] == c.queue]
    assert (row["paused"], row["waiting"], row["prioritized"]) == (True, 2, 0)


def _group(c: TcpClient) -> dict[str, Any]:
    for group in ("g", "g", "g", "h"):
        c.push(groupId=group)
    c.push()
    c.ok("PULL", queue=c.queue)
    return {"queue": c.queue, "groupId": "g"}


def get_group_jobs_count(c: TcpClient) -> None:
    assert c.ok("GetGroupJobsCount", **_group(c))["data"] == {"count": 2}


def get_group_active_count(c: TcpClient) -> None:
    assert c.ok("GetGroupActiveCount", **_group(c))["data"] == {"count": 1}


def get_groups_jobs_count(c: TcpClient) -> None:
    assert c.ok("GetGroupsJobsCount", **_group(c))["data"] == {"count": 3}
    assert c.ok("GetGroupsJobsCount", queue="nobody-knows-it")["data"] == {"count": 0}


def get_group_concurrency(c: TcpClient) -> None:
    assert c.ok("GetGroupConcurrency", **_group(c))["data"] == {"concurrency": None}


def get_group_rate_limit(c: TcpClient) -> None:
    assert c.ok("GetGroupRateLimit", **_group(c))["data"] == {"limit": None}


def get_group_rate_limit_ttl(c: TcpClient) -> None:
    assert c.ok("GetGroupRateLimitTtl", **_group(c))["data"] == {"ttl": -2}


def is_group_paused(c: TcpClient) -> None:
    assert c.ok("IsGroupPaused", **_group(c))["data"] == {"paused": False}


def remove_group_concurrency(c: TcpClient) -> None:
    assert c.ok("RemoveGroupConcurrency", **_group(c))["data"] == {"removed": 0}


def remove_group_rate_limit(c: TcpClient) -> None:
    assert c.ok("RemoveGroupRateLimit", **_group(c))["data"] == {"removed": 0}


def resume_group(c: TcpClient) -> None:
    assert c.ok("ResumeGroup", **_group(c))["data"] == {"changed": False}


def set_group_concurrency(c: TcpClient) -> None:
    group = _group(c)
    c.ok("SetGroupConcurrency", **group, concurrency=3)
    assert c.ok("GetGroupConcurrency", **group)["data"] == {"concurrency": 3}
    assert [_pull_group(c) for _ in range(5)] == ["g", "g", "h", None, NOTHING]
    assert c.ok("RemoveGroupConcurrency", **group)["data"] == {"removed": 1}
    c.push(groupId="g")
    assert _pull_group(c) is NOTHING
    assert "concurrency" in c.refused("SetGroupConcurrency", **group, concurrency=0)


def set_group_rate_limit(c: TcpClient) -> None:
    group = _group(c)
    c.ok("SetGroupConcurrency", **group, concurrency=9)
    c.ok("SetGroupRateLimit", **group, max=1, duration=3_600_000)
    assert c.ok("GetGroupRateLimit", **group)["data"] == {"limit": {"max": 1, "duration": 3_600_000}}
    assert c.ok("GetGroupRateLimitTtl", **group)["data"] == {"ttl": -2}
    assert [_pull_group(c) for _ in range(4)] == ["g", "h", None, NOTHING]
    assert 0 < c.ok("GetGroupRateLimitTtl", **group)["data"]["ttl"] <= 3_600_000
    assert c.ok("GetGroupRateLimitTtl", **group, maxJobs=2)["data"] == {"ttl": 0}
    assert c.ok("RemoveGroupRateLimit", **group)["data"] == {"removed": 1}
    assert _pull_group(c) == "g"
    assert "max" in c.refused("SetGroupRateLimit", **group, max=0, duration=1)
    assert "duration" in c.refused("SetGroupRateLimit", **group, max=1, duration=0)


def rate_limit_group(c: TcpClient) -> None:
    group = _group(c)
    c.ok("SetGroupConcurrency", **group, concurrency=9)
    c.ok("RateLimitGroup", **group, duration=3_600_000)
    assert 0 < c.ok("GetGroupRateLimitTtl", **group)["data"]["ttl"] <= 3_600_000
    assert [_pull_group(c) for _ in range(3)] == ["h", None, NOTHING]
    c.ok("RateLimitGroup", **group, duration=1)
    # A caller that waits is served once the time is over: nothing else wakes it up.
    assert c.ok("PULL", queue=c.queue, timeout=10_000)["job"]["groupId"] == "g"


def pause_group(c: TcpClient) -> None:
    group = _group(c)
    c.ok("SetGroupConcurrency", **group, concurrency=9)
    assert c.ok("PauseGroup", **group)["data"] == {"changed": True}
    assert c.ok("PauseGroup", **group)["data"] == {"changed": False}
    assert c.ok("IsGroupPaused", **group)["data"] == {"paused": True}
    c.push(groupId="g", priority=9)
    assert [_pull_group(c) for _ in range(3)] == ["h", None, NOTHING]
    assert c.ok("ResumeGroup", **group)["data"] == {"changed": True}
    assert c.ok("IsGroupPaused", **group)["data"] == {"paused": False}
    assert _pull_group(c) == "g"


NOTHING = object()


def _pull_group(c: TcpClient) -> object:
    """Return the group of the job that a pull gets; NOTHING if it gets none."""
    job = c.ok("PULL", queue=c.queue)["job"]
    return NOTHING if job is None else job.get("groupId")


def trim_events(c: TcpClient) -> None:
    assert c.ok("TrimEvents", queue=c.queue, maxLength=0)["data"] == {"removed": 0}


def get_children_values(c: TcpClient) -> None:
    child, parent = _flow(c)
    c.ok("ACK", id=c.ok("PULL", queue=c.queue)["job"]["id"], result={"a": 1})
    assert c.ok("GetChildrenValues", id=parent) == {"ok": True, "data": {"values": {child: {"a": 1}}}}
    assert c.ok("GetChildrenValues", id=parent, offset=1)["data"] == {"values": {}}


def get_failed_children_values(c: TcpClient) -> None:
    child, parent = _flow(c)
    c.ok("FAIL", id=c.ok("PULL", queue=c.queue)["job"]["id"], error="no")
    assert c.ok("GetFailedChildrenValues", id=parent)["values"] == {child: "no"}


def get_ignored_children_failures(c: TcpClient) -> None:
    child, parent = _flow(c, ignoreDependencyOnFailure=True)
    c.ok("FAIL", id=c.ok("PULL", queue=c.queue)["job"]["id"], error="no")
    assert c.ok("GetIgnoredChildrenFailures", id=parent)["values"] == {child: "no"}
    assert c.ok("GetState", id=parent)["state"] == "waiting"


def update_parent(c: TcpClient) -> None:
    child, parent = _flow(c)
    assert c.ok("GetJob", id=child)["job"]["parentId"] == parent


def remove_child_dependency(c: TcpClient) -> None:
    child, parent = _flow(c)
    assert c.ok("RemoveChildDependency", id=child)["removed"] is True
    assert c.ok("GetState", id=parent)["state"] == "waiting"


def remove_unprocessed_children(c: TcpClient) -> None:
    child, parent = _flow(c)
    assert c.ok("RemoveUnprocessedChildren", id=parent)["count"] == 1
    assert [c.ok("GetState", id=each)["state"] for each in (child, parent)] == ["unknown", "waiting"]


def cron(c: TcpClient) -> None:
    reply = c.ok("Cron", name=c.queue, queue=c.queue, data={"a": 1}, schedule="0 2 * * *", timezone="Europe/Berlin")
    assert (reply["cron"]["schedule"], reply["cron"]["timezone"]) == ("0 2 * * *", "Europe/Berlin")


def cron_get(c: TcpClient) -> None:
    cron(c)
    assert c.ok("CronGet", name=c.queue)["cron"]["executions"] == 0


def cron_list(c: TcpClient) -> None:
    cron(c)
    assert c.queue in [each["name"] for each in c.ok("CronList")["crons"]]


def cron_delete(c: TcpClient) -> None:
    cron(c)
    c.ok("CronDelete", name=c.queue)
    assert c.refused("CronGet", name=c.queue) == "Cron job not found"


def add_webhook(c: TcpClient) -> str:
    added = c.ok("AddWebhook", url="https://example.com/hook", events=["failed"], queue=c.queue)["data"]
    assert added["queue"] == c.queue
    webhook: str = added["webhookId"]
    return webhook


def remove_webhook(c: TcpClient) -> None:
    assert c.ok("RemoveWebhook", webhookId=add_webhook(c))["data"]["removed"] is True


def list_webhooks(c: TcpClient) -> None:
    webhook = add_webhook(c)
    assert webhook in [each["id"] for each in c.ok("ListWebhooks")["data"]["webhooks"]]
    c.ok("RemoveWebhook", webhookId=webhook)


def set_webhook_enabled(c: TcpClient) -> None:
    webhook = add_webhook(c)
    c.ok("SetWebhookEnabled", id=webhook, enabled=False)
    (found,) = [each for each in c.ok("ListWebhooks")["data"]["webhooks"] if each["id"] == webhook]
    assert found["enabled"] is False
    c.ok("RemoveWebhook", webhookId=webhook)


def register_worker(c: TcpClient) -> str:
    worker: str = c.ok("RegisterWorker", name="w", queues=[c.queue], concurrency=3)["data"]["workerId"]
    return worker


def heartbeat(c: TcpClient) -> None:
    c.ok("Heartbeat", id=register_worker(c), activeJobs=1, processed=5, failed=0)


def unregister_worker(c: TcpClient) -> None:
    assert c.ok("UnregisterWorker", workerId=register_worker(c))["data"]["removed"] is True


def list_workers(c: TcpClient) -> None:
    worker = register_worker(c)
    assert worker in [each["id"] for each in c.ok("ListWorkers")["data"]["workers"]]


def auth(c: TcpClient) -> None:
    c.ok("Auth", token="whatever, for nobody needs one here")


def hello(c: TcpClient) -> None:
    reply = c.ok("Hello", protocolVersion=2, capabilities=["pipelining"])
    assert (reply["protocolVersion"], reply["capabilities"], reply["server"]) == (
        3,
        ["pipelining", "separate-job-name"],
        "penstock",
    )


@pytest.mark.parametrize(
    ("name", "more"),
    [("MoveToDelayed", {"delay": 60_000}), ("MoveToWait", {}), ("Discard", {})],
)
def test_a_worker_that_lost_its_job_does_not_move_it(client: TcpClient, name: str, more: dict[str, Any]) -> None:
    job_id, stale = client.active()
    client.ok("MoveToWait", id=job_id)
    token = client.ok("PULL", queue=client.queue)["token"]
    assert "token" in client.refused(name, id=job_id, token=stale, **more)
    assert client.state(job_id) == "active"
    client.ok(name, id=job_id, token=token, **more)
    assert client.state(job_id) != "active"


def test_a_worker_that_lost_its_job_does_not_park_it(client: TcpClient) -> None:
    job_id, stale = client.active()
    client.ok("MoveToWait", id=job_id)
    client.ok("PULL", queue=client.queue)
    assert "token" in client.refused("MoveToWaitingChildren", id=job_id, token=stale)


def _by_command() -> dict[str, Callable[[TcpClient], None]]:
    """Find the function of each command: GetJobs is get_jobs, PUSHB is pushb."""
    functions = {name.replace("_", ""): item for name, item in globals().items() if callable(item)}
    return {name: functions[name.lower()] for name in all_commands() if name.lower() in functions}


WORKS = _by_command()
#: Commands that take nothing cannot be used wrongly, only by somebody without a token.
NEVER_REFUSED = {
    "Ping", "Stats", "Prometheus", "StorageStatus", "CompactMemory", "Hello", "ListQueues", "CronList",
    "ListWebhooks", "ListWorkers", "UnsubscribeEvents", "DashboardQueues",
}  # fmt: skip
#: One wrong use of each other command, and the words it is refused with.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "PUSH": ({"queue": "q", "data": 1, "priority": 0.5}, "priority must be an integer"),
    "PUSHB": ({"queue": "q", "jobs": [{"data": 1}, {"data": 2, "delay": -1}]}, "jobs[1]: delay must be at least 0"),
    "PUSHF": ({"jobs": [{"id": "x", "queue": "q", "input": {"data": 1}}]}, "flow job data must be an object"),
    "Metrics": ({"queue": "q", "type": "active"}, "Metrics type must be 'completed' or 'failed'"),
    "SubscribeEvents": ({"queue": "a b"}, "Queue name contains invalid characters"),
    "TrimEvents": ({"queue": "q", "maxLength": -1}, "maxLength must be at least 0"),
    "SetGroupConcurrency": ({"queue": "q", "groupId": "g", "concurrency": 0}, "concurrency must be at least 1"),
    **{
        name: ({"queue": "q"}, "groupId is required")
        for name in (
            "GetGroupJobsCount", "GetGroupActiveCount", "GetGroupConcurrency", "GetGroupRateLimit", "GetGroupRateLimitTtl",
            "IsGroupPaused", "RemoveGroupConcurrency", "RemoveGroupRateLimit", "ResumeGroup", "SetGroupRateLimit",
            "RateLimitGroup", "PauseGroup",
        )
    },
    "PULL": ({"queue": "q", "timeout": 60_001}, "timeout must be at most 60000"),
    "PULLB": ({"queue": "q", "count": 1_001}, "count must be at most 1000"),
    "ACK": ({"id": UNKNOWN_ID}, NOT_ACTIVE),
    "ACKB": ({"ids": [UNKNOWN_ID]}, NOT_ACTIVE),
    "FAIL": ({"id": UNKNOWN_ID, "error": "x"}, NOT_ACTIVE),
    "Progress": ({"id": UNKNOWN_ID, "progress": 1}, NOT_ACTIVE),
    "JobHeartbeat": ({"id": UNKNOWN_ID}, NOT_ALIVE),
    "JobHeartbeatB": ({"ids": [UNKNOWN_ID]}, NOT_ALIVE),
    "ExtendLock": ({"id": UNKNOWN_ID, "duration": 1}, NOT_LOCKED),
    "ExtendLocks": ({"ids": [UNKNOWN_ID], "durations": [1]}, NOT_LOCKED),
    "GetJob": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "GetJobByCustomId": ({}, "customId is required"),
    "GetState": ({"id": 5}, "id must be a string"),
    "GetResult": ({}, "id is required"),
    "GetProgress": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "WaitJob": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "Cancel": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "Update": ({"id": UNKNOWN_ID, "data": 1}, "Job not found or cannot be updated"),
    "ChangePriority": ({"id": UNKNOWN_ID, "priority": 1}, "Job not found or not in queue"),
    "Promote": ({"id": UNKNOWN_ID}, "Job not found or not delayed"),
    "MoveToDelayed": ({"id": UNKNOWN_ID, "delay": 1}, NOT_ACTIVE),
    "MoveToWaitingChildren": ({"id": UNKNOWN_ID}, "Job is not active"),
    "ChangeDelay": ({"id": UNKNOWN_ID, "delay": 1}, "Job not found or cannot change delay"),
    "MoveToWait": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "Discard": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "AddLog": ({"id": UNKNOWN_ID, "message": "x"}, NOT_FOUND),
    "GetLogs": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "ClearLogs": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "GetJobs": (
        {"queue": "q", "state": "gone"},
        "state must be one of: waiting, delayed, active, completed, failed, waiting-children, prioritized, paused",
    ),
    "GetJobCounts": ({"queue": "q" * 257}, "Queue name too long (max 256 characters)"),
    "GetCountsPerPriority": ({"queue": "a b"}, "Queue name contains invalid characters"),
    "Clean": ({"queue": "q", "grace": "soon"}, "grace must be a number"),
    "PromoteJobs": ({"queue": "q", "count": 0}, "count must be at least 1"),
    "RetryCompleted": ({"queue": "q", "id": 5}, "id must be a string"),
    "Dlq": ({"queue": "q", "count": -1}, "count must be at least 0"),
    "GetDlqStats": ({}, NO_QUEUE),
    "GetQueueLimits": ({"queue": "q", "maxJobs": -1}, "maxJobs must be at least 0"),
    "GetDeduplicationJobId": ({"queue": "q"}, "deduplicationId is required"),
    "RemoveDeduplicationKey": ({"queue": "q"}, "deduplicationId is required"),
    "RemoveJobDeduplicationKey": ({}, "id is required"),
    "RemoveDlqJob": ({"queue": "q"}, "jobId is required"),
    "RetryDlq": ({"queue": "q", "jobId": 5}, "jobId must be a string"),
    "RateLimit": ({"queue": "q"}, "limit is required"),
    "SetConcurrency": ({"queue": "q", "limit": 0}, "limit must be at least 1"),
    "SetStallConfig": ({"queue": "q", "config": {"maxStalls": 0}}, "config.maxStalls must be at least 1"),
    "SetDlqConfig": ({"queue": "q", "config": 5}, "config must be an object"),
    "Auth": ({}, "token is required"),
    "GetChildrenValues": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "GetFailedChildrenValues": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "GetIgnoredChildrenFailures": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "UpdateParent": ({"childId": UNKNOWN_ID, "parentId": UNKNOWN_ID}, NOT_FOUND),
    "RemoveChildDependency": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "RemoveUnprocessedChildren": ({"id": UNKNOWN_ID}, NOT_FOUND),
    "Cron": ({"name": "x", "queue": "q", "data": 1}, "Cron job must have either schedule or repeatEvery"),
    "CronGet": ({"name": "nobody"}, "Cron job not found"),
    "CronDelete": ({"name": "nobody"}, "Cron job not found"),
    "AddWebhook": ({"url": "http://127.0.0.1/", "events": ["failed"]}, "Webhook URL cannot point to loopback IP"),
    "RemoveWebhook": ({"webhookId": UNKNOWN_ID}, "Webhook not found"),
    "SetWebhookEnabled": ({"id": UNKNOWN_ID, "enabled": True}, "Webhook not found"),
    "RegisterWorker": ({"queues": []}, "name is required"),
    "Heartbeat": ({"id": "nobody"}, "Worker not found"),
    "UnregisterWorker": ({"workerId": "nobody"}, "Worker not found"),
    **{
        name: ({}, NO_QUEUE)
        for name in (
            "Count", "IsPaused", "Pause", "Resume", "Drain", "Obliterate", "PurgeDlq", "RateLimitClear", "ClearConcurrency",
            "GetStallConfig", "GetDlqConfig", "GetGroupsJobsCount",
        )
    },
}  # fmt: skip


def test_no_command_is_without_a_test() -> None:
    names = set(all_commands())
    assert WORKS.keys() == names
    assert REFUSED.keys() == names - NEVER_REFUSED


@pytest.mark.parametrize("name", WORKS)
def test_it_works(client: TcpClient, name: str) -> None:
    WORKS[name](client)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_the_words_of_the_contract(client: TcpClient, name: str) -> None:
    fields, error = REFUSED[name]
    assert client.refused(name, **fields) == error


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env={"AUTH_TOKENS": "secret"}) as running:
        yield running


@pytest.mark.parametrize("name", sorted(NEVER_REFUSED))
def test_it_is_refused_without_a_token(guarded: ServerProcess, name: str) -> None:
    with TcpClient(guarded.tcp_port) as stranger:
        assert stranger.refused(name) == "Not authenticated"
        stranger.ok("Auth", token="secret")
        stranger.ok(name)


@pytest.mark.parametrize("name", sorted(WORKS.keys() - {"Auth", "Hello"}))
def test_fields_nobody_knows_are_ignored(client: TcpClient, name: str) -> None:
    if name in REFUSED:
        fields, error = REFUSED[name]
        assert client.refused(name, **fields, nonsense={"a": [1]}) == error
    else:
        client.ok(name, nonsense={"a": [1]})


def test_dead_letters_are_never_left_out_because_they_are_large(server: ServerProcess, client: TcpClient) -> None:
    numbers = b'{"data":[%s],"maxAttempts":1}' % b",".join([b"1000000"] * 1_000_000)
    with server.client() as http:
        for _ in range(6):  # smaller in MessagePack, so that the reply would have room for more than is read at once
            http.post(f"/queues/{client.queue}/jobs", content=numbers).raise_for_status()
    for _ in range(6):
        job = client.ok("PULL", queue=client.queue)["job"]
        client.ok("FAIL", id=job["id"], error="broken")
    error = client.refused("Dlq", queue=client.queue)
    assert error == (
        "These dead jobs, each listed twice, are larger than 64 MiB. Request fewer with count or limit: the first 4 would fit."
    )
    assert len(client.ok("Dlq", queue=client.queue, count=4)["entries"]) == 4
    client.ok("Obliterate", queue=client.queue)
