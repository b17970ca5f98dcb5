"""Redis that is flushed, killed or hangs, and servers that are killed, under load: nothing answered is lost or doubled."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import postgres
from tests.support.own_postgres import OwnPostgres
from tests.support.pair import Pair, PairLoad

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.history import Verdict
    from tests.support.redis import OwnRedis

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))
ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "2"))
BACKLOG = 150
HOT_JOBS = 5


@pytest.fixture
async def shards() -> AsyncIterator[str]:
    """Two databases."""
    urls = [await postgres.make_database() for _ in range(2)]
    yield ",".join(urls)
    for url in urls:
        await postgres.drop_database(url)


def pair_on(directory: Path, url: str, redis: OwnRedis) -> Pair:
    return Pair(directory, url, env={"PENSTOCK_REDIS": redis.url, "PENSTOCK_REDIS_HOT_JOBS": str(HOT_JOBS)})


async def heat(load: PairLoad) -> None:
    """Push more than is taken for a while, so that there is a ready list."""
    items = [f"backlog-{load.answers}-{number}" for number in range(BACKLOG)]
    load.history.attempted.update(items)
    jobs = [{"data": item, "maxAttempts": 100, "backoff": 10} for item in items]
    ids = (await load.surely("POST", "/queues/load/jobs/bulk", {"jobs": jobs}))["ids"]
    load.history.acknowledged.update(zip(items, ids, strict=True))


async def until_lists_are_used(load: PairLoad) -> None:
    """Keep a backlog until jobs are handed out from ready lists: after a failure they rest for some seconds."""
    before = await lent(load)
    async with asyncio.timeout(120):
        while await lent(load) == before:
            await heat(load)
            await load.after(150)


async def lent(load: PairLoad) -> float:
    """Return how many jobs the servers have handed out from ready lists."""
    texts = [(await client.get("/prometheus")).text for client in load.pair.clients]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("penstock_fast_jobs_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def given_up(pair: Pair) -> int:
    """Return how often lists were given up, as the servers' logs tell."""
    return sum(server.log().count("ready lists are given up") for server in pair.servers)


def report(what: str, load: PairLoad, verdict: Verdict) -> None:
    print(f"seed {SEED}, {what}: {verdict}; {load.failed} failed on purpose, refusals {load.codes}")
    for item in verdict.two_holders | verdict.resurrected | verdict.lost | verdict.failed_seen:
        print(item, load.history.acknowledged.get(item), load.history.deliveries.get(item), load.history.acks.get(item))
    assert verdict.is_clean, verdict
    assert verdict.acknowledged > BACKLOG
    assert not load.internal


async def test_redis_is_flushed_and_killed_again_and_again(shards: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with pair_on(tmp_path, shards, redis) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        await heat(load)
        tasks = load.start()
        for number in range(ROUNDS * 2):
            await until_lists_are_used(load)
            await load.after(load.random.randrange(1, 50))
            if number % 2:
                redis.kill()
                await load.after(50)
                await asyncio.to_thread(redis.start)
            else:
                redis.client().flushall()
        await load.after(200)
        report(f"{ROUNDS} flushes and {ROUNDS} crashes of Redis", load, await load.finish(tasks))
        assert given_up(pair) >= ROUNDS


async def test_redis_hangs(shards: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with pair_on(tmp_path, shards, redis) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        await heat(load)
        tasks = load.start()
        await load.after(100)
        redis.freeze()
        try:
            await load.after(300)
        finally:
            redis.thaw()
        await heat(load)
        await load.after(200)
        report("a Redis that hangs", load, await load.finish(tasks))
        assert max(load.slowest_s) < 10


async def test_a_server_with_ready_lists_is_killed(shards: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with pair_on(tmp_path, shards, redis) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        await heat(load)
        tasks = load.start()
        for number in range(ROUNDS):
            await load.after(load.random.randrange(50, 200))
            server = pair.servers[number % 2]
            server.kill()
            await load.after(20)
            await asyncio.to_thread(server.start)
            await heat(load)
        await load.after(200)
        report(f"{ROUNDS} kills of a server with ready lists", load, await load.finish(tasks))


async def test_what_a_buffer_has_promised_survives_everything(redis: OwnRedis, tmp_path: Path) -> None:
    with OwnPostgres("shared_buffers=64MB", "max_wal_size=256MB") as database:
        async with pair_on(tmp_path, database.url, redis) as pair:
            load = PairLoad(pair, SEED)
            await load.prepare()
            await load.surely("PUT", "/queues/load/mode", {"mode": "buffered"})
            tasks = load.start()
            for number in range(ROUNDS):
                await load.after(load.random.randrange(50, 200))
                await asyncio.to_thread(database.stop)
                await promise(load)
                server = pair.servers[number % 2]
                server.kill()
                if number % 2:
                    redis.client().flushall()
                await asyncio.to_thread(database.start)
                await asyncio.to_thread(server.start)
                await load.surely("GET", "/queues/load/counts")
            await load.after(200)
            await settled(load)
            report(f"{ROUNDS} kills of buffering servers, each while the database was down", load, await load.finish(tasks))


async def promise(load: PairLoad) -> None:
    """Have something promised by each server while the database is away."""
    for at in range(2):
        items = [f"promise-{load.answers}-{at}-{number}" for number in range(5)]
        load.history.attempted.update(items)
        jobs = {"jobs": [{"data": item, "maxAttempts": 100, "backoff": 10} for item in items]}
        response = await load.ask("POST", "/queues/load/jobs/bulk", jobs, at=at)
        if response is not None and response.status_code == 200:
            load.history.acknowledged.update(zip(items, response.json()["ids"], strict=True))
        assert response is not None
        assert response.status_code == 200, response.text


async def settled(load: PairLoad) -> None:
    """Wait until the servers have stored all they have promised."""
    load.stopping = True

    async def is_settled(client: Any) -> bool:
        text = (await client.get("/prometheus")).text
        return all(line.endswith(" 0.0") for line in text.splitlines() if line.startswith("penstock_buffer_jobs"))

    async with asyncio.timeout(60):
        for client in load.pair.clients:
            while not await is_settled(client):
                await asyncio.sleep(0.01)
