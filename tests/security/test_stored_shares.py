"""What a tenant stores of many small things, or of a few large ones: never so much that others can store none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.security.test_tenants import refused
from tests.support.arrow import values
from tests.support.issuer import SECRET, token
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

#: Small limits, so that few requests are enough to use them up: of each, one namespace gets half.
LIMITS = {"api_keys_max": 20, "workers_bytes_max": 1024 * 1024, "stages_max": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"JWT_SECRET": SECRET, "LIMITS": json.dumps(LIMITS)}
    data = tmp_path_factory.mktemp("stored") / "data"
    with ServerProcess(data, env=env, launcher=("-m", "tests.support.limits_server")) as running:
        yield running


def shown(namespace: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(scopes=[f'{namespace}:admin'])}", "X-Namespace": namespace}


@pytest.fixture
def evil(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("evil")) as client:
        yield client


@pytest.fixture
def good(server: ServerProcess) -> Iterator[httpx2.Client]:
    with server.client(headers=shown("good")) as client:
        yield client


def test_keys(evil: httpx2.Client, good: httpx2.Client) -> None:
    """An administrator of one namespace made all keys of the server, and nobody could make another one."""

    def make(client: httpx2.Client, *namespaces: str) -> httpx2.Response:
        return client.post("/keys", json={"namespaces": namespaces, "roles": ["consume"]})

    for _ in range(LIMITS["api_keys_max"] // 2):
        made = make(evil, "evil")
        assert made.status_code == 200
    refused(make(evil, "evil"), "of the 20 API keys")
    assert make(good, "good").status_code == 200
    assert evil.delete(f"/keys/{made.json()['key']['id']}").status_code == 200
    assert make(evil, "evil").status_code == 200  # a revoked key does not count


def test_long_names_of_workers(evil: httpx2.Client, good: httpx2.Client) -> None:
    """A worker has up to 1,000 names of queues: 5,000 such workers had two gigabytes of memory."""

    def register(client: httpx2.Client, number: int, queues: int = 1_000) -> httpx2.Response:
        names = [f"{name:0256}" for name in range(queues)]
        return client.post("/workers", json={"name": "w", "queues": names, "workerId": f"w{number}"})

    assert register(evil, 0).status_code == 200
    refused(register(evil, 1), "bytes of names of workers")
    assert register(evil, 0).status_code == 200  # it replaces itself
    assert register(evil, 1, 10).status_code == 200
    refused(register(evil, 1), "bytes of names of workers")  # and so does one that has grown
    assert register(good, 0).status_code == 200
    assert evil.delete("/workers/w0").status_code == 200
    assert register(evil, 1).status_code == 200


def test_staged_parts(evil: httpx2.Client, good: httpx2.Client) -> None:
    """Parts that are never committed took all places for an hour."""

    def stage(client: httpx2.Client, number: int) -> httpx2.Response:
        return client.post(f"/bulk/stages/t{number}", params={"queue": "q"}, content=values([1]))

    for number in range(LIMITS["stages_max"] // 2):
        assert stage(evil, number).status_code == 200
    refused(stage(evil, -1), "of the 20 staged parts")
    assert stage(good, 0).status_code == 200
    assert evil.post("/bulk/stages/t0/abort").status_code == 200
    assert stage(evil, 0).status_code == 200


def test_options_of_crons(evil: httpx2.Client) -> None:
    """The options of all crons of a namespace are read for a listing: with 100 kB each they had a gigabyte."""

    def add(tags: list[str]) -> httpx2.Response:
        cron = {"name": "c", "queue": "q", "data": 1, "schedule": "0 0 1 1 *", "jobOptions": {"tags": tags}}
        return evil.post("/crons", json=cron)

    answer = add([f"{number:01000}" for number in range(100)])
    assert answer.status_code == 400
    assert "at most 16384 are accepted" in answer.text
    assert add([f"{number:0100}" for number in range(100)]).status_code == 200
