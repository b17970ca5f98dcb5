"""Subscribers on an engine with a clock of our own: what they hold, for how long, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import JobNotFound, StaleLease, StorageFailed, TooMany
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.doors.topics.message import new_message
from penstock.doors.topics.subscriber import MessageOutcome, NextFailed, NothingHeld, Occupied, Subscribers, TopicMessage
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.queues import admin
from tests.support.engines import claim, state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio
TOPIC = QueueKey("default", "foo")
LEASE_MS = 3_000


@pytest.fixture
async def subscribers(engine: Engine) -> AsyncIterator[Subscribers]:
    made = Subscribers(engine, LEASE_MS)
    yield made
    await made.close()


async def publish(engine: Engine, *messages: bytes) -> list[JobRecord]:
    return await engine.run(Push(TOPIC, [new_message(message) for message in messages]))


async def test_one_message_at_a_time(engine: Engine, subscribers: Subscribers) -> None:
    await publish(engine, b"1", b"2")
    subscriber = subscribers.subscribe(TOPIC)
    assert await subscriber.next() == TopicMessage(b"1")
    with pytest.raises(NextFailed) as refused:
        await subscriber.next()
    assert isinstance(refused.value.reason, Occupied)
    assert await subscriber.settle_and_next(MessageOutcome.ACK) == TopicMessage(b"2")


async def test_nothing_to_give_back(subscribers: Subscribers) -> None:
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.settle(MessageOutcome.ACK)
    for word in (MessageOutcome.NACK, MessageOutcome.BACK, MessageOutcome.DACK):
        with pytest.raises(NothingHeld):
            await subscriber.settle(word)


async def test_a_lease_lasts_as_long_as_the_subscriber(engine: Engine, subscribers: Subscribers, clock: ManualClock) -> None:
    (job,) = await publish(engine, b"1")
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.next()
    for _ in range(20):
        await clock.advance(LEASE_MS // 2)
        assert await claim(engine, queue=TOPIC) is None
    await subscriber.settle(MessageOutcome.ACK)
    assert await state(engine, job) is State.NOWHERE


async def test_the_lease_of_a_dead_server_runs_out(engine: Engine, clock: ManualClock) -> None:
    dead = Subscribers(engine, LEASE_MS)
    await publish(engine, b"1", b"2")
    subscriber = dead.subscribe(TOPIC)
    await subscriber.next()
    dead.closed = True  # nothing is renewed any more
    await clock.advance(LEASE_MS)
    alive = Subscribers(engine, LEASE_MS)
    other = alive.subscribe(TOPIC)
    assert await other.next() == TopicMessage(b"1")
    with pytest.raises(StaleLease):
        await subscriber.settle(MessageOutcome.ACK)
    assert await other.settle_and_next(MessageOutcome.ACK) == TopicMessage(b"2")
    await alive.close()


async def test_who_closes_gives_back_what_it_holds(engine: Engine, subscribers: Subscribers) -> None:
    await publish(engine, b"1", b"2")
    one, two = subscribers.subscribe(TOPIC), subscribers.subscribe(TOPIC)
    await one.next()
    await one.close()
    await one.close()
    assert await two.next() == TopicMessage(b"1")
    assert len(subscribers) == 1


async def test_who_closes_while_it_waits_takes_nothing(engine: Engine, subscribers: Subscribers) -> None:
    one, two = subscribers.subscribe(TOPIC), subscribers.subscribe(TOPIC)
    waiting = asyncio.create_task(one.next())
    await yield_to_loop()
    assert engine.claim_waiters.waiting(TOPIC) == 1
    await one.close()
    assert await waiting is None
    assert engine.claim_waiters.waiting(TOPIC) == 0
    await publish(engine, b"1")
    assert await two.next() == TopicMessage(b"1")


async def test_who_is_cancelled_while_it_waits_takes_nothing(engine: Engine, subscribers: Subscribers) -> None:
    subscriber = subscribers.subscribe(TOPIC)
    waiting = asyncio.create_task(subscriber.next())
    await yield_to_loop()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await publish(engine, b"1")
    assert await subscriber.next() == TopicMessage(b"1")


async def test_what_arrives_as_somebody_closes_goes_back(engine: Engine, subscribers: Subscribers) -> None:
    one, two = subscribers.subscribe(TOPIC), subscribers.subscribe(TOPIC)
    waiting = asyncio.create_task(one.next())
    await yield_to_loop()
    pushing = asyncio.create_task(publish(engine, b"1"))
    for turns in range(12):  # whatever moment it is
        await asyncio.sleep(0)
        if turns == 3:
            one.end()
    await pushing
    got = await waiting
    await one.close()
    assert got in (None, TopicMessage(b"1"))
    assert await two.next() == TopicMessage(b"1")


async def test_who_waits_for_long_lines_up_again(engine: Engine, subscribers: Subscribers, clock: ManualClock) -> None:
    subscriber = subscribers.subscribe(TOPIC)
    waiting = asyncio.create_task(subscriber.next())
    await yield_to_loop()
    await clock.advance(limits.subscription_wait_ms)
    await yield_to_loop()
    assert not waiting.done()
    await publish(engine, b"1")
    assert await waiting == TopicMessage(b"1")


async def test_a_purge_takes_the_message_away(engine: Engine, subscribers: Subscribers) -> None:
    await publish(engine, b"1")
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.next()
    await admin.empty(engine, TOPIC)
    await subscriber.settle(MessageOutcome.ACK)
    await publish(engine, b"2")
    assert await subscriber.next() == TopicMessage(b"2")
    await admin.empty(engine, TOPIC)
    with pytest.raises(JobNotFound):
        await subscriber.settle(MessageOutcome.NACK)


async def test_what_the_store_refuses_leaves_the_message_in_hand(
    engine: Engine, subscribers: Subscribers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(engine, b"1", b"2")
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.next()
    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "check_writable", refuse)
        for word in MessageOutcome:
            with pytest.raises(StorageFailed):
                await subscriber.settle_and_next(word)
        assert subscriber.hold is not None
    assert await subscriber.settle_and_next(MessageOutcome.NACK) == TopicMessage(b"1")


def refuse(*, grows: bool) -> None:
    raise StorageFailed(f"no writes, whether they grow ({grows}) or not")


async def test_there_are_so_many_and_no_more(subscribers: Subscribers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "subscribers_max", 2)
    one = subscribers.subscribe(TOPIC)
    subscribers.subscribe(TOPIC)
    with pytest.raises(TooMany):
        subscribers.subscribe(TOPIC)
    await one.close()
    subscribers.subscribe(TOPIC)


async def test_the_end_of_the_server_ends_all_waits(engine: Engine, subscribers: Subscribers) -> None:
    waiting = [asyncio.create_task(subscribers.subscribe(TOPIC).next()) for _ in range(3)]
    await yield_to_loop()
    subscribers.stop()
    engine.stop_waiting()
    assert await asyncio.gather(*waiting) == [None, None, None]
    with pytest.raises(TooMany):
        subscribers.subscribe(TOPIC)


@pytest.mark.parametrize("first", ["close", "word"])
async def test_nothing_is_confirmed_that_was_given_back(engine: Engine, subscribers: Subscribers, first: str) -> None:
    await publish(engine, b"1")
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.next()
    said: list[str] = []
    both = [lambda: subscriber.settle_and_next(MessageOutcome.ACK, 0, lambda: said.append("OK")), subscriber.close]
    if first == "close":
        both.reverse()
    subscribers.stop()
    await asyncio.gather(*(asyncio.ensure_future(each()) for each in both), return_exceptions=True)
    comes_again = await claim(engine, queue=TOPIC) is not None
    assert comes_again is not bool(said)


async def test_what_was_said_is_done_though_there_is_no_next(
    engine: Engine, subscribers: Subscribers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = await publish(engine, b"1")
    subscriber = subscribers.subscribe(TOPIC)
    await subscriber.next()
    run = engine.run

    def no_claims(command: Any) -> Any:
        if isinstance(command, Claim):
            raise TooMany
        return run(command)

    monkeypatch.setattr(engine, "run", no_claims)
    said: list[str] = []
    with pytest.raises(NextFailed):
        await subscriber.settle_and_next(MessageOutcome.ACK, 0, lambda: said.append("OK"))
    assert said == ["OK"]
    assert subscriber.hold is None
    assert await state(engine, job) is State.NOWHERE
