"""The number of shards changes under load, and servers are killed while they move queues: nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.queue import QueueKey
from penstock.core.sharding import shard_for
from tests.support import postgres
from tests.support.history import History
from tests.support.pair import Pair, PairLoad

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))
#: So many jobs take long enough to move that a server can be killed meanwhile.
BIG = 20_000
PATIENCE_S = 120


def named(prefix: str, old: int, new: int) -> str:
    """Return a queue that is on one of two shards, and on another of three."""
    names = (f"{prefix}{number}" for number in itertools.count())
    keys = ((name, QueueKey("default", name)) for name in names)
    return next(name for name, key in keys if (shard_for(key, 2), shard_for(key, 3)) == (old, new))


BUSY = (named("load", 0, 2), named("load", 1, 0))
TICKS = (named("tick", 1, 2), named("tick", 0, 1))
HUGE = named("big", 0, 2)
LINE = named("line", 1, 2)


@pytest.fixture(params=["postgres", "sqlite"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[str]]:
    if request.param == "sqlite":
        yield [f"sqlite:{tmp_path / f'shard{number}'}" for number in range(3)]
        return
    urls = [await postgres.make_database() for _ in range(3)]
    yield urls
    for url in urls:
        await postgres.drop_database(url)


class Line:
    """One producer and one worker at a queue: what comes out is in the order in which it went in."""

    def __init__(self, load: PairLoad) -> None:
        self._load = load
        self.seen: list[int] = []
        self.met: set[int] = set()
        self.pushed = 0
        self.stopping = False

    async def produce(self) -> None:
        for number in itertools.count():
            if self.stopping:
                return
            await self._load.surely("POST", f"/queues/{LINE}/jobs", {"data": number, "jobId": f"line-{number}"})
            self.pushed = number + 1

    async def work(self) -> None:
        while not self.stopping or len(self.met) < self.pushed:
            reply = await self._load.ask(
                "POST", f"/queues/{LINE}/jobs/pull-batch", {"count": 1, "timeout": 100, "owner": "w"}
            )
            if reply is None or reply.status_code != 200:
                continue
            for job, token in zip(reply.json()["jobs"], reply.json()["tokens"], strict=True):
                self.met.add(job["data"])
                if job["attempts"] == 0 and not job.get("stallCount"):
                    self.seen.append(job["data"])
                acked = await self._load.ask("POST", f"/jobs/{job['id']}/ack", {"token": token})
                if acked is None:  # nobody knows; if it did not happen, it comes again, after a lease that nobody waits for
                    await self._load.ask("POST", f"/jobs/{job['id']}/fail", {"token": token, "error": "again"})

    def check(self) -> None:
        assert self.seen == sorted(self.seen)
        assert len(self.seen) == len(set(self.seen))


async def restart(pair: Pair, number: int, stores: list[str], *, kill: bool = False) -> None:
    server = pair.servers[number]
    await asyncio.to_thread(server.kill if kill else server.stop)
    server.env["PENSTOCK_STORES"] = ",".join(stores)
    await asyncio.to_thread(server.start)


async def shards(load: PairLoad) -> Any:
    return await load.surely("GET", "/shards")


async def until(load: PairLoad, holds: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while not holds(found := await shards(load)):
            await asyncio.sleep(0.01)
    return found


def mover(pair: Pair, queue: str, times: int) -> int | None:
    """Return which server is moving a queue for the n-th time."""
    leaving = [
        sum("queue begins to move" in line and f'"{queue}"' in line for line in _lines(server)) for server in pair.servers
    ]
    return leaving.index(max(leaving)) if sum(leaving) >= times else None


def _lines(server: ServerProcess) -> list[str]:
    return server.log().splitlines()


async def kill_mover(pair: Pair, stores: list[str], times: int) -> None:
    """Kill the server that moves the large queue in the middle of that, and start it again."""
    async with asyncio.timeout(PATIENCE_S):
        while (number := mover(pair, HUGE, times)) is None:
            await asyncio.sleep(0.01)
    await restart(pair, number, stores, kill=True)


async def test_growing_and_shrinking_under_load_with_a_kill_in_each(stores: list[str], tmp_path: Path) -> None:
    count = 1 if stores[0].startswith("sqlite:") else 2
    async with Pair(tmp_path, ",".join(stores[:2]), count=count) as pair:
        loads = [
            PairLoad(pair, SEED + number, queue=queue, ticks=ticks)
            for number, (queue, ticks) in enumerate(zip(BUSY, TICKS, strict=True))
        ]
        first = loads[0]
        for load in loads:
            await load.prepare()
        line = Line(first)
        for start in range(0, BIG, 5_000):
            jobs = [{"data": number, "jobId": f"big-{number}"} for number in range(start, start + 5_000)]
            await first.surely("POST", f"/queues/{HUGE}/jobs/bulk", {"jobs": jobs})
        tasks = [load.start(producers=1, workers=4) for load in loads]
        lining = [asyncio.create_task(line.produce()), asyncio.create_task(line.work())]
        await first.after(100)

        for number in range(count):
            await restart(pair, number, stores)
            if count > 1 and number == 0:
                refused = await pair.clients[0].post("/shards/rebalance", json={})
                assert (refused.status_code, "has only 2 of 3 stores" in refused.text) == (409, True), refused.text
            await first.after(20)
        await first.surely("POST", "/shards/rebalance", {})
        began = History.now()
        await kill_mover(pair, stores, 1)
        await until(first, lambda found: not found["rebalancing"])
        grown = History.now() - began
        await first.after(100)

        await first.surely("POST", "/shards/rebalance", {"to": 2})
        began = History.now()
        await kill_mover(pair, stores, 2)
        found = await until(first, lambda found: not found["rebalancing"])
        shrunk = History.now() - began
        assert [each["queues"] > 0 for each in found["shards"]] == [True, True, False]
        for number in range(count):
            await restart(pair, number, stores[:2])
            await first.after(20)

        line.stopping = True
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*lining)
        for load, its in zip(loads, tasks, strict=True):
            verdict = await load.finish(its)
            print(f"seed {SEED}, {load.queue}: {verdict}; refusals {load.codes}, slowest {max(load.slowest_s):.1f} s")
            assert verdict.is_clean, verdict
            assert not load.internal
        line.check()
        counts = (await first.surely("GET", f"/queues/{HUGE}/counts"))["counts"]
        assert counts["waiting"] == BIG
        taken: list[int] = []
        while len(taken) < BIG:
            reply = await first.surely("POST", f"/queues/{HUGE}/jobs/pull-batch", {"count": 1_000})
            taken += [job["data"] for job in reply["jobs"]]
        assert taken == list(range(BIG))
        print(f"grown in {grown:.1f} s, shrunk in {shrunk:.1f} s, with a kill each; {len(line.seen)} jobs in order")
        for server in pair.servers:
            print("\n".join(each for each in _lines(server) if "rebalance" in each or "queue moved" in each))
