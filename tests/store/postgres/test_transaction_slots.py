"""Several transactions of one server at a time: who has a turn, what stays in order, and what has to be alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.events import EventKind
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey, StateCounts
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob
from penstock.engine.queues import admin
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.transaction import PostgresTransaction
from penstock.store.postgres.transaction_slots import TransactionSlots
from tests.store.postgres.conftest import engine_on
from tests.support.engines import QUEUE, claim_all, claim_job, push, push_many

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.job import JobRecord
    from penstock.store.contract import JournalBlock

pytestmark = pytest.mark.anyio

CLIENTS = 12
ROUNDS = 15
OTHER = QueueKey("default", "other")


# Turns.


async def test_turns_are_given_up_to_the_number_of_lanes_in_order() -> None:
    turns, got = TransactionSlots(2), list[str]()

    async def want(name: str, *, alone: bool = False) -> None:
        await turns.take(alone=alone)
        got.append(name)

    tasks = [asyncio.ensure_future(each) for each in (want("a"), want("b"), want("c"), want("d", alone=True), want("e"))]
    await yield_to_loop()
    assert got == ["a", "b"]
    turns.release()
    await yield_to_loop()
    assert got == ["a", "b", "c"]
    turns.release()
    await yield_to_loop()
    assert got == ["a", "b", "c"], "who wants to be alone waits for the last one, and nobody overtakes"
    turns.release()
    await yield_to_loop()
    assert got == ["a", "b", "c", "d"]
    turns.release()
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_holds_up_nobody() -> None:
    turns = TransactionSlots(2)
    await turns.take()
    alone, behind = asyncio.ensure_future(turns.take(alone=True)), asyncio.ensure_future(turns.take())
    await yield_to_loop()
    alone.cancel()
    await asyncio.gather(behind, alone, return_exceptions=True)
    turns.release()
    alone = asyncio.ensure_future(turns.take(alone=True))
    await yield_to_loop()
    turns.release()  # it is let in, and gone before it hears of it
    alone.cancel()
    await asyncio.gather(alone, return_exceptions=True)
    async with asyncio.timeout(60), turns.alone():
        pass


async def test_who_has_the_only_turn_can_keep_it_so() -> None:
    turns = TransactionSlots(2)
    await turns.take()
    assert turns.stay_alone()
    other = asyncio.ensure_future(turns.take())
    await yield_to_loop()
    assert not other.done()
    turns.release()
    await other
    await turns.take()
    assert not turns.stay_alone()


# Lanes.


class Lanes:
    """Counts how many transactions are under way at the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        enter, leave = PostgresTransaction.__aenter__, PostgresTransaction.__aexit__

        async def entered(tx: PostgresTransaction) -> PostgresTransaction:
            await enter(tx)
            self.now += 1
            self.most = max(self.most, self.now)
            return tx

        async def left(tx: PostgresTransaction, *error: Any) -> None:
            self.now -= 1
            await leave(tx, *error)

        monkeypatch.setattr(PostgresTransaction, "__aenter__", entered)
        monkeypatch.setattr(PostgresTransaction, "__aexit__", left)


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    return Lanes(monkeypatch)


@pytest.mark.parametrize("at_once", [1, 3])
async def test_a_new_queue_is_configured_although_another_transaction_is_under_way(shard: str, at_once: int) -> None:
    async with engine_on(shard) as engine:
        await push(engine)
        store = engine.store
        assert isinstance(store, PostgresStore)
        held = await store.begin(alone=False)  # as a push beside has it
        changes = [
            engine.run(admin.Configure(QueueKey("default", f"new{number}"), EventKind.QUEUE_PAUSED, lambda old: old))
            for number in range(at_once)
        ]
        await asyncio.wait(changes, timeout=0.2)  # it is told now, if it is refused
        store.end(held)
        await asyncio.gather(*changes)
        assert all(store.queue_find(QueueKey("default", f"new{number}")) is not None for number in range(at_once))


async def work_through(engine: Engine, queue: QueueKey, seen: list[int], pace: int = 0) -> None:
    """Push, take and acknowledge a few jobs, again and again. ``pace``: so that not everybody asks at the same moment."""
    for turn in range(ROUNDS):
        await yield_to_loop(3 * (pace + turn) % 17)
        await engine.run(Push(queue, [JobSpec(b"1", flags=JobFlag.REMOVE_ON_COMPLETE)] * 5))
        taken = await engine.run(Claim(queue, 5))
        assert len(taken) == 5, "whoever was answered finds what was pushed"
        seen += [job.id for job, _ in taken]
        outcomes = await engine.run(AckById([ClaimedJob(queue, job.id) for job, _ in taken]))
        assert outcomes == [None] * len(taken)


