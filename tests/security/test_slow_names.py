"""URLs of one tenant whose names are looked up for ever: webhooks and pushes of another tenant are delivered all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from tests.support.issuer import SECRET, token
from tests.support.receiver import Receiver, until
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio
#: More than there may be look-ups at a time.
SLOW = limits.webhook_lookups_max + 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    env = {
        "JWT_SECRET": SECRET,
        "LOOKUPS_FILE": str(tmp_path / "lookups"),
        "WEBHOOK_ALLOWED_HOSTS": "good.test",
        "PENSTOCK_PUSH_ALLOWED_HOSTS": "good.test",
    }
    with ServerProcess(tmp_path / "data", env=env, launcher=("-m", "tests.support.slow_names_server")) as running:
        yield running


def shown(namespace: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(scopes=[f'{namespace}:admin'])}", "X-Namespace": namespace}


def lookups(server: ServerProcess) -> int:
    file = server.data.parent / "lookups"
    return len(file.read_text(encoding="ascii").splitlines()) if file.exists() else 0


async def test_webhooks_of_others_are_delivered(server: ServerProcess) -> None:
    with server.client(headers=shown("evil")) as evil, server.client(headers=shown("good")) as good:
        for number in range(SLOW):
            url = f"http://n{number}.slow.test/"
            assert evil.post("/webhooks", json={"url": url, "events": ["job.pushed"]}).status_code == 200
        assert evil.post("/queues/q/jobs", json={"data": 1}).status_code == 200
        await until(lambda: lookups(server) >= limits.webhook_lookups_max // 2)
        async with Receiver() as receiver:
            url = f"http://good.test:{receiver.port}/"
            assert good.post("/webhooks", json={"url": url, "events": ["job.pushed"]}).status_code == 200
            for _ in range(3):
                assert good.post("/queues/q/jobs", json={"data": 1}).status_code == 200
            await receiver.until(3)
        assert lookups(server) == limits.webhook_lookups_max // 2  # which leaves as many for others
        hooks = good.get("/webhooks").json()["data"]["webhooks"]
        assert [each["failureCount"] for each in hooks] == [0]


async def test_pushes_of_others_are_delivered_and_waiting_is_no_attempt(server: ServerProcess) -> None:
    def path(namespace: str, queue: str) -> str:
        return f"/namespaces/{namespace}/queues/{queue}"

    with server.client(headers=shown("evil")) as evil, server.client(headers=shown("good")) as good:
        queues = SLOW // 4
        for number in range(queues):
            subscription: dict[str, Any] = {"url": f"http://n{number}.slow.test/"}
            assert evil.post(f"{path('evil', f'q{number}')}/subscriptions", json=subscription).status_code == 201
            for _ in range(limits.push_deliveries_max):
                assert evil.post(f"{path('evil', f'q{number}')}/messages", json={"body": "x"}).status_code == 201
        await until(lambda: lookups(server) >= limits.webhook_lookups_max // 2)
        async with Receiver() as receiver:
            url = f"http://good.test:{receiver.port}/"
            assert good.post(f"{path('good', 'q')}/subscriptions", json={"url": url}).status_code == 201
            assert good.post(f"{path('good', 'q')}/messages", json={"body": "x"}).status_code == 201
            await receiver.until(1)
        assert lookups(server) == limits.webhook_lookups_max // 2
