"""Every event of the contract's tables over a real socket: it is heard when it happens, and not when it does not.

A case says how to bring an event about, or what comes close to it. The listening is done by the tests themselves: an event
counts as heard if it arrives under its name with the fields of the contract, all of them and no others, and nobody who wanted
everything else gets it. ``test_seed_coverage`` compares the tables of cases with those of the contract.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import ConnectionClosed

from penstock.core import limits
from tests.doors.api import UNKNOWN_ID, Api
from tests.doors.jobs import seed
from tests.doors.listen import Ear, ear, stream
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Case = Callable[["Stage"], "Fields"]

_numbers = itertools.count()
Fields = dict[str, Any]
DAILY = {"data": 1, "schedule": "0 2 * * *"}
#: A loud server tells everything that it can tell, soon.
LOUD = {
    "QUEUE_IDLE_THRESHOLD_MS": "1",
    "QUEUE_SIZE_THRESHOLD": "2",
    "WORKER_OVERLOAD_THRESHOLD_MS": "1",
    "MEMORY_WARNING_MB": "1",
    "STORAGE_WARNING_MB": "1",
    "WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
}
#: A calm one looks, and finds nothing to tell.
CALM = {"MEMORY_WARNING_MB": "1000000", "STORAGE_WARNING_MB": "1000000"}


class Stage(Api):
    """A queue of a server, and what is next to it."""

    def __init__(self, api: Api, receiver: str) -> None:
        super().__init__(api.http, f"e{os.getpid()}-{next(_numbers)}")
        self.receiver = receiver  #: URL of who takes webhooks

    def elsewhere(self) -> Stage:
        return Stage(self, self.receiver)

    def worker(self, **more: Any) -> str:
        body = {"name": self.queue, "queues": [self.queue], **more}
        worker: str = self.ok("POST", "/workers", body)["data"]["workerId"]
        return worker

    def cron(self, **more: Any) -> Fields:
        self.ok("POST", "/crons", {"name": self.queue, "queue": self.queue, **(DAILY | more)})
        return {"name": self.queue}

    def webhook(self, path: str = "/ok", *events: str) -> str:
        body = {"url": f"{self.receiver}{path}", "events": events or ["pushed"], "queue": self.queue}
        webhook: str = self.ok("POST", "/webhooks", body)["data"]["webhookId"]
        return webhook

    def flow(self) -> tuple[str, str]:
        """Push a child, and a parent that waits for it; pull the child."""
        child = self.push(maxAttempts=1)
        parent = self.push(dependsOn=[child], childrenIds=[child])
        assert self.pull()["id"] == child
        return child, parent


#: How to bring each event about; returns fields by which it is known.
CAUSES: dict[str, Case] = {}
#: What comes close to each event and does not bring it about; returns fields by which it would be known.
NEARLY: dict[str, Case] = {}


def cause(name: str) -> Callable[[Case], Case]:
    return _into(CAUSES, name)


def nearly(name: str) -> Callable[[Case], Case]:
    return _into(NEARLY, name)


def _into(table: dict[str, Case], name: str) -> Callable[[Case], Case]:
    def note(case: Case) -> Case:
        assert name not in table
        table[name] = case
        return case

    return note


# Jobs.


@cause("job:pushed")
def _pushed(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.push()}


@nearly("job:pushed")
def _not_pushed(on: Stage) -> Fields:
    on.refused("POST", "{q}/jobs", {"data": 1, "delay": -1})
    return {"queue": on.queue}


@cause("job:active")
def _active(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.active()}


@nearly("job:active")
def _not_active(on: Stage) -> Fields:
    on.ok("POST", "{q}/pause")
    on.push()
    assert on.pull() is None
    return {"queue": on.queue}


@cause("job:completed")
def _completed(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.completed(result=1)}


@nearly("job:completed")
def _not_completed(on: Stage) -> Fields:
    job = on.push()
    on.refused("POST", f"/jobs/{job}/ack")
    return {"jobId": job}


@cause("job:failed")
def _failed(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.dead(), "error": "broken"}


@nearly("job:failed")
def _not_failed(on: Stage) -> Fields:
    job = on.push()
    on.refused("POST", f"/jobs/{job}/fail", {"error": "x"})
    return {"jobId": job}


@cause("job:removed")
def _removed(on: Stage) -> Fields:
    job = on.push()
    on.ok("DELETE", f"/jobs/{job}")
    return {"queue": on.queue, "jobId": job}


@nearly("job:removed")
def _not_removed(on: Stage) -> Fields:
    job = on.completed()
    on.refused("DELETE", f"/jobs/{job}")
    return {"jobId": job}


@cause("job:promoted")
def _promoted(on: Stage) -> Fields:
    job = on.push(delay=60_000)
    on.ok("POST", f"/jobs/{job}/promote")
    return {"jobId": job}


@nearly("job:promoted")
def _not_promoted(on: Stage) -> Fields:
    job = on.push()
    on.refused("POST", f"/jobs/{job}/promote")
    return {"jobId": job}


@cause("job:progress")
def _progress(on: Stage) -> Fields:
    job = on.active()
    on.ok("POST", f"/jobs/{job}/progress", {"progress": 40})
    return {"queue": on.queue, "jobId": job, "progress": 40}


@nearly("job:progress")
def _no_progress(on: Stage) -> Fields:
    job = on.push()
    on.refused("POST", f"/jobs/{job}/progress", {"progress": 40})
    return {"jobId": job}


@cause("job:delayed")
def _delayed(on: Stage) -> Fields:
    job = on.active()
    on.ok("POST", f"/jobs/{job}/move-to-delayed", {"delay": 60_000})
    return {"queue": on.queue, "jobId": job, "delay": 60_000}


@nearly("job:delayed")
def _not_delayed(on: Stage) -> Fields:
    job = on.push()
    on.refused("POST", f"/jobs/{job}/move-to-delayed", {"delay": 60_000})
    return {"jobId": job}


@cause("job:stalled")
def _stalled(on: Stage) -> Fields:
    on.ok("PUT", "{q}/stall-config", {"stallInterval": 1, "gracePeriod": 1, "maxStalls": 5})
    return {"queue": on.queue, "jobId": on.active()}


@nearly("job:stalled")
def _not_stalled(on: Stage) -> Fields:
    on.ok("PUT", "{q}/stall-config", {"stallInterval": 1, "gracePeriod": 1, "enabled": False})
    job = on.active()
    # By the time that a job of another queue was found to be lost, this one would have been too.
    other = on.elsewhere()
    other.ok("PUT", "{q}/stall-config", {"stallInterval": 1, "gracePeriod": 1, "maxStalls": 1})
    other.ok("POST", f"/jobs/{other.active()}/wait", {"timeout": 20_000})
    return {"jobId": job}


@cause("job:retried")
def _retried(on: Stage) -> Fields:
    job = on.completed()
    on.ok("POST", "{q}/retry-completed", {"id": job})
    return {"queue": on.queue, "jobId": job}


@nearly("job:retried")
def _not_retried(on: Stage) -> Fields:
    job = on.push()
    assert on.ok("POST", "{q}/retry-completed", {"id": job})["count"] == 0
    return {"jobId": job}


@cause("job:discarded")
def _discarded(on: Stage) -> Fields:
    job = on.push()
    on.ok("POST", f"/jobs/{job}/discard")
    return {"jobId": job}


@nearly("job:discarded")
def _not_discarded(on: Stage) -> Fields:
    job = on.dead()
    on.refused("POST", f"/jobs/{job}/discard")
    return {"jobId": job}


@cause("job:priority-changed")
def _priority(on: Stage) -> Fields:
    job = on.push()
    on.ok("PUT", f"/jobs/{job}/priority", {"priority": 5})
    return {"jobId": job, "newPriority": 5}


@nearly("job:priority-changed")
def _not_priority(on: Stage) -> Fields:
    job = on.active()
    on.refused("PUT", f"/jobs/{job}/priority", {"priority": 5})
    return {"jobId": job}


@cause("job:data-updated")
def _data(on: Stage) -> Fields:
    job = on.push()
    on.ok("PUT", f"/jobs/{job}/data", {"data": 2})
    return {"jobId": job}


@nearly("job:data-updated")
def _not_data(on: Stage) -> Fields:
    job = on.completed()
    on.refused("PUT", f"/jobs/{job}/data", {"data": 2})
    return {"jobId": job}


@cause("job:delay-changed")
def _delay(on: Stage) -> Fields:
    job = on.push(delay=60_000)
    on.ok("PUT", f"/jobs/{job}/delay", {"delay": 90_000})
    return {"jobId": job, "newDelay": 90_000}


@nearly("job:delay-changed")
def _not_delay(on: Stage) -> Fields:
    job = on.active()
    on.refused("PUT", f"/jobs/{job}/delay", {"delay": 90_000})
    return {"jobId": job}


@cause("job:expired")
def _expired(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.push(ttl=1), "ttl": 1}


@nearly("job:expired")
def _not_expired(on: Stage) -> Fields:
    job = on.push(ttl=3_600_000)
    short = on.push(ttl=1)
    while on.state(short) != "unknown":
        time.sleep(0.01)
    return {"jobId": job}


# Queues. What happens in a queue is not heard by who listens to another one: see test_it_is_not_heard_elsewhere.


@cause("queue:counts")
def _counts(on: Stage) -> Fields:
    on.push()
    return {"queue": on.queue, "waiting": 1, "active": 0, "completed": 0, "failed": 0, "delayed": 0}


@cause("queue:paused")
def _paused(on: Stage) -> Fields:
    on.ok("POST", "{q}/pause")
    return {"queue": on.queue}


@cause("queue:resumed")
def _resumed(on: Stage) -> Fields:
    on.ok("POST", "{q}/pause")
    on.ok("POST", "{q}/resume")
    return {"queue": on.queue}


@cause("queue:drained")
def _drained(on: Stage) -> Fields:
    on.push()
    on.ok("POST", "{q}/drain")
    return {"queue": on.queue, "count": 1}


@cause("queue:cleaned")
def _cleaned(on: Stage) -> Fields:
    on.completed()
    on.ok("POST", "{q}/clean", {"grace": 0, "state": "completed"})
    return {"queue": on.queue, "state": "completed", "count": 1}


@cause("queue:obliterated")
@cause("queue:removed")
def _obliterated(on: Stage) -> Fields:
    on.push()
    on.ok("POST", "{q}/obliterate")
    return {"queue": on.queue}


@cause("queue:created")
def _created(on: Stage) -> Fields:
    on.push()
    return {"queue": on.queue}


@cause("queue:idle")
def _idle(on: Stage) -> Fields:
    on.completed()
    return {"queue": on.queue}


@nearly("queue:idle")
def _not_idle(on: Stage) -> Fields:
    on.push()
    return {"queue": on.queue}


@cause("queue:threshold")
def _threshold(on: Stage) -> Fields:
    on.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": n} for n in range(3)]})
    return {"queue": on.queue, "size": 3, "threshold": 2}


@nearly("queue:threshold")
def _not_threshold(on: Stage) -> Fields:
    on.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": n} for n in range(2)]})
    return {"queue": on.queue}


@cause("flow:completed")
def _flow_completed(on: Stage) -> Fields:
    child, parent = on.flow()
    on.ok("POST", f"/jobs/{child}/ack")
    return {"parentJobId": parent, "queue": on.queue, "childrenCount": 1}


@nearly("flow:completed")
def _flow_not_completed(on: Stage) -> Fields:
    child, parent = on.flow()
    on.ok("POST", f"/jobs/{child}/fail", {"error": "no"})
    return {"parentJobId": parent}


@cause("flow:failed")
def _flow_failed(on: Stage) -> Fields:
    child, parent = on.flow()
    on.ok("POST", f"/jobs/{child}/fail", {"error": "no"})
    return {"parentJobId": parent, "failedChildId": child, "queue": on.queue, "error": "no"}


@nearly("flow:failed")
def _flow_not_failed(on: Stage) -> Fields:
    child, parent = on.flow()
    on.ok("POST", f"/jobs/{child}/ack")
    return {"parentJobId": parent}


@cause("dlq:added")
def _dead(on: Stage) -> Fields:
    return {"queue": on.queue, "jobId": on.dead(), "reason": "max_attempts_exceeded"}


@nearly("dlq:added")
def _not_dead(on: Stage) -> Fields:
    job = on.active(maxAttempts=2)
    on.ok("POST", f"/jobs/{job}/fail", {"error": "once"})
    return {"jobId": job}


@cause("dlq:retried")
def _dlq_retried(on: Stage) -> Fields:
    job = on.dead()
    on.ok("POST", "{q}/dlq/retry", {"jobId": job})
    return {"queue": on.queue, "jobId": job}


@nearly("dlq:retried")
def _not_dlq_retried(on: Stage) -> Fields:
    on.dead()
    assert on.ok("POST", "{q}/dlq/retry", {"jobId": UNKNOWN_ID})["count"] == 0
    return {"queue": on.queue}


@cause("dlq:retry-all")
def _dlq_retry_all(on: Stage) -> Fields:
    on.dead()
    on.ok("POST", "{q}/dlq/retry")
    return {"queue": on.queue, "count": 1}


@nearly("dlq:retry-all")
def _not_dlq_retry_all(on: Stage) -> Fields:
    on.ok("POST", "{q}/dlq/retry", {"jobId": on.dead()})
    return {"queue": on.queue}


@cause("dlq:purged")
def _dlq_purged(on: Stage) -> Fields:
    on.dead()
    on.ok("POST", "{q}/dlq/purge")
    return {"queue": on.queue, "count": 1}


@cause("ratelimit:set")
def _rate_set(on: Stage) -> Fields:
    on.ok("PUT", "{q}/rate-limit", {"limit": 5})
    return {"queue": on.queue, "max": 5}


@nearly("ratelimit:set")
def _rate_not_set(on: Stage) -> Fields:
    on.refused("PUT", "{q}/rate-limit", {"limit": 0})
    return {"queue": on.queue}


@cause("ratelimit:cleared")
def _rate_cleared(on: Stage) -> Fields:
    on.ok("PUT", "{q}/rate-limit", {"limit": 5})
    on.ok("DELETE", "{q}/rate-limit")
    return {"queue": on.queue}


@cause("ratelimit:hit")
def _rate_hit(on: Stage) -> Fields:
    on.ok("PUT", "{q}/rate-limit", {"limit": 1})
    on.active()
    job = on.push()
    assert on.pull() is None
    return {"queue": on.queue, "jobId": job}


@nearly("ratelimit:hit")
def _rate_not_hit(on: Stage) -> Fields:
    on.ok("PUT", "{q}/rate-limit", {"limit": 1})
    on.active()
    assert on.pull() is None, "there is no job to hold back"
    return {"queue": on.queue}


@cause("concurrency:set")
def _concurrency_set(on: Stage) -> Fields:
    on.ok("PUT", "{q}/concurrency", {"limit": 9})
    return {"queue": on.queue, "concurrency": 9}


@nearly("concurrency:set")
def _concurrency_not_set(on: Stage) -> Fields:
    on.refused("PUT", "{q}/concurrency", {"limit": 0})
    return {"queue": on.queue}


@cause("concurrency:cleared")
def _concurrency_cleared(on: Stage) -> Fields:
    on.ok("PUT", "{q}/concurrency", {"limit": 9})
    on.ok("DELETE", "{q}/concurrency")
    return {"queue": on.queue}


@cause("config:stall-changed")
def _stall_changed(on: Stage) -> Fields:
    on.ok("PUT", "{q}/stall-config", {"config": {"maxStalls": 9}})
    return {"queue": on.queue}


@nearly("config:stall-changed")
def _stall_not_changed(on: Stage) -> Fields:
    on.refused("PUT", "{q}/stall-config", {"config": {"maxStalls": 0}})
    return {"queue": on.queue}


@cause("config:dlq-changed")
def _dlq_changed(on: Stage) -> Fields:
    on.ok("PUT", "{q}/dlq-config", {"config": {"maxEntries": 9}})
    return {"queue": on.queue}


@nearly("config:dlq-changed")
def _dlq_not_changed(on: Stage) -> Fields:
    on.refused("PUT", "{q}/dlq-config", {"config": {"maxEntries": -1}})
    return {"queue": on.queue}


# Crons.


@cause("cron:created")
def _cron_created(on: Stage) -> Fields:
    return on.cron() | {"queue": on.queue, "pattern": "0 2 * * *"}


@nearly("cron:created")
def _cron_not_created(on: Stage) -> Fields:
    on.refused("POST", "/crons", {"name": on.queue, "queue": on.queue, "data": 1, "schedule": "nonsense"})
    return {"name": on.queue}


@cause("cron:deleted")
def _cron_deleted(on: Stage) -> Fields:
    on.cron()
    on.ok("DELETE", f"/crons/{on.queue}")
    return {"name": on.queue}


@nearly("cron:deleted")
def _cron_not_deleted(on: Stage) -> Fields:
    on.refused("DELETE", f"/crons/{on.queue}")
    return {"name": on.queue}


@cause("cron:updated")
def _cron_updated(on: Stage) -> Fields:
    on.cron()
    return on.cron(schedule="0 3 * * *") | {"queue": on.queue}


@nearly("cron:updated")
def _cron_not_updated(on: Stage) -> Fields:
    return on.cron()


@cause("cron:fired")
def _cron_fired(on: Stage) -> Fields:
    return on.cron(schedule=None, repeatEvery=20, maxLimit=1) | {"queue": on.queue}


@nearly("cron:fired")
def _cron_not_fired(on: Stage) -> Fields:
    on.elsewhere().cron(schedule=None, repeatEvery=20, maxLimit=1)
    return on.cron(schedule=None, repeatEvery=3_600_000)


@cause("cron:skipped")
def _cron_skipped(on: Stage) -> Fields:
    on.cron(schedule=None, repeatEvery=200)  # nobody takes its first job, so the second tick would overlap
    return {"name": on.queue, "queue": on.queue}


@nearly("cron:skipped")
def _cron_not_skipped(on: Stage) -> Fields:
    on.cron(schedule=None, repeatEvery=20, maxLimit=2, preventOverlap=False)
    for _ in range(2):
        on.ok("POST", f"/jobs/{on.pull(timeout=20_000)['id']}/ack")
    return {"name": on.queue}


# Workers.


@cause("worker:connected")
def _connected(on: Stage) -> Fields:
    return {"workerId": on.worker(), "name": on.queue, "queues": [on.queue]}


@nearly("worker:connected")
def _not_connected(on: Stage) -> Fields:
    on.refused("POST", "/workers", {"name": on.queue})
    return {"name": on.queue}


@cause("worker:disconnected")
def _disconnected(on: Stage) -> Fields:
    worker = on.worker()
    on.ok("DELETE", f"/workers/{worker}")
    return {"workerId": worker}


@nearly("worker:disconnected")
def _not_disconnected(on: Stage) -> Fields:
    on.refused("DELETE", f"/workers/{on.queue}")
    return {"workerId": on.queue}


@cause("worker:heartbeat")
def _beat(on: Stage) -> Fields:
    worker = on.worker()
    on.ok("POST", f"/workers/{worker}/heartbeat")
    return {"workerId": worker}


@nearly("worker:heartbeat")
def _no_beat(on: Stage) -> Fields:
    assert on.call("POST", f"/workers/{on.queue}/heartbeat").json()["ok"] is False
    return {"workerId": on.queue}


@cause("worker:overloaded")
def _overloaded(on: Stage) -> Fields:
    worker = on.worker(concurrency=2)
    for _ in range(20):  # which takes longer than a millisecond
        on.ok("POST", f"/workers/{worker}/heartbeat", {"activeJobs": 2})
    return {"workerId": worker, "name": on.queue, "activeJobs": 2, "concurrency": 2, "overloadedSeconds": 0}


@nearly("worker:overloaded")
def _not_overloaded(on: Stage) -> Fields:
    worker = on.worker(concurrency=2)
    for _ in range(20):
        on.ok("POST", f"/workers/{worker}/heartbeat", {"activeJobs": 1})
    return {"workerId": worker}


@cause("worker:error")
def _worker_error(on: Stage) -> Fields:
    worker = on.worker()
    on.ok("POST", f"/workers/{worker}/heartbeat", {"processed": 15, "failed": 5})
    return {"workerId": worker, "name": on.queue, "failedJobs": 5, "processedJobs": 15, "failureRate": 0.25}


@nearly("worker:error")
def _no_worker_error(on: Stage) -> Fields:
    worker = on.worker()
    on.ok("POST", f"/workers/{worker}/heartbeat", {"processed": 1, "failed": 4})
    return {"workerId": worker}


# Webhooks.


@cause("webhook:added")
def _hook_added(on: Stage) -> Fields:
    return {"id": on.webhook(), "url": f"{on.receiver}/ok", "events": ["pushed"]}


@nearly("webhook:added")
def _hook_not_added(on: Stage) -> Fields:
    url = f"https://10.0.0.1/{on.queue}"
    on.refused("POST", "/webhooks", {"url": url, "events": ["pushed"]})
    return {"url": url}


@cause("webhook:removed")
def _hook_removed(on: Stage) -> Fields:
    webhook = on.webhook()
    on.ok("DELETE", f"/webhooks/{webhook}")
    return {"id": webhook}


@nearly("webhook:removed")
def _hook_not_removed(on: Stage) -> Fields:
    on.refused("DELETE", f"/webhooks/{UNKNOWN_ID}")
    return {"id": UNKNOWN_ID}


@cause("webhook:fired")
def _hook_fired(on: Stage) -> Fields:
    webhook = on.webhook()
    on.push()
    return {"id": webhook, "event": "job.pushed", "statusCode": 200}


@nearly("webhook:fired")
def _hook_not_fired(on: Stage) -> Fields:
    webhook = on.webhook("/ok", "failed")
    on.completed()
    return {"id": webhook}


@cause("webhook:failed")
def _hook_failed(on: Stage) -> Fields:
    webhook = on.webhook("/broken")
    on.push()
    return {"id": webhook, "event": "job.pushed", "error": "HTTP 500"}


@nearly("webhook:failed")
def _hook_not_failed(on: Stage) -> Fields:
    webhook = on.webhook()
    on.push()
    while on.ok("GET", "/webhooks")["data"]["webhooks"][-1]["successCount"] == 0:
        time.sleep(0.01)  # it is counted soon after it was delivered
    return {"id": webhook}


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(500 if "broken" in self.path else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def receiver() -> Iterator[str]:
    """A server that takes webhooks; at /broken it has an error of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint) as endpoint:
        running = threading.Thread(target=endpoint.serve_forever)
        running.start()
        yield f"http://127.0.0.1:{endpoint.server_port}"
        endpoint.shutdown()
        running.join()


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("loud") / "data", env=LOUD) as running:
        yield running


