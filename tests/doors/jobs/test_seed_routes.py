"""Every route of the contract's tables over a real socket: what it answers when it works, and when it does not.

A case counts only if it was seen to do what it says: ``Witness`` notes every request and how it ended, and each test looks
there for its own route. ``test_seed_coverage`` compares the tables of cases with those of the contract.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from websockets.exceptions import InvalidStatus

from tests.doors.api import UNKNOWN_ID, Api
from tests.doors.jobs import seed
from tests.doors.listen import ear, stream
from tests.support import stores
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

NIGHTLY = {"data": {"task": "cleanup"}, "schedule": "0 2 * * *"}
HOOK = {"url": "https://example.com/hooks/bunqueue", "events": ["completed", "failed"]}
JOB_FIELDS = {
    "id", "queue", "data", "priority", "createdAt", "runAt", "attempts", "maxAttempts", "backoff", "progress", "tags", "lifo",
    "removeOnComplete", "removeOnFail",
}  # fmt: skip


class Witness(Api):
    """Remembers which routes were asked, and whether that worked."""

    def __init__(self, server: ServerProcess, client: httpx2.Client, queue: str) -> None:
        super().__init__(client, queue)
        self.server = server
        self.seen: set[tuple[str | None, bool]] = set()

    def call(self, method: str, path: str, **more: Any) -> httpx2.Response:
        response = super().call(method, path, **more)
        is_json = response.headers.get("content-type") == "application/json"
        worked = response.status_code < 400 and (not is_json or response.json().get("ok") is True)
        self.note(response.request.method, response.request.url.path, worked=worked)
        return response

    def note(self, method: str, path: str, *, worked: bool) -> None:
        self.seen.add((seed.row_of(method, path), worked))


WORKS: dict[str, Callable[[Witness], None]] = {}


def works(row: str) -> Callable[[Callable[[Witness], None]], Callable[[Witness], None]]:
    def note(case: Callable[[Witness], None]) -> Callable[[Witness], None]:
        assert row not in WORKS
        WORKS[row] = case
        return case

    return note


# Jobs.


@works("POST /queues/:q/jobs")
def _push(api: Witness) -> None:
    reply = api.ok("POST", "{q}/jobs", {"data": {"to": "user@test.com"}, "priority": 10, "delay": 5_000})
    assert set(reply) == {"ok", "id"}
    assert reply["id"][14] == "7", "a UUID of version 7"
    assert api.state(reply["id"]) == "delayed"


@works("POST /queues/:q/jobs/bulk")
def _push_bulk(api: Witness) -> None:
    reply = api.ok(
        "POST", "{q}/jobs/bulk", {"jobs": [{"data": 1, "priority": 5}, {"data": 2}, {"data": 3, "delay": 60_000}]}
    )
    assert set(reply) == {"ok", "ids"}
    assert [api.job(each)["data"] for each in reply["ids"]] == [1, 2, 3]


@works("GET /queues/:q/jobs")
def _pull(api: Witness) -> None:
    assert api.ok("GET", "{q}/jobs")["job"] is None
    pushed = api.push({"to": "user@test.com"}, priority=10)
    job = api.ok("GET", "{q}/jobs", params={"timeout": 5_000})["job"]
    assert job.keys() >= JOB_FIELDS
    shown = (job["id"], job["queue"], job["data"], job["priority"], job["attempts"], job["maxAttempts"], job["backoff"])
    assert shown == (pushed, api.queue, {"to": "user@test.com"}, 10, 0, 3, 1_000)


@works("POST /queues/:q/jobs/pull-batch")
def _pull_batch(api: Witness) -> None:
    low, high = api.push(priority=3), api.push(priority=5)
    reply = api.ok("POST", "{q}/jobs/pull-batch", {"count": 10, "timeout": 5_000})
    assert [job["id"] for job in reply["jobs"]] == [high, low]


@works("GET /jobs/:id")
def _get(api: Witness) -> None:
    job_id = api.active(tags=["onboarding"])
    job = api.ok("GET", f"/jobs/{job_id}")["job"]
    assert job.keys() >= JOB_FIELDS | {"startedAt", "completedAt"}
    assert (job["id"], job["tags"], job["completedAt"]) == (job_id, ["onboarding"], None)


@works("GET /jobs/custom/:customId")
def _get_custom(api: Witness) -> None:
    job_id = api.push(5, jobId=f"order-{api.queue}")
    assert api.ok("GET", f"/jobs/custom/order-{api.queue}") == api.ok("GET", f"/jobs/{job_id}")


@works("DELETE /jobs/:id")
def _cancel(api: Witness) -> None:
    for job_id in (api.active(), api.push(), api.push(delay=60_000)):
        assert api.ok("DELETE", f"/jobs/{job_id}") == {"ok": True}
        assert api.state(job_id) == "unknown"


@works("POST /jobs/:id/ack")
def _ack(api: Witness) -> None:
    job_id = api.active()
    assert api.ok("POST", f"/jobs/{job_id}/ack", {"result": {"sent": True}}) == {"ok": True}
    assert api.state(job_id) == "completed"


@works("POST /jobs/ack-batch")
def _ack_batch(api: Witness) -> None:
    ids = [api.active() for _ in range(3)]
    api.ok("POST", "/jobs/ack-batch", {"ids": ids, "results": [{"a": 1}, None, {"c": 3}]})
    assert [api.state(each) for each in ids] == ["completed"] * 3
    assert api.ok("GET", f"/jobs/{ids[2]}/result")["result"] == {"c": 3}


@works("POST /jobs/:id/fail")
def _fail(api: Witness) -> None:
    job_id = api.active(backoff=60_000)
    assert api.ok("POST", f"/jobs/{job_id}/fail", {"error": "SMTP connection refused"}) == {"ok": True}
    job = api.job(job_id)
    assert (job["state"], job["attempts"], job["error"]) == ("delayed", 1, "SMTP connection refused")


@works("GET /jobs/:id/state")
def _state(api: Witness) -> None:
    job_id = api.active()
    assert api.ok("GET", f"/jobs/{job_id}/state") == {"ok": True, "id": job_id, "state": "active"}


@works("GET /jobs/:id/result")
def _result(api: Witness) -> None:
    job_id = api.completed({"sent": True})
    assert api.ok("GET", f"/jobs/{job_id}/result") == {"ok": True, "id": job_id, "result": {"sent": True}}


@works("GET /jobs/:id/progress")
@works("POST /jobs/:id/progress")
def _progress(api: Witness) -> None:
    job_id = api.active()
    assert api.ok("POST", f"/jobs/{job_id}/progress", {"progress": 75, "message": "Attachments"}) == {"ok": True}
    assert api.ok("GET", f"/jobs/{job_id}/progress") == {"ok": True, "progress": 75, "message": "Attachments"}


@works("PUT /jobs/:id/data")
def _data(api: Witness) -> None:
    job_id = api.push({"to": "old@email.com", "subject": "x"})
    assert api.ok("PUT", f"/jobs/{job_id}/data", {"data": {"to": "new@email.com"}}) == {"ok": True}
    assert api.job(job_id)["data"] == {"to": "new@email.com"}


@works("PUT /jobs/:id/priority")
def _priority(api: Witness) -> None:
    api.push()
    job_id = api.push()
    assert api.ok("PUT", f"/jobs/{job_id}/priority", {"priority": 100}) == {"ok": True}
    assert api.pull()["id"] == job_id


@works("POST /jobs/:id/promote")
def _promote(api: Witness) -> None:
    job_id = api.push(delay=60_000)
    assert api.ok("POST", f"/jobs/{job_id}/promote") == {"ok": True}
    assert api.pull()["id"] == job_id


@works("POST /jobs/:id/move-to-wait")
def _move_to_wait(api: Witness) -> None:
    job_id = api.push(delay=60_000)
    assert api.ok("POST", f"/jobs/{job_id}/move-to-wait") == {"ok": True}
    assert api.state(job_id) == "waiting"


@works("POST /jobs/:id/move-to-delayed")
def _move_to_delayed(api: Witness) -> None:
    job_id = api.active()
    assert api.ok("POST", f"/jobs/{job_id}/move-to-delayed", {"delay": 60_000}) == {"ok": True}
    assert api.state(job_id) == "delayed"


@works("PUT /jobs/:id/delay")
def _delay(api: Witness) -> None:
    job_id = api.push(delay=60_000)
    before = api.job(job_id)["runAt"]
    assert api.ok("PUT", f"/jobs/{job_id}/delay", {"delay": 30_000}) == {"ok": True}
    assert api.job(job_id)["runAt"] < before


@works("POST /jobs/:id/discard")
def _discard(api: Witness) -> None:
    jobs = [api.active(), api.push(), api.push(delay=60_000)]
    for job_id in jobs:
        assert api.ok("POST", f"/jobs/{job_id}/discard") == {"ok": True}
    assert {job["id"] for job in api.ok("GET", "{q}/dlq")["jobs"]} == set(jobs)


@works("POST /jobs/:id/wait")
def _wait(api: Witness) -> None:
    done = api.completed({"sent": True})
    assert api.ok("POST", f"/jobs/{done}/wait", {"timeout": 30_000}) == {
        "ok": True,
        "completed": True,
        "result": {"sent": True},
    }
    assert api.ok("POST", f"/jobs/{api.push()}/wait", {"timeout": 1}) == {"ok": True, "completed": False}


@works("GET /jobs/:id/children")
def _children(api: Witness) -> None:
    child = api.push()
    parent = api.push(dependsOn=[child])
    assert api.pull()["id"] == child
    api.ok("POST", f"/jobs/{child}/ack", {"result": {"result": "..."}})
    assert api.ok("GET", f"/jobs/{parent}/children")["values"] == {child: {"result": "..."}}


@works("POST /jobs/:id/heartbeat")
def _heartbeat(api: Witness) -> None:
    api.push()
    job_id, token = api.take()
    assert api.ok("POST", f"/jobs/{job_id}/heartbeat", {"token": token, "duration": 30_000})["data"] == {"ok": True}
    api.ok("POST", f"/jobs/{job_id}/heartbeat")


@works("POST /jobs/heartbeat-batch")
def _heartbeats(api: Witness) -> None:
    pairs = []
    for _ in range(2):
        api.push()
        pairs.append(api.take())
    body = {"ids": [job for job, _ in pairs], "tokens": [token for _, token in pairs]}
    assert api.ok("POST", "/jobs/heartbeat-batch", body)["data"] == {"ok": True, "count": 2}


@works("POST /jobs/:id/extend-lock")
def _extend(api: Witness) -> None:
    api.push()
    job_id, token = api.take()
    assert api.ok("POST", f"/jobs/{job_id}/extend-lock", {"duration": 30_000, "token": token}) == {"ok": True}


@works("POST /jobs/extend-locks")
def _extend_many(api: Witness) -> None:
    pairs = []
    for _ in range(2):
        api.push()
        pairs.append(api.take())
    body = {"ids": [job for job, _ in pairs], "tokens": [token for _, token in pairs], "durations": [30_000, 60_000]}
    assert api.ok("POST", "/jobs/extend-locks", body)["count"] == 2


@works("GET /jobs/:id/logs")
@works("POST /jobs/:id/logs")
@works("DELETE /jobs/:id/logs")
def _logs(api: Witness) -> None:
    job_id = api.push()
    api.ok("POST", f"/jobs/{job_id}/logs", {"message": "Connecting to SMTP server..."})
    api.ok("POST", f"/jobs/{job_id}/logs", {"message": "Oops", "level": "error"})
    logs = api.ok("GET", f"/jobs/{job_id}/logs")["data"]["logs"]
    shown = [(line["level"], line["message"]) for line in logs]
    assert shown == [("info", "Connecting to SMTP server..."), ("error", "Oops")]
    assert api.ok("DELETE", f"/jobs/{job_id}/logs") == {"ok": True}
    assert api.ok("GET", f"/jobs/{job_id}/logs")["data"]["logs"] == []


# Queues.


@works("GET /queues")
def _queues(api: Witness) -> None:
    api.push()
    assert api.queue in api.ok("GET", "/queues")["queues"]


@works("GET /queues/:q/jobs/list")
def _list(api: Witness) -> None:
    low, high = api.push(priority=1), api.push(priority=5)
    jobs = api.ok("GET", "{q}/jobs/list", params={"state": "waiting", "limit": 20, "offset": 0})["jobs"]
    assert [job["id"] for job in jobs] == [high, low]
    assert jobs[0].keys() >= {"id", "queue", "data", "priority", "createdAt", "runAt", "attempts", "progress"}


@works("GET /queues/:q/counts")
def _counts(api: Witness) -> None:
    api.completed()
    api.dead()
    api.active()
    api.push()
    api.push(delay=60_000)
    counts = api.ok("GET", "{q}/counts")["counts"]
    assert counts.items() >= {"delayed": 1, "completed": 1, "failed": 1}.items()
    if stores.chosen() == "redis":  # what is on a ready list counts as active, see docs/redis.md
        assert counts["waiting"] + counts["active"] == 2
    else:
        assert (counts["waiting"], counts["active"]) == (1, 1)


@works("GET /queues/:q/count")
def _count(api: Witness) -> None:
    api.push()
    api.push(delay=60_000)
    assert api.ok("GET", "{q}/count") == {"ok": True, "count": 2}


@works("GET /queues/:q/priority-counts")
def _priority_counts(api: Witness) -> None:
    for priority in (0, 5, 5):
        api.push(priority=priority)
    assert api.ok("GET", "{q}/priority-counts") == {"ok": True, "queue": api.queue, "counts": {"0": 1, "5": 2}}


@works("GET /queues/:q/paused")
@works("POST /queues/:q/pause")
@works("POST /queues/:q/resume")
def _pause(api: Witness) -> None:
    api.push()
    assert api.ok("GET", "{q}/paused") == {"ok": True, "paused": False}
    assert api.ok("POST", "{q}/pause") == {"ok": True}
    assert api.ok("GET", "{q}/paused") == {"ok": True, "paused": True}
    assert api.pull() is None
    assert api.ok("POST", "{q}/resume") == {"ok": True}
    assert api.pull() is not None


@works("POST /queues/:q/drain")
def _drain(api: Witness) -> None:
    active = api.active()
    api.push()
    api.push(delay=60_000)
    assert api.ok("POST", "{q}/drain") == {"ok": True, "count": 2}
    assert api.state(active) == "active"


@works("POST /queues/:q/obliterate")
def _obliterate(api: Witness) -> None:
    job_id = api.push()
    assert api.ok("POST", "{q}/obliterate") == {"ok": True}
    assert api.state(job_id) == "unknown"
    assert api.queue not in api.ok("GET", "/queues")["queues"]


@works("POST /queues/:q/clean")
def _clean(api: Witness) -> None:
    api.push()
    assert api.ok("POST", "{q}/clean", {"grace": 86_400_000, "state": "waiting", "limit": 500})["count"] == 0
    assert api.ok("POST", "{q}/clean", {"grace": 0, "state": "waiting"})["count"] == 1


@works("POST /queues/:q/promote-jobs")
def _promote_jobs(api: Witness) -> None:
    for _ in range(3):
        api.push(delay=60_000)
    assert api.ok("POST", "{q}/promote-jobs", {"count": 2})["count"] == 2
    assert api.counts()["waiting"] == 2


@works("POST /queues/:q/retry-completed")
def _retry_completed(api: Witness) -> None:
    one, two = api.completed(), api.completed()
    assert api.ok("POST", "{q}/retry-completed", {"id": one})["count"] == 1
    assert (api.state(one), api.state(two)) == ("waiting", "completed")
    assert api.ok("POST", "{q}/retry-completed")["count"] == 1


@works("GET /queues/:q/dlq")
def _dlq(api: Witness) -> None:
    dead = api.dead(data={"a": 1})
    (job,) = api.ok("GET", "{q}/dlq", params={"count": 100})["jobs"]
    assert job.keys() >= {"id", "data", "attempts", "createdAt"}
    assert (job["id"], job["data"], job["attempts"]) == (dead, {"a": 1}, 1)


@works("POST /queues/:q/dlq/retry")
def _dlq_retry(api: Witness) -> None:
    one, two = api.dead(), api.dead()
    assert api.ok("POST", "{q}/dlq/retry", {"jobId": one}) == {"ok": True, "count": 1}
    assert (api.state(one), api.state(two)) == ("waiting", "failed")
    assert api.ok("POST", "{q}/dlq/retry") == {"ok": True, "count": 1}
    assert api.job(one)["attempts"] == 0


@works("POST /queues/:q/dlq/purge")
def _dlq_purge(api: Witness) -> None:
    dead = api.dead()
    assert api.ok("POST", "{q}/dlq/purge") == {"ok": True, "count": 1}
    assert api.state(dead) == "unknown"


@works("PUT /queues/:q/rate-limit")
@works("DELETE /queues/:q/rate-limit")
def _rate_limit(api: Witness) -> None:
    for _ in range(3):
        api.push()
    assert api.ok("PUT", "{q}/rate-limit", {"limit": 1}) == {"ok": True}
    assert [api.pull() is None for _ in range(2)] == [False, True]
    assert api.ok("DELETE", "{q}/rate-limit") == {"ok": True}
    assert [api.pull() is None for _ in range(2)] == [False, False]


@works("PUT /queues/:q/concurrency")
@works("DELETE /queues/:q/concurrency")
def _concurrency(api: Witness) -> None:
    for _ in range(2):
        api.push()
    assert api.ok("PUT", "{q}/concurrency", {"limit": 1}) == {"ok": True}
    assert [api.pull() is None for _ in range(2)] == [False, True]
    assert api.ok("DELETE", "{q}/concurrency") == {"ok": True}
    assert api.pull() is not None


@works("GET /queues/:q/stall-config")
@works("PUT /queues/:q/stall-config")
def _stall_config(api: Witness) -> None:
    default = {"stallInterval": 30_000, "maxStalls": 3, "gracePeriod": 5_000}
    assert api.ok("GET", "{q}/stall-config")["config"].items() >= default.items()
    assert api.ok("PUT", "{q}/stall-config", {"config": {"maxStalls": 9}}) == {"ok": True}
    assert api.ok("GET", "{q}/stall-config")["config"].items() >= (default | {"maxStalls": 9}).items()


@works("GET /queues/:q/dlq-config")
@works("PUT /queues/:q/dlq-config")
def _dlq_config(api: Witness) -> None:
    default = {"autoRetry": False, "maxAge": 604_800_000, "maxEntries": 10_000}
    assert api.ok("GET", "{q}/dlq-config")["config"].items() >= default.items()
    assert api.ok("PUT", "{q}/dlq-config", {"config": {"autoRetry": True}}) == {"ok": True}
    assert api.ok("GET", "{q}/dlq-config")["config"].items() >= (default | {"autoRetry": True}).items()


# Crons, webhooks, workers.


@works("GET /crons")
@works("POST /crons")
@works("GET /crons/:name")
@works("DELETE /crons/:name")
def _crons(api: Witness) -> None:
    name = api.queue
    api.ok("POST", "/crons", {"name": name, "queue": api.queue, **NIGHTLY})
    cron = api.ok("GET", f"/crons/{name}")["cron"]
    assert cron == {
        "name": name, "queue": api.queue, "schedule": "0 2 * * *", "repeatEvery": None, "nextRun": cron["nextRun"],
        "executions": 0, "maxLimit": None, "timezone": "UTC",
    }  # fmt: skip
    assert cron in api.ok("GET", "/crons")["crons"]
    assert api.ok("DELETE", f"/crons/{name}") == {"ok": True}
    assert cron not in api.ok("GET", "/crons")["crons"]


@works("GET /webhooks")
@works("POST /webhooks")
@works("PUT /webhooks/:id/enabled")
@works("DELETE /webhooks/:id")
def _webhooks(api: Witness) -> None:
    data = api.ok("POST", "/webhooks", {**HOOK, "queue": api.queue, "secret": "whsec_abc123"})["data"]
    assert data == {**HOOK, "webhookId": data["webhookId"], "queue": api.queue, "createdAt": data["createdAt"]}
    path = f"/webhooks/{data['webhookId']}"
    api.ok("PUT", f"{path}/enabled", {"enabled": False})
    (shown,) = (each for each in api.ok("GET", "/webhooks")["data"]["webhooks"] if each["id"] == data["webhookId"])
    assert (shown["url"], shown["enabled"]) == (HOOK["url"], False)
    api.ok("DELETE", path)
    assert shown not in api.ok("GET", "/webhooks")["data"]["webhooks"]


@works("GET /workers")
@works("POST /workers")
@works("POST /workers/:id/heartbeat")
@works("DELETE /workers/:id")
def _workers(api: Witness) -> None:
    data = api.ok("POST", "/workers", {"name": "email-worker-1", "queues": [api.queue, "notifications"]})["data"]
    worker = data["workerId"]
    assert (data["name"], data["queues"]) == ("email-worker-1", [api.queue, "notifications"])
    api.ok("POST", f"/workers/{worker}/heartbeat", {"activeJobs": 3, "processed": 1_500, "failed": 2})
    listed = api.ok("GET", "/workers")["data"]
    assert listed["stats"].keys() == {"total", "active"}
    (shown,) = (each for each in listed["workers"] if each["id"] == worker)
    assert shown.items() >= {"name": "email-worker-1", "activeJobs": 3, "processedJobs": 1_500, "failedJobs": 2}.items()
    assert shown.keys() >= {"queues", "lastSeen"}
    api.ok("DELETE", f"/workers/{worker}")
    assert worker not in [each["id"] for each in api.ok("GET", "/workers")["data"]["workers"]]


# Monitoring.


@works("GET /health")
def _health(api: Witness) -> None:
    health = api.ok("GET", "/health")
    assert health.keys() >= {"ok", "status", "uptime", "version", "queues", "connections", "memory"}
    assert health["status"] == "healthy"
    assert health["queues"].keys() == {"waiting", "active", "delayed", "completed", "dlq"}
    assert health["connections"].keys() >= {"tcp", "ws", "sse"}
    assert health["memory"].keys() == {"heapUsed", "heapTotal", "rss"}


@works("GET /healthz")
@works("GET /live")
def _alive(api: Witness) -> None:
    for path in ("/healthz", "/live"):
        response = api.call("GET", path)
        assert (response.status_code, response.text) == (200, "OK")
        assert response.headers["content-type"].startswith("text/plain")


@works("GET /ready")
def _ready(api: Witness) -> None:
    assert api.ok("GET", "/ready") == {"ok": True, "ready": True}


@works("GET /ping")
def _ping(api: Witness) -> None:
    data = api.ok("GET", "/ping")["data"]
    assert data == {"pong": True, "time": data["time"]}


@works("GET /stats")
def _stats(api: Witness) -> None:
    reply = api.ok("GET", "/stats")
    assert reply["stats"].keys() >= {
        "waiting", "active", "delayed", "completed", "dlq", "totalPushed", "totalPulled", "totalCompleted", "totalFailed",
        "uptime",
    }  # fmt: skip
    assert reply["memory"].keys() >= {"heapUsed", "heapTotal", "rss", "external", "arrayBuffers"}
    collections = {"jobIndex", "completedJobs", "processingTotal", "queuedTotal", "temporalIndexTotal"}
    assert reply["collections"].keys() >= collections


@works("GET /metrics")
def _metrics(api: Witness) -> None:
    before = api.ok("GET", "/metrics")["metrics"]
    api.completed()
    after = api.ok("GET", "/metrics")["metrics"]
    assert after.keys() == {"totalPushed", "totalPulled", "totalCompleted", "totalFailed"}
    # What other tests have left may fail at any moment: test_ops.py counts failures, on a server of its own.
    assert {name: after[name] - before[name] for name in ("totalPushed", "totalPulled", "totalCompleted")} == {
        "totalPushed": 1, "totalPulled": 1, "totalCompleted": 1,
    }  # fmt: skip


@works("GET /prometheus")
def _prometheus(api: Witness) -> None:
    api.push()
    response = api.call("GET", "/prometheus")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert f'bunqueue_queue_jobs_waiting{{queue="{api.queue}"}} 1.0' in response.text
    assert "bunqueue_push_duration_ms_bucket" in response.text


@works("GET /storage")
def _storage(api: Witness) -> None:
    assert api.ok("GET", "/storage")["diskFull"] is False


@works("POST /gc")
def _gc(api: Witness) -> None:
    reply = api.ok("POST", "/gc")
    assert reply["before"].keys() == reply["after"].keys() == {"heapUsed", "heapTotal", "rss"}


@works("GET /heapstats")
def _heapstats(api: Witness) -> None:
    reply = api.ok("GET", "/heapstats")
    assert reply.keys() > {"ok"}
    assert any(isinstance(part, list) and 0 < len(part) <= 20 for part in _parts(reply)), "the most frequent types"


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for part in value.values():
            yield from _parts(part)


# Real-time.


@works("SSE /events")
@works("SSE /events/queues/:q")
def _streams(api: Witness) -> None:
    for path in ("/events", f"/events/queues/{api.queue}"):
        with stream(api.http, path) as events:
            job_id = api.push()
            while (heard := events.event()[1])["jobId"] != job_id:
                time.sleep(0.01)
            assert (heard["eventType"], heard["queue"]) == ("pushed", api.queue)
            api.note("SSE", path, worked=True)


@works("WebSocket /ws")
@works("WebSocket /ws/queues/:q")
def _sockets(api: Witness) -> None:
    for path in ("/ws", f"/ws/queues/{api.queue}"):
        with ear(api.server, "job:*", path=path) as events:
            assert events.ask("PUSH", queue=api.queue, data=1, reqId="7")["reqId"] == "7"
            heard = events.skipped[0]["data"] if events.skipped else events.until("job:pushed")
            assert heard["queue"] == api.queue
            api.note("WebSocket", path, worked=True)


# How each is refused.


class Refusal(NamedTuple):
    """A wrong request. Placeholders of the row are replaced by ``id``; ``server``: which one is asked."""

    status: int
    error: str
    body: Any = None
    query: dict[str, Any] | None = None
    id: str = UNKNOWN_ID
    queue: str = ""
    server: str = "server"


#: What takes nothing cannot be used wrongly, but it can be used by nobody in particular.
NO_TOKEN = Refusal(401, "Unauthorized", server="guarded")
BAD_QUEUE = Refusal(400, "Queue name contains invalid characters", queue="a%20b")
NOT_FOUND = Refusal(404, "Job not found")
NOT_ACTIVE = "Job not found or not active"

REFUSED: dict[str, Refusal] = {
    "POST /queues/:q/jobs": Refusal(400, "delay must be at least 0", {"data": 1, "delay": -1}),
    "POST /queues/:q/jobs/bulk": Refusal(400, "jobs[1]: data is required", {"jobs": [{"data": 1}, {}]}),
    "GET /queues/:q/jobs": Refusal(400, "timeout must be at most 60000", query={"timeout": 60_001}),
    "POST /queues/:q/jobs/pull-batch": Refusal(400, "count must be at most 1000", {"count": 1_001}),
    "GET /jobs/:id": NOT_FOUND,
    "GET /jobs/custom/:customId": NOT_FOUND,
    "DELETE /jobs/:id": NOT_FOUND,
    "POST /jobs/:id/ack": Refusal(400, NOT_ACTIVE),
    "POST /jobs/ack-batch": Refusal(400, NOT_ACTIVE, {"ids": [UNKNOWN_ID]}),
    "POST /jobs/:id/fail": Refusal(400, NOT_ACTIVE, {"error": "x"}),
    "GET /jobs/:id/state": NO_TOKEN,
    "GET /jobs/:id/result": NO_TOKEN,
    "GET /jobs/:id/progress": NOT_FOUND,
    "POST /jobs/:id/progress": Refusal(400, NOT_ACTIVE, {"progress": 5}),
    "PUT /jobs/:id/data": Refusal(400, "Job not found or cannot be updated", {"data": 1}),
    "PUT /jobs/:id/priority": Refusal(400, "Job not found or not in queue", {"priority": 1}),
    "POST /jobs/:id/promote": Refusal(400, "Job not found or not delayed"),
    "POST /jobs/:id/move-to-wait": Refusal(400, "Job not found or not delayed"),
    "POST /jobs/:id/move-to-delayed": Refusal(400, NOT_ACTIVE, {"delay": 1}),
    "PUT /jobs/:id/delay": Refusal(400, "Job not found or cannot change delay", {"delay": 1}),
    "POST /jobs/:id/discard": Refusal(400, "Job not found"),
    "POST /jobs/:id/wait": NOT_FOUND,
    "GET /jobs/:id/children": NOT_FOUND,
    "POST /jobs/:id/heartbeat": Refusal(400, "Job not found or not active (or invalid token)"),
    "POST /jobs/heartbeat-batch": Refusal(400, "Job not found or not active (or invalid token)", {"ids": [UNKNOWN_ID]}),
    "POST /jobs/:id/extend-lock": Refusal(400, "Lock not found or invalid token", {"duration": 1_000}),
    "POST /jobs/extend-locks": Refusal(400, "Lock not found or invalid token", {"ids": [UNKNOWN_ID], "durations": [1_000]}),
    "GET /jobs/:id/logs": NOT_FOUND,
    "POST /jobs/:id/logs": Refusal(400, "Job not found", {"message": "x"}),
    "DELETE /jobs/:id/logs": NOT_FOUND,
    "GET /queues": NO_TOKEN,
    "GET /queues/:q/jobs/list": Refusal(400, "limit must be at least 0", query={"limit": -1}),
    "POST /queues/:q/clean": Refusal(400, "grace must be at least 0", {"grace": -1}),
    "POST /queues/:q/promote-jobs": Refusal(400, "count must be at least 1", {"count": 0}),
    "POST /queues/:q/retry-completed": Refusal(400, "id must be a string", {"id": 5}),
    "GET /queues/:q/dlq": Refusal(400, "count must be a number", query={"count": "x"}),
    "POST /queues/:q/dlq/retry": Refusal(400, "jobId must be a string", {"jobId": 5}),
    "PUT /queues/:q/rate-limit": Refusal(400, "limit must be at least 1", {"limit": 0}),
    "PUT /queues/:q/concurrency": Refusal(400, "limit is required", {}),
    "PUT /queues/:q/stall-config": Refusal(400, "config.maxStalls must be at least 1", {"config": {"maxStalls": 0}}),
    "PUT /queues/:q/dlq-config": Refusal(400, "config must be an object", {"config": 5}),
    "GET /crons": NO_TOKEN,
    "POST /crons": Refusal(400, "Cron job must have either schedule or repeatEvery", {"name": "n", "queue": "q", "data": 1}),
    "GET /crons/:name": Refusal(404, "Cron job not found"),
    "DELETE /crons/:name": Refusal(404, "Cron job not found"),
    "GET /webhooks": NO_TOKEN,
    "POST /webhooks": Refusal(400, "Webhook URL cannot point to private IP", {**HOOK, "url": "https://10.0.0.1/"}),
    "DELETE /webhooks/:id": Refusal(404, "Webhook not found"),
    "PUT /webhooks/:id/enabled": Refusal(404, "Webhook not found", {"enabled": False}),
    "GET /workers": NO_TOKEN,
    "POST /workers": Refusal(400, "queues is required", {"name": "w"}),
    "DELETE /workers/:id": Refusal(404, "Worker not found"),
    "POST /workers/:id/heartbeat": Refusal(200, "Worker not found"),
    "SSE /events": NO_TOKEN,
    "SSE /events/queues/:q": BAD_QUEUE,
    "WebSocket /ws": Refusal(400, ""),
    "WebSocket /ws/queues/:q": Refusal(400, "", queue="a%20b"),
    **{f"GET /queues/:q/{name}": BAD_QUEUE for name in ("counts", "count", "priority-counts", "paused")},
    **{f"GET /queues/:q/{name}": BAD_QUEUE for name in ("stall-config", "dlq-config")},
    **{f"POST /queues/:q/{name}": BAD_QUEUE for name in ("pause", "resume", "drain", "obliterate", "dlq/purge")},
    **{f"DELETE /queues/:q/{name}": BAD_QUEUE for name in ("rate-limit", "concurrency")},
    **{f"GET /{name}": NO_TOKEN for name in ("ping", "stats", "metrics", "prometheus", "storage", "heapstats")},
    "POST /gc": NO_TOKEN,
}  # fmt: skip

#: Probes need no token and take nothing: what they say of a server that is not well.
UNWELL = {
    "GET /health": (200, "degraded"),
    "GET /ready": (503, '"ready":false'),
    "GET /healthz": (200, "OK"),  # alive all the same: starting it anew would not mend the disk
    "GET /live": (200, "OK"),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"AUTH_TOKENS": "secret", "METRICS_AUTH": "true"}
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env=env) as running:
        yield running


@pytest.fixture
def witness(server: ServerProcess, api: Api) -> Witness:
    return Witness(server, api.http, api.queue)


@pytest.mark.parametrize("row", WORKS)
def test_it_works(witness: Witness, row: str) -> None:
    WORKS[row](witness)
    assert (row, True) in witness.seen, "the case did not ask the route it is about"


@pytest.mark.parametrize("row", REFUSED)
def test_it_is_refused_in_the_words_of_the_contract(request: pytest.FixtureRequest, witness: Witness, row: str) -> None:
    wrong = REFUSED[row]
    server: ServerProcess = request.getfixturevalue(wrong.server)
    method, path = row.split()
    path = path.replace(":q", wrong.queue or witness.queue)
    path = "/".join(wrong.id if part.startswith(":") else part for part in path.split("/"))
    with server.client() as client:
        asked = Witness(server, client, witness.queue)
        if method == "WebSocket":
            outcome = refused_handshake(asked, path)
        else:
            response = asked.call("GET" if method == "SSE" else method, path, json=wrong.body, params=wrong.query)
            outcome = response.status_code, response.json()["error"]
            if method == "SSE":
                asked.note(method, path, worked=response.status_code < 400)
    assert outcome == (wrong.status, wrong.error)
    assert (row, False) in asked.seen, "the case did not ask the route it is about"


def refused_handshake(asked: Witness, path: str) -> tuple[int, str]:
    """Try to open a WebSocket. Nothing but a status can be said before there is one."""
    headers = {"X-Namespace": "no good"} if path == "/ws" else {}
    with pytest.raises(InvalidStatus) as refused, ear(asked.server, path=path, additional_headers=headers):
        pass
    asked.note("WebSocket", path, worked=False)
    return refused.value.response.status_code, ""


@pytest.mark.parametrize("row", UNWELL)
def test_a_probe_tells_what_it_is_for(unwell: httpx2.Client, row: str) -> None:
    method, path = row.split()
    status, text = UNWELL[row]
    response = unwell.request(method, path)
    assert response.status_code == status
    assert text in response.text
    wrong = unwell.request("POST", path)
    assert (wrong.status_code, wrong.json()) == (404, {"ok": False, "error": "Not found"})


@pytest.fixture(scope="module")
def unwell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A server whose disk is broken."""
    home = tmp_path_factory.mktemp("unwell")
    fault = home / "broken"
    launcher = ("-m", "tests.support.faulty_server")
    with (
        ServerProcess(home / "data", launcher=launcher, env={"FAULT_FILE": str(fault)}) as server,
        server.client() as client,
    ):
        fault.touch()
        assert client.post("/queues/q/jobs", json={"data": 1}).status_code == 500
        yield client
