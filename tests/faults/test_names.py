"""Queues that come and go leave nothing behind in the memory of a server."""

from __future__ import annotations

import base64
import json
import signal
from typing import TYPE_CHECKING

import redis

from tests.support import redis as redis_support
from tests.support import stores
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

QUEUES = 60
PREFIX = "comesandgoes"


def _jobs_door(http: httpx2.Client, name: str) -> None:
    path = f"/queues/{name}"
    assert http.get(f"{path}/jobs").json()["job"] is None  # before there is one
    http.put(f"{path}/rate-limit", json={"limit": 1}).raise_for_status()
    http.put(f"{path}/concurrency", json={"limit": 5}).raise_for_status()
    http.put(f"{path}/dlq-config", json={"autoRetry": True}).raise_for_status()
    for number in range(3):
        body = {"data": number, "uniqueKey": str(number), "groupId": "g", "maxAttempts": 1}
        http.post(f"{path}/jobs", json=body).raise_for_status()
    job = http.get(f"{path}/jobs").json()["job"]
    http.post(f"/jobs/{job['id']}/fail", json={"error": "no"}).raise_for_status()
    assert http.get(f"{path}/jobs").json()["job"] is None  # the rate limit
    for route in ("counts", "dlq", "jobs/list", "priority-counts"):
        http.get(f"{path}/{route}").raise_for_status()
    http.post(f"{path}/pause").raise_for_status()
    http.post("/workers", json={"name": "w", "queues": [name]}).raise_for_status()
    cron = {"name": name, "queue": name, "data": 1, "repeatEvery": 3_600_000, "immediately": True}
    http.post("/crons", json=cron).raise_for_status()
    http.delete(f"/crons/{name}").raise_for_status()
    for worker in http.get("/workers").json()["data"]["workers"]:
        http.delete(f"/workers/{worker['id']}").raise_for_status()
    http.post(f"{path}/obliterate").raise_for_status()


def _batches_door(http: httpx2.Client, name: str) -> None:
    where = {"namespace": "default", "topic": name}
    payload = base64.b64encode(b"1").decode()
    http.post("/enqueue", json=[{**where, "payload": payload}]).raise_for_status()
    (item,) = http.get("/dequeue", params=where).json()
    http.post("/ack", json={**where, "id": item["id"]}).raise_for_status()
    http.post(f"/queues/{name}/obliterate").raise_for_status()


def _topics_door(http: httpx2.Client, resp: redis.Redis, name: str) -> None:
    http.post(f"/publish/{name}", content=b"1").raise_for_status()
    resp.execute_command("PUBLISH", name, "2")  # type: ignore[no-untyped-call]
    http.delete(f"/{name}").raise_for_status()
    http.post(f"/queues/{name}/obliterate").raise_for_status()


def _messages_door(http: httpx2.Client, name: str) -> None:
    path = f"/namespaces/default/queues/{name}"
    http.post(path, json={"max_messages": 10}).raise_for_status()
    http.post(f"{path}/messages", json={"body": "1"}).raise_for_status()
    (message,) = http.get(f"{path}/messages").json()["messages"]
    http.delete(f"/messages/{message['receipt_handle']}").raise_for_status()
    http.delete(path).raise_for_status()


def _counts(server: ServerProcess, file: Path) -> dict[str, int]:
    file.unlink(missing_ok=True)
    assert server.process is not None
    server.process.send_signal(signal.SIGUSR1)
    with server.client() as http:
        while not file.exists():
            http.get("/ping")
    found: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _kept_in_redis() -> set[bytes]:
    """Return the keys in Redis that stay there until they are deleted."""
    if stores.chosen() != "redis":
        return set()
    with redis.Redis.from_url(redis_support.server_url()) as there:
        return {key for key in there.scan_iter(count=1_000) if there.ttl(key) == -1}


def test_queues_that_come_and_go_leave_no_names_behind(tmp_path: Path) -> None:
    kept = _kept_in_redis()
    file = tmp_path / "counts"
    env = {"COUNTED": PREFIX, "COUNTS_FILE": str(file), "QUEUE_SIZE_THRESHOLD": "1"}
    launcher = ("-m", "tests.support.counting_server")
    with ServerProcess(tmp_path / "data", launcher=launcher, env=env) as server, server.client() as http:
        resp = redis.Redis(port=server.resp_port, protocol=2)
        with TcpClient(server.tcp_port) as tcp:
            for number in range(QUEUES):
                name = f"{PREFIX}{number}"
                _jobs_door(http, name)
                _batches_door(http, name)
                _topics_door(http, resp, name)
                _messages_door(http, name)
                tcp.ok("PUSH", queue=name, data=1)
                tcp.ok("PULL", queue=name)
                tcp.ok("Obliterate", queue=name)
                tcp.call("PULL", queue=f"{name}-never")
                http.get("/prometheus").raise_for_status()
        resp.close()
        found = _counts(server, file)
    assert len(_kept_in_redis() - kept) <= QUEUES // 4
    # Where several shards are, it is remembered which of them a queue belongs to: of 8,192 names at most.
    allowed = 2 * QUEUES if stores.chosen() == "shards" else 0
    assert sum(found.values()) <= QUEUES // 4 + allowed, json.dumps(found, indent=1)
