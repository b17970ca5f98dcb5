"""Queues move to other shards: with everything in them, while they are used, and whatever happens in between."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import limits
from penstock.core.cron import CronKey, CronPlan
from penstock.core.errors import (
    JobNotFound,
    QueueMoving,
    RebalanceRefused,
    ServerError,
    StorageFailed,
    StoreIncompatible,
    SubscriptionNotFound,
)
from penstock.core.events import EventKind
from penstock.core.ids import ID_MAX, TIME_SHIFT, shard_of, to_uuid
from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import Move, MoveStep, QueueKey, QueueSettings, StateCounts
from penstock.core.schedule import Schedule
from penstock.core.sharding import Layout, check_together, shard_for
from penstock.engine.engine import Engine
from penstock.engine.event_feed import EventFeed
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import abandon
from penstock.engine.jobs.dead_letters import SettleDead
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack, Renew
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob
from penstock.engine.jobs.update import AddLog, MoveJob
from penstock.engine.queues.admin import Configure, drain, obliterate
from penstock.engine.queues.crons import RemoveCron, SaveCron
from penstock.engine.queues.group_limits import AskGroup, ConfigureGroup
from penstock.engine.queues.push_subscriptions import AddSubscription, RemoveSubscription
from penstock.engine.queues.webhooks import AddWebhook
from penstock.engine.sharding.engine import ShardedEngine, ShardFeed
from penstock.engine.sharding.queue_move import (
    CancelMove,
    Clear,
    CountJobs,
    Freeze,
    HandOver,
    ImportJobs,
    Open,
    Prepare,
    Retarget,
)
from penstock.engine.stats import EngineStats
from penstock.engine.worker_registry import WorkerRegistry
from penstock.server.storage import agree
from penstock.store.contract import Selection
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite import SqliteStore
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.store.contract import Store

pytestmark = pytest.mark.anyio


def named(old: int, new: int, prefix: str = "q", of: tuple[int, int] = (2, 3)) -> QueueKey:
    """Return a queue that is on one shard before and on another after the number of shards changes."""
    keys = [QueueKey("default", f"{prefix}{number}") for number in range(1_000)]
    return next(key for key in keys if (shard_for(key, of[0]), shard_for(key, of[1])) == (old, new))


MOVES = named(0, 2)
STAYS = named(0, 0)


@pytest.fixture(params=["sqlite", "postgres"])
async def places(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[str]]:
    """Where three shards can be."""
    if request.param == "sqlite":
        yield [f"sqlite:{tmp_path / f'shard{number}'}" for number in range(3)]
        return
    urls = [await postgres.make_database() for _ in range(3)]
    yield urls
    for url in urls:
        await postgres.drop_database(url)


async def open_store(place: str, clock: ManualClock, layout: Layout) -> Store:
    if place.startswith("sqlite:"):
        path = Path(place.removeprefix("sqlite:"))
        return await SqliteStore.open(
            path, clock, ballast_bytes=0, read_inline=True, layout=layout, fdatasync=lambda _: None
        )
    return await PostgresStore.open(place, clock, database_clock=False, layout=layout)


@asynccontextmanager
async def fleet_on(
    places: list[str], clock: ManualClock, count: int, stages: Callable[[Store], dict[str, Any]] = lambda _store: {}
) -> AsyncIterator[ShardedEngine]:
    """A server's engines on the first of some shards. Nothing happens by itself: see ``rebalance``.

    ``stages``: the optional stages of the submit chain of each shard's engine, as options of ``Engine``.
    """
    stores: list[Store] = []
    try:
        for number, place in enumerate(places[:count]):
            stores.append(await open_store(place, clock, Layout(number, count)))
        await agree(stores)
        whole, stats = EventFeed(), EngineStats()
        workers = WorkerRegistry(clock, whole)
        positions = [store.journal_next - 1 for store in stores]
        engines = [
            Engine(store, clock, feed=ShardFeed(whole, positions, number), stats=stats, workers=workers, **stages(store))
            for number, store in enumerate(stores)
        ]
        for engine in engines:
            engine.timer.start()
        fleet = ShardedEngine(engines, whole, stats, workers, clock)
        yield fleet
        await fleet.close()
    finally:
        for store in stores:
            await store.close()


async def within(clock: ManualClock, doing: Awaitable[Any]) -> Any:
    """Let time pass until something is done, no faster than it does: a database takes real time for its part."""
    task = asyncio.ensure_future(doing)
    async with asyncio.timeout(60):
        while not task.done():
            await clock.advance(10)
            await asyncio.sleep(0.01)
    return task.result()


async def rebalance(fleet: ShardedEngine, clock: ManualClock, target: int | None = None) -> None:
    await within(clock, fleet.rebalancer.begin(target))
    await go_on(fleet, clock)


async def go_on(fleet: ShardedEngine, clock: ManualClock) -> None:
    """Do what is left of a rebalance, once whoever was at it before is known to be gone."""
    async with asyncio.timeout(60):
        while fleet.rebalancer.overview().rebalancing:
            await within(clock, fleet.rebalancer.run_once())
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def push(fleet: ShardedEngine, key: QueueKey, data: bytes = b"1", **options: Any) -> JobRecord:
    (job,) = await fleet.run(Push(key, [JobSpec(data, **options)]))
    return job


async def is_there(fleet: ShardedEngine, job: JobRecord) -> bool:
    found = await fleet.store.job_get("default", job.id)
    return found is not None and found[0].id == job.id


async def test_everything_in_a_queue_moves_with_it(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        line = [(await push(fleet, MOVES, str(n).encode(), priority=n % 2)).id for n in range(6)]
        later = await push(fleet, MOVES, b'"later"', delay=60_000)
        done = await push(fleet, MOVES, b'"done"', priority=9, job_id="named")
        (delivery,) = await fleet.run(Claim(MOVES))
        assert delivery.job.id == done.id
        await fleet.run(AddLog("default", done.id, "info", "hello"))
        assert await fleet.run(Ack("default", [LeaseRef(done.id, delivery.job.token)], [b'"result"'])) == [None]
        held = (await fleet.run(Claim(MOVES)))[0].job
        await fleet.run(Configure(MOVES, EventKind.QUEUE_PAUSED, lambda old: _with(old, concurrency=50)))
        cron = SaveCron(CronKey("default", "c"), CronPlan(MOVES.name, Schedule(every_ms=3_600_000)), b"1")
        await fleet.run(cron)
        hook = await fleet.run(AddWebhook("default", "https://example.com", ("completed",), MOVES.name, None))
        subscriptions = [await fleet.run(AddSubscription(key, "https://example.com", "s")) for key in (MOVES, STAYS)]
        stays = await push(fleet, STAYS)

    async with fleet_on(places, clock, 3) as fleet:
        assert fleet.of(MOVES) is fleet.engines[0]
        assert fleet.rebalancer.overview().shards[2].spare
        await rebalance(fleet, clock)
        assert fleet.of(MOVES) is fleet.engines[2]
        assert [store.layout for store in fleet.store.shards] == [Layout(n, 3, 1) for n in range(3)]
        assert fleet.engines[0].store.queues() == [fleet.engines[0].store.queue_find(STAYS)]
        queue = fleet.store.queue_find(MOVES)
        assert queue is not None
        assert queue.settings.concurrency == 50
        assert queue.settings.subscriptions == (subscriptions[0],)
        for subscription in subscriptions:
            await fleet.run(RemoveSubscription(subscription.id, lambda _: True))
            with pytest.raises(SubscriptionNotFound):
                await fleet.run(RemoveSubscription(subscription.id, lambda _: True))
        assert not any(each.settings.subscriptions for each in fleet.store.queues())
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
        assert await is_there(fleet, stays)
        # The lease that was given out before goes on.
        assert await within(clock, fleet.run(Renew("default", [LeaseRef(held.id, held.token)], [None]))) == [None]
        assert await within(clock, fleet.run(Ack("default", [LeaseRef(held.id, held.token)], [None]))) == [None]
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
        holds = [LeaseRef(job.id, job.token) for job in taken]
        assert await within(clock, fleet.run(Ack("default", holds, [None] * len(holds)))) == [None] * len(holds)
        await clock.advance(60_000)
        assert [each.job.id for each in await fleet.run(Claim(MOVES))] == [later.id]
        # Crons and webhooks are where their queue is.
        assert [each.key.name for each in await fleet.store.cron_list("default")] == ["c"]
        assert await fleet.engines[2].store.cron_get(CronKey("default", "c")) is not None
        assert await fleet.engines[0].store.cron_get(CronKey("default", "c")) is None
        assert fleet.engines[2].store.webhook_find(hook.id) is not None
        await fleet.run(RemoveCron(CronKey("default", "c")))

    async with fleet_on(places, clock, 3) as fleet:  # and it is all on disk
        assert fleet.of(MOVES) is fleet.engines[2]
        assert await is_there(fleet, done)


async def test_what_is_set_of_groups_moves_with_their_queue(places: list[str], clock: ManualClock) -> None:
    def limit(group: str, **changes: Any) -> ConfigureGroup:
        return ConfigureGroup(MOVES, group, lambda old, _: msgspec.structs.replace(old, **changes))

    async with fleet_on(places, clock, 2) as fleet:
        await push(fleet, MOVES, group_id="paused")
        jobs = [await push(fleet, MOVES, group_id="wide") for _ in range(3)]
        await fleet.run(limit("paused", paused=True))
        await fleet.run(limit("wide", concurrency=2))
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        assert fleet.of(MOVES) is fleet.engines[2]
        assert [each.job.id for each in await fleet.run(Claim(MOVES, 10))] == [job.id for job in jobs[:2]]
        assert (await fleet.run(AskGroup(MOVES, "paused")))[0].paused
        async with fleet.engines[0].store.transaction(lambda: 0) as tx:
            left = tx.queue_away(MOVES)
            assert left is None or await tx.groups_limited(left) == 0


def _with(settings: QueueSettings, **changes: Any) -> QueueSettings:
    return msgspec.structs.replace(settings, **changes)


def _rank(taken: list[JobRecord], job_id: int) -> int:
    return next(rank for rank, job in enumerate(taken) if job.id == job_id)


# Crashes: whoever comes next goes on from what the stores say.

STEPS = ("nothing", "leave", "arrive", "some", "all", "depart", "open", "clear some")


async def go_until(fleet: ShardedEngine, clock: ManualClock, last: str, attempt: int = 7) -> None:
    """Take the steps of moving a queue by hand, up to one of them."""
    source, target = fleet.engines[0], fleet.engines[2]
    await within(clock, fleet.rebalancer.begin())
    queue = source.store.queue_find(MOVES)
    assert queue is not None
    pages = [await page_of(source, queue, state) for state in (State.COMPLETED, State.WAITING, State.ACTIVE)]
    ids = [job_id for page in pages for job_id in page]
    for step in STEPS[1 : STEPS.index(last) + 1]:
        if step == "leave":
            await within(clock, source.run(Freeze(MOVES, 2, attempt)))
        elif step == "arrive":
            move = Move(MoveStep.ARRIVING, 0, attempt)
            await within(clock, target.run(Prepare(MOVES, queue.settings, queue.created_at, move)))
        elif step in ("some", "all"):
            moved_jobs = await source.store.job_export(ids if step == "all" else ids[:3])
            await within(clock, target.run(ImportJobs(MOVES, attempt, moved_jobs, 0)))
        elif step == "depart":
            await within(clock, source.run(HandOver(MOVES, attempt, source.store.counts(queue), ())))
        elif step == "open":
            await within(clock, target.run(Open(MOVES, attempt, (), None)))
        elif step == "clear some":
            await within(clock, source.run(Clear(MOVES, attempt)))


async def page_of(engine: Engine, queue: Any, state: State) -> list[int]:
    return [place.id for place in await engine.store.job_select(Selection(queue, state, 1_000, ID_MAX))]


@pytest.mark.parametrize("last", STEPS)
async def test_a_crash_after_any_step_loses_nothing_and_doubles_nothing(
    places: list[str], clock: ManualClock, last: str
) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        jobs = [await push(fleet, MOVES, str(number).encode()) for number in range(8)]
        done, held = (each.job for each in await fleet.run(Claim(MOVES, 2)))
        await within(clock, fleet.run(Ack("default", [LeaseRef(done.id, done.token)], [b"5"])))
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, last)
        seen = [store for store in fleet.store.shards if store.queue_find(MOVES) is not None]
        assert len(seen) <= 1  # never two that say that they have it
        assert fleet.store.totals().completed <= 1
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        queue = fleet.engines[2].store.queue_find(MOVES)
        assert queue is not None
        assert fleet.store.counts(queue) == StateCounts(waiting=6, active=1, completed=1)
        assert fleet.store.totals() == StateCounts(waiting=6, active=1, completed=1)
        for job in jobs:
            assert await is_there(fleet, job)
            found = [await store.job_places([job.id]) for store in fleet.store.shards]
            assert [bool(each) for each in found] == [False, False, True]
        assert await fleet.store.result_get(done.id) == b"5"
        assert await within(clock, fleet.run(Ack("default", [LeaseRef(held.id, held.token)], [None]))) == [None]
        taken = await fleet.run(Claim(MOVES, 10))
        assert [each.job.id for each in taken] == [job.id for job in jobs[2:]]


async def test_a_move_that_is_given_up_leaves_nothing_that_could_come_back(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        jobs = [await push(fleet, MOVES) for _ in range(5)]
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, "all")
        await within(clock, fleet.engines[0].run(CancelMove(MOVES, 7)))
        (first,) = await fleet.run(Claim(MOVES))
        assert first.job.id == jobs[0].id
        assert await within(clock, fleet.run(Ack("default", [LeaseRef(first.job.id, first.job.token)], [None]))) == [None]
        # Somebody who was asleep goes on with what was given up: refused at both ends.
        await within(clock, fleet.engines[0].run(Freeze(MOVES, 2, 8)))
        for stale in (
            fleet.engines[0].run(HandOver(MOVES, 7, StateCounts(waiting=5), ())),
            fleet.engines[2].run(Open(MOVES, 8, (), None)),
        ):
            with pytest.raises(RebalanceRefused):
                await within(clock, stale)
        await go_on(fleet, clock)
        queue = fleet.store.queue_find(MOVES)
        assert queue is not None
        assert fleet.store.counts(queue) == StateCounts(waiting=4, completed=1)
        with pytest.raises(RebalanceRefused):
            await within(clock, fleet.engines[2].run(ImportJobs(MOVES, 7, (), 0)))


# While a queue is on its way.


async def said_of(fleet: ShardedEngine, ref: int, token: int) -> list[Any]:
    """Return what somebody is told of a job who may only know of the namespace ``beta``. Nothing waits for anything."""

    def may(queue: QueueKey) -> bool:
        return queue.namespace == "beta"

    own = QueueKey("beta", "q")
    said: list[Any] = []
    asked: tuple[Awaitable[Any], ...] = (
        *(fleet.run(Ack("beta", [LeaseRef(ref, each)], [None])) for each in (None, token)),
        *(fleet.run(Nack(None, [LeaseRef(ref, each)], None, may=may)) for each in (None, token)),
        fleet.run(SettleDead(LeaseRef(ref, token), Arrow.PURGE, may)),
        fleet.run(AddLog("beta", ref, "info", "mine")),
        fleet.run(MoveJob("beta", ref, Arrow.CANCEL)),
        fleet.run(Push(own, [JobSpec(b"1", job_id=to_uuid(ref))])),
        fleet.run(Push(own, [JobSpec(b"1", needs=(ref,))])),
        fleet.run(AckById([ClaimedJob(own, ref)])),
        fleet.wait("beta", ref, 0),
        fleet.store.job_get("beta", ref),
    )
    for doing in asked:
        try:
            async with asyncio.timeout(60):
                said.append(await doing)
        except ServerError as error:
            said.append(error)
    return [type(each[0] if isinstance(each, list) else each) for each in said]


@pytest.mark.parametrize("step", STEPS[1:])
async def test_a_queue_that_moves_is_not_noticed_in_another_namespace(
    places: list[str], clock: ManualClock, step: str
) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        held = await push(fleet, MOVES)
        (taken,) = await fleet.run(Claim(MOVES))
        await push(fleet, QueueKey("beta", "q"))
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, step)
        hour = 3_600_000 << TIME_SHIFT
        theirs, nobodys = [await said_of(fleet, held.id - back, taken.job.token - back) for back in (0, hour)]
        assert theirs == nobodys
        assert QueueMoving not in theirs
        assert theirs.count(JobNotFound) >= 7


async def test_what_is_asked_of_a_queue_that_moves_is_done_where_it_goes(places: list[str], clock: ManualClock) -> None:
    other = named(1, 1)
    async with fleet_on(places, clock, 3) as fleet:
        await within(clock, fleet.rebalancer.begin(2))
        await go_on(fleet, clock)
        held = [await push(fleet, MOVES) for _ in range(3)]
        tokens = [each.job.token for each in await fleet.run(Claim(MOVES, 3))]
        await go_until(fleet, clock, "arrive")
        asked = [
            asyncio.ensure_future(each)
            for each in (
                fleet.run(Push(MOVES, [JobSpec(b"new")])),
                fleet.run(Ack("default", [LeaseRef(held[0].id, tokens[0])], [None])),
                fleet.run(Nack("default", [LeaseRef(held[1].id, None)], "no")),
                fleet.run(PushAcross([(MOVES, [JobSpec(b"a")]), (other, [JobSpec(b"b")])], clock.now_ms())),
                fleet.run(SaveCron(CronKey("default", "c"), CronPlan(MOVES.name, Schedule(every_ms=3_600_000)), b"1")),
                fleet.run(AddLog("default", held[2].id, "info", "there")),
                fleet.run(AckById([ClaimedJob(MOVES, held[2].id)])),
            )
        ]
        await clock.advance(100)
        assert not any(each.done() for each in asked)
        assert await is_there(fleet, held[0])  # it can be looked at all the time
        assert await fleet.run(Claim(MOVES)) == []  # a claim is not refused, there is just nothing
        await go_on(fleet, clock)
        pushed, acked, failed, across, cron, _, _ = [await within(clock, each) for each in asked]
        assert (acked, failed) == ([None], [None])
        assert cron.key.name == "c"
        for job in (*pushed, *across[0]):
            assert (await fleet.engines[2].store.job_places([job.id]))[job.id].step is MoveStep.HERE
        queue = fleet.engines[2].store.queue_find(MOVES)
        assert queue is not None
        counts = fleet.store.counts(queue)
        assert (counts.waiting + counts.delayed, counts.active, counts.completed) == (3, 0, 2)
        assert [entry.message for entry in await fleet.store.log_get(held[2].id)] == ["there"]


async def test_who_is_held_for_too_long_is_told_to_come_back(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        job = await push(fleet, MOVES)
        (taken,) = await fleet.run(Claim(MOVES))
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, "leave")
        pushing = fleet.run(Push(MOVES, [JobSpec(b"1")]))
        acking = fleet.run(Ack("default", [LeaseRef(job.id, taken.job.token)], [None]))
        began = clock.steady_ms()
        with pytest.raises(QueueMoving):
            await within(clock, pushing)
        assert clock.steady_ms() - began >= limits.move_hold_ms
        (outcome,) = await within(clock, acking)
        assert isinstance(outcome, QueueMoving)
        await go_on(fleet, clock)
        assert await within(clock, fleet.run(Ack("default", [LeaseRef(job.id, taken.job.token)], [None]))) == [None]
        assert fleet.store.totals() == StateCounts(completed=1)


async def test_who_waits_for_a_job_gets_it_at_the_new_place(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        await fleet.run(Configure(MOVES, EventKind.QUEUE_RESUMED, lambda old: old))
    async with fleet_on(places, clock, 3) as fleet:
        waiting, tired, gone = (Claim(MOVES, wait_ms=wait_ms) for wait_ms in (60_000, 1_000, 60_000))
        answers = [fleet.run(each) for each in (waiting, tired, gone)]
        await until(lambda: fleet.waiting_callers == 3)
        await rebalance(fleet, clock)
        assert await within(clock, answers[1]) == []
        await until(lambda: fleet.engines[2].waiting_callers == 2)
        abandon(fleet.of(MOVES), gone)
        assert (fleet.engines[0].waiting_callers, fleet.engines[2].waiting_callers) == (0, 1)
        job = await push(fleet, MOVES)
        (delivery,) = await within(clock, answers[0])
        assert delivery.job.id == job.id
        assert answers[2].cancelled()


async def test_who_waits_for_the_end_of_a_job_hears_of_it(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        job = await push(fleet, MOVES)
        removed = await push(fleet, MOVES)
    async with fleet_on(places, clock, 3) as fleet:
        waits = [asyncio.ensure_future(fleet.wait("default", each.id, 600_000)) for each in (job, removed)]
        await until(lambda: fleet.waiting_for_ends == 2)
        await rebalance(fleet, clock)
        assert not any(each.done() for each in waits)
        (taken,) = await fleet.run(Claim(MOVES))
        await within(clock, fleet.run(Ack("default", [LeaseRef(job.id, taken.job.token)], [b"7"])))
        assert (await within(clock, waits[0])).result == b"7"
        await drain(fleet, MOVES)
        assert not (await within(clock, waits[1])).completed


async def test_a_tick_that_comes_while_its_queue_moves_fires_once(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        plan = CronPlan(MOVES.name, Schedule(every_ms=10_000))
        await fleet.run(SaveCron(CronKey("default", "c"), plan, b"1"))
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, "leave")
        await clock.advance(15_000)
        assert fleet.store.totals().waiting == 0
        await go_on(fleet, clock)
        await clock.advance(1_100)
        assert fleet.store.totals().waiting == 1


async def test_delayed_jobs_and_leases_wait_until_their_queue_is_there(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        late = await push(fleet, MOVES, delay=60_000)
        held = await push(fleet, MOVES)
        await fleet.run(Claim(MOVES, lease_ms=60_000))
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, "arrive")
        await clock.advance(62_000)
        assert fleet.store.totals() == StateCounts(delayed=1, active=1)
        await go_on(fleet, clock)
        await clock.advance(1_100)
        await until(lambda: fleet.store.totals() == StateCounts(waiting=1, active=1))
        await clock.advance(limits.move_lease_ms + 3_000)  # nobody renewed the lease
        assert {each.job.id for each in await fleet.run(Claim(MOVES, 2))} <= {late.id, held.id}
        assert fleet.store.totals().active + fleet.store.totals().delayed + fleet.store.totals().waiting == 2


# What is moved, and what is not.


async def test_queues_that_need_each_other_wait_and_the_others_move_on(places: list[str], clock: ManualClock) -> None:
    partner = STAYS
    free = named(1, 2)
    async with fleet_on(places, clock, 2) as fleet:
        child = await push(fleet, partner)
        await push(fleet, MOVES, needs=(child.id,))
        await push(fleet, free)
    async with fleet_on(places, clock, 3) as fleet:
        await within(clock, fleet.rebalancer.begin())
        await within(clock, fleet.rebalancer.run_once())
        overview = fleet.rebalancer.overview()
        assert (overview.left, overview.moving, MOVES.name in (overview.waiting or "")) == (1, [], True)
        assert fleet.of(free) is fleet.engines[2]
        (taken,) = await fleet.run(Claim(partner))
        await within(clock, fleet.run(Ack("default", [LeaseRef(taken.job.id, taken.job.token)], [b"1"])))
        await go_on(fleet, clock)
        assert not fleet.rebalancer.overview().rebalancing
        assert len(await within(clock, fleet.run(Claim(MOVES)))) == 1


async def test_a_flow_inside_a_queue_moves_with_it(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        child = await push(fleet, MOVES)
        parent = await push(fleet, MOVES, needs=(child.id,))
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        later = await within(clock, fleet.run(Push(MOVES, [JobSpec(b"1", needs=(parent.id,))])))
        for expected in (child, parent, later[0]):
            (taken,) = await fleet.run(Claim(MOVES))
            assert taken.job.id == expected.id
            await within(clock, fleet.run(Ack("default", [LeaseRef(taken.job.id, taken.job.token)], [b"1"])))


async def test_a_name_that_is_taken_at_the_new_place_stays_with_whom_has_it(places: list[str], clock: ManualClock) -> None:
    mover, stayer = named(0, 1, "m"), named(1, 1, "s")
    async with fleet_on(places, clock, 2) as fleet:
        moved = await push(fleet, mover, job_id="same")
        stayed = await push(fleet, stayer, job_id="same")
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
        assert [job.id for job, _ in await fleet.store.jobs_named("default", "same")] == [stayed.id]
        assert await is_there(fleet, moved)


async def test_a_queue_that_is_made_meanwhile_is_moved_too(places: list[str], clock: ManualClock) -> None:
    late = named(1, 2)
    async with fleet_on(places, clock, 2) as fleet:
        await push(fleet, MOVES)
    async with fleet_on(places, clock, 3) as fleet:
        await within(clock, fleet.rebalancer.begin())
        job = await push(fleet, late)
        assert shard_of(job.id) == 1
        await go_on(fleet, clock)
        assert not fleet.rebalancer.overview().rebalancing
        assert fleet.of(late) is fleet.engines[2]
        assert shard_of((await push(fleet, late)).id) == 2


async def test_growing_shrinking_and_leaving_a_store_away(places: list[str], clock: ManualClock) -> None:
    keys = [QueueKey("default", f"x{number}") for number in range(12)]
    async with fleet_on(places, clock, 2) as fleet:
        jobs = {key: [await push(fleet, key) for _ in range(3)] for key in keys}
    async with fleet_on(places, clock, 3) as fleet:
        await rebalance(fleet, clock)
    with pytest.raises(StoreIncompatible, match="This store is shard 0 of 3"):
        async with fleet_on(places, clock, 2):
            pass
    async with fleet_on(places, clock, 3) as fleet:
        for key in keys:
            jobs[key].append(await push(fleet, key))
        await rebalance(fleet, clock, 2)
        assert [view.spare for view in fleet.rebalancer.overview().shards] == [False, False, True]
    async with fleet_on(places, clock, 2) as fleet:
        for key in keys:
            assert [each.job.id for each in await fleet.run(Claim(key, 10))] == [job.id for job in jobs[key]]
        holds = [LeaseRef(job.id, None) for key in keys for job in jobs[key]]
        outcomes = await within(clock, fleet.run(Ack("default", holds, [None] * len(holds))))
        assert outcomes == [None] * len(holds)


def test_stores_that_cannot_belong_together_are_refused() -> None:
    grown = [Layout(0, 2), Layout(1, 2), None]
    assert check_together(grown) == Layout(0, 2)
    assert check_together([None, None]) is None
    flipping = [Layout(0, 3, 1), Layout(1, 2, 0, 3), Layout(2, 2, 0, 3)]
    assert check_together(flipping) == Layout(0, 3, 1)
    beginning = [Layout(0, 2, 0, 3), Layout(1, 2), Layout(2, 2)]
    assert check_together(beginning) == Layout(0, 2, 0, 3)
    for wrong in ([Layout(0, 2), Layout(1, 5)], [Layout(0, 3, 2), Layout(1, 2, 0, 3)], [Layout(0, 3, 1), Layout(1, 2)]):
        with pytest.raises(StoreIncompatible, match="are not of one set"):
            check_together(wrong)


async def test_what_cannot_be_done_is_refused_with_a_reason(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 3) as fleet:
        for target, reason in ((4, "There are 3 stores"), (0, "There are 3 stores")):
            with pytest.raises(RebalanceRefused, match=reason):
                await fleet.rebalancer.begin(target)
        assert not (await fleet.rebalancer.begin(3)).rebalancing
        await within(clock, fleet.rebalancer.begin(2))
        with pytest.raises(RebalanceRefused, match="spread over 2 shards"):
            await fleet.rebalancer.begin(3)


async def test_a_shard_that_fails_in_the_middle_has_the_queue_served_again_at_once(
    places: list[str], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        jobs = [await push(fleet, MOVES) for _ in range(3)]
    async with fleet_on(places, clock, 3) as fleet:
        run = fleet.engines[2].run

        def fail(command: Any) -> Any:
            if isinstance(command, CountJobs):
                raise StorageFailed
            return run(command)

        await within(clock, fleet.rebalancer.begin())
        with monkeypatch.context() as patch:
            patch.setattr(fleet.engines[2], "run", fail)
            await until_waiting(fleet, clock)
        assert "Storage failed" in (fleet.rebalancer.waiting or "")
        (first,) = await within(clock, fleet.run(Claim(MOVES)))
        assert await within(clock, fleet.run(Ack("default", [LeaseRef(first.job.id, first.job.token)], [None]))) == [None]
        await go_on(fleet, clock)
        queue = fleet.engines[2].store.queue_find(MOVES)
        assert queue is not None
        assert fleet.store.counts(queue) == StateCounts(waiting=2, completed=1)
        assert [each.job.id for each in await fleet.run(Claim(MOVES, 5))] == [job.id for job in jobs[1:]]


async def until_waiting(fleet: ShardedEngine, clock: ManualClock) -> None:
    async with asyncio.timeout(60):
        while fleet.rebalancer.waiting is None:
            await within(clock, fleet.rebalancer.run_once())
            await asyncio.sleep(0.01)


async def test_a_queue_that_is_removed_after_a_try_leaves_nothing_behind(places: list[str], clock: ManualClock) -> None:
    async with fleet_on(places, clock, 2) as fleet:
        await push(fleet, MOVES)
    async with fleet_on(places, clock, 3) as fleet:
        await go_until(fleet, clock, "all")
        await within(clock, fleet.engines[0].run(CancelMove(MOVES, 7)))
        await within(clock, obliterate(fleet, MOVES))
        await go_on(fleet, clock)
        assert fleet.store.queues() == []
        assert fleet.store.totals() == StateCounts()
        assert shard_of((await push(fleet, MOVES)).id) == 2


@pytest.mark.parametrize("places", ["postgres"], indirect=True)
async def test_a_server_that_does_not_know_all_stores_keeps_a_rebalance_from_beginning(
    places: list[str], clock: ManualClock
) -> None:
    async with fleet_on(places, clock, 2) as old:
        job = await push(old, MOVES)
        async with fleet_on(places, clock, 3) as new:
            with pytest.raises(RebalanceRefused, match="has only 2 of 3 stores"):
                await within(clock, new.rebalancer.begin())
            # One that was taken for dead and comes back does no harm: its store does not serve it any more.
            for engine in new.engines:
                await within(clock, engine.run(Retarget(0, 3, ())))
            with pytest.raises((StorageFailed, StoreIncompatible), match="is being rebalanced to 3"):
                await within(clock, old.run(Push(MOVES, [JobSpec(b"1")])))
            await go_on(new, clock)
            assert await is_there(new, job)
