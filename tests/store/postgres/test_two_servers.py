"""What holds when two servers share a shard: order, limits, names, flows, ticks, events, and who leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core import limits
from penstock.core.cron import CronKey, CronPlan
from penstock.core.events import EventKind
from penstock.core.group_limits import GroupDefaults, GroupLimits
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey, StateCounts
from penstock.core.schedule import parse
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import abandon
from penstock.engine.maintenance.membership import Membership
from penstock.engine.queues import admin
from penstock.engine.queues.crons import SaveCron
from penstock.engine.queues.group_limits import AskForGroups, ConfigureGroup
from penstock.engine.queues.push_subscriptions import AddSubscription, RemoveSubscription
from penstock.store.postgres.transaction import PostgresTransaction
from tests.store.postgres.conftest import engine_on
from tests.support.engines import QUEUE, ack, claim, claim_all, fail, push, push_many, state
from tests.support.receiver import until

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueSettings
    from penstock.engine.command import Command
    from penstock.engine.engine import Engine
    from penstock.store.contract import JournalBlock

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio


@pytest.fixture
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by themselves: what is known was told by the database."""

    async def nothing(_self: Membership) -> None:
        pass

    monkeypatch.setattr(Membership, "run_once", nothing)


def change(**changes: object) -> admin.Configure:
    def apply(old: QueueSettings) -> QueueSettings:
        return msgspec.structs.replace(old, **changes)

    return admin.Configure(QUEUE, EventKind.QUEUE_PAUSED, apply)


async def counted(engine: Engine, expected: StateCounts) -> None:
    """Wait until a server's counts are what they should be."""
    async with asyncio.timeout(60):
        while (queue := engine.store.queue_find(QUEUE)) is None or engine.store.counts(queue) != expected:
            await asyncio.sleep(0.01)


async def test_what_one_pushes_the_other_hands_out_at_once(pair: Pair) -> None:
    a, b = pair
    for _ in range(20):
        pushed = await push(a)
        claimed = await claim(b)
        assert claimed is not None
        assert claimed.job.id == pushed.id
        assert await ack(a, claimed.job, token=claimed.job.token) is None


@pytest.mark.usefixtures("told_only")
async def test_who_waits_at_one_server_is_woken_by_a_push_at_the_other(pair: Pair) -> None:
    a, b = pair
    await push(b)  # the queue exists
    await claim(b)
    for _ in range(20):
        waiting = b.run(Claim(QUEUE, wait_ms=30_000))
        pushed = await push(a)
        (delivery,) = await waiting
        assert delivery.job.id == pushed.id


@pytest.mark.usefixtures("told_only")
async def test_who_waits_at_a_queue_that_only_the_other_server_knows_is_woken_too(pair: Pair) -> None:
    a, b = pair
    waiting = b.run(Claim(QUEUE, wait_ms=30_000))
    pushed = await push(a)
    (delivery,) = await waiting
    assert delivery.job.id == pushed.id


@pytest.mark.usefixtures("told_only")
async def test_a_delayed_job_of_one_server_falls_due_at_the_other(pair: Pair) -> None:
    a, b = pair
    await push(b)
    await claim(b)
    waiting = b.run(Claim(QUEUE, wait_ms=30_000))
    a.timer.stop()
    pushed = await push(a, delay=50)
    (delivery,) = await waiting
    assert delivery.job.id == pushed.id


@pytest.mark.usefixtures("told_only")
async def test_counts_follow_what_the_other_does(pair: Pair) -> None:
    a, b = pair
    jobs = await push_many(a, 5)
    await counted(b, StateCounts(waiting=5))
    claimed = await claim_all(b, 3)
    await counted(a, StateCounts(waiting=2, active=3))
    await ack(a, claimed[0])
    await counted(b, StateCounts(waiting=2, active=2, completed=1))
    assert a.store.totals() == b.store.totals()
    assert len(jobs) == 5


async def test_each_job_goes_to_one_of_many_claimers_in_order(pair: Pair) -> None:
    jobs = await push_many(pair[0], 500)
    got: list[JobRecord] = []

    async def work(engine: Engine) -> None:
        while claimed := await claim_all(engine, 7):
            got.extend(claimed)

    await asyncio.gather(*(work(engine) for engine in pair for _ in range(4)))
    assert Counter(job.id for job in got) == Counter(job.id for job in jobs)


