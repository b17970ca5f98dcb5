"""Fixtures shared by all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from penstock.core.clock import ManualClock
from penstock.core.durability import Durability
from penstock.engine.engine import Engine
from penstock.server.auth import quotas_of
from penstock.store.postgres import connect
from penstock.store.sqlite import SqliteStore
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path


# How long an example takes depends on what else the machine does.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def a_test_may_stand_still() -> Iterator[None]:
    """A machine that is busy may stop a test for seconds; what the database does then is tested with real servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connect._SETTINGS, "idle_in_transaction_session_timeout", "60000")
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0, read_inline=True)
    yield opened
    await opened.close()


@pytest.fixture
def quotas() -> Mapping[str, int]:
    """Quotas of namespaces, in jobs per minute. A test sets its own with ``parametrize``."""
    return {}


@pytest.fixture
async def engine(store: SqliteStore, clock: ManualClock, quotas: Mapping[str, int]) -> AsyncIterator[Engine]:
    # Answers do not wait for the disk here, so that a moved clock is all that moves; durability has tests of its own.
    running = Engine(store, clock, durability=Durability.NEVER, quotas=quotas_of(quotas, [store], clock))
    running.start()
    yield running
    await running.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One real server for all tests of a worker; tests keep apart by using queues of their own."""
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as running:
        yield running
