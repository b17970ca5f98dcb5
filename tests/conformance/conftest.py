"""Every test in this folder runs against every store. A store is added by giving it a factory here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.store.sqlite import SqliteStore
from tests.conformance.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.store.contract import Store

    Factory = Callable[[Path, ManualClock], Awaitable[Store]]


async def open_sqlite(directory: Path, clock: ManualClock) -> Store:
    return await SqliteStore.open(directory, clock, ballast_bytes=0)


FACTORIES: dict[str, Factory] = {"sqlite": open_sqlite}


@pytest.fixture(params=FACTORIES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Workbench]:
    factory = FACTORIES[request.param]
    workbench = Workbench(await factory(tmp_path / "store", clock), clock, lambda: factory(tmp_path / "store", clock))
    yield workbench
    await workbench.store.close()
