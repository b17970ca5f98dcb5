"""Every test in this folder runs against every store. A store is added by giving it a factory here."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.store.conformance.workbench import Workbench
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.store.contract import Store

    Opener = Callable[[], Awaitable[Store]]
    Factory = Callable[[Path, ManualClock], AbstractAsyncContextManager[Opener]]


@asynccontextmanager
async def on_sqlite(directory: Path, clock: ManualClock) -> AsyncIterator[Opener]:
    yield lambda: SqliteStore.open(directory, clock, ballast_bytes=0)


@asynccontextmanager
async def on_postgres(_directory: Path, clock: ManualClock) -> AsyncIterator[Opener]:
    url = await postgres.make_database()
    yield lambda: PostgresStore.open(url, clock, database_clock=False)
    await postgres.drop_database(url)


FACTORIES: dict[str, Factory] = {"sqlite": on_sqlite, "postgres": on_postgres}


@pytest.fixture(params=FACTORIES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Workbench]:
    async with FACTORIES[request.param](tmp_path / "store", clock) as open_store:
        workbench = Workbench(await open_store(), clock, open_store)
        yield workbench
        await workbench.store.close()
