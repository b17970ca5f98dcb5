"""Ready lists keep the order of their queues, whatever happens while one is made."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.engine.prefetch.commands import Abandon, ReadGeneration
from penstock.store.postgres.transaction import PostgresTransaction
from tests.engine.prefetch.test_ready_cache import heat, ids, ready_cache, take_fast
from tests.support.engines import claim_all, push
from tests.support.receiver import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.job import JobRecord, Payload
    from penstock.core.queue import Queue
    from penstock.engine.engine import Engine
    from penstock.engine.jobs.claim import Claim
    from tests.support.redis import OwnRedis

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio


@pytest.fixture
def around_read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has something done once, before or after a server reads the next jobs of a queue."""
    read = PostgresTransaction.job_ready

    def install(
        engine: Engine,
        *,
        before: Callable[[], Awaitable[object]] | None = None,
        after: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        done = False

        async def job_ready(
            self: PostgresTransaction, queue: Queue, limit: int, *, bodies: bool = True
        ) -> list[tuple[JobRecord, Payload]]:
            nonlocal done
            mine = self._store is engine.store and not done
            done = done or mine
            if mine and before is not None:
                await before()
            found = await read(self, queue, limit, bodies=bodies)
            if mine and after is not None:
                await after()
            return found

        monkeypatch.setattr(PostgresTransaction, "job_ready", job_ready)

    return install


async def test_a_push_while_a_list_is_made_is_not_passed_over(pair: Pair, around_read: Callable[..., None]) -> None:
    a, b = pair
    expected = await heat(a)
    urgent: list[JobRecord] = []

    async def push_urgent() -> None:
        urgent.append(await push(b, priority=5))

    around_read(a, after=push_urgent)
    first = await take_fast(a)  # the list is made for it
    second = await take_fast(a)
    # The push was answered before either of them was.
    assert ids(first + second) == [urgent[0].id, expected[0].id]


async def test_a_pull_that_began_before_a_list_was_made_gets_nothing_behind_it(
    pair: Pair, around_read: Callable[..., None]
) -> None:
    a, b = pair
    expected = await heat(a)
    first: list[JobRecord] = []

    async def make_the_list() -> None:
        first.extend(await take_fast(a))

    around_read(b, before=make_the_list)
    second = await claim_all(b, 1)
    assert ids(first + second) == ids(expected[:2])
    assert ready_cache(b).jobs_handed_out == 1
    assert ready_cache(a).generation == 0


async def test_a_pull_with_a_long_lease_gets_nothing_behind_the_list(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    taken = await take_fast(a)
    taken += await claim_all(b, 1, lease_ms=limits.fast_lease_ms_max + 1)
    taken += await claim_all(a, 1)
    assert ids(taken) == ids(expected[:3])


async def take_the_rest(pair: Pair, taken: list[JobRecord], expected: list[JobRecord], count: int = 1) -> None:
    """Pull in turns, one pull after the other: none is passed over, and none is answered with nothing."""
    for engine in cycle(pair):
        if len(taken) >= len(expected):
            break
        jobs = await claim_all(engine, min(count, len(expected) - len(taken)))
        assert jobs
        taken += jobs
    assert ids(taken) == ids(expected)
    assert not any(job.attempts for job in taken)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("count", [1, 7, 70])
async def test_order_holds_when_redis_is_flushed(
    pair: Pair, redis: OwnRedis, count: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow: each server remembers how far a line is empty, as it does when dead rows make a look at all of it slow."""
    a, b = pair
    if slow:
        monkeypatch.setattr("penstock.store.postgres.queue_heads.SLOW_MS", -1)
        monkeypatch.setattr("penstock.store.postgres.queue_heads.YOUNG_MS", 0)
        monkeypatch.setattr("penstock.store.postgres.queue_heads.WHOLE_EVERY_MS", 60_000)
    expected = await heat(a, 300)
    taken = await take_fast(a, 3)
    taken += await take_fast(b, 3)
    redis.client().flushall()
    await take_the_rest(pair, taken, expected, count)
    assert ready_cache(a).generation == 1


async def test_order_holds_when_redis_is_lost(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    expected = await heat(a, 200)
    taken = await take_fast(a, 3)
    taken += await take_fast(b, 3)
    redis.kill()
    await take_the_rest(pair, taken, expected)


async def test_order_holds_when_one_server_loses_redis(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    expected = await heat(a, 200)
    taken = await take_fast(a, 3)
    taken += await take_fast(b, 3)

    async def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError

    for name in ("_pop", "_drain", "_plan", "_offer"):
        monkeypatch.setattr(ready_cache(b).lists, name, refused)
    await take_the_rest(pair, taken, expected)


async def test_who_waits_at_a_queue_whose_list_is_lost_is_served(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    expected = await heat(a, 70)
    taken = await take_fast(a, 10)
    redis.client().flushall()
    taken += await claim_all(b, 1)
    await take_the_rest(pair, taken, expected, 10)
    waiting = asyncio.ensure_future(claim_all(b, 1, wait_ms=60_000))
    await until(lambda: b.claim_waiters.size)
    job = await push(a)
    assert ids(await waiting) == [job.id]


async def test_a_lost_list_is_not_made_anew_before_its_jobs_are_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server finds that a queue has a list; before it asks the list, the list is given up. Its jobs come first."""
    a, b = pair
    expected = await heat(a, 70)
    taken = await take_fast(a, 10)
    # The server that has handed out jobs records them only when the other one has gone as far as it can.
    hurried: list[int] = []
    monkeypatch.setattr(ready_cache(a).lease_recorder, "hurry", hurried.append)
    take_over = ready_cache(b)._take_over
    found: list[tuple[Queue, list[Claim]]] = []
    monkeypatch.setattr(ready_cache(b), "_take_over", lambda queue, claims: found.append((queue, claims)))
    pull = asyncio.ensure_future(claim_all(b, 1))
    await until(lambda: found)
    assert await a.run(Abandon(0))
    for engine in pair:
        await engine.run(ReadGeneration())
    monkeypatch.undo()
    take_over(*found[0])
    await until(lambda: pull.done() or ready_cache(b)._recovery._held)
    assert hurried == [1]
    ready_cache(a).lease_recorder.hurry(1)
    assert ids(taken + await pull) == ids(expected[:11])