async def test_a_higher_priority_goes_first_whichever_server_it_came_by(pair: Pair) -> None:
    a, b = pair
    low = await push(a, priority=1)
    high = await push(b, priority=5)
    middle = await push(a, priority=3)
    assert [job.id for job in await claim_all(b, 10)] == [high.id, middle.id, low.id]


async def test_a_pause_at_one_server_holds_at_the_other_from_its_answer_on(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 50)
    for _ in range(10):
        await a.run(change(paused=True))
        assert await claim(b) is None
        await a.run(change(paused=False))
        assert await claim(b) is not None


async def test_a_concurrency_limit_holds_over_both_servers(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 100)
    await a.run(change(concurrency=3))
    active: set[int] = set()
    most = 0

    async def work(engine: Engine) -> None:
        nonlocal most
        for _ in range(15):
            claimed = await claim_all(engine, 2)
            active.update(job.id for job in claimed)
            most = max(most, len(active))
            for job in claimed:
                active.discard(job.id)
                await ack(engine, job)

    await asyncio.gather(*(work(engine) for engine in (a, b, a, b)))
    assert most <= 3
    assert [len(await claim_all(engine, 10)) for engine in (a, b)] == [3, 0]


async def test_a_rate_limit_holds_over_both_servers(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 100)
    await a.run(change(rate_limit=5))
    started = a.clock.stopwatch()
    got = sum([len(await claim_all(engine, 20)) for engine in (a, b, a, b, a, b)])
    assert got <= 5 + 5 * (a.clock.stopwatch() - started)


@pytest.mark.usefixtures("told_only")
async def test_settings_and_queues_of_one_server_are_seen_at_the_other_although_nothing_happens_there(pair: Pair) -> None:
    a, b = pair

    async def seen(expected: bool | None) -> None:
        async with asyncio.timeout(60):
            while (None if (queue := b.store.queue_find(QUEUE)) is None else queue.settings.paused) is not expected:
                await asyncio.sleep(0.01)

    await a.run(change(paused=True))
    await seen(True)
    await a.run(change(paused=False))
    await seen(False)
    await admin.obliterate(a, QUEUE)
    await seen(None)


@pytest.mark.usefixtures("told_only")
async def test_a_pause_holds_at_the_other_server_in_the_middle_of_its_claims(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 400)
    late: list[JobRecord] = []
    paused = False

    async def work() -> None:
        while not paused:
            await claim_all(b, 1)
        for _ in range(5):  # all of these begin after the answer to the pause
            late.extend(await claim_all(b, 1))

    workers = [asyncio.create_task(work()) for _ in range(4)]
    await claim_all(b, 1)
    await a.run(change(paused=True))
    paused = True
    await asyncio.gather(*workers)
    assert late == []
    waiting = b.run(Claim(QUEUE, wait_ms=30_000))
    await a.run(change(paused=False))
    assert len(await waiting) == 1, "who waits at one server is woken by the other's resume"


async def test_a_limit_that_is_set_or_cleared_at_one_server_holds_at_the_other_from_the_answer_on(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 100)
    for _ in range(3):
        await a.run(change(concurrency=2))
        held = await claim_all(b, 10)
        assert len(held) == 2
        await b.run(change(concurrency=3))
        held += await claim_all(a, 10)
        assert len(held) == 3
        await a.run(change(concurrency=None))
        held += await claim_all(b, 4)
        assert len(held) == 7
        for job in held:
            await ack(a, job)
    await b.run(change(rate_limit=1))
    assert len(await claim_all(a, 10)) <= 2  # one a second, and it may have taken one
    await b.run(change(rate_limit=None))
    assert len(await claim_all(a, 10)) == 10


async def test_a_rate_limit_holds_over_claims_that_come_at_once_at_both_servers(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 200)
    await b.run(change(rate_limit=10))
    started = a.clock.stopwatch()
    got = await asyncio.gather(*(claim_all(engine, 3) for engine in (a, b) * 20))
    took = a.clock.stopwatch() - started
    assert 10 <= sum(map(len, got)) <= 10 + 10 * took
    waited = await asyncio.gather(*(claim(engine, wait_ms=30_000) for engine in (a, b) * 3))
    assert None not in waited, "who waits is served when there is room, at either server"


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("limit", ["concurrency", "rate_limit"])
async def test_who_waits_is_served_when_a_limit_is_cleared_at_the_other_server(pair: Pair, limit: str) -> None:
    a, b = pair
    await push_many(a, 10)
    await a.run(change(**{limit: 1}))
    await claim_all(a, 5)
    waiting = b.run(Claim(QUEUE, wait_ms=30_000, count=3))
    await a.run(change(**{limit: None}))
    assert len(await waiting) > 0


