"""The server is killed, again and again, in the middle of everything: nothing answered is lost, nothing acked comes back."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.support.history import Ack, Delivery, History, judge
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "16"))
PRODUCERS, WORKERS = 6, 6
LEASE_MS = 1_500
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))

BROKEN = (httpx2.TransportError, httpx2.TimeoutException)


class Load:
    """Producers and workers that never give up, and write down everything."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.history = History()
        self.stopping = False
        self.random = random.Random(SEED)
        self.answers = 0
        self.alarm_at = 0
        self.alarm = asyncio.Event()

    def answered(self) -> None:
        """Count an answer, and ring when enough have come."""
        self.answers += 1
        if self.answers >= self.alarm_at:
            self.alarm.set()

    async def after(self, answers: int) -> None:
        """Wait until so many more answers have come: a moment in the middle of things, without a stopwatch."""
        self.alarm.clear()
        self.alarm_at = self.answers + answers
        await self.alarm.wait()

    async def produce(self, name: int, client: httpx2.AsyncClient) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            size = self.random.choice((1, 1, 1, 5))
            items = [f"{name}-{number}-{index}" for index in range(size)]
            self.history.attempted.update(items)
            jobs = [{"data": item, "priority": self.random.randrange(3)} for item in items]
            try:
                if size == 1:
                    response = await client.post("/queues/load/jobs", json=jobs[0])
                else:
                    response = await client.post("/queues/load/jobs/bulk", json={"jobs": jobs})
            except BROKEN:
                await self.pause()
                continue
            self.answered()
            if response.status_code == 200:
                reply = response.json()
                self.history.acknowledged.update(zip(items, reply.get("ids") or [reply["id"]], strict=True))
            elif response.status_code in (400, 503):
                self.history.refused.update(items)

    async def work(self, client: httpx2.AsyncClient) -> None:
        while not self.stopping:
            await self.take(client, wait=200)

    async def take(self, client: httpx2.AsyncClient, wait: int) -> bool:
        """Pull some jobs, sometimes forget about them, else acknowledge them; True if there were any."""
        asked_at = History.now()
        try:
            body = {"count": 3, "timeout": wait, "owner": "w", "lockTtl": LEASE_MS}
            response = await client.post("/queues/load/jobs/pull-batch", json=body)
        except BROKEN:
            await self.pause()
            return False
        if response.status_code != 200:
            return False
        reply = response.json()
        at, epoch = History.now(), self.history.epoch
        for job, token in zip(reply["jobs"], reply["tokens"], strict=True):
            self.history.deliveries[job["data"]].append(
                Delivery(at, job["id"], token, job["attempts"], LEASE_MS, epoch, asked_at)
            )
        for job, token in zip(reply["jobs"], reply["tokens"], strict=True):
            if self.stopping or self.random.random() > 0.05:
                await self.ack(client, job, token)
        return bool(reply["jobs"])

    async def ack(self, client: httpx2.AsyncClient, job: Any, token: str) -> None:
        asked_at = History.now()
        try:
            response = await client.post(f"/jobs/{job['id']}/ack", json={"token": token, "result": 1})
            outcome = "ok" if response.status_code == 200 else "fail"
            self.answered()
        except BROKEN:
            outcome = "info"
        self.history.acks[job["data"]].append(Ack(asked_at, History.now(), job["id"], token, outcome))

    async def pause(self) -> None:
        """Let the loop breathe while the server is away."""
        await asyncio.sleep(0.01)

    async def drain(self, client: httpx2.AsyncClient) -> None:
        """Take until nothing is left, waiting for the leases of those who forgot."""
        while True:
            counts = (await client.get("/queues/load/counts")).json()["counts"]
            if not counts["waiting"] and not counts["active"] and not counts["delayed"]:
                return
            await self.take(client, wait=2 * LEASE_MS)


@pytest.mark.timeout(120 + 20 * KILLS)
async def test_a_server_that_is_killed_again_and_again_loses_and_resurrects_nothing(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data").start()
    load = Load(server)
    try:
        async with server.async_client() as client:
            # High attempts are not needed: a lapse counts one, and the same job is hit by few of the kills.
            await client.put("/queues/load/stall-config", json={"config": {"maxStalls": 1_000}})
            tasks = [asyncio.create_task(load.produce(name, client)) for name in range(PRODUCERS)]
            tasks += [asyncio.create_task(load.work(client)) for _ in range(WORKERS)]
            for _ in range(KILLS):
                await load.after(load.random.randrange(10, 700))
                server.kill()
                load.history.epoch += 1
                await asyncio.to_thread(server.start)
            await load.after(100)
            load.stopping = True
            await asyncio.gather(*tasks)
            await load.drain(client)
            dead = (await client.get("/queues/load/dlq", params={"count": 10_000})).json()["jobs"]
            load.history.left_over = {job["data"] for job in dead}
            totals = (await client.get("/stats")).json()["stats"]
            storage = (await client.get("/storage")).json()
    finally:
        server.stop()
    verdict = judge(load.history)
    print(f"seed {SEED}, {KILLS} kills: {verdict}")
    assert verdict.is_clean, verdict
    assert verdict.acknowledged > 1_000
    assert (totals["waiting"], totals["active"], totals["delayed"]) == (0, 0, 0)
    assert (storage["ok"], storage["diskFull"]) == (True, False)
