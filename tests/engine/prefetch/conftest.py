"""Two servers' engines on one shard with ready lists in a Redis of their own, with real clocks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import SystemClock
from penstock.engine.engine import Engine
from penstock.engine.prefetch.ready_cache import ReadyCache
from penstock.store.postgres import PostgresStore
from penstock.store.redis import RedisLink, RedisReadyLists, connect
from tests.support import postgres
from tests.support.redis import OwnRedis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

HOT_JOBS = 10


@pytest.fixture(autouse=True)
def patient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may stop Redis for a second. That is no reason here to go on without it, as a server would."""
    monkeypatch.setattr(connect, "ANSWER_S", 15.0)


@pytest.fixture
async def shard() -> AsyncIterator[str]:
    """An empty database."""
    url = await postgres.make_database()
    yield url
    await postgres.drop_database(url)


@pytest.fixture
def redis() -> Iterator[OwnRedis]:
    """A Redis to be flushed and killed."""
    with OwnRedis() as own:
        yield own


@asynccontextmanager
async def engine_on(url: str, redis: str) -> AsyncIterator[Engine]:
    """An engine of its own, as another server would have it."""
    clock = SystemClock()
    store = await PostgresStore.open(url, clock)
    link = RedisLink(redis, clock)
    lists = RedisReadyLists(link, lambda: store.identity)
    engine = Engine(store, store.clock, ready_cache=lambda engine: ReadyCache(engine, lists, hot_jobs=HOT_JOBS))
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()
        await link.close()


@pytest.fixture
async def pair(shard: str, redis: OwnRedis) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one shard."""
    async with engine_on(shard, redis.url) as a, engine_on(shard, redis.url) as b:
        yield a, b
