"""Jobs that come again when they are done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core.job import Dedup, Details, JobFlag, JobRecord, details_of, encode_details
from penstock.core.lifecycle import State
from penstock.core.repeat import RepeatRule
from penstock.core.schedule import parse
from penstock.engine.jobs.settle import Ack, LeaseRef
from tests.support.engines import ack, claim, claim_job, fail, push, state, stored

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def push_repeating(engine: Engine, rule: RepeatRule, flags: int = 0, **more: Any) -> JobRecord:
    options = msgspec.json.encode({"tags": ["a"], "repeat": rule})
    return await push(engine, options=options, flags=flags | JobFlag.REPEATS, **more)


async def test_a_job_comes_again_after_its_interval_as_often_as_it_may(engine: Engine, clock: ManualClock) -> None:
    rule = RepeatRule(parse(None, 5_000), limit=2)
    await push_repeating(engine, rule, data=b"1", priority=4, timeout=9_000, ttl=60_000)
    seen = set()
    for run in range(3):
        delivery = await claim(engine)
        assert delivery is not None
        job, payload = delivery
        seen.add(job.id)
        assert (payload.data, job.priority, job.timeout) == (b"1", 4, 9_000)
        assert job.expires_at == job.created_at + (5_000 if run else 0) + 60_000
        options = msgspec.json.decode(payload.options or b"")
        assert (options["tags"], options["repeat"].get("count", 0)) == (["a"], run)
        assert await ack(engine, job) is None
        await clock.advance(4_999)
        assert await claim(engine) is None
        await clock.advance(1)
    assert len(seen) == 3
    assert engine.store.totals().delayed + engine.store.totals().waiting == 0


async def test_the_time_to_live_of_one_that_comes_again_begins_when_it_is_due(engine: Engine, clock: ManualClock) -> None:
    await push_repeating(engine, RepeatRule(parse(None, 1_500)), ttl=700)
    for _ in range(3):
        await ack(engine, await claim_job(engine))
        await clock.advance(1_500 + 699)
    await clock.advance(1)
    assert await claim(engine) is None
    assert engine.store.totals().delayed + engine.store.totals().waiting == 0


async def test_a_job_comes_again_at_the_next_tick(engine: Engine, clock: ManualClock) -> None:
    await push_repeating(engine, RepeatRule(parse("0 * * * *")))
    await clock.advance(12_345)
    await ack(engine, await claim_job(engine))
    await clock.advance(3_600_000 - clock.now_ms() % 3_600_000 - 1)
    assert await claim(engine) is None
    await clock.advance(1)
    assert (await claim_job(engine)).run_at == clock.now_ms()


@pytest.mark.parametrize("flags", [0, JobFlag.REMOVE_ON_COMPLETE])
async def test_names_are_freed_before_they_are_taken_again(engine: Engine, clock: ManualClock, flags: int) -> None:
    job = await push_repeating(engine, RepeatRule(parse(None, 1_000)), flags, unique_key="only", job_id="mine")
    await claim_job(engine)
    assert await ack(engine, job) is None
    await clock.advance(1_000)
    again = await claim_job(engine)
    assert (again.unique_key, again.custom_id) == ("only", None)


async def test_a_job_that_fails_does_not_come_again_until_it_is_done(engine: Engine, clock: ManualClock) -> None:
    job = await push_repeating(engine, RepeatRule(parse(None, 1_000)), max_attempts=1)
    await claim_job(engine)
    await fail(engine, job)
    await clock.advance(60_000)
    assert await state(engine, job) is State.DEAD
    assert engine.store.totals().delayed == 0


async def test_several_jobs_done_at_once_each_come_again(engine: Engine, clock: ManualClock) -> None:
    jobs = [await push_repeating(engine, RepeatRule(parse(None, 1_000))) for _ in range(3)]
    for _ in jobs:
        await claim_job(engine)
    outcomes = await asyncio.gather(*(engine.run(Ack("default", [LeaseRef(job.id)], [b"1"])) for job in jobs))
    assert outcomes == [[None]] * 3
    assert engine.store.totals().delayed == 3
    assert await engine.store.result_get(jobs[0].id) == b"1"


async def test_a_rule_nobody_understands_does_not_undo_the_ack(engine: Engine) -> None:
    job = await push(engine, options=b'{"repeat": 5}', flags=JobFlag.REPEATS)
    await claim_job(engine)
    assert await ack(engine, job) is None
    found = await stored(engine, job)
    assert found is not None
    assert State(found.state) is State.COMPLETED


async def test_rules_and_the_time_of_a_key_are_passed_on_and_what_happened_is_not(
    engine: Engine, clock: ManualClock
) -> None:
    rule = RepeatRule(parse(None, 1_000))
    dedup = Dedup(5_000, extend=True, replace=True)
    options = msgspec.json.encode({"repeat": rule, "dedup": dedup})
    rules = encode_details(Details(stall_timeout=9_000, keep_logs=3))
    await push(
        engine, options=options, flags=JobFlag.REPEATS, details=rules, unique_key="k", dedup=dedup, backoff=0, max_attempts=5
    )
    first = await claim_job(engine, owner="w1")
    await fail(engine, first)
    await ack(engine, await claim_job(engine))
    await clock.advance(1_000)
    second = await claim_job(engine)
    assert second.lease_ms == 9_000
    details = details_of(second)
    assert details == Details(stall_timeout=9_000, keep_logs=3, unique_until=clock.now_ms() + 4_000)


async def test_a_job_that_comes_again_does_not_take_the_place_of_another(engine: Engine, clock: ManualClock) -> None:
    dedup = Dedup(500, replace=True)
    options = msgspec.json.encode({"repeat": RepeatRule(parse(None, 1_000)), "dedup": dedup})
    await push(engine, options=options, flags=JobFlag.REPEATS, unique_key="k", dedup=dedup)
    first = await claim_job(engine)
    await clock.advance(500)
    other = await push(engine, unique_key="k", data=b"other")
    await ack(engine, first)
    found = await engine.store.job_get("default", other.id)
    assert found is not None
    assert found[1].data == b"other"
