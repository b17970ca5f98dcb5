"""Queues move to other shards: with everything in them, while they are used, and whatever happens in between."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.cron import CronKey, CronPlan
from penstock.core.events import EventKind
from penstock.core.job import NewJob
from penstock.core.queue import QueueKey
from penstock.core.schedule import Schedule
from penstock.core.sharding import Layout, shard_for
from penstock.engine.admin import Configure
from penstock.engine.change import AddLog
from penstock.engine.claim import Claim
from penstock.engine.crons import RemoveCron, SaveCron
from penstock.engine.engine import Engine
from penstock.engine.feed import Feed
from penstock.engine.fleet import Fleet, ShardFeed
from penstock.engine.hooks import AddWebhook
from penstock.engine.produce import Push
from penstock.engine.settle import Ack, Hold, Renew
from penstock.engine.stats import Stats
from penstock.engine.workers import Workers
from penstock.shards import agree
from penstock.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import Job

pytestmark = pytest.mark.anyio


def named(old: int, new: int, *, of: tuple[int, int] = (2, 3)) -> QueueKey:
    """Return a queue that is on one shard before and on another after the number of shards changes."""
    return next(
        key
        for number in range(10_000)
        if (key := QueueKey("default", f"q{number}")) and (shard_for(key, of[0]), shard_for(key, of[1])) == (old, new)
    )


MOVES = named(0, 2)
STAYS = named(0, 0)


@asynccontextmanager
async def fleet_on(directory: Path, clock: ManualClock, count: int) -> AsyncIterator[Fleet]:
    """A server's engines on some directories. Nothing happens by itself: see ``rebalance``."""
    stores = []
    try:
        for number in range(count):
            layout = Layout(number, count)
            at = directory / f"shard{number}"
            stores.append(await SqliteStore.open(at, clock, ballast_bytes=0, read_inline=True, layout=layout))
        await agree(stores)
        whole, stats = Feed(), Stats()
        workers = Workers(clock, whole)
        positions = [store.journal_next - 1 for store in stores]
        engines = [
            Engine(store, clock, feed=ShardFeed(whole, positions, number), stats=stats, workers=workers)
            for number, store in enumerate(stores)
        ]
        for engine in engines:
            engine.timer.start()
        fleet = Fleet(engines, whole, stats, workers, clock)
        yield fleet
        await fleet.close()
    finally:
        for store in stores:
            await store.close()