async def waiter_in_line(engine: Engine) -> asyncio.Future[Any]:
    """Wait for a job, and return once nothing was found: the next look is booked for the end of the rate limit."""
    waiting = engine.run(Claim(QUEUE, wait_ms=20_000))
    async with asyncio.timeout(60):
        while not engine.claim_waiters.waiting(QUEUE):
            await asyncio.sleep(0.01)
    return waiting


@pytest.mark.parametrize("limited", ["queue", "group"])
async def test_who_waits_for_the_end_of_a_rate_limit_is_served_when_it_is_cleared_at_the_other_server(
    pair: Pair, limited: str
) -> None:
    a, b = pair

    def limit(most: int | None) -> Command[Any]:
        if limited == "queue":
            return change(rate_limit=most, rate_window_ms=limits.HOUR_MS)
        return ConfigureGroup(
            QUEUE, "g", lambda old, _: msgspec.structs.replace(old, rate_limit=most, rate_window_ms=limits.HOUR_MS)
        )

    for _ in range(3):
        await push(a, group_id="g")
    await a.run(limit(1))
    await ack(a, (await claim_all(a, 5))[0])
    waiting = await waiter_in_line(b)
    await a.run(limit(None))
    assert len(await waiting) == 1


async def test_who_waits_beside_a_group_that_is_limited_is_served_when_the_other_server_gets_a_job(pair: Pair) -> None:
    a, b = pair
    for _ in range(2):
        await push(a, group_id="g")
    await a.run(
        ConfigureGroup(QUEUE, "g", lambda old, _: msgspec.structs.replace(old, rate_limit=1, rate_window_ms=limits.HOUR_MS))
    )
    await ack(a, (await claim_all(a, 5))[0])
    waiting = await waiter_in_line(b)
    job = await push(a)
    ((served, _),) = await waiting
    assert served.id == job.id


@pytest.mark.usefixtures("told_only")
async def test_who_waits_for_a_place_at_one_server_gets_it_when_a_job_ends_at_the_other(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 10)
    await a.run(change(concurrency=1))
    (job,) = await claim_all(a, 5)
    for _ in range(4):
        waiting = b.run(Claim(QUEUE, wait_ms=30_000))
        await ack(a, job)
        ((job, _),) = await waiting


async def test_of_a_group_one_runs_at_a_time_over_both_servers(pair: Pair) -> None:
    a, b = pair
    for group in ("x", "y"):
        await push_many(a, 20, group_id=group)
    running: Counter[str | None] = Counter()
    done: list[int] = []

    async def work(engine: Engine) -> None:
        async with asyncio.timeout(60):
            while len(done) < 40:
                for job in await claim_all(engine, 5):
                    running[job.group_id] += 1
                    assert running[job.group_id] == 1
                    await asyncio.sleep(0)
                    running[job.group_id] -= 1
                    assert await ack(engine, job) is None
                    done.append(job.id)

    await asyncio.gather(work(a), work(b), work(a), work(b))
    assert len(set(done)) == 40


async def set_group(engine: Engine, group: str = "g", **changes: object) -> bool:
    def apply(old: GroupLimits, _: int) -> GroupLimits:
        return msgspec.structs.replace(old, **changes)

    return await engine.run(ConfigureGroup(QUEUE, group, apply))


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("lift", [{"paused": False}, {"concurrency": 2}])
async def test_who_waits_is_served_when_a_group_is_resumed_or_gets_more_room_at_the_other_server(
    pair: Pair, lift: dict[str, object]
) -> None:
    a, b = pair
    for _ in range(5):
        await set_group(a, paused="paused" in lift, concurrency=1)
        jobs = [await push(a, group_id="g") for _ in range(2)]
        if "concurrency" in lift:
            assert await claim(a) is not None
        waiting = b.run(Claim(QUEUE, wait_ms=60_000))
        await asyncio.sleep(0)
        assert await claim(b) is None
        assert not waiting.done()
        await set_group(a, "g", **lift)
        async with asyncio.timeout(30):
            (delivery,) = await waiting
        assert delivery.job.id == jobs["concurrency" in lift].id
        for job in jobs:  # those that are active, in their order
            if await state(b, job) == State.WAITING:
                assert await claim(b) is not None
            assert await ack(b, job) is None


