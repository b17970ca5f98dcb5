"""Shards that crash, servers that are killed or stand still, under load on all shards: nothing is lost, nothing comes back.

``PENSTOCK_TEST_SEED`` chooses another run, ``PENSTOCK_TEST_ROUNDS`` a longer one (1).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING

import pytest

from penstock.core.queue import QueueKey
from penstock.core.sharding import shard_for
from tests.support.history import History
from tests.support.own_postgres import OwnPostgres
from tests.support.pair import Pair, PairLoad
from tests.support.receiver import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "1"))
SHARDS = 2


@pytest.fixture
def databases() -> Iterator[list[OwnPostgres]]:
    with OwnPostgres("shared_buffers=64MB", "max_wal_size=256MB") as one, OwnPostgres("shared_buffers=64MB") as other:
        yield [one, other]


def queue_on(shard: int, name: str) -> str:
    """Return the name of a queue that lives on a shard."""
    names = (f"{name}{number}" for number in range(100))
    return next(each for each in names if shard_for(QueueKey("default", each), SHARDS) == shard)


class Faults:
    """What can happen to two servers on two shards. Each leaves everything working again."""

    def __init__(self, databases: list[OwnPostgres], pair: Pair) -> None:
        self.databases = databases
        self.pair = pair
        self.loads = [
            PairLoad(pair, SEED + shard, queue=queue_on(shard, "load"), ticks=queue_on(shard, "ticks"))
            for shard in range(SHARDS)
        ]
        self.random = self.loads[0].random
        self.crashes = self.kills = self.stops = 0
        self.log_begins = [0, 0]  # what was logged before was logged by a server that was killed

    def note(self, what: str) -> None:
        """Say what happens when, for whoever reads the output of a run that went wrong."""
        waiting = ", ".join(f"{load.under_way} of shard {shard}" for shard, load in enumerate(self.loads))
        print(f"{History.now():.1f}: {what}; requests under way at each server: {waiting}")

    async def some_time(self) -> None:
        """Let both loads go on for a moment."""
        count = self.random.randrange(50, 250)
        await asyncio.gather(*(load.after(count) for load in self.loads))

    async def crash(self, shard: int, *, kill: int | None = None) -> None:
        """Crash the database of a shard, look at what servers say meanwhile, and start it. ``kill``: a server, meanwhile."""
        self.note(f"shard {shard} crashes")
        await asyncio.to_thread(self.databases[shard].stop)
        self.crashes += 1
        for client in self.pair.clients:
            await self._says_what_is_down(client, shard)
        if kill is not None:
            await self.kill(kill, lives=self.loads[1 - shard])
            await self._says_what_is_down(self.pair.clients[kill], shard)
        await self.loads[1 - shard].after(50)
        self.note(f"shard {shard} is started")
        await asyncio.to_thread(self.databases[shard].start)
        for client in self.pair.clients:
            await until_status(client, "healthy")
            for path in ("/queues", "/stats", "/crons"):
                assert "partial" not in (await client.get(path)).json()
        await self.loads[shard].after(20)

    async def _says_what_is_down(self, client: httpx2.AsyncClient, shard: int) -> None:
        down, up = f"shard {shard}", f"shard {1 - shard}"
        health = await until_status(client, "degraded")
        assert down in health["reason"]
        assert up not in health["reason"]
        for path in ("/queues", "/stats", "/crons"):
            reply = (await client.get(path)).json()
            assert [down in each for each in reply["partial"]] == [True], path
        metrics = (await client.get("/prometheus")).text
        assert f'penstock_shard_up{{shard="{shard}"}} 0.0' in metrics
        assert f'penstock_shard_up{{shard="{1 - shard}"}} 1.0' in metrics
        queue = self.loads[shard].queue
        for path, body in (("jobs", {"data": "never"}), ("jobs/pull-batch", {"count": 1})):
            refused = await client.post(f"/queues/{queue}/{path}", json=body)
            assert (refused.status_code, refused.headers["penstock-error"]) == (503, "storage_failed")
            assert "cannot be reached" in refused.json()["error"]
        served = await client.get(f"/queues/{self.loads[1 - shard].queue}/jobs?timeout=0")
        assert served.status_code == 200
        if (job := served.json()["job"]) is not None:
            await client.post(f"/jobs/{job['id']}/fail", json={"token": served.json()["token"]})

    async def kill(self, number: int, *, lives: PairLoad | None = None) -> None:
        """Kill a server and start it again. ``lives``: the load that goes on meanwhile; both, unless told."""
        self.note(f"server {number} is killed")
        self.pair.servers[number].kill()
        self.kills += 1
        self.log_begins[number] = len(self.pair.servers[number].log())
        await asyncio.gather(*(load.after(20) for load in ([lives] if lives is not None else self.loads)))
        await asyncio.to_thread(self.pair.servers[number].start)

    async def stand_still(self) -> None:
        """Stop a server that leads, until the other has taken over what it led, and let it go on."""
        await until(lambda: any(self.leads(number) for number in range(2)))
        number = max(range(2), key=lambda number: len(self.leads(number)))
        stopped, led = self.pair.servers[number], self.leads(number)
        for load in self.loads:
            load.avoided = number
        self.note(f"server {number} stands still")
        os.kill(stopped.pid, signal.SIGSTOP)
        answered = {load: load.answers for load in self.loads}
        self.stops += 1
        await until(lambda: led <= self.leads(1 - number))
        self.note(f"server {1 - number} leads")
        for load in self.loads:  # not load.after: all its clients may have asked the one that stands still
            for _ in range(10):
                await load.take(load.queue, wait=0)
            assert load.answers > answered[load]
        self.note(f"server {number} goes on")
        os.kill(stopped.pid, signal.SIGCONT)
        for load in self.loads:
            load.avoided = None
        await until(lambda: not led & self.leads(number))
        await asyncio.gather(*(load.after(50) for load in self.loads))  # it may think for a moment that databases are away
        await until_status(self.pair.clients[number], "healthy")

    def leads(self, number: int) -> set[str]:
        """Return the shards that a server says it leads."""
        leading: set[str] = set()
        for line in self.pair.servers[number].log()[self.log_begins[number] :].splitlines():
            if "lead" in line and (shard := re.search(r"shard\W+(\d)", line)):
                if "this server leads now" in line:
                    leading.add(shard[1])
                elif "does not lead any more" in line:
                    leading.discard(shard[1])
        return leading

    def report(self) -> str:
        return f"{self.crashes} crashes of a database, {self.kills} kills and {self.stops} stops of a server"


async def until_status(client: httpx2.AsyncClient, status: str) -> dict[str, str]:
    async with asyncio.timeout(60):
        while (health := (await client.get("/health")).json())["status"] != status:
            await asyncio.sleep(0.01)
    return dict(health)


async def test_shards_that_crash_and_servers_that_are_killed_or_stand_still(
    databases: list[OwnPostgres], tmp_path: Path
) -> None:
    async with Pair(tmp_path, ",".join(each.url for each in databases)) as pair:
        faults = Faults(databases, pair)
        for load in faults.loads:
            await load.prepare()
        tasks = [load.start(producers=3, workers=4) for load in faults.loads]
        for round_ in range(ROUNDS):
            first = faults.random.randrange(SHARDS)
            await faults.some_time()
            await faults.crash(first)
            await faults.some_time()
            await faults.kill(faults.random.randrange(2))
            await faults.some_time()
            await faults.stand_still()
            await faults.some_time()
            await faults.crash(1 - first, kill=faults.random.randrange(2))
            await faults.some_time()
            await faults.crash(first)
            print(f"round {round_ + 1}: {faults.report()}")
        await faults.some_time()
        faults.note("the end")
        verdicts = await asyncio.gather(*(load.finish(each) for load, each in zip(faults.loads, tasks, strict=True)))
        for shard, (load, verdict) in enumerate(zip(faults.loads, verdicts, strict=True)):
            print(
                f"seed {SEED}, shard {shard}, {faults.report()}: {verdict}; {load.failed} failed on purpose, "
                f"{len(load.parents)} flows, {len(load.ticks)} ticks, slowest answer {max(load.slowest_s):.2f} s, "
                f"refusals {load.codes}"
            )
            assert verdict.is_clean, verdict
            assert verdict.acknowledged > 300
            assert not load.internal
