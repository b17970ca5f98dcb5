"""Thousands of clients that wait for a job at once, each on a real connection of its own."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

WAITERS = 5_000


@pytest.fixture
def room_for_sockets() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < WAITERS + 500:
        pytest.skip(f"this system grants only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(port: int, queue: str) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /queues/{queue}/jobs?timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def answer(connection: Connection) -> Any:
    reader, writer = connection
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    writer.close()
    return body


def figure(client: httpx2.Client, name: str) -> float:
    lines = client.get("/prometheus").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


@pytest.mark.slow
@pytest.mark.usefixtures("room_for_sockets")
async def test_five_thousand_wait_cost_nothing_and_are_served_one_each(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server, httpx2.Client(base_url=server.url, timeout=30) as client:
        waiting = [await ask(server.port, "crowd") for _ in range(WAITERS)]
        while (
            figure(client, "penstock_waiting_callers") < WAITERS
        ):  # each look is a round trip: the server gets on meanwhile
            time.sleep(0.01)
        transactions = figure(client, "penstock_transactions_total")

        client.post("/queues/other/jobs", json={"data": 1}).raise_for_status()
        client.post("/queues/crowd/jobs", json={"data": 0}).raise_for_status()
        # One transaction per push: the job goes to a waiter in the transaction that stored it, and nobody else is bothered.
        assert figure(client, "penstock_transactions_total") == transactions + 2
        assert figure(client, "penstock_waiting_callers") == WAITERS - 1
        first = await answer(waiting[0])  # first come, first served
        assert first["job"]["data"] == 0

        some = WAITERS // 2
        client.post("/queues/crowd/jobs/bulk", json={"jobs": [{"data": n} for n in range(1, some)]}).raise_for_status()
        served = await asyncio.gather(*(answer(each) for each in waiting[1:some]))
        assert [each["job"]["data"] for each in served] == list(range(1, some))

        for _, writer in waiting[some:]:  # the others lose patience
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in waiting[some:]))
        while figure(client, "penstock_waiting_callers") > 0:
            time.sleep(0.01)
        client.post("/queues/crowd/jobs", json={"data": "last"}).raise_for_status()
        assert client.get("/queues/crowd/counts").json()["counts"]["waiting"] == 1