async def test_groups_are_limited_at_both_servers_while_the_last_limit_is_removed_at_one(pair: Pair) -> None:
    """The mark of a queue that some of its groups are limited must not be taken away from under a new limit."""
    a, b = pair
    for round_ in range(20):
        await set_group(a, "old", paused=True)
        new = f"new-{round_}"
        await asyncio.gather(set_group(a, "old", paused=False), set_group(b, new, paused=True))
        await push(a, group_id=new)
        for engine in pair:
            assert await claim(engine) is None
        await set_group(b, new, paused=False)
        claimed = await claim(a)
        assert claimed is not None
        await ack(a, claimed.job)


async def test_limits_for_all_groups_that_a_worker_asks_for_at_one_server_hold_at_the_other(pair: Pair) -> None:
    a, b = pair
    await a.run(AskForGroups(QUEUE, GroupDefaults(3, 2, 3_600_000)))
    await push_many(b, 9, group_id="g")
    claimed = [job for _ in range(4) for engine in pair for job in await claim_all(engine)]
    assert len(claimed) == 2


@pytest.mark.parametrize("name", ["unique_key", "job_id"])
async def test_a_name_is_given_to_one_job_however_many_ask_at_once(pair: Pair, name: str) -> None:
    for number in range(10):
        options: dict[str, Any] = {name: f"n{number}"}
        jobs = await asyncio.gather(*(push(engine, **options) for engine in pair * 3))
        assert len({job.id for job in jobs}) == 1


async def test_a_namespace_and_a_queue_that_both_servers_make_at_once_are_one(pair: Pair) -> None:
    for number in range(10):
        queue = QueueKey(f"space{number}", "q")
        jobs = await asyncio.gather(*(push(engine, queue=queue) for engine in pair * 3))
        assert len({job.namespace for job in jobs}) == len({job.queue for job in jobs}) == 1
        claimed = [job for engine in pair for job in await claim_all(engine, 3, queue=queue)]
        assert {job.id for job in claimed} == {job.id for job in jobs}


async def test_children_that_end_at_two_servers_free_their_parent_once(pair: Pair) -> None:
    a, b = pair
    for _ in range(10):
        children = await push_many(a, 2, queue=QueueKey("default", "children"))
        parent = await push(b, needs=tuple(child.id for child in children))
        claimed = await claim_all(a, queue=QueueKey("default", "children"))
        await asyncio.gather(ack(a, claimed[0]), ack(b, claimed[1]))
        assert await state(a, parent) is State.WAITING
        assert [job.id for job in await claim_all(b)] == [parent.id]


async def test_an_ack_and_a_failure_at_two_servers_have_one_winner(pair: Pair) -> None:
    a, b = pair
    for _ in range(10):
        await push(a)
        (job,) = await claim_all(a)
        outcomes = await asyncio.gather(ack(a, job, token=job.token), fail(b, job, token=job.token))
        assert outcomes.count(None) == 1


async def test_a_tick_fires_once_although_both_servers_are_there(pair: Pair) -> None:
    a, b = pair
    plan = CronPlan("mail", parse(None, every_ms=100), prevent_overlap=False, max_limit=10)
    await a.run(SaveCron(CronKey("default", "often"), plan, b"{}"))
    got: list[JobRecord] = []
    async with asyncio.timeout(60):
        while len(got) < 10:
            got += [delivery.job for delivery in await b.run(Claim(QUEUE, wait_ms=1_000))]
    assert await a.store.cron_get(CronKey("default", "often")) is None
    assert await claim(a, wait_ms=300) is None
    assert len({job.id for job in got}) == 10


