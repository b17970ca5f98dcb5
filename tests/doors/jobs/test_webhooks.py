"""Webhooks over the jobs door: each route's success and failure, and deliveries of a real server."""

from __future__ import annotations

import hmac
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.api import UNKNOWN_ID
from tests.support.receiver import HANG, OK, Receiver, status, until
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.doors.api import Api

URL = "https://good.com/hook"
NOT_FOUND = (404, "Webhook not found")
KNOWN = "pushed, started, completed, failed, progress, stalled"
UNKNOWN_EVENT = f"Unknown webhook event: exploded. There are: {KNOWN}, each also as job.name"
_numbers = itertools.count()


@pytest.fixture
def space() -> dict[str, Any]:
    """A namespace of its own, because a listing shows all webhooks of one."""
    return {"headers": {"X-Namespace": f"hooks{os.getpid()}-{next(_numbers)}"}}


def register(api: Api, space: dict[str, Any], **more: Any) -> Any:
    body = {"url": URL, "events": ["completed", "job.failed"], **more}
    return api.ok("POST", "/webhooks", body, **space)["data"]


def listed(api: Api, space: dict[str, Any]) -> Any:
    return api.ok("GET", "/webhooks", **space)["data"]


def test_a_webhook_is_registered_and_listed_without_its_secret(api: Api, space: dict[str, Any]) -> None:
    assert listed(api, space) == {"webhooks": [], "stats": {"total": 0, "enabled": 0}}
    data = register(api, space, queue="emails", secret="whsec_abc123")
    assert {name: data[name] for name in ("url", "events")} == {"url": URL, "events": ["completed", "job.failed"]}
    assert set(data) == {"webhookId", "url", "events", "queue", "createdAt"}
    assert listed(api, space) == {
        "webhooks": [
            {
                "id": data["webhookId"], "url": URL, "events": ["completed", "job.failed"], "queue": "emails",
                "createdAt": data["createdAt"], "lastTriggered": None, "successCount": 0, "failureCount": 0, "enabled": True,
            }
        ],
        "stats": {"total": 1, "enabled": 1},
    }  # fmt: skip
    assert listed(api, {}) != listed(api, space)


def test_a_webhook_is_switched_and_removed(api: Api, space: dict[str, Any]) -> None:
    webhook_id = register(api, space)["webhookId"]
    assert api.ok("PUT", f"/webhooks/{webhook_id}/enabled", {"enabled": False}, **space) == {"ok": True}
    assert listed(api, space)["stats"] == {"total": 1, "enabled": 0}
    assert listed(api, space)["webhooks"][0]["enabled"] is False
    api.ok("PUT", f"/webhooks/{webhook_id}/enabled", {"enabled": True}, **space)
    assert listed(api, space)["stats"] == {"total": 1, "enabled": 1}
    assert api.ok("DELETE", f"/webhooks/{webhook_id}", **space) == {"ok": True, "data": {"removed": True}}
    assert api.refused("DELETE", f"/webhooks/{webhook_id}", **space) == NOT_FOUND
    assert listed(api, space)["stats"] == {"total": 0, "enabled": 0}


def test_an_unknown_webhook(api: Api, space: dict[str, Any]) -> None:
    foreign = register(api, space)["webhookId"]
    for name in (UNKNOWN_ID, "nonsense", foreign):
        assert api.refused("DELETE", f"/webhooks/{name}") == NOT_FOUND
        assert api.refused("PUT", f"/webhooks/{name}/enabled", {"enabled": True}) == NOT_FOUND


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"events": ["completed"]}, "Webhook URL is required"),
        ({"url": "", "events": ["completed"]}, "Webhook URL is required"),
        ({"url": None, "events": ["completed"]}, "Webhook URL is required"),
        ({"url": 5, "events": ["completed"]}, "url must be a string"),
        ({"url": "http://x.com/" + "a" * 2_048, "events": ["completed"]}, "Webhook URL too long (max 2048 characters)"),
        ({"url": "nonsense", "events": ["completed"]}, "Invalid URL format"),
        ({"url": "ftp://x.com", "events": ["completed"]}, "Webhook URL must use http or https protocol"),
        ({"url": "http://localhost/", "events": ["completed"]}, "Webhook URL cannot point to localhost"),
        ({"url": "http://127.0.0.1/", "events": ["completed"]}, "Webhook URL cannot point to loopback IP"),
        ({"url": "http://10.1.1.1/", "events": ["completed"]}, "Webhook URL cannot point to private IP"),
        (
            {"url": "http://169.254.169.254/", "events": ["completed"]},
            "Webhook URL cannot point to cloud metadata endpoints",
        ),
        ({"url": URL}, "Webhook events are required"),
        ({"url": URL, "events": []}, "Webhook events are required"),
        ({"url": URL, "events": "completed"}, "events must be an array"),
        ({"url": URL, "events": [1]}, "events[0] must be a string"),
        ({"url": URL, "events": ["pushed"] * 19}, "Too many webhook events (max 18)"),
        ({"url": URL, "events": ["completed", "exploded"]}, UNKNOWN_EVENT),
        ({"url": URL, "events": ["completed"], "queue": ""}, "Queue name is required"),
        ({"url": URL, "events": ["completed"], "queue": "a b"}, "Queue name contains invalid characters"),
        ({"url": URL, "events": ["completed"], "secret": ""}, "secret must not be empty"),
        ({"url": URL, "events": ["completed"], "secret": "x" * 1_025}, "secret must be at most 1024 characters"),
        ([], "Invalid JSON body"),
    ],
)
def test_a_bad_registration_is_refused(api: Api, space: dict[str, Any], body: Any, text: str) -> None:
    response = api.call("POST", "/webhooks", json=body, **space)
    assert (response.status_code, response.json()["error"]) == (400, text)
    assert listed(api, space)["stats"]["total"] == 0


