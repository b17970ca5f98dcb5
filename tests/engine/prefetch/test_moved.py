"""Ready lists and enqueue buffers of queues that move to another shard."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core.events import EventKind
from penstock.core.ids import shard_of
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.prefetch.ready_cache import ReadyCache
from penstock.engine.queues.admin import Configure
from penstock.store.redis import BufferCopies, RedisLink, RedisReadyLists
from tests.engine.sharding.test_rebalancer import MOVES, fleet_on, rebalance, within
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.sharding.engine import ShardedEngine
    from penstock.store.contract import Store
    from tests.support.redis import OwnRedis

pytestmark = pytest.mark.anyio

HOT_JOBS = 5


@pytest.fixture
async def places() -> AsyncIterator[list[str]]:
    """Three databases."""
    urls = [await postgres.make_database() for _ in range(3)]
    yield urls
    for url in urls:
        await postgres.drop_database(url)


def stages_on(link: RedisLink, data: Path, store: Store) -> dict[str, Any]:
    """Return ready lists and an enqueue buffer for the engine of a store."""
    identity = partial(getattr, store, "identity")
    lists, copies = RedisReadyLists(link, identity), BufferCopies(link, identity)
    return {
        "ready_cache": lambda engine: ReadyCache(engine, lists, hot_jobs=HOT_JOBS),
        "buffer": lambda engine: EnqueueBuffer(engine, data / str(store.shard), identity, copies),
    }


@asynccontextmanager
async def fast_fleet_on(places: list[str], clock: ManualClock, redis: OwnRedis, data: Path) -> AsyncIterator[ShardedEngine]:
    """Engines on three shards, two of them in use, with ready lists and enqueue buffers."""
    link = RedisLink(redis.url, clock)
    async with fleet_on(places, clock, 3, partial(stages_on, link, data)) as fleet:
        await rebalance(fleet, clock, 2)
        for engine in fleet.engines:
            assert engine.buffer is not None
            await engine.buffer.open()
        yield fleet
    await link.close()


async def take(fleet: ShardedEngine, clock: ManualClock, count: int) -> list[JobRecord]:
    return [job for job, _ in await within(clock, fleet.run(Claim(MOVES, count)))]


async def test_a_hot_queue_moves_with_all_its_jobs(
    places: list[str], clock: ManualClock, redis: OwnRedis, tmp_path: Path
) -> None:
    async with fast_fleet_on(places, clock, redis, tmp_path) as fleet:
        pushed = await fleet.run(Push(MOVES, [JobSpec(b"1")] * 100))
        held = await take(fleet, clock, HOT_JOBS)
        held += await take(fleet, clock, 3)
        ready_cache = fleet.engines[0].ready_cache
        assert ready_cache is not None
        assert ready_cache.jobs_handed_out == 3
        await rebalance(fleet, clock, 3)
        rest = await take(fleet, clock, 200)
        assert [job.id for job in held + rest] == [job.id for job in pushed]
        assert not any(job.attempts for job in rest)
        holds = [LeaseRef(job.id, job.token) for job in held + rest]
        outcomes = await within(clock, fleet.run(Ack("default", holds, [None] * len(holds))))
        assert outcomes == [None] * len(holds)


async def test_what_was_promised_reaches_a_queue_that_has_moved(
    places: list[str], clock: ManualClock, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fast_fleet_on(places, clock, redis, tmp_path) as fleet:
        await fleet.run(
            Configure(MOVES, EventKind.CONFIG_MODE_CHANGED, lambda old: msgspec.structs.replace(old, buffered=True))
        )
        buffer = fleet.engines[0].buffer
        assert buffer is not None
        assert buffer.enqueue_log is not None
        with monkeypatch.context() as patch:
            patch.setattr(buffer, "flush", lambda: None)
            promised = await within(clock, fleet.run(Push(MOVES, [JobSpec(b"1", flags=2)] * 3)))
            assert [await fleet.store.job_get("default", job.id) for job in promised] == [None] * 3
            await rebalance(fleet, clock, 3)
        await within(clock, buffer._store(buffer.enqueue_log.number, [each for each, _ in buffer._unstored]))
        jobs = await take(fleet, clock, 10)
        assert [job.id for job in jobs] == [job.id for job in promised]
        assert {shard_of(job.token) for job in jobs} == {2}
        holds = [LeaseRef(job.id, job.token) for job in jobs]
        await within(clock, fleet.run(Ack("default", holds, [None] * 3)))
        # Whoever stores it once more, because it does not know that it was stored, brings nothing back.
        await within(clock, buffer._store(buffer.enqueue_log.number, [each for each, _ in buffer._unstored]))
        assert await take(fleet, clock, 10) == []
        assert await fleet.store.job_get("default", promised[0].id) is None
        later = await within(clock, fleet.run(Push(MOVES, [JobSpec(b"2")])))
        found = await fleet.store.job_get("default", later[0].id)
        assert found is None or found[0].state == State.WAITING