@pytest.fixture
def stage(loud: ServerProcess, receiver: str) -> Iterator[Stage]:
    with loud.client() as client:
        yield Stage(Api(client, ""), receiver)


def of(listening: Ear, name: str) -> list[Fields]:
    """Return the payloads that arrived under a name, up to now: what was told before this call has arrived."""
    assert listening.ask("Ping")["ok"] is True
    return [each["data"] for each in listening.skipped if each["event"] == name]


def each_of(names: Iterable[str]) -> pytest.MarkDecorator:
    marks = {"webhook:failed": pytest.mark.slow}
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks.get(name, ())) for name in names])


def everything_but(name: str) -> list[str]:
    return [each for each in seed.EVENTS if each != name]


@each_of(CAUSES)
def test_it_is_heard_by_who_asked_for_it(loud: ServerProcess, stage: Stage, name: str) -> None:
    with ear(loud, name) as listening, ear(loud, *everything_but(name), max_queue=None) as bystander:
        known = CAUSES[name](stage)
        payload = listening.until(name, **known)
        assert seed.fits(name, payload), payload
        assert {each["event"] for each in listening.skipped} <= {name}
        assert of(bystander, name) == []


#: Events that are told late: what comes close is followed by another event elsewhere, which is told later still.
LATER = {
    "queue:idle": "queue:idle",
    "queue:threshold": "queue:threshold",
    "cron:fired": "cron:fired",
    "webhook:fired": "webhook:fired",
    "webhook:failed": "webhook:fired",
}