def test_a_bad_switch_is_refused(api: Api, space: dict[str, Any]) -> None:
    path = f"/webhooks/{register(api, space)['webhookId']}/enabled"
    assert api.refused("PUT", path, {}, **space) == (400, "enabled is required")
    assert api.refused("PUT", path, {"enabled": "yes"}, **space) == (400, "enabled must be a boolean")
    assert api.call("PUT", path, content=b"{", **space).status_code == 400


def test_the_metrics_count_webhooks(api: Api, space: dict[str, Any]) -> None:
    webhook_id = register(api, space)["webhookId"]

    def gauges() -> dict[str, float]:
        lines = (line.split() for line in api.http.get("/prometheus").text.splitlines() if "bunqueue_webhooks" in line)
        return {name: float(value) for name, value, *rest in lines if not rest}

    before = gauges()
    api.ok("PUT", f"/webhooks/{webhook_id}/enabled", {"enabled": False}, **space)
    after = gauges()
    assert after["bunqueue_webhooks_total"] == before["bunqueue_webhooks_total"]
    assert after["bunqueue_webhooks_enabled"] == before["bunqueue_webhooks_enabled"] - 1


# Deliveries of a real server.


def hooks_server(path: Path) -> ServerProcess:
    env = {"WEBHOOK_ALLOWED_HOSTS": "127.0.0.1", "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    return ServerProcess(path / "data", env=env)


async def post(server: ServerProcess, path: str, body: Any) -> Any:
    async with server.async_client() as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def push(server: ServerProcess, count: int) -> list[str]:
    reply = await post(server, "/queues/q/jobs/bulk", {"jobs": [{"data": number} for number in range(count)]})
    ids: list[str] = reply["ids"]
    return ids


async def webhooks(server: ServerProcess) -> Any:
    async with server.async_client() as client:
        return (await client.get("/webhooks")).json()["data"]["webhooks"]


@pytest.mark.anyio
async def test_a_job_is_followed_from_push_to_ack(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        with hooks_server(tmp_path) as server:
            body = {"url": receiver.url, "events": ["pushed", "started", "completed"], "secret": "s", "queue": "q"}
            await post(server, "/webhooks", body)
            (job_id,) = await push(server, 1)
            async with server.async_client() as client:
                await client.get("/queues/q/jobs")
            await post(server, f"/jobs/{job_id}/ack", {"result": {"sum": 3}})
            requests = await receiver.until(3)
        assert [request.json["event"] for request in requests] == ["job.pushed", "job.started", "job.completed"]
        assert requests[2].json["data"] == {"sum": 3}
        assert {request.json["jobId"] for request in requests} == {job_id}
        for request in requests:
            assert request.headers["x-webhook-event"] == request.json["event"]
            assert request.headers["x-webhook-signature"] == hmac.digest(b"s", request.body, "sha256").hex()


@pytest.mark.anyio
async def test_after_a_crash_deliveries_go_on_and_none_is_skipped(tmp_path: Path) -> None:
    async with Receiver(*[OK] * 5, HANG) as receiver:
        server = hooks_server(tmp_path).start()
        webhook_id = (await post(server, "/webhooks", {"url": receiver.url, "events": ["job.pushed"]}))["data"]["webhookId"]
        first = await push(server, 10)
        await receiver.until(6)  # the sixth hangs
        server.kill()
        receiver.replies = [status(204)]
        server.start()
        second = await push(server, 3)
        await until(lambda: receiver.requests[-1].json["jobId"] == second[-1])
        told = [request.json["jobId"] for request in receiver.requests]
        assert list(dict.fromkeys(told)) == first + second  # in order, each at least once
        assert told[told.index(second[0]) :] == second
        assert server.stop() == 0
        server.start()  # a clean stop has written everything down: nothing is repeated
        (webhook,) = await webhooks(server)
        assert webhook["id"] == webhook_id
        assert webhook["successCount"] >= 8
        assert webhook["lastTriggered"] > webhook["createdAt"]
        third = await push(server, 1)
        await until(lambda: receiver.requests[-1].json["jobId"] == third[0])
        assert len(receiver.requests) == len(told) + 1
        server.stop()


@pytest.mark.anyio
async def test_a_stop_does_not_wait_for_an_endpoint_that_hangs(tmp_path: Path) -> None:
    async with Receiver(HANG) as receiver:
        server = hooks_server(tmp_path).start()
        await post(server, "/webhooks", {"url": receiver.url, "events": ["pushed"]})
        await push(server, 1)
        await receiver.until(1)
        assert server.stop(timeout=8) == 0  # well before the ten seconds an attempt may take
