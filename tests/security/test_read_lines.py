"""A tenant that counts and lists a large queue again and again does not stop the reads of another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.security.test_tenants import shown
from tests.support.issuer import SECRET
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

pytestmark = pytest.mark.anyio
JOBS = 50_000
FLOOD = 40
#: How many of these may be answered before a read of another tenant that began after all of them.
BEFORE_MAX = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("reads") / "data", env={"JWT_SECRET": SECRET}) as running:
        with running.client(headers=shown("evil")) as evil:
            for start in range(0, JOBS, 10_000):
                jobs = [{"data": 1, "priority": priority} for priority in range(start, start + 10_000)]
                assert evil.post("/queues/large/jobs/bulk", json={"jobs": jobs}).is_success
        with running.client(headers=shown("good")) as good:
            assert good.post("/queues/small/jobs", json={"data": 1, "priority": 7}).is_success
        yield running


@pytest.mark.parametrize("flood", ["priority-counts", "jobs/list?limit=2000&offset=40000"])
@pytest.mark.parametrize("read", ["priority-counts", "counts", "jobs/list"])
async def test_a_read_is_answered_before_most_of_a_flood_of_another_tenant(
    server: ServerProcess, flood: str, read: str
) -> None:
    async with server.async_client(headers=shown("evil")) as evil, server.async_client(headers=shown("good")) as good:

        async def ask(client: httpx2.AsyncClient, path: str) -> None:
            answer = await client.get(path)
            assert answer.status_code == 200, answer.text

        flooding = [asyncio.create_task(ask(evil, f"/queues/large/{flood}")) for _ in range(FLOOD)]
        await asyncio.wait(flooding, return_when=asyncio.FIRST_COMPLETED)
        answered = sum(task.done() for task in flooding)
        await ask(good, f"/queues/small/{read}")
        assert sum(task.done() for task in flooding) - answered <= BEFORE_MAX
        await asyncio.gather(*flooding)