@each_of(NEARLY)
def test_it_is_not_heard_when_it_did_not_happen(loud: ServerProcess, stage: Stage, name: str) -> None:
    later = LATER.get(name)
    with ear(loud, *dict.fromkeys((name, later or name))) as listening:
        known = NEARLY[name](stage)
        if later is not None:
            listening.until(later, **CAUSES[later](stage.elsewhere()))
        assert [each for each in of(listening, name) if known.items() <= each.items()] == []


#: Events of one queue.
OF_QUEUE = tuple(name for name in CAUSES if not name.startswith(("worker:", "webhook:")))


@each_of(OF_QUEUE)
def test_it_is_not_heard_elsewhere(loud: ServerProcess, stage: Stage, name: str) -> None:
    with ear(loud, name) as listening, ear(loud, name, path=f"/ws/queues/{stage.queue}") as another:
        listening.until(name, **CAUSES[name](stage.elsewhere()))
        assert of(another, name) == []


#: Events of one namespace. (A webhook that fails takes its time: seven seconds, and once is enough.)
OF_NAMESPACE = tuple(name for name in CAUSES if name not in (*OF_QUEUE, "webhook:failed"))


@each_of(OF_NAMESPACE)
def test_it_is_not_heard_in_another_namespace(loud: ServerProcess, stage: Stage, name: str) -> None:
    foreign = {"X-Namespace": "elsewhere"}
    with ear(loud, name) as listening, ear(loud, name, additional_headers=foreign) as another:
        listening.until(name, **CAUSES[name](stage))
        assert of(another, name) == []


