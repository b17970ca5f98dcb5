"""The count of time that leases go by survives restarts, and no one can set it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.clock import ManualClock
from penstock.engine.engine import Engine
from penstock.engine.maintenance.lease_clock import ClockMarker
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.store import FILE_NAME
from tests.support.engines import ack, claim, claim_job, push

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000


@asynccontextmanager
async def engine_at(directory: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    store = await SqliteStore.open(directory, clock, ballast_bytes=0, read_inline=True)
    engine = Engine(store, store.clock)
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


@pytest.mark.parametrize("step_ms", [-HOUR_MS, 0, HOUR_MS])
async def test_a_lease_ends_when_its_time_is_over_whatever_the_wall_clock_says(tmp_path: Path, step_ms: int) -> None:
    clock = ManualClock(START_MS)
    async with engine_at(tmp_path, clock) as engine:
        pushed = await push(engine)
        await claim_job(engine, lease_ms=30_000)
    clock.jump_wall(step_ms)  # while no server is running
    await clock.advance(20_000)
    async with engine_at(tmp_path, clock) as engine:
        assert await claim(engine) is None
        await clock.advance(9_900)
        assert await claim(engine) is None
        await clock.advance(200)
        assert (await claim_job(engine)).id == pushed.id


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_after_a_new_start_of_the_machine_the_time_it_was_off_does_not_count(tmp_path: Path, step_ms: int) -> None:
    clock = ManualClock(START_MS, identity="first")
    async with engine_at(tmp_path, clock) as engine:
        pushed = await push(engine)
        await claim_job(engine, lease_ms=30_000)
        await clock.advance(10_000)
    clock = ManualClock(START_MS + step_ms, identity="second")
    async with engine_at(tmp_path, clock) as engine:
        await clock.advance(19_900)
        assert await claim(engine) is None
        await clock.advance(200)
        again = await claim_job(engine)
        assert again.id == pushed.id
        assert await ack(engine, again, token=again.token) is None


async def test_without_a_word_of_the_system_about_its_start_no_time_is_made_up(tmp_path: Path) -> None:
    clock = ManualClock(START_MS, identity="")
    async with engine_at(tmp_path, clock) as engine:
        await push(engine)
        await claim_job(engine, lease_ms=30_000)
    await clock.advance(HOUR_MS)
    async with engine_at(tmp_path, clock) as engine:
        assert await claim(engine) is None
        await clock.advance(30_000)
        assert await claim(engine) is not None


async def test_the_count_is_marked_while_there_are_leases(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    def mark() -> int:
        db = apsw.Connection(str(tmp_path / FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
        (found,) = next(iter(db.execute("select mark from lease_clock")))
        db.close()
        return int(found)

    async with engine_at(tmp_path, clock) as engine:
        await push(engine)
        await clock.advance(ClockMarker.every_ms)
        assert mark() == START_MS
        await claim_job(engine, lease_ms=HOUR_MS)
        await clock.advance(ClockMarker.every_ms)
        assert mark() == START_MS + 2 * ClockMarker.every_ms
        await clock.advance(1)
    assert mark() == START_MS + 2 * ClockMarker.every_ms + 1


async def test_leases_of_a_file_without_a_count_go_on_by_the_wall_clock(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    async with engine_at(tmp_path, clock) as engine:
        await push(engine)
        await claim_job(engine, lease_ms=30_000)
    db = apsw.Connection(str(tmp_path / FILE_NAME))
    db.execute("delete from lease_clock")
    db.close()
    await clock.advance(29_000)
    async with engine_at(tmp_path, clock) as engine:
        assert await claim(engine) is None
        await clock.advance(1_100)
        assert await claim(engine) is not None
