"""What a store promises about its history: an identity made once, and an epoch that is raised when events are replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import asyncpg
import pytest

from penstock.core.history import History
from penstock.store.postgres import history as postgres_history
from penstock.store.sqlite import history as sqlite_history
from tests.store.conformance.conftest import FACTORIES

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def raise_epoch(source: str) -> History:
    """Do what a restore does, to a store that no server has open."""
    if source.startswith("sqlite:"):
        with apsw.Connection(source.removeprefix("sqlite:")) as file:
            return sqlite_history.raise_epoch(file)
    db = await asyncpg.connect(source)
    try:
        return await postgres_history.raise_epoch(db)
    finally:
        await db.close()


async def test_a_restart_keeps_the_history(bench: Workbench) -> None:
    before = bench.store.history
    assert before.epoch == 0
    await bench.put()
    await bench.restart()
    assert bench.store.history == before


@pytest.mark.parametrize("kind", FACTORIES)
async def test_two_stores_have_two_identities(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    found = set()
    for name in ("a", "b"):
        async with FACTORIES[kind](tmp_path / name, clock) as opened:
            store = await opened()
            found.add(store.history.identity)
            await store.close()
    assert len(found) == 2


@pytest.mark.parametrize("kind", FACTORIES)
async def test_a_restore_raises_the_epoch_and_keeps_the_identity(kind: str, tmp_path: Path, clock: ManualClock) -> None:
    async with FACTORIES[kind](tmp_path / "store", clock) as opened:
        store = await opened()
        before = store.history
        await store.close()
        for epoch in (1, 2):
            assert await raise_epoch(store.source) == before._replace(epoch=epoch)
        store = await opened()
        assert store.history == History(before.identity, 2)
        await store.close()


async def test_the_text_of_a_history_can_be_read_again(bench: Workbench) -> None:
    history = bench.store.history._replace(epoch=7)
    assert History.parse(str(history)) == history
    for text in ("", "7", f"{history.identity}", f"{history} ", "x" * 100, f"{history.identity}:-1"):
        assert History.parse(text) is None