# Told from time to time, to whoever asked for it.

FIGURES = ("storage:status", "health:status", "stats:snapshot")
WARNINGS = ("server:memory-warning", "storage:size-warning")


@pytest.mark.slow
def test_figures_and_warnings_come_to_who_asked_for_them(tmp_path: Path) -> None:
    """Storage is told of every half a minute, so all of them are waited for together.

    The server is a new one: a warning is told once, and might have been told to another test.
    """
    with (
        ServerProcess(tmp_path / "loud", env=LOUD) as loud,
        ServerProcess(tmp_path / "calm", env=CALM) as quiet,
        loud.client() as client,
        ear(loud, *FIGURES, *WARNINGS, max_queue=None) as listening,
        ear(loud, "server:shutdown", "config:*") as bystander,
        ear(quiet, *WARNINGS, "health:status", max_queue=None) as calm,
    ):
        Api(client, "large").push(os.urandom(2_000_000).hex())  # so that the store is larger than it should be
        for name in (*FIGURES, *WARNINGS):
            heard = [each["data"] for each in listening.skipped if each["event"] == name]
            payload = heard[0] if heard else listening.until(name)
            assert seed.fits(name, payload), payload
            if name == "health:status":
                assert payload["memory"].keys() == {"rss", "heapUsed"}
            assert of(bystander, name) == []
        # The calm one tells its health twice as seldom as it looks at its thresholds, and it has looked.
        calm.until("health:status")
        assert [of(calm, name) for name in WARNINGS] == [[], []]