async def within(clock: ManualClock, doing: Awaitable[Any], ms: int = 20_000) -> Any:
    """Let time pass until something is done."""
    task = asyncio.ensure_future(doing)
    for _ in range(ms // 10):
        if task.done():
            break
        await clock.advance(10)
        await asyncio.to_thread(int)  # an fsync in a thread takes real time
    assert task.done(), "it is not done"
    return task.result()


async def rebalance(fleet: Fleet, clock: ManualClock, target: int | None = None) -> None:
    await within(clock, fleet.rebalancer.begin(target))
    await within(clock, fleet.rebalancer.run_once())
    overview = fleet.rebalancer.overview()
    assert not overview.rebalancing, overview


async def push(fleet: Fleet, key: QueueKey, data: bytes = b"1", **options: Any) -> Job:
    (job,) = await fleet.run(Push(key, [NewJob(data, **options)]))
    return job


async def test_everything_in_a_queue_moves_with_it(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock, 2) as fleet:
        line = [(await push(fleet, MOVES, str(n).encode(), priority=n % 2)).id for n in range(6)]
        later = await push(fleet, MOVES, b'"later"', delay=60_000)
        done = await push(fleet, MOVES, b'"done"', priority=9, job_id="named")
        (delivery,) = await fleet.run(Claim(MOVES))
        assert delivery.job.id == done.id
        await fleet.run(AddLog("default", done.id, "info", "hello"))
        assert await fleet.run(Ack("default", [Hold(done.id, delivery.job.token)], [b'"result"'])) == [None]
        held = (await fleet.run(Claim(MOVES)))[0].job
        await fleet.run(Configure(MOVES, EventKind.QUEUE_PAUSED, lambda old: _with(old, concurrency=50)))
        cron = SaveCron(CronKey("default", "c"), CronPlan(MOVES.name, Schedule(every_ms=3_600_000)), b"1")
        await fleet.run(cron)
        hook = await fleet.run(AddWebhook("default", "https://example.com", ("completed",), MOVES.name, None))
        stays = await push(fleet, STAYS)

    async with fleet_on(tmp_path, clock, 3) as fleet:
        assert fleet.of(MOVES) is fleet.engines[0]
        assert fleet.rebalancer.overview().shards[2].spare
        await rebalance(fleet, clock)
        assert fleet.of(MOVES) is fleet.engines[2]
        assert [store.layout for store in fleet.store.shards] == [Layout(n, 3, 1) for n in range(3)]
        assert fleet.engines[0].store.queues() == [fleet.engines[0].store.queue_find(STAYS)]
        queue = fleet.store.queue_find(MOVES)
        assert queue is not None
        assert queue.settings.concurrency == 50
        counts = fleet.store.counts(queue)
        assert (counts.waiting, counts.delayed, counts.active, counts.completed) == (5, 1, 1, 1)
        assert fleet.store.totals().waiting == 6
        # Ids and names still lead to the jobs, and to all that belongs to them.
        found = await fleet.store.job_get("default", done.id)
        assert found is not None
        assert fleet.store.queue_of(found[0]).key == MOVES
        assert await fleet.store.result_get(done.id) == b'"result"'
        assert [entry.message for entry in await fleet.store.log_get(done.id)] == ["hello"]
        assert (await fleet.store.jobs_named("default", "named"))[0][0].id == done.id
        assert (await fleet.store.job_get("default", stays.id) or ())[0].id == stays.id
        # The lease that was given out before goes on.
        assert await within(clock, fleet.run(Renew("default", [Hold(held.id, held.token)], [None]))) == [None]
        assert await within(clock, fleet.run(Ack("default", [Hold(held.id, held.token)], [None]))) == [None]
        # Order, and the new ones come last.
        line.remove(held.id)
        new = await push(fleet, MOVES, priority=0)
        expected = [line[n] for n in range(5) if line[n]]
        taken = [each.job for each in await fleet.run(Claim(MOVES, 10))]
        assert [job.id for job in taken] == [*sorted(expected, key=lambda each: _rank(taken, each)), new.id]
        assert [job.priority for job in taken] == sorted((job.priority for job in taken), reverse=True)
        assert [job.position for job in taken if job.priority == 1] == sorted(
            job.position for job in taken if job.priority == 1
        )
        holds = [Hold(job.id, job.token) for job in taken]
        assert await within(clock, fleet.run(Ack("default", holds, [None] * len(holds)))) == [None] * len(holds)
        await clock.advance(60_000)
        assert [each.job.id for each in await fleet.run(Claim(MOVES))] == [later.id]
        # Crons and webhooks are where their queue is.
        assert [each.key.name for each in await fleet.store.cron_list("default")] == ["c"]
        assert await fleet.engines[2].store.cron_get(CronKey("default", "c")) is not None
        assert await fleet.engines[0].store.cron_get(CronKey("default", "c")) is None
        assert fleet.engines[2].store.webhook_find(hook.id) is not None
        await fleet.run(RemoveCron(CronKey("default", "c")))

    async with fleet_on(tmp_path, clock, 3) as fleet:  # and it is all on disk
        assert fleet.of(MOVES) is fleet.engines[2]
        assert (await fleet.store.job_get("default", done.id) or ())[0].id == done.id


def _with(settings: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(settings, **changes)


def _rank(taken: list[Job], job_id: int) -> int:
    return next(rank for rank, job in enumerate(taken) if job.id == job_id)
