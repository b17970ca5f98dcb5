"""Webhook push by a clock that is told: the retry plan, what is under way at once, and who pushes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import StorageFailed
from penstock.core.ids import to_ulid
from penstock.core.job import JobFlag, JobSpec
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.doors.messages.metrics import MessageCounters
from penstock.doors.messages.push_dispatcher import PushDispatcher, PushRules
from penstock.doors.messages.queue_registry import MessageDefaults, QueueRegistry
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push
from penstock.engine.queues import admin
from penstock.engine.queues.push_subscriptions import AddSubscription, RemoveSubscription
from penstock.outbound.guard import Guard
from penstock.outbound.sender import NotDelivered, Sender
from penstock.store.sqlite import SqliteStore
from tests.support.engines import QUEUE, claim, push, push_many, state, stored
from tests.support.receiver import HANG, Receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.core.queue import PushSubscription

pytestmark = pytest.mark.anyio

URL = "http://good.com/hook"
PLAN = [1_000, 5_000, 30_000]


class FakePost:
    """Answers with what it is given, then always with 200; while ``gate`` is closed it does not answer."""

    def __init__(self, clock: ManualClock, *answers: int | str) -> None:
        self._clock = clock
        self.answers = deque(answers)
        self.got: list[Any] = []
        self.at: list[int] = []
        self.urls: list[str] = []
        self.under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def post(self, url: str, _headers: Mapping[str, str], body: bytes, *, namespace: str = "") -> int:
        self.got.append(json.loads(body))
        self.at.append(self._clock.steady_ms())
        self.urls.append(url)
        self.under_way += 1
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1
        answer = self.answers.popleft() if self.answers else 200
        if isinstance(answer, str):
            raise NotDelivered(answer)
        return answer

    @property
    def waits(self) -> list[int]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


def dispatcher_of(engine: Engine, post: Any) -> PushDispatcher:
    return PushDispatcher(
        engine, QueueRegistry(engine, MessageDefaults()), MessageCounters(engine.store.queue_find), post, PushRules()
    )


@pytest.fixture
def post(clock: ManualClock) -> FakePost:
    return FakePost(clock)


@pytest.fixture
async def dispatcher(engine: Engine, post: FakePost) -> AsyncIterator[PushDispatcher]:
    running = dispatcher_of(engine, post)
    running.start()
    running.start()
    yield running
    post.gate.set()
    await running.stop()
    await running.stop()


async def subscribe(engine: Engine, queue: QueueKey = QUEUE, url: str = URL) -> PushSubscription:
    return await engine.run(AddSubscription(queue, url, ""))


async def publish(engine: Engine, **options: Any) -> JobRecord:
    return await push(engine, **{"flags": JobFlag.MESSAGE | JobFlag.REMOVE_ON_COMPLETE, "backoff": 0, **options})


# The plan.


async def test_the_plan_is_followed_to_its_end(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    post.answers += [500, "timeout", 429, 503]
    await subscribe(engine)
    job = await publish(engine, max_attempts=1)
    await yield_to_loop()
    assert await state(engine, job) is State.DELAYED, "it waits in the store"
    for wait in PLAN:
        await clock.advance(wait - 1)
        count = len(post.got)
        await clock.advance(1)
        assert len(post.got) == count + 1
    assert post.waits == PLAN
    assert [each["attempt"] for each in post.got] == [1, 2, 3, 4], "the plan decides, not the message"
    assert await state(engine, job) is State.DEAD
    await clock.advance(limits.HOUR_MS)
    assert len(post.got) == 4
    assert dispatcher.counters.of(QUEUE).nacked == dispatcher.counters.of(QUEUE).consumed == 4


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_a_good_answer_acknowledges(engine: Engine, dispatcher: PushDispatcher, post: FakePost, status: int) -> None:
    post.answers.append(status)
    await subscribe(engine)
    job = await publish(engine)
    await yield_to_loop()
    assert await state(engine, job) is State.NOWHERE
    assert dispatcher.counters.of(QUEUE).acked == 1


@pytest.mark.parametrize("status", [400, 401, 404, 408, 410, 422, 499])
async def test_a_refusal_makes_a_dead_letter_at_once(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, status: int
) -> None:
    post.answers.append(status)
    await subscribe(engine)
    job = await publish(engine)
    await yield_to_loop()
    assert await state(engine, job) is State.DEAD
    assert len(post.got) == 1


@pytest.mark.parametrize("answer", [301, 302, 307, 429, 500, 502, 599, "no answer"])
async def test_what_may_get_better_is_tried_again(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock, answer: int | str
) -> None:
    post.answers.append(answer)
    await subscribe(engine)
    job = await publish(engine)
    await yield_to_loop()
    assert await state(engine, job) is State.DELAYED
    await clock.advance(PLAN[0])
    assert await state(engine, job) is State.NOWHERE


async def test_a_receiver_that_does_not_answer_in_time_is_tried_again(engine: Engine, clock: ManualClock) -> None:
    async with Receiver(HANG) as receiver:
        sender = Sender(clock, Guard(["127.0.0.1"]), timeout_ms=5_000)
        dispatcher = dispatcher_of(engine, sender)
        dispatcher.start()
        await subscribe(engine, url=receiver.url)
        job = await publish(engine)
        await receiver.until(1)
        assert await state(engine, job) is State.ACTIVE
        await clock.advance(5_000)
        assert await state(engine, job) is State.DELAYED
        await dispatcher.stop()


async def test_a_host_that_turns_private_is_not_called(engine: Engine, clock: ManualClock) -> None:
    async def resolve(_host: str, _port: int) -> list[str]:
        return ["10.0.0.1"]

    dispatcher = dispatcher_of(engine, Sender(clock, Guard([], resolve)))
    dispatcher.start()
    await subscribe(engine)
    job = await publish(engine)
    await yield_to_loop()
    found = await stored(engine, job)
    assert found is not None
    assert found.state == State.DELAYED
    await dispatcher.stop()


async def test_a_plan_goes_on_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    posts = [FakePost(clock, 500, 500), FakePost(clock, 500, 500)]
    for post in posts:
        store = await SqliteStore.open(tmp_path / "again", clock, ballast_bytes=0, read_inline=True)
        engine = Engine(store, clock, durability=Durability.NEVER)
        engine.start()
        dispatcher = dispatcher_of(engine, post)
        dispatcher.start()
        if post is posts[0]:
            await subscribe(engine)
            job = await publish(engine)
        await clock.advance(PLAN[0])
        if post is posts[1]:
            await clock.advance(PLAN[1] - PLAN[0])
            assert [each["attempt"] for each in post.got] == [3]
            await clock.advance(PLAN[2])
            assert [each["attempt"] for each in post.got] == [3, 4]
            assert await state(engine, job) is State.DEAD
        await dispatcher.stop()
        await engine.close()
        await store.close()
    assert [each["attempt"] for each in posts[0].got] == [1, 2]


# What is under way.


async def test_few_at_once_and_the_others_wait_in_the_queue(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    post.gate.clear()
    await subscribe(engine)
    await push_many(engine, 20)
    await yield_to_loop()
    assert post.under_way == limits.push_deliveries_max
    queue = engine.store.queue_find(QUEUE)
    assert queue is not None
    assert engine.store.counts(queue).waiting == 20 - limits.push_deliveries_max
    post.gate.set()
    await yield_to_loop(200)
    assert len(post.got) == len({each["id"] for each in post.got}) == 20


async def test_a_slow_receiver_holds_up_nobody_else(engine: Engine, dispatcher: PushDispatcher, post: FakePost) -> None:
    other = QueueKey("default", "other")
    await subscribe(engine)
    await subscribe(engine, other, "http://quick.com/")
    post.gate.clear()
    await push_many(engine, 2 * limits.push_deliveries_max)
    await yield_to_loop()
    await push_many(engine, 3, queue=other)
    await yield_to_loop()
    assert post.urls.count("http://quick.com/") == 3


async def test_retries_do_not_hold_up_what_comes_after(engine: Engine, dispatcher: PushDispatcher, post: FakePost) -> None:
    post.answers += [500] * 20
    await subscribe(engine)
    await push_many(engine, 20, flags=JobFlag.MESSAGE)
    await yield_to_loop(200)
    late = await push(engine)
    await yield_to_loop()
    assert post.got[-1]["id"] == to_ulid(late.id)


async def test_who_unsubscribes_gets_no_more_and_what_was_begun_is_finished(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    subscription = await subscribe(engine)
    post.gate.clear()
    begun = await publish(engine)
    await yield_to_loop()
    await engine.run(RemoveSubscription(subscription.id, lambda _: True))
    later = await publish(engine)
    await clock.advance(1_000)
    assert (len(dispatcher), post.under_way) == (0, 1)
    post.gate.set()
    await yield_to_loop()
    assert await state(engine, begun) is State.NOWHERE
    assert await state(engine, later) is State.WAITING


async def test_a_queue_that_is_removed_takes_its_subscriptions_along(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost
) -> None:
    await subscribe(engine)
    await publish(engine)
    await yield_to_loop()
    assert len(dispatcher) == 1
    await admin.obliterate(engine, QUEUE)
    assert len(dispatcher) == 0
    await publish(engine)
    await yield_to_loop()
    assert len(post.got) == 1


async def test_what_is_cut_off_by_the_end_of_the_server_goes_back_in_order(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    await subscribe(engine)
    post.gate.clear()
    jobs = [await publish(engine) for _ in range(3)]
    await yield_to_loop()
    stopping = asyncio.ensure_future(dispatcher.stop())
    await yield_to_loop()
    assert not stopping.done(), "it gets a moment"
    await clock.advance(limits.goodbye_ms_max)
    await stopping
    for job in jobs:
        delivery = await claim(engine)
        assert delivery is not None
        assert (delivery.job.id, delivery.job.attempts) == (job.id, 0)


async def test_what_is_answered_in_that_moment_counts(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    await subscribe(engine)
    post.gate.clear()
    job = await publish(engine)
    await yield_to_loop()
    stopping = asyncio.ensure_future(dispatcher.stop())
    await yield_to_loop()
    post.gate.set()
    await stopping
    assert await state(engine, job) is State.NOWHERE


async def test_a_receiver_may_acknowledge_by_its_receipt(engine: Engine, dispatcher: PushDispatcher, post: FakePost) -> None:
    await subscribe(engine)
    post.gate.clear()
    job = await publish(engine)
    await yield_to_loop()
    await admin.empty(engine, QUEUE)
    post.gate.set()
    await yield_to_loop()
    assert await state(engine, job) is State.NOWHERE
    assert dispatcher.counters.of(QUEUE).acked == 0, "not by us"


async def test_a_message_outlasts_the_attempt_to_deliver_it(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock
) -> None:
    dispatcher.registry.rules = MessageDefaults(visibility_timeout_ms=1)
    await subscribe(engine)
    post.gate.clear()
    await publish(engine)
    await yield_to_loop()
    await clock.advance(dispatcher.rules.timeout_ms)
    assert len(post.got) == 1


# Who pushes.


async def test_only_who_leads_pushes(engine: Engine, dispatcher: PushDispatcher, post: FakePost) -> None:
    engine.leads = False
    await subscribe(engine)
    await publish(engine)
    await yield_to_loop()
    assert (len(dispatcher), post.got) == (0, [])
    engine.take_lead(1, engine.clock.steady_ms() + 10_000)
    await yield_to_loop()
    assert len(post.got) == 1
    engine.take_lead(None)
    await publish(engine)
    await yield_to_loop()
    assert len(post.got) == 1


async def test_a_store_that_fails_is_asked_again(
    engine: Engine, dispatcher: PushDispatcher, post: FakePost, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = engine.run
    failing = [True]

    def refuse(command: Any) -> Any:
        if failing:
            raise StorageFailed
        return run(command)

    await subscribe(engine)
    await yield_to_loop()
    monkeypatch.setattr(engine, "run", refuse)
    await run(Push(QUEUE, [JobSpec(b"1", flags=JobFlag.MESSAGE)]))
    await yield_to_loop()
    assert len(post.got) == 1, "it had asked before"
    await clock.advance(limits.push_rest_ms)
    failing.clear()
    await clock.advance(MessageDefaults().visibility_timeout_ms)  # the lease of what could not be settled runs out
    assert [each["attempt"] for each in post.got] == [1, 2]
