"""The database's clock is set: leases do not notice, due times do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from penstock.core.clock import ManualClock, SystemClock
from penstock.core.queue import QueueKey
from penstock.engine.engine import Engine
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.clock import STEP_MS, UNSEEN_MS, Reading, ShardClock
from tests.support import postgres
from tests.support.engines import ack, claim, claim_job, push

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    SetClock = Callable[[int], Awaitable[None]]

pytestmark = pytest.mark.anyio

HOUR_MS = 3_600_000
LATER = QueueKey("default", "later")
#: The database's clock cannot be set here, but everything that asks for its time asks this function.
CLOCK = """
create table test_clock (ahead bigint not null);
insert into test_clock values (0);
create or replace function clock_ms() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000)::bigint + (select ahead from penstock.test_clock) $$;
"""


@asynccontextmanager
async def engine_on(url: str) -> AsyncIterator[Engine]:
    store = await PostgresStore.open(url, SystemClock())
    engine = Engine(store, store.clock)
    engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


@pytest.fixture
async def shard() -> AsyncIterator[str]:
    """A database whose clock can be set."""
    url = await postgres.make_database()
    store = await PostgresStore.open(url, SystemClock())
    await store.close()
    await execute(url, CLOCK)
    yield url
    await postgres.drop_database(url)


async def execute(url: str, statements: str) -> None:
    db = await asyncpg.connect(url)
    try:
        await db.execute("set search_path = penstock")
        await db.execute(statements)
    finally:
        await db.close()


async def term_of(url: str) -> int:
    """Return how often the count was corrected."""
    db = await asyncpg.connect(url)
    try:
        term: int = await db.fetchval("select clock_term from penstock.catalog")
    finally:
        await db.close()
    return term


@pytest.fixture
def set_clock(shard: str) -> SetClock:
    async def step(ahead_ms: int) -> None:
        await execute(shard, f"update test_clock set ahead = {ahead_ms}")

    return step


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_setting_the_clock_of_the_database_moves_no_lease(shard: str, set_clock: SetClock, step_ms: int) -> None:
    async with engine_on(shard) as a, engine_on(shard) as b:
        long, short = await push(a), await push(a)
        held = await claim_job(a, lease_ms=10 * 60_000)
        assert held.id == long.id
        assert (await claim_job(b, lease_ms=500)).id == short.id
        await set_clock(step_ms)
        # The short lease ends although the clock is an hour behind; the long one does not although it is ahead.
        back = await claim(a, wait_ms=60_000, lease_ms=60_000)
        assert back is not None
        assert back.job.id == short.id
        async with engine_on(shard) as c:  # one that comes later goes by the same count
            assert await claim(b) is None
            assert await claim(c) is None
            assert abs(c.clock.steady_ms() - a.clock.steady_ms()) < HOUR_MS // 2
            assert abs(c.clock.now_ms() - c.clock.steady_ms() - step_ms) < HOUR_MS // 2
        assert await ack(b, held, token=held.token) is None


async def test_due_times_follow_the_clock_of_the_database(shard: str, set_clock: SetClock) -> None:
    async with engine_on(shard) as a:
        job = await push(a, queue=LATER, delay=HOUR_MS // 2)
        assert await claim(a, queue=LATER) is None
        await set_clock(HOUR_MS)
        due = await claim(a, queue=LATER, wait_ms=60_000)
        assert due is not None
        assert due.job.id == job.id


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_what_happens_to_the_clock_while_no_server_is_there_does_not_count(
    shard: str, set_clock: SetClock, step_ms: int
) -> None:
    async with engine_on(shard) as a:
        job = await push(a)
        held = await claim_job(a, lease_ms=10 * 60_000)
        counted = a.clock.steady_ms()
        await a.store.keep_node()
    await set_clock(step_ms)
    async with engine_on(shard) as a:
        assert await claim(a) is None
        assert abs(a.clock.steady_ms() - counted) < HOUR_MS // 2
        assert await ack(a, held, token=held.token) is None
        assert job.id == held.id


async def test_a_server_whose_clock_was_set_leads_no_longer_than_it_may(shard: str, set_clock: SetClock) -> None:
    async with engine_on(shard) as a:
        assert await a.store.lead("test", 60_000) is not None
        await set_clock(HOUR_MS)
        async with engine_on(shard) as b:
            assert await b.store.lead("test", 60_000) is None
        await set_clock(-HOUR_MS)
        await push(a)
        async with engine_on(shard) as b:
            assert await b.store.lead("test", 60_000) is None
            assert await a.store.lead("test", -60_000) is not None
            assert await b.store.lead("test", 60_000) is not None


class Steps(list[tuple[int, int]]):
    """Corrections that were asked for."""

    def __call__(self, shift: int, term: int) -> None:
        self.append((shift, term))


def watched(local: ManualClock) -> tuple[ShardClock, Steps]:
    clock, steps = ShardClock(local), Steps()
    clock.when_set = steps
    return clock, steps


async def test_a_step_is_told_from_a_slow_answer_and_from_a_clock_that_runs_a_little_fast() -> None:
    local = ManualClock(1_000_000)
    clock, steps = watched(local)
    assert clock.record_reading(Reading(5_000_000, 0, 1), 1_000_000) == (5_000_000, 5_000_000)
    await local.advance(10_000)
    # It took ten seconds to answer, and may have looked at its clock at any moment of these.
    assert clock.record_reading(Reading(5_000_000, 0, 1), 1_000_000) == (5_000_000, 5_000_000)
    assert clock.record_reading(Reading(5_010_000, 0, 1), 1_010_000) == (5_010_000, 5_010_000)
    for _ in range(100):
        await local.advance(1_000)
        assert clock.record_reading(Reading(clock.steady_ms() + STEP_MS // 2, 0, 1), local.steady_ms())
    assert steps == []
    before = clock.steady_ms()
    assert clock.record_reading(Reading(before + HOUR_MS, 0, 1), local.steady_ms()) == (before + HOUR_MS, before)
    assert steps == [(-HOUR_MS, 1)]
    assert (clock.now_ms(), clock.steady_ms()) == (before + HOUR_MS, before)
    # Another server may have been first: its correction counts.
    assert clock.record_reading(Reading(before + HOUR_MS, -HOUR_MS - 3, 2), local.steady_ms()) == (
        before + HOUR_MS,
        before - 3,
    )
    assert clock.record_reading(Reading(before - 3, 0, 2), local.steady_ms()) == (before - 3, before - 3)
    assert steps == [(-HOUR_MS, 1)]


async def test_small_steps_are_not_hidden_by_long_silence() -> None:
    local = ManualClock(1_000_000)
    clock, steps = watched(local)
    clock.record_reading(Reading(5_000_000, 0, 0), 1_000_000)
    await local.advance(HOUR_MS)
    clock.record_reading(Reading(5_000_000 + HOUR_MS + HOUR_MS // 500, 0, 0), local.steady_ms())
    assert len(steps) == 1
    assert UNSEEN_MS > STEP_MS


async def test_a_clock_that_is_set_again_is_noticed_by_a_server_that_does_not_know_the_correction_yet() -> None:
    local = ManualClock(1_000_000)
    clock, steps = watched(local)
    clock.record_reading(Reading(5_000_000, 0, 0), 1_000_000)
    await local.advance(1_000)
    # Another server has corrected the first step (term 1). Then the clock was set again, and this server looks first.
    told = clock.record_reading(Reading(5_001_000 + 3 * HOUR_MS, -HOUR_MS, 1), local.steady_ms())
    assert told == (5_001_000 + 3 * HOUR_MS, 5_001_000)
    assert steps == [(-3 * HOUR_MS, 1)]
    assert clock.record_reading(Reading(5_001_000 + 3 * HOUR_MS, -3 * HOUR_MS, 2), local.steady_ms())[1] == 5_001_000
    # What was read before that correction, and comes late, changes nothing.
    assert clock.record_reading(Reading(5_001_000 + 3 * HOUR_MS, -HOUR_MS, 1), local.steady_ms())[1] == 5_001_000
    assert clock.steady_ms() == 5_001_000
    assert len(steps) == 1
    # One that was away for as long as it takes to be counted out goes by what the others have agreed on.
    await local.advance(UNSEEN_MS + 1)
    assert clock.record_reading(Reading(5_002_000, 0, 3), local.steady_ms())[1] == 5_002_000


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS])
async def test_steps_in_a_row_move_no_lease_of_a_server_that_is_idle_between_them(
    shard: str, set_clock: SetClock, step_ms: int
) -> None:
    async with engine_on(shard) as busy, engine_on(shard) as idle:
        held = await push(busy)
        await claim_job(busy, lease_ms=10 * 60_000)
        for number in range(1, 6):
            await set_clock(number * step_ms)
            before = busy.clock.steady_ms()
            looks = busy if number % 2 else idle  # it corrects the step, and the other one has not looked since the last
            await push(looks, queue=LATER)
            assert abs(looks.clock.steady_ms() - before) < HOUR_MS // 2
            assert await claim(looks) is None, held
            while await term_of(shard) < number:
                await asyncio.sleep(0.01)