async def test_a_busy_server_has_several_transactions_under_way_and_each_job_once(shard: str, lanes: Lanes) -> None:
    seen: list[int] = []
    told: list[JournalBlock] = []
    async with engine_on(shard) as engine:
        engine.feed.listen(told.append)
        await asyncio.gather(*(work_through(engine, QUEUE, seen, pace) for pace in range(CLIENTS)))
        async with asyncio.timeout(60):
            while sum(len(block.events) for block in told) < 3 * len(seen):
                await asyncio.sleep(0.01)
        assert engine.store.totals() == StateCounts()
        kept = await engine.store.journal_read(1, 10_000)
    assert lanes.most > 1
    assert len(seen) == len(set(seen)) == CLIENTS * ROUNDS * 5
    numbers = [block.seq + place for block in told for place in range(len(block.events))]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "told in order, without gaps"
    in_journal = [(block.seq, [tuple(event) for event in block.events]) for block in kept if block.events]
    assert in_journal[-len(told) :] == [(block.seq, block.events) for block in told]


async def test_pushes_that_nobody_waits_for_stay_in_order(shard: str, lanes: Lanes) -> None:
    async with engine_on(shard) as engine:
        await push(engine, queue=OTHER)
        busy = asyncio.gather(*(work_through(engine, QUEUE, [], pace) for pace in range(4)))
        pushed: list[asyncio.Future[list[JobRecord]]] = []
        while not busy.done():
            pushed += [engine.run(Push(OTHER, [JobSpec(b"1")])) for _ in range(3)]
            await yield_to_loop(2 * len(pushed) % 11)
            if len(pushed) % 30 == 0:
                await pushed[-1]
        await busy
        made = [job.id for each in pushed for job in await each]
        taken: list[JobRecord] = []
        while some := await claim_all(engine, queue=OTHER):
            taken += some
    assert lanes.most > 1
    assert made == sorted(made)
    assert [job.id for job in taken][1:] == made


async def test_queues_are_made_and_changed_while_others_work(shard: str, lanes: Lanes) -> None:
    def pause(*, paused: bool) -> admin.Configure:
        kind = EventKind.QUEUE_PAUSED if paused else EventKind.QUEUE_RESUMED
        return admin.Configure(OTHER, kind, lambda old: msgspec.structs.replace(old, paused=paused))

    async with engine_on(shard) as engine:
        seen: list[int] = []
        busy = asyncio.gather(*(work_through(engine, QUEUE, seen, pace) for pace in range(4)))
        made = 0
        while not busy.done():
            queue = QueueKey("default", f"q{made}")
            job, _, _ = await asyncio.gather(push(engine, queue=queue), engine.run(pause(paused=True)), push(engine))
            assert [each.id for each in await claim_all(engine, queue=queue)] == [job.id]
            await push(engine, queue=OTHER)
            assert await claim_all(engine, queue=OTHER) == [], "it is paused"
            await engine.run(pause(paused=False))
            assert len(await claim_all(engine, queue=OTHER)) == 1
            made += 1
        await busy
        async with engine_on(shard) as other:  # what a server knows is what the database has
            assert {queue.key for queue in other.store.queues()} == {queue.key for queue in engine.store.queues()}
            assert other.store.totals() == engine.store.totals()
    assert made
    assert lanes.most > 1


@pytest.fixture
async def slow_time(shard: str, clock: ManualClock) -> AsyncIterator[Engine]:
    """An engine whose time passes only when told to."""
    store = await PostgresStore.open(shard, clock, database_clock=False)
    engine = Engine(store, store.clock)
    engine.start()
    yield engine
    await engine.close()
    await store.close()


async def test_an_ack_in_time_is_heard_before_leases_are_judged(slow_time: Engine, clock: ManualClock, lanes: Lanes) -> None:
    engine = slow_time
    told: list[JournalBlock] = []
    engine.feed.listen(told.append)
    await push_many(engine, 200)
    for turns in range(20):
        job = await claim_job(engine, lease_ms=1_000)
        others = [engine.run(Claim(QUEUE)) for _ in range(3)]  # they keep the main lane busy
        await yield_to_loop(turns)
        word = engine.run(AckById([ClaimedJob(QUEUE, job.id)]))
        await yield_to_loop(turns % 3)
        await clock.advance(1_000)
        assert await word == [None]
        await asyncio.gather(*others)
    assert lanes.most > 1
    stalled = [event for block in told for event in block.events if event[0] == EventKind.JOB_STALLED]
    assert stalled == []


async def test_who_waits_is_served_by_what_is_pushed_beside(shard: str, lanes: Lanes) -> None:
    async with engine_on(shard) as engine:
        await push(engine, queue=OTHER)
        await claim_all(engine, queue=OTHER)
        busy = asyncio.gather(*(work_through(engine, QUEUE, [], pace) for pace in range(6)))
        served = 0
        while not busy.done():
            waiting = engine.run(Claim(OTHER, wait_ms=60_000))
            await yield_to_loop(served % 5)
            job = await push(engine, queue=OTHER)
            async with asyncio.timeout(60):
                assert [each.job.id for each in await waiting] == [job.id]
            served += 1
        await busy
    assert served
    assert lanes.most > 1
