"""Quotas hold over all servers of a database, and over all shards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import asyncpg
import pytest

from penstock.core.clock import ManualClock, SystemClock
from penstock.core.queue import QueueKey
from penstock.core.sharding import fnv1a32, shard_for
from penstock.store.contract import QuotaCount
from penstock.store.postgres import PostgresStore
from tests.support import postgres
from tests.support.pair import Pair
from tests.support.shards import set_down

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx2

pytestmark = pytest.mark.anyio

QUOTA, PUSHES = 100, 150
ENV = {"NAMESPACE_QUOTAS": f"acme:{QUOTA}"}
ACME = {"X-Namespace": "acme"}
#: Where acme is counted when there are two shards, and a queue on each.
HOME = fnv1a32("acme") % 2
HERE, THERE = (next(name for name in "abcdef" if shard_for(QueueKey("acme", name), 2) == at) for at in (HOME, 1 - HOME))
ALONE, TOGETHER = "this server admits its share", "quotas are counted over all servers again"


@pytest.fixture
async def shards() -> AsyncIterator[list[str]]:
    urls = [await postgres.make_database() for _ in range(2)]
    yield urls
    for url in urls:
        await postgres.drop_database(url)


async def push(client: httpx2.AsyncClient, queue: str, count: int = 1) -> httpx2.Response:
    if count == 1:
        return await client.post(f"/queues/{queue}/jobs", json={"data": 1}, headers=ACME)
    return await client.post(f"/queues/{queue}/jobs/bulk", json={"jobs": [{"data": 1}] * count}, headers=ACME)


async def push_all(pair: Pair, *queues: str, count: int = PUSHES) -> Counter[int]:
    """Push at all servers in turn, as many at once as come; return how often there was which answer."""
    answers = await asyncio.gather(
        *(push(pair.clients[number % 2], queues[number // 2 % len(queues)]) for number in range(count))
    )
    for answer in answers:
        if answer.status_code == 429:
            assert answer.headers["penstock-error"] == "quota_exceeded"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
    return Counter(answer.status_code for answer in answers)


async def stored(client: httpx2.AsyncClient, *queues: str) -> int:
    """Return how many jobs there are, by pulling them."""
    pulled = [await client.post(f"/queues/{name}/jobs/pull-batch", json={"count": 1_000}, headers=ACME) for name in queues]
    return sum(len(each.json()["jobs"]) for each in pulled)


async def test_two_servers_let_pass_together_what_the_quota_allows(shard: str, tmp_path: Path) -> None:
    async with Pair(tmp_path, shard, env=ENV) as pair:
        assert await push_all(pair, "q") == {200: QUOTA, 429: PUSHES - QUOTA}
        assert await stored(pair.clients[0], "q") == QUOTA
        free = await pair.clients[1].post("/queues/q/jobs", json={"data": 1})
        assert free.status_code == 200, "other namespaces have no quota"


async def test_batches_of_any_size_at_two_servers_pass_as_a_whole_or_not_at_all(shard: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    sizes = [chance.randrange(1, 30) for _ in range(40)]
    async with Pair(tmp_path, shard, env=ENV) as pair:
        answers = await asyncio.gather(*(push(pair.clients[at % 2], "q", size) for at, size in enumerate(sizes)))
        assert {each.status_code for each in answers} == {200, 429}
        passed = sum(size for size, each in zip(sizes, answers, strict=True) if each.status_code == 200)
        assert QUOTA - 30 < passed <= QUOTA
        assert await stored(pair.clients[0], "q") == passed
        rest = await asyncio.gather(*(push(pair.clients[at % 2], "q") for at in range(30)))
        assert [each.status_code for each in rest].count(200) == QUOTA - passed, "what was refused was not counted"


async def test_two_servers_and_two_shards_let_pass_together_what_the_quota_allows(shards: list[str], tmp_path: Path) -> None:
    async with Pair(tmp_path, ",".join(shards), env=ENV) as pair:
        assert await push_all(pair, HERE, THERE) == {200: QUOTA, 429: PUSHES - QUOTA}
        assert await stored(pair.clients[0], HERE, THERE) == QUOTA


async def test_while_the_home_of_a_quota_is_down_each_server_has_its_share(shards: list[str], tmp_path: Path) -> None:
    async with Pair(tmp_path, ",".join(shards), env=ENV) as pair:
        for client in pair.clients:  # both are there, and each has seen the other
            await until_healthy(client)
        await until_servers(shards[1 - HOME], 2)
        await set_down(shards[HOME], down=True)
        await asyncio.gather(*(until_refused(client) for client in pair.clients))
        await push_all(pair, THERE)
        assert await stored(pair.clients[0], THERE) == QUOTA, "half of it at each"
        assert [server.log().count(ALONE) for server in pair.servers] == [1, 1]
        await set_down(shards[HOME], down=False)
        for client in pair.clients:
            await until_healthy(client)
            await push(client, HERE)  # with the first thing it counts, each tells what it has let pass alone
        assert set(await push_all(pair, HERE, THERE, count=20)) == {429}
        assert [server.log().count(TOGETHER) for server in pair.servers] == [1, 1]


async def test_what_a_shard_that_is_down_did_not_take_is_not_counted(shards: list[str], tmp_path: Path) -> None:
    async with Pair(tmp_path, ",".join(shards), env=ENV) as pair:
        client = pair.clients[0]
        await set_down(shards[1 - HOME], down=True)
        await until_refused(client)
        for _ in range(QUOTA):
            assert (await push(client, THERE)).status_code == 503
        assert (await push_all(pair, HERE))[200] == QUOTA


async def until_healthy(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/health")).json()["status"] != "healthy":
            await asyncio.sleep(0.01)


async def until_refused(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/health")).json()["status"] != "degraded":
            await asyncio.sleep(0.01)


async def until_servers(url: str, count: int) -> None:
    """Wait until every server of a database knows of so many."""
    db = await asyncpg.connect(url, server_settings={"search_path": "penstock"})
    since = await db.fetchval("select clock_ms()")
    async with asyncio.timeout(60):
        while await db.fetchval("select count(*) from nodes where until > $1::bigint + 60000", since) < count:
            await asyncio.sleep(0.01)
    await db.close()


async def test_seconds_that_are_over_are_removed(shard: str) -> None:
    clock = ManualClock()
    store = await PostgresStore.open(shard, clock, database_clock=False)
    operator = await asyncpg.connect(shard, server_settings={"search_path": "penstock"})
    for second in range(130):
        await store.quota_take([QuotaCount("a", 1, 1_000), QuotaCount(f"n{second}", 1, 1_000)])
        await clock.advance(1_000)
    assert await operator.fetchval("select count(*) from quotas") <= 2 * 121
    clock._steady -= 3_600_000  # the database's clock was set back
    store._quotas._forget_at = 0
    assert await store.quota_take([QuotaCount("a", 60, 60)]) == [0]
    assert await operator.fetchval("select count(*) from quotas") == 1
    await operator.close()
    await store.close()


async def test_many_servers_that_count_at_once_never_count_too_little(shard: str) -> None:
    stores = [await PostgresStore.open(shard, SystemClock()) for _ in range(4)]
    names = [f"n{number}" for number in range(8)]

    async def work(number: int, store: PostgresStore) -> Counter[str]:
        chance, taken = random.Random(number), Counter[str]()
        for _ in range(60):
            takes = [QuotaCount(chance.choice(names), chance.choice((1, 1, 3)), 40) for _ in range(10)]
            takes += [QuotaCount(name, -1, None) for name in set(chance.choices(names, k=3)) if taken[name]]
            for take, wait_ms in zip(takes, await store.quota_take(takes), strict=True):
                taken[take.namespace] += 0 if wait_ms else take.jobs
        return taken

    counts = await asyncio.gather(*(work(number, store) for number, store in enumerate(stores)))
    operator = await asyncpg.connect(shard, server_settings={"search_path": "penstock"})
    in_store = {name: await operator.fetchval("select sum(used) from quotas where namespace = $1", name) for name in names}
    await operator.close()
    assert in_store == {name: sum(each[name] for each in counts) for name in names}
    assert max(in_store.values()) <= 40
    for store in stores:
        await store.close()


async def test_a_database_whose_connections_are_cut_counts_again_by_itself(shard: str, tmp_path: Path) -> None:
    async with Pair(tmp_path, shard, env=ENV) as pair:
        assert (await push(pair.clients[0], "q")).status_code == 200
        operator = await asyncpg.connect(shard)
        await operator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where query like '%quota_take%' and pid <> pg_backend_pid()"
        )
        await operator.close()
        counts = await push_all(pair, "q")
        assert counts[200] in (QUOTA, QUOTA - 1), counts
