"""Pausing and limiting groups: who waits is served when time or somebody lets a group go on, at a cost that is bounded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import TooMany
from penstock.core.group_limits import GroupDefaults, GroupLimits
from penstock.core.queue import QueueKey
from penstock.engine.jobs.claim import Claim
from penstock.engine.queues.group_limits import AskForGroups, AskGroup, ConfigureGroup
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, push, push_many

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def limit(engine: Engine, group: str = "g", queue: QueueKey = QUEUE, **changes: object) -> bool:
    return await engine.run(ConfigureGroup(queue, group, lambda old, _: replace(old, **changes)))


async def test_who_waits_is_served_when_the_window_of_a_rate_limit_is_over(engine: Engine, clock: ManualClock) -> None:
    await limit(engine, concurrency=9, rate_limit=1, rate_window_ms=5_000)
    first, second = await push_many(engine, 2, group_id="g")
    assert [job.id for job in await claim_all(engine)] == [first.id]
    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await clock.advance(4_999)
    assert not waiting.done()
    await clock.advance(10)
    assert [each.job.id for each in await waiting] == [second.id]


async def test_who_waits_is_served_when_a_group_is_resumed_or_gets_a_higher_limit(engine: Engine) -> None:
    await limit(engine, paused=True)
    jobs = await push_many(engine, 2, group_id="g")
    waiting = [engine.run(Claim(QUEUE, wait_ms=60_000)) for _ in jobs]
    await yield_to_loop()
    assert not any(each.done() for each in waiting)
    await limit(engine, paused=False)
    assert [each.job.id for each in await waiting[0]] == [jobs[0].id]
    assert not waiting[1].done()
    await limit(engine, concurrency=2)
    assert [each.job.id for each in await waiting[1]] == [jobs[1].id]


async def test_a_group_that_is_paused_keeps_its_active_jobs(engine: Engine) -> None:
    await push_many(engine, 2, group_id="g")
    job = await claim_job(engine)
    await limit(engine, paused=True)
    await ack(engine, job)
    assert await claim(engine) is None


async def test_more_jobs_of_a_group_than_a_batch_takes_are_all_handed_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "claim_batch_jobs_max", 10)
    await limit(engine, concurrency=1_000)
    jobs = await push_many(engine, 35, group_id="g")
    waiting = [engine.run(Claim(QUEUE, wait_ms=60_000)) for _ in jobs]
    taken = [each.job.id for one in waiting for each in await one]
    assert sorted(taken) == [job.id for job in jobs]


async def test_what_is_answered_and_what_is_not_kept(engine: Engine, clock: ManualClock) -> None:
    assert await engine.run(AskGroup(QUEUE, "g")) == (GroupLimits(), clock.steady_ms())
    assert not await limit(engine, paused=False)
    assert engine.store.queue_find(QUEUE) is None  # nothing was set, so there is nothing to make
    assert await limit(engine, held_until=clock.steady_ms() + 1_000)
    found, steady_ms = await engine.run(AskGroup(QUEUE, "g"))
    assert found.wait_ms(steady_ms) == 1_000
    await clock.advance(1_000)
    assert (await engine.run(AskGroup(QUEUE, "g")))[0] == GroupLimits()
    other = QueueKey("elsewhere", QUEUE.name)
    await limit(engine, paused=True)
    assert (await engine.run(AskGroup(other, "g")))[0] == GroupLimits()


async def test_only_so_many_groups_of_a_queue_can_be_limited(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "limited_groups_max", 1)
    await limit(engine, "a", paused=True)
    with pytest.raises(TooMany):
        await limit(engine, "b", paused=True)
    await limit(engine, "a", concurrency=2)
    await limit(engine, "a", paused=False, concurrency=None)
    await limit(engine, "b", paused=True)


async def test_a_claim_costs_the_same_behind_many_jobs_of_paused_and_limited_groups(
    engine: Engine, store: SqliteStore
) -> None:
    """Measured in steps of SQLite's machine, so that how busy the computer is does not matter."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    async def cost() -> int:
        nonlocal steps
        await push(engine)
        steps = 0
        store.db.set_progress_handler(count, 10)
        assert (await claim_job(engine)).group_id is None
        store.db.set_progress_handler(None)
        return steps

    await limit(engine, "paused", paused=True)
    await limit(engine, "full", rate_limit=1, rate_window_ms=limits.HOUR_MS)
    await push(engine, group_id="full")
    await claim_job(engine)
    for group in ("paused", "full"):
        await push_many(engine, 5, group_id=group, priority=9)
    few = await cost()
    for group in ("paused", "full"):
        for _ in range(10):
            await push_many(engine, 1_000, group_id=group, priority=9)
    assert few > 0
    assert await cost() < 2 * few


