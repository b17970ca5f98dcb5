"""A long transaction pauses for other requests. Nobody sees its changes before its commit, and nobody else is part of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core import time_slices
from penstock.core.apikey import ApiKey
from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import ServerError, StorageFailed
from penstock.core.job import JobSpec
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push
from penstock.store.sqlite import SqliteStore
from tests.support.engines import QUEUE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.job import JobRecord

pytestmark = pytest.mark.anyio
COUNT = 5_000
JOBS = [JobSpec(b"1", job_id=f"j{number}") for number in range(COUNT)]


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    monkeypatch.setattr(time_slices, "SLICE_S", 0)  # it pauses after each step
    store = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0)
    yield store
    await store.close()


@pytest.fixture
async def engine(store: SqliteStore, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = Engine(store, clock, durability=Durability.ALWAYS)
    await engine.run(Push(QUEUE, [JobSpec(b"1")]))
    yield engine
    await engine.close()


async def begun(engine: Engine, store: SqliteStore) -> asyncio.Future[list[JobRecord]]:
    """Push many jobs, and return when some of them are written."""
    pushed = engine.run(Push(QUEUE, JOBS))
    while not (store.db.in_transaction and next(iter(store.db.execute("select count(*) from jobs")))[0] > 1):
        await yield_to_loop(1)
    assert not pushed.done()
    return pushed


async def test_others_are_served_during_a_long_transaction(engine: Engine) -> None:
    pushed, turns = engine.run(Push(QUEUE, JOBS)), 0
    while not pushed.done():
        await yield_to_loop(1)
        turns += 1
    assert turns > COUNT


async def test_a_read_waits_for_the_end_and_sees_all_or_nothing(engine: Engine, store: SqliteStore) -> None:
    pushed = await begun(engine, store)
    found = asyncio.create_task(store.job_get(QUEUE.namespace, "j0"))
    places = asyncio.create_task(store.name_find(QUEUE.namespace, ["j0", f"j{COUNT - 1}"]))
    await yield_to_loop(5)
    assert not found.done()
    assert not places.done()
    jobs = await pushed
    job = await found
    assert job is not None
    assert job[0].id == jobs[0].id
    assert set(await places) == {"j0", f"j{COUNT - 1}"}


async def test_what_is_rolled_back_is_never_seen(
    engine: Engine, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = await begun(engine, store)
    found = asyncio.create_task(store.job_get(QUEUE.namespace, "j0"))
    await yield_to_loop(5)
    store._stop_writes("the disk has failed")  # during a pause: the commit must not be tried
    with pytest.raises(StorageFailed):
        await pushed
    assert await found is None
    assert await store.recover()
    again = await engine.run(Push(QUEUE, JOBS))
    assert len(again) == COUNT


async def test_a_key_is_not_part_of_a_transaction_that_may_be_rolled_back(engine: Engine, store: SqliteStore) -> None:
    pushed = await begun(engine, store)
    key = ApiKey("id", b"d" * 32, ("*",), ("admin",), "label", 1, None, None)
    added = asyncio.create_task(store.key_add(key, 10))
    revoked = asyncio.create_task(store.key_revoke("id"))
    listed = asyncio.create_task(store.key_list())
    await yield_to_loop(5)
    assert not any(each.done() for each in (added, revoked, listed))
    store._stop_writes("the disk has failed")
    with pytest.raises(ServerError):
        await pushed
    with pytest.raises(ServerError):
        await added
    assert (await listed)[1] == []
    with pytest.raises(ServerError):
        await revoked
    assert await store.recover()
    await store.key_add(key, 10)
    assert [each.id for each in (await store.key_list())[1]] == ["id"]


async def test_a_recovery_waits_for_the_end(engine: Engine, store: SqliteStore) -> None:
    pushed = await begun(engine, store)
    store._stop_writes("the disk has failed")
    recovered = asyncio.create_task(store.recover())
    await yield_to_loop(5)
    assert not recovered.done()
    with pytest.raises(ServerError):
        await pushed
    assert await recovered


async def test_a_sync_and_the_second_step_of_a_checkpoint_wait_for_the_end(engine: Engine, store: SqliteStore) -> None:
    pushed = await begun(engine, store)
    synced = asyncio.create_task(store.sync())
    store.checkpointer.log_has(10**6)
    for _ in range(10):
        await yield_to_loop(5)
        assert not synced.done()
        assert not store.checkpointer.finishing
    await pushed
    await synced
    await store.checkpointer.close()


async def test_closing_waits_for_the_end(engine: Engine, store: SqliteStore) -> None:
    pushed = await begun(engine, store)
    await engine.close()
    assert len(await pushed) == COUNT
