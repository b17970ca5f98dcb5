"""Two servers' engines on one shard, with real clocks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import SystemClock
from penstock.engine.engine import Engine
from penstock.store.postgres import PostgresStore
from tests.support import postgres
from tests.support.shards import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
async def shard() -> AsyncIterator[str]:
    """An empty database."""
    url = await postgres.make_database()
    yield url
    await postgres.drop_database(url)


@asynccontextmanager
async def engine_on(url: str) -> AsyncIterator[Engine]:
    """An engine of its own, as another server would have it."""
    store = await PostgresStore.open(url, SystemClock())
    engine = Engine(store, store.clock)
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


@pytest.fixture
async def pair(shard: str) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one shard."""
    async with engine_on(shard) as a, engine_on(shard) as b:
        yield a, b


@pytest.fixture
def databases() -> Iterator[list[str]]:
    urls = [run(postgres.make_database()) for _ in range(2)]
    yield urls
    for url in urls:
        run(postgres.drop_database(url))


@pytest.fixture(params=["sqlite", "postgres"])
def addresses(request: pytest.FixtureRequest, tmp_path: Path, databases: list[str]) -> list[str]:
    return databases if request.param == "postgres" else [f"sqlite:{tmp_path / name}" for name in ("one", "two")]
