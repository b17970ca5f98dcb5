"""What operators ask for, and who may ask: health, figures, tokens, CORS, request limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock import __version__
from tests.doors.api import Api
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

PROBES = ["/health", "/healthz", "/live", "/ready"]


def test_health(api: Api) -> None:
    health = api.ok("GET", "/health")
    assert health["status"] == "healthy"
    assert health["version"] == __version__
    assert set(health["queues"]) == {"waiting", "active", "delayed", "completed", "dlq"}
    assert set(health["connections"]) == {"tcp", "ws", "sse", "resp"}  # other tests may have some open
    assert 10 < health["memory"]["rss"] < 1_000
    assert set(health["memory"]) == {"heapUsed", "heapTotal", "rss"}
    assert health["uptime"] >= 0


def test_probes(api: Api) -> None:
    for path in ("/healthz", "/live"):
        response = api.call("GET", path)
        assert (response.status_code, response.text) == (200, "OK")
        assert response.headers["content-type"].startswith("text/plain")
    assert api.call("GET", "/ready").json() == {"ok": True, "ready": True}


def test_ping(api: Api) -> None:
    data = api.ok("GET", "/ping")["data"]
    assert data["pong"] is True
    assert data["time"] > 1_700_000_000_000


def test_stats_and_metrics_count(tmp_path: Path) -> None:
    # On a server of its own: what other tests have left may fail at any moment.
    with ServerProcess(tmp_path / "data") as server, server.client() as client:
        api = Api(client, "q")
        api.completed()
        api.dead()
        counted = api.ok("GET", "/metrics")["metrics"]
        assert counted == {"totalPushed": 2, "totalPulled": 2, "totalCompleted": 1, "totalFailed": 1}
        reply = api.ok("GET", "/stats")
    assert set(reply["stats"]) == {
        "waiting", "active", "delayed", "completed", "dlq", "totalPushed", "totalPulled", "totalCompleted", "totalFailed",
        "uptime",
    }  # fmt: skip
    assert set(reply["memory"]) == {"heapUsed", "heapTotal", "rss", "external", "arrayBuffers"}
    assert {"jobIndex", "completedJobs", "processingTotal", "queuedTotal", "temporalIndexTotal"} <= set(reply["collections"])


def test_prometheus_metrics_can_be_read(api: Api) -> None:
    api.push()
    for path, headers in (
        ("/prometheus", {}),
        ("/metrics", {"Accept": "text/plain"}),
        ("/metrics", {"Accept": "application/openmetrics-text"}),
    ):
        response = api.call("GET", path, headers=headers)
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = {family.name: family for family in text_string_to_metric_families(response.text)}
        waiting = {sample.labels["queue"]: sample.value for sample in families["bunqueue_queue_jobs_waiting"].samples}
        assert waiting[api.queue] == 1
        for name in (
            "bunqueue_jobs_waiting",
            "bunqueue_jobs_pushed",
            "bunqueue_push_duration_ms",
            "bunqueue_uptime_seconds",
        ):
            assert name in families


def test_a_queue_name_cannot_break_the_metrics(api: Api) -> None:
    response = api.call("GET", "/prometheus")
    assert list(text_string_to_metric_families(response.text))


def test_storage(api: Api) -> None:
    storage = api.ok("GET", "/storage")
    assert storage.pop("reserveBytes", 1) > 0  # a store in PostgreSQL has no reserve
    assert storage == {"ok": True, "diskFull": False}


def test_collecting_garbage_and_looking_at_the_heap(api: Api) -> None:
    reply = api.ok("POST", "/gc")
    assert set(reply["before"]) == set(reply["after"]) == {"heapUsed", "heapTotal", "rss"}
    heap = api.ok("GET", "/heapstats")
    assert len(heap["heap"]["topObjectTypes"]) == 20
    assert heap["heap"]["allocatedBlocks"] > 10_000
    assert heap["heap"]["trackedObjects"] > 100
    assert len(heap["heap"]["generations"]) == 3


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nope"),
        ("PUT", "/queues"),
        ("PATCH", "/jobs/x"),
        ("GET", "/queues/a/jobs/bulk"),
        ("GET", "/jobs"),
        ("GET", "/queues/"),
        ("HEAD", "/nope"),
    ],
)
def test_an_unknown_path_or_method_is_not_found(api: Api, method: str, path: str) -> None:
    response = api.call(method, path)
    assert response.status_code == 404
    if method != "HEAD":
        assert response.json() == {"ok": False, "error": "Not found"}


# CORS. Without tokens, no page of another site is answered: tests/security/test_browser.py.


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    env = {"AUTH_TOKENS": "secret-token-1"}
    with ServerProcess(tmp_path_factory.mktemp("asking") / "data", env=env) as running, running.client() as client:
        yield client


def test_a_preflight_is_answered_everywhere(asking: httpx2.Client) -> None:
    for path in ("/queues/x/jobs", "/whatever"):
        response = asking.options(path)
        assert (response.status_code, response.content) == (204, b"")
        headers = response.headers
        assert headers["access-control-allow-origin"] == "*"
        assert headers["access-control-allow-methods"] == "GET, POST, PUT, DELETE, OPTIONS"
        assert "Content-Type, Authorization" in headers["access-control-allow-headers"]
        assert headers["access-control-max-age"] == "86400"


def test_every_answer_names_the_allowed_origin(asking: httpx2.Client) -> None:
    for path in ("/health", "/nope", "/queues/a b/jobs", "/prometheus"):
        assert asking.get(path).headers["access-control-allow-origin"] == "*"


def test_a_browser_may_read_the_code_of_an_error(asking: httpx2.Client) -> None:
    assert asking.get("/jobs/unknown").headers["access-control-expose-headers"] == "penstock-error, retry-after"


# Tokens, limits: a server of their own.


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"AUTH_TOKENS": "secret-token-1, secret-token-2", "CORS_ALLOW_ORIGIN": "https://dashboard.example.com"}
    with ServerProcess(tmp_path_factory.mktemp("guarded") / "data", env=env) as running:
        yield running


@pytest.fixture
def client(guarded: ServerProcess) -> Iterator[httpx2.Client]:
    with guarded.client() as opened:
        yield opened


@pytest.mark.parametrize("token", ["secret-token-1", "secret-token-2"])
def test_each_token_opens_the_door(client: httpx2.Client, token: str) -> None:
    for value in (f"Bearer {token}", token):
        assert client.get("/stats", headers={"Authorization": value}).status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer secret-token-",
        "Bearer secret-token-11",
        "Basic c2VjcmV0",
        "bearer secret-token-1",
        "Bearer Bearer secret-token-1",
        "Bearer sécret".encode(),
    ],
)
def test_anything_else_does_not(client: httpx2.Client, value: str | bytes | None) -> None:
    given = value.encode() if isinstance(value, str) else value
    headers = {} if given is None else {b"Authorization": given}
    for method, path in (
        ("GET", "/stats"),
        ("POST", "/queues/q/jobs"),
        ("POST", "/gc"),
        ("GET", "/heapstats"),
        ("GET", "/nope"),
    ):
        response = client.request(method, path, headers=headers)
        assert (response.status_code, response.json()) == (401, {"ok": False, "error": "Unauthorized"})


def test_probes_preflights_and_prometheus_need_no_token(client: httpx2.Client) -> None:
    for path in (*PROBES, "/prometheus"):
        assert client.get(path).status_code == 200
    assert client.options("/stats").status_code == 204


def test_health_without_a_token_names_no_queue(guarded: ServerProcess, client: httpx2.Client) -> None:
    with guarded.client(headers={"Authorization": "Bearer secret-token-1"}) as admin:
        Api(admin, "canary-queue").push()
    assert all("canary" not in client.get(path).text for path in PROBES)


def test_the_configured_origin_is_answered(client: httpx2.Client) -> None:
    assert client.get("/health").headers["access-control-allow-origin"] == "https://dashboard.example.com"


def test_metrics_can_ask_for_a_token_too(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "t", "METRICS_AUTH": "true"}) as running,
        running.client() as opened,
    ):
        assert opened.get("/prometheus").status_code == 401
        assert opened.get("/prometheus", headers={"Authorization": "Bearer t"}).status_code == 200


def test_requests_are_limited_per_client(tmp_path: Path) -> None:
    env = {"RATE_LIMIT_MAX_REQUESTS": "5", "RATE_LIMIT_WINDOW_MS": "3600000"}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as opened:
        for client in ("1.1.1.1", "2.2.2.2"):
            headers = {"X-Forwarded-For": client}
            assert [opened.get("/ping", headers=headers).status_code for _ in range(6)] == [200] * 5 + [429]
        response = opened.get("/ping", headers={"X-Forwarded-For": "9.9.9.9, 1.1.1.1"})
        assert response.json() == {"ok": False, "error": "Rate limit exceeded"}
        assert int(response.headers["retry-after"]) > 0
        assert opened.get("/ping", headers={"X-Real-IP": "3.3.3.3"}).status_code == 200
        assert [opened.get(path).status_code for path in PROBES * 3] == [200] * 12


def test_without_a_limit_there_is_none(api: Api) -> None:
    assert all(api.call("GET", "/ping").status_code == 200 for _ in range(200))
