"""Workers over HTTP: every route, its success and its failure, and the events they cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.doors.listen import ear
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from tests.doors.api import Api
    from tests.support.server import ServerProcess


def register(api: Api, **more: Any) -> Any:
    return api.ok("POST", "/workers", {"name": "email-worker", "queues": [api.queue], **more})["data"]


def test_the_life_of_a_worker(server: ServerProcess, api: Api) -> None:
    with ear(server, "worker:*") as events:
        worker = register(api, concurrency=4, hostname="box", pid=12, startedAt=5)
        key = worker["workerId"]
        assert worker == {
            "workerId": key, "name": "email-worker", "queues": [api.queue], "concurrency": 4, "status": "active",
            "registeredAt": worker["registeredAt"],
        }  # fmt: skip
        assert events.until("worker:connected", workerId=key) == {
            "workerId": key, "name": "email-worker", "queues": [api.queue],
        }  # fmt: skip
        beat = {"activeJobs": 3, "processed": 1_500, "failed": 12}
        assert api.ok("POST", f"/workers/{key}/heartbeat", beat)["data"] == {"ok": True}
        assert events.until("worker:heartbeat", workerId=key) == {"workerId": key}
        assert events.until("worker:error", workerId=key)["failureRate"] == round(12 / 1_512, 4)
        listed = api.ok("GET", "{q}/workers")["data"]
        assert listed["stats"] == {"total": 1, "active": 1}
        (shown,) = listed["workers"]
        assert shown.items() >= {
            "id": key, "name": "email-worker", "queues": [api.queue], "activeJobs": 3, "processedJobs": 1_500, "failedJobs": 12,
            "hostname": "box", "pid": 12, "startedAt": 5, "status": "active",
        }.items()  # fmt: skip
        assert shown["lastSeen"] >= shown["registeredAt"]
        assert key in [each["id"] for each in api.ok("GET", "/workers")["data"]["workers"]]
        assert api.ok("DELETE", f"/workers/{key}")["data"] == {"removed": True}
        assert events.until("worker:disconnected", workerId=key) == {"workerId": key}
        assert api.ok("GET", "{q}/workers")["data"]["workers"] == []


def test_an_id_of_its_own_can_be_used_again(api: Api) -> None:
    key = f"w-{api.queue}"
    for name in ("one", "two"):
        assert register(api, workerId=key, name=name)["workerId"] == key
    (shown,) = api.ok("GET", "{q}/workers")["data"]["workers"]
    assert shown["name"] == "two"


def test_a_connection_that_ends_takes_only_its_own_registration_along(server: ServerProcess, api: Api) -> None:
    key = f"w-{api.queue}"
    with TcpClient(server.tcp_port, api.queue) as b:
        with TcpClient(server.tcp_port, api.queue) as a, ear(server, "worker:*") as events:
            a.ok("RegisterWorker", name="own", queues=[a.queue], workerId=f"{key}-own")
            a.ok("RegisterWorker", name="a", queues=[a.queue], workerId=key)
            b.ok("RegisterWorker", name="b", queues=[b.queue], workerId=key)
            a.socket.close()
            events.until("worker:disconnected", workerId=f"{key}-own")
            shown = api.ok("GET", "{q}/workers")["data"]["workers"]
        assert [each["name"] for each in shown] == ["b"]
        assert b.ok("Heartbeat", id=key)["ok"] is True


def test_an_unknown_worker_is_not_found(api: Api) -> None:
    response = api.call("POST", "/workers/nobody/heartbeat")
    assert (response.status_code, response.json()) == (200, {"ok": False, "error": "Worker not found"})
    assert api.refused("DELETE", "/workers/nobody") == (404, "Worker not found")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "name is required"),
        ({"name": "w"}, "queues is required"),
        ({"name": "w", "queues": "mail"}, "queues must be an array"),
        ({"name": "w", "queues": ["no good"]}, "Queue name contains invalid characters"),
        ({"name": "w", "queues": [], "concurrency": 0}, "concurrency must be at least 1"),
    ],
)
def test_what_is_no_worker_is_refused(api: Api, body: Any, error: str) -> None:
    assert api.refused("POST", "/workers", body) == (400, error)


def test_workers_of_another_namespace_are_not_seen(api: Api) -> None:
    register(api)
    response = api.call("GET", "/workers", headers={"X-Namespace": f"n-{api.queue}"})
    assert response.json()["data"] == {"workers": [], "stats": {"total": 0, "active": 0}}


def test_workers_are_counted_for_prometheus(api: Api) -> None:
    key = register(api)["workerId"]
    api.ok("POST", f"/workers/{key}/heartbeat", {"processed": 2, "failed": 1})
    text = api.http.get("/prometheus").text
    for name in ("workers_total", "workers_active", "workers_processed_total", "workers_failed_total"):
        assert f"\nbunqueue_{name} " in text