# The server's own beginning and end, and what it finds at its beginning.


def test_the_start_is_heard_by_who_was_there_before_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    server = ServerProcess(tmp_path / "data", launcher=("-m", "tests.support.slow_server"), env={"START_FILE": str(ready)})
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        with early(server) as listening:
            assert listening.ask("Subscribe", events=["server:started"])["ok"] is True
            ready.touch()
            payload = listening.until("server:started")
            assert seed.fits("server:started", payload), payload
        starting.join()
        with ear(server, "server:shutdown") as other:  # who comes within a minute is told, but only if asked
            assert of(other, "server:started") == []
    finally:
        ready.touch()
        starting.join()
        server.stop()


@contextmanager
def early(server: ServerProcess) -> Iterator[Ear]:
    """Connect as soon as there is somebody to connect to."""
    while True:
        try:
            with ear(server) as listening:
                yield listening
                return
        except ConnectionRefusedError:
            pass


def test_the_end_is_heard_by_who_asked_for_it(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        ear(server, "server:shutdown") as listening,
        ear(server, "job:*") as other,
    ):
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        payload = listening.until("server:shutdown")
        assert seed.fits("server:shutdown", payload), payload
        with pytest.raises(ConnectionClosed):
            other.receive()
        stopping.join()


def test_a_tick_while_the_server_was_down_is_missed_unless_it_may_be_late(tmp_path: Path) -> None:
    """It is found out before anybody can be connected; who comes then reads it in the journal."""
    server = ServerProcess(tmp_path / "data")
    with server, server.client() as client:
        api = Api(client, "q")
        for name, skip in (("strict", True), ("lenient", False)):
            body = {"name": name, "queue": "q", "data": 1, "repeatEvery": 300, "skipMissedOnRestart": skip}
            api.ok("POST", "/crons", body)
        server.kill()
    due = time.time() + (300 + limits.cron_skip_ms) / 1000  # by then every next run that it had planned has passed
    while time.time() <= due:
        time.sleep(0.01)
    missed: list[Fields] = []
    with server, server.client() as client, stream(client, "/events?format=typed", headers={"Last-Event-ID": "0"}) as events:
        while not missed:
            message = events.message()
            if message.get("event") == "cron:missed":
                missed.append(json.loads(message["data"]))
        Api(client, "q").ok("POST", "{q}/pause")
        while (message := events.message()).get("event") != "queue:paused":
            if message.get("event") == "cron:missed":
                missed.append(json.loads(message["data"]))
    assert {each["name"] for each in missed} == {"strict"}
    payload = missed[0]
    assert payload.pop("timestamp")
    assert seed.fits("cron:missed", payload), payload


#: Events that have tests of their own, above: their success, and their failure.
ON_THEIR_OWN = {
    "cron:missed": test_a_tick_while_the_server_was_down_is_missed_unless_it_may_be_late,
    "server:started": test_the_start_is_heard_by_who_was_there_before_it,
    "server:shutdown": test_the_end_is_heard_by_who_asked_for_it,
}
HEARD = {*CAUSES, *FIGURES, *WARNINGS, *ON_THEIR_OWN}
NOT_HEARD = {*NEARLY, *OF_QUEUE, *OF_NAMESPACE, *FIGURES, *WARNINGS, *ON_THEIR_OWN}