def flagged(engine: Engine) -> bool:
    queue = engine.store.queue_find(QUEUE)
    return queue is not None and queue.settings.limits_groups


async def test_a_queue_without_limited_groups_is_one_like_any_other_again(engine: Engine, clock: ManualClock) -> None:
    await limit(engine, "a", paused=True)
    await limit(engine, "b", concurrency=2)
    await limit(engine, "a", paused=False)
    assert flagged(engine)
    await limit(engine, "b", concurrency=None)
    assert not flagged(engine)
    first, _ = await push_many(engine, 2, group_id="b")
    assert [job.id for job in await claim_all(engine)] == [first.id], "one after the other again"
    await limit(engine, "c", held_until=clock.steady_ms() + 1_000)
    assert flagged(engine)
    await clock.advance(1_000)
    assert await claim(engine) is None
    assert await claim(engine) is None
    assert not flagged(engine), "what ended by itself is noticed by a pull that finds nothing"


async def ask(engine: Engine, *asked: int) -> GroupDefaults | None:
    await engine.run(AskForGroups(QUEUE, GroupDefaults(*asked)))
    queue = engine.store.queue_find(QUEUE)
    assert queue is not None
    return queue.settings.group_defaults


async def test_what_workers_ask_for_all_groups_holds_where_nothing_else_is_set(engine: Engine, clock: ManualClock) -> None:
    await ask(engine, 2, 3, 60_000)
    await limit(engine, "own", concurrency=4, rate_limit=4, rate_window_ms=60_000)
    for group in ("g", "own"):
        await push_many(engine, 9, group_id=group)

    async def claimed() -> list[JobRecord]:
        return [job for _ in range(9) for job in await claim_all(engine)]

    jobs = await claimed()
    assert Counter(job.group_id for job in jobs) == {"g": 2, "own": 4}
    for job in jobs:
        await ack(engine, job)
    more = await claimed()
    assert [job.group_id for job in more] == ["g"], "three within the window, and four"
    waiting = engine.run(Claim(QUEUE, wait_ms=120_000))
    await clock.advance(59_000)
    assert not waiting.done()
    await clock.advance(1_010)
    assert len(await waiting) == 1


async def test_of_what_several_workers_ask_the_stricter_holds_until_nobody_asks_for_it(
    engine: Engine, clock: ManualClock
) -> None:
    held = await ask(engine, 4, 10, 1_000)
    assert await ask(engine, 8, 20, 1_000) == held
    assert await ask(engine, 4, 10, 1_000) == held, "nothing is written while it holds for long"
    strict = await ask(engine, 2, 30, 60_000)
    assert strict is not None
    assert (strict.concurrency, strict.rate_limit, strict.rate_window_ms) == (2, 30, 60_000)
    await clock.advance(limits.group_defaults_ms - 1)
    assert await ask(engine, 8, 20, 1_000) == strict
    await clock.advance(1)
    loose = await ask(engine, 8, 20, 1_000)
    assert loose is not None
    assert (loose.concurrency, loose.rate_limit) == (8, 20)
    await push_many(engine, 3, group_id="g")
    claimed = [job for _ in range(3) for job in await claim_all(engine)]
    assert len(claimed) == 3
    for job in claimed:
        await ack(engine, job)
    await clock.advance(limits.group_defaults_ms)
    for _ in range(3):
        assert await claim(engine) is None
    assert not flagged(engine)
    await push_many(engine, 2, group_id="h")
    assert len([job for _ in range(3) for job in await claim_all(engine)]) == 1