async def test_events_of_both_servers_are_heard_at_each_in_the_same_order(pair: Pair) -> None:
    heard: list[list[JournalBlock]] = [[], []]
    for engine, blocks in zip(pair, heard, strict=True):
        engine.feed.listen(blocks.append)

    async def work(engine: Engine) -> None:
        for _ in range(30):
            await push(engine)

    await asyncio.gather(*(work(engine) for engine in pair for _ in range(3)))
    async with asyncio.timeout(60):
        while any(sum(len(block.events) for block in blocks) < 181 for blocks in heard):
            await asyncio.sleep(0.01)
    numbers = [[block.seq + offset for block in blocks for offset in range(len(block.events))] for blocks in heard]
    assert numbers[0] == numbers[1] == list(range(1, 182))


@pytest.mark.usefixtures("told_only")
async def test_who_waits_for_an_end_is_told_although_it_happens_at_the_other_server(pair: Pair) -> None:
    a, b = pair
    pushed = await push(a)
    waiting = asyncio.create_task(b.result_waiters.wait("default", pushed.id, 30_000))
    (job,) = await claim_all(a)
    await ack(a, job, b'"done"')
    ending = await waiting
    assert ending is not None
    assert (ending.completed, ending.result) == (True, b'"done"')


async def test_one_leads_and_the_other_takes_over(shard: str) -> None:
    async with engine_on(shard) as b:
        async with engine_on(shard) as a:
            async with asyncio.timeout(60):
                while not (a.leads or b.leads):
                    await asyncio.sleep(0.01)
            assert a.leads != b.leads
        if not b.leads:
            async with asyncio.timeout(60):
                while not b.leads:
                    await asyncio.sleep(0.01)


async def test_servers_have_ids_of_their_own(pair: Pair) -> None:
    jobs = [job for engine in pair for job in await push_many(engine, 2_000)]
    assert len({job.id for job in jobs}) == 4_000


async def test_a_queue_removed_at_one_server_is_made_anew_by_a_push_at_the_other(pair: Pair) -> None:
    a, b = pair
    for _ in range(5):
        await push(a)
        await admin.obliterate(a, QUEUE)
        assert a.store.queue_find(QUEUE) is None
        pushed = await push(b)
        assert [job.id for job in await claim_all(a)] == [pushed.id]


@pytest.mark.parametrize("leaves", ["hangs up", "is tired"])
async def test_who_leaves_while_its_claim_is_being_committed_has_taken_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    a, b = pair
    await push(b)
    await claim(b)
    caller = Claim(QUEUE, wait_ms=60_000)
    waiting = b.run(caller)
    finish = PostgresTransaction._finish

    async def finish_slowly(tx: PostgresTransaction) -> None:
        await finish(tx)
        if tx._store is b.store and not waiting.done():
            abandon(b, caller) if leaves == "hangs up" else b.claim_waiters._wait_ended(caller)

    monkeypatch.setattr(PostgresTransaction, "_finish", finish_slowly)
    pushed = await push(a)
    async with asyncio.timeout(60):
        while not waiting.done():
            await asyncio.sleep(0.01)
    claimed = await claim(a, wait_ms=20_000)
    assert claimed is not None
    assert (claimed.job.id, claimed.job.attempts) == (pushed.id, 0)


async def test_many_new_queues_and_settings_at_both_servers_at_once(pair: Pair) -> None:
    async def make(engine: Engine, number: int) -> None:
        key = QueueKey("default", f"new{number}")
        await push(engine, queue=key)
        await engine.run(
            admin.Configure(key, EventKind.CONCURRENCY_SET, lambda old: msgspec.structs.replace(old, concurrency=2))
        )

    await asyncio.gather(*(make(engine, number) for number in range(20) for engine in pair))


@pytest.mark.usefixtures("told_only")
async def test_a_subscription_of_one_is_known_to_the_other(pair: Pair) -> None:
    a, b = pair
    told: list[int] = []

    def look() -> None:
        told.append(sum(len(queue.settings.subscriptions) for queue in b.store.queues()))

    b.signals.webhooks_changed.subscribe(look)
    added = await a.run(AddSubscription(QUEUE, "https://good.com/", "secret"))
    await until(lambda: told == [1])
    await a.run(change(paused=True))
    await b.run(RemoveSubscription(added.id, lambda _: True))
    assert told == [1, 0]
    await a.run(AddSubscription(QUEUE, "https://good.com/", ""))
    await until(lambda: told == [1, 0, 1])
    await admin.obliterate(a, QUEUE)
    await until(lambda: told == [1, 0, 1, 0])
