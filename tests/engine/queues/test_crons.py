"""Crons: each tick pushes one job, on time, once, and what keeps it from that is told."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.cron import CronJobTemplate, CronKey, CronPlan, CronRecord
from penstock.core.durability import Durability
from penstock.core.errors import CronNotFound, StorageFull
from penstock.core.events import EventKind
from penstock.core.job import Dedup, Details, JobFlag, encode_details
from penstock.core.lifecycle import Arrow
from penstock.core.schedule import Schedule, parse
from penstock.engine.engine import Engine
from penstock.engine.queues import admin
from penstock.engine.queues.crons import RemoveCron, SaveCron
from penstock.engine.timers import Sweep
from penstock.store.sqlite.transaction import SqliteTransaction
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, fail, move, push

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

MINUTE = 60_000
NAME = "nightly"


async def add(
    engine: Engine,
    name: str = NAME,
    schedule: str | None = "* * * * *",
    *,
    every: int | None = None,
    data: bytes = b"{}",
    immediately: bool = False,
    timezone: str | None = None,
    **plan: Any,
) -> CronRecord:
    made = CronPlan(QUEUE.name, parse(None if every else schedule, every, timezone), **plan)
    return await engine.run(SaveCron(CronKey("default", name), made, data, immediately=immediately))


async def find(engine: Engine, name: str = NAME) -> CronRecord | None:
    return await engine.store.cron_get(CronKey("default", name))


async def executions(engine: Engine, name: str = NAME) -> int:
    cron = await find(engine, name)
    assert cron is not None
    return cron.executions


async def told(engine: Engine) -> list[tuple[str, dict[str, Any]]]:
    """Read what the journal says of crons."""
    return [
        (EventKind(event[0]).wire_name, event[4])
        for block in await engine.store.journal_read(1, 10_000)
        for event in block.events
        if EventKind.CRON_CREATED <= event[0] <= EventKind.CRON_SKIPPED
    ]


async def names(engine: Engine) -> list[str]:
    return [name for name, _ in await told(engine)]


async def work_off(engine: Engine) -> int:
    """Take and finish everything there is; return how much it was."""
    jobs = await claim_all(engine)
    for job in jobs:
        assert await ack(engine, job) is None
    return len(jobs)


async def until_minute(clock: ManualClock) -> None:
    await clock.advance(MINUTE - clock.now_ms() % MINUTE)


async def test_a_cron_fires_on_time_and_not_before(engine: Engine, clock: ManualClock) -> None:
    await until_minute(clock)
    cron = await add(engine, data=b'{"n": 1}', priority=7)
    assert cron.next_run == clock.now_ms() + MINUTE
    await clock.advance(MINUTE - 1)
    assert await claim(engine) is None
    await clock.advance(1)
    delivery = await claim(engine)
    assert delivery is not None
    assert (delivery.payload.data, delivery.job.priority, delivery.job.created_at) == (b'{"n": 1}', 7, cron.next_run)
    assert delivery.job.unique_key == "cron:nightly"
    assert await executions(engine) == 1
    assert await told(engine) == [
        ("cron:created", {"name": NAME, "queue": "mail", "pattern": "* * * * *", "nextRun": cron.next_run}),
        ("cron:fired", {"name": NAME, "queue": "mail"}),
    ]


async def test_a_worker_that_waits_gets_the_job_of_a_tick_at_once(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=5_000)
    waiting = asyncio.ensure_future(claim_job(engine, wait_ms=30_000))
    await clock.advance(5_000)
    assert waiting.done()


async def test_an_interval_does_not_drift(engine: Engine, clock: ManualClock) -> None:
    start = clock.now_ms()
    await add(engine, every=1_000)
    for n in range(1, 6):
        engine.timer.stop()
        await clock.advance(1_000 + 7)  # each tick is noticed a little late
        engine.timer.start()
        await clock.advance(0)
        assert await work_off(engine) == 1
        cron = await find(engine)
        assert cron is not None
        assert cron.next_run == start + (n + 1) * 1_000
    assert await told(engine) == [
        ("cron:created", {"name": NAME, "queue": "mail", "every": 1_000, "nextRun": start + 1_000}),
        *[("cron:fired", {"name": NAME, "queue": "mail"})] * 5,
    ]


async def test_the_time_zone_counts(engine: Engine, clock: ManualClock) -> None:
    cron = await add(engine, schedule="0 2 * * *", timezone="America/New_York")
    assert datetime.fromtimestamp(cron.next_run / 1_000, UTC).hour in (6, 7)


async def test_two_crons_due_in_the_same_batch_both_fire(engine: Engine, clock: ManualClock) -> None:
    await add(engine, "low", every=1_000, data=b"1", priority=1)
    await add(engine, "high", every=1_000, data=b"2", priority=5)
    batches = engine.stats.batches
    await clock.advance(1_000)
    assert engine.stats.batches == batches + 1
    assert [job.priority for job in await claim_all(engine)] == [5, 1]


async def test_more_ticks_than_a_batch_takes_all_fire(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "sweep_crons_max", 2)
    for n in range(5):
        await add(engine, f"cron {n}", every=1_000)
    await clock.advance(1_000)
    assert len(await claim_all(engine)) == 5


async def test_more_data_than_a_batch_takes_all_fire(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "claim_batch_bytes_max", 25)
    for n in range(5):
        await add(engine, f"cron {n}", every=1_000, data=b"0123456789")
    await clock.advance(1_000)
    assert engine.store.totals().waiting == 5
    assert [name for name in await names(engine) if name != "cron:created"] == ["cron:fired"] * 5


async def test_two_crons_that_share_a_unique_key_push_one_job(engine: Engine, clock: ManualClock) -> None:
    await add(engine, "a", every=1_000, unique_key="shared")
    await add(engine, "b", every=1_000, unique_key="shared", prevent_overlap=False)
    await clock.advance(1_000)
    assert len(await claim_all(engine)) == 1
    assert sorted((await names(engine))[2:]) == ["cron:fired", "cron:skipped"]


# Overlap.


@pytest.mark.parametrize("meanwhile", ["waiting", "active", "delayed"])
async def test_a_tick_is_skipped_while_the_job_before_lives(engine: Engine, clock: ManualClock, meanwhile: str) -> None:
    await add(engine, every=1_000)
    await clock.advance(1_000)
    if meanwhile != "waiting":
        job = await claim_job(engine)
        if meanwhile == "delayed":
            await fail(engine, job)  # it is tried again later
            await clock.advance(0)
    await clock.advance(500)
    await clock.advance(500)
    assert await told(engine) == [
        ("cron:created", {"name": NAME, "queue": "mail", "every": 1_000, "nextRun": clock.now_ms() - 1_000}),
        ("cron:fired", {"name": NAME, "queue": "mail"}),
        ("cron:skipped", {"name": NAME, "queue": "mail", "reason": "overlap"}),
    ]
    assert await executions(engine) == 1


async def test_skipping_does_not_keep_anybody_busy(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1)
    await clock.advance(1)
    job = await claim_job(engine)
    await clock.advance(1_000)
    assert (await names(engine)).count("cron:skipped") == 1_000 // limits.cron_skip_ms
    await ack(engine, job)
    await clock.advance(limits.cron_skip_ms)
    await ack(engine, await claim_job(engine))
    await clock.advance(limits.cron_skip_ms)
    assert await executions(engine) == 3


@pytest.mark.parametrize("ending", ["completed", "dead"])
async def test_a_tick_fires_again_once_the_job_before_has_ended(engine: Engine, clock: ManualClock, ending: str) -> None:
    await add(engine, every=1_000)
    await clock.advance(1_000)
    job = await claim_job(engine)
    if ending == "completed":
        await ack(engine, job)
    else:
        await move(engine, job, Arrow.DISCARD)
    await clock.advance(1_000)
    assert await executions(engine) == 2


async def test_overlap_can_be_allowed(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000, prevent_overlap=False)
    for _ in range(3):
        await clock.advance(1_000)
    assert len(await claim_all(engine)) == 3


# Limits and changes.


async def test_a_cron_is_gone_after_its_last_job(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000, max_limit=2)
    for _ in range(5):
        await clock.advance(1_000)
        await work_off(engine)
    assert await find(engine) is None
    assert engine.stats.completed == 2
    assert await names(engine) == ["cron:created", "cron:fired", "cron:fired", "cron:deleted"]
    assert engine.store.cron_count() == 0


async def test_skipped_ticks_do_not_count_against_the_limit(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000, max_limit=2)
    for _ in range(4):
        await clock.advance(1_000)
    assert await executions(engine) == 1
    await work_off(engine)
    await clock.advance(1_000)
    assert await find(engine) is None


async def test_an_update_keeps_the_count_and_replaces_the_rest(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000, data=b"1")
    await clock.advance(1_000)
    await work_off(engine)
    updated = await add(engine, every=2_000, data=b"2", priority=3)
    assert (updated.executions, updated.next_run) == (1, clock.now_ms() + 2_000)
    assert (await told(engine))[-1] == ("cron:updated", {"name": NAME, "queue": "mail", "nextRun": updated.next_run})
    await clock.advance(1_999)
    assert await claim(engine) is None
    await clock.advance(1)
    delivery = await claim(engine)
    assert delivery is not None
    assert (delivery.payload.data, delivery.job.priority) == (b"2", 3)
    assert await executions(engine) == 2


async def test_adding_the_same_cron_again_does_not_push_its_tick_away(engine: Engine, clock: ManualClock) -> None:
    first = await add(engine, every=10_000)
    await clock.advance(6_000)
    again = await add(engine, every=10_000, data=b"2", immediately=True)
    assert again.next_run == first.next_run
    await clock.advance(4_000)
    assert len(await claim_all(engine)) == 1


async def test_an_update_to_a_limit_that_is_reached_ends_the_cron_without_another_job(
    engine: Engine, clock: ManualClock
) -> None:
    await add(engine, every=1_000)
    for _ in range(3):
        await clock.advance(1_000)
        await work_off(engine)
    await add(engine, every=1_000, max_limit=2)
    await clock.advance(1_000)
    assert await find(engine) is None
    assert await claim(engine) is None


async def test_a_removed_cron_fires_no_more_and_its_jobs_stay(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000)
    await clock.advance(1_000)
    await engine.run(RemoveCron(CronKey("default", NAME)))
    await clock.advance(5_000)
    assert len(await claim_all(engine)) == 1
    assert (await told(engine))[-1] == ("cron:deleted", {"name": NAME})
    with pytest.raises(CronNotFound):
        await engine.run(RemoveCron(CronKey("default", NAME)))


async def test_immediately_means_at_once_and_then_as_planned(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=10_000, immediately=True)
    assert await work_off(engine) == 1
    await clock.advance(9_999)
    assert await work_off(engine) == 0
    await clock.advance(1)
    assert await work_off(engine) == 1


async def test_names_are_apart_by_namespace(engine: Engine, clock: ManualClock) -> None:
    plan = CronPlan(QUEUE.name, parse(None, 1_000))
    await engine.run(SaveCron(CronKey("other", NAME), plan, b"1"))
    await add(engine, every=1_000)
    await clock.advance(1_000)
    assert len(await claim_all(engine)) == 1
    assert len(await claim_all(engine, queue=QUEUE._replace(namespace="other"))) == 1


async def test_a_cron_outlives_its_queue(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000)
    await clock.advance(1_000)
    await admin.obliterate(engine, QUEUE)
    await clock.advance(1_000)
    assert len(await claim_all(engine)) == 1


# Restarts, lateness and other clocks.


async def restart(engine: Engine, store: SqliteStore, clock: ManualClock, away_ms: int) -> Engine:
    """Stop the engine, let time pass, start another on the same store."""
    await engine.close()
    await clock.advance(away_ms)
    again = Engine(store, clock, durability=Durability.NEVER)
    again.start()
    await clock.advance(0)
    return again


@pytest.mark.parametrize("away_ms", [30, 500, 3_600_000])
async def test_a_restart_adds_no_fire_and_one_word_for_all_that_was_missed(
    engine: Engine, store: SqliteStore, clock: ManualClock, away_ms: int
) -> None:
    await until_minute(clock)
    await add(engine)
    await clock.advance(MINUTE - 20)
    again = await restart(engine, store, clock, away_ms)
    assert await claim(again) is None
    (missed,) = [payload for name, payload in await told(again) if name == "cron:missed"]
    late = away_ms - 20
    assert missed == {
        "name": NAME, "queue": "mail", "error": f"Was due {late} ms ago, when the server was not running"
    }  # fmt: skip
    cron = await find(again)
    assert cron is not None
    assert (cron.executions, cron.next_run) == (0, clock.now_ms() - clock.now_ms() % MINUTE + MINUTE)
    await clock.advance(MINUTE)
    assert await work_off(again) == 1
    await again.close()


async def test_a_restart_between_two_ticks_changes_nothing(engine: Engine, store: SqliteStore, clock: ManualClock) -> None:
    await add(engine, every=10_000)
    await clock.advance(4_000)
    again = await restart(engine, store, clock, 5_000)
    await clock.advance(1_000)
    assert await work_off(again) == 1
    assert await names(again) == ["cron:created", "cron:fired"]
    await again.close()


async def test_missed_ticks_can_be_made_up_for_once(engine: Engine, store: SqliteStore, clock: ManualClock) -> None:
    await add(engine, every=1_000, skip_missed=False, prevent_overlap=False)
    again = await restart(engine, store, clock, 10_500)
    assert len(await claim_all(again)) == 1
    await clock.advance(500)
    assert len(await claim_all(again)) == 1
    await again.close()


async def test_a_busy_server_fires_a_little_late_and_once(engine: Engine, clock: ManualClock) -> None:
    await clock.advance(limits.cron_late_ms_max)
    await add(engine, every=1_000, prevent_overlap=False)
    await engine.stop_services()
    await clock.advance(1_000 + limits.cron_late_ms_max)
    engine.start()
    await clock.advance(0)
    assert len(await claim_all(engine)) == 1
    assert await names(engine) == ["cron:created", "cron:fired"]


async def test_a_tick_that_is_too_late_is_missed(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000)
    await engine.stop_services()
    await clock.advance(1_001 + limits.cron_late_ms_max)
    engine.start()
    await clock.advance(0)
    assert await claim(engine) is None
    assert await names(engine) == ["cron:created", "cron:missed"]


async def test_a_clock_set_forward_fires_no_flood(engine: Engine, clock: ManualClock) -> None:
    await add(engine, prevent_overlap=False)
    await until_minute(clock)
    assert await work_off(engine) == 1
    clock.jump_wall(24 * 3_600_000)
    await clock.advance(1_000)
    assert await work_off(engine) == 0
    assert await names(engine) == ["cron:created", "cron:fired", "cron:missed"]
    await clock.advance(MINUTE)
    assert await work_off(engine) == 1


async def test_a_clock_set_back_repeats_no_tick(engine: Engine, clock: ManualClock) -> None:
    await until_minute(clock)
    await add(engine)
    await clock.advance(MINUTE)
    assert await work_off(engine) == 1
    clock.jump_wall(-MINUTE // 2)
    await clock.advance(MINUTE // 2 + 1_000)
    assert await work_off(engine) == 0
    await clock.advance(MINUTE)
    assert await work_off(engine) == 1


async def test_a_cron_added_after_the_clock_was_set_back_fires(engine: Engine, clock: ManualClock) -> None:
    clock.jump_wall(-3_600_000)
    await add(engine, every=1_000)
    await clock.advance(1_000)
    assert await work_off(engine) == 1


async def test_without_crons_nothing_wakes_the_engine(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=1_000, max_limit=1)
    await clock.advance(1_000)
    assert engine.store.horizon.cron_ms is None


# Trouble.


async def test_a_tick_and_its_job_are_one_transaction(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(engine, every=1_000)
    before = await find(engine)

    async def broken(*_: object) -> None:
        raise RuntimeError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteTransaction, "cron_save", broken)
        await clock.advance(1_000)
    assert await find(engine) == before
    assert engine.store.totals().waiting == 0
    await engine.run(Sweep())
    assert engine.store.totals().waiting == 1


async def test_a_damaged_cron_holds_up_nobody(engine: Engine, store: SqliteStore, clock: ManualClock) -> None:
    await add(engine, "broken", every=1_000)
    await add(engine, "sound", every=1_000)
    store.db.execute("update crons set plan = x'c1' where name = 'broken'")
    for _ in range(2):
        await clock.advance(1_000)
        assert await work_off(engine) == 1
    assert [cron.key.name for cron in await store.cron_list("default")] == ["sound"]


async def test_a_cron_whose_schedule_is_no_longer_understood_holds_up_nobody(engine: Engine, clock: ManualClock) -> None:
    await add(engine, "sound", every=1_000)
    await add(engine, "lost", every=1_000, prevent_overlap=False)
    async with engine.store.transaction(engine.ids.mark) as tx:
        (lost,) = await tx.cron_load([CronKey("default", "lost")])
        lost.plan = CronPlan(QUEUE.name, Schedule("* * * * *", timezone="No/More"))
        await tx.cron_save([(lost, lost.next_run)])
    await clock.advance(1_000)
    found = await find(engine, "lost")
    assert found is not None
    assert found.next_run == clock.now_ms() + limits.HOUR_MS
    assert await executions(engine, "sound") == 1


async def test_a_full_disk_misses_ticks_and_stops_nothing_else(engine: Engine, clock: ManualClock) -> None:
    job = await push(engine)
    await claim_job(engine)
    await add(engine, every=1_000)
    engine.store.status().full = True
    with pytest.raises(StorageFull):
        await add(engine, "another")
    await clock.advance(1_000)
    assert await ack(engine, job) is None
    assert (await told(engine))[-1] == ("cron:missed", {"name": NAME, "queue": "mail", "error": "The disk is full"})
    engine.store.status().full = False
    await clock.advance(1_000)
    assert await work_off(engine) == 1


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_each_tick_is_told_once_and_each_fire_is_one_job(
    engine: Engine, store: SqliteStore, clock: ManualClock, seed: int
) -> None:
    dice = random.Random(seed)
    for name, every, overlap in (("a", 1_000, False), ("b", 7_000, True), ("c", 90_000, False)):
        await add(engine, name, every=every, prevent_overlap=not overlap)
    await add(engine, "d", schedule="*/20 * * * * *")
    for _ in range(40):
        match dice.randrange(6):
            case 0:
                engine = await restart(engine, store, clock, dice.randrange(200_000))
            case 1:
                clock.jump_wall(dice.randrange(-100_000, 100_000))
            case 2:
                await work_off(engine)
            case _:
                await clock.advance(dice.randrange(30_000))
        await clock.advance(1_000)  # the wall clock is looked at every second
        crons = await store.cron_list("default")
        assert all(cron.next_run > clock.now_ms() for cron in crons)
        fired = [payload["name"] for name, payload in await told(engine) if name == "cron:fired"]
        assert all(cron.executions == fired.count(cron.key.name) for cron in crons)
        totals = store.totals()
        assert len(fired) == totals.waiting + totals.delayed + totals.active + totals.completed + totals.dead
    await engine.close()


# Workers, and what its jobs are like.


async def test_a_tick_without_a_worker_is_skipped_if_the_cron_says_so_and_does_not_count(
    engine: Engine, clock: ManualClock
) -> None:
    await add(engine, every=10_000, skip_if_no_worker=True, max_limit=1)
    await clock.advance(10_000)
    await clock.advance(10_000)
    assert engine.store.totals().waiting == 0
    skipped = [payload for name, payload in await told(engine) if name == "cron:skipped"]
    assert skipped == [{"name": NAME, "queue": QUEUE.name, "reason": "no-worker"}] * 2
    assert await executions(engine) == 0
    engine.workers.register("default", "w", [QUEUE.name])
    await clock.advance(10_000)
    assert engine.store.totals().waiting == 1
    assert (await names(engine))[-2:] == ["cron:fired", "cron:deleted"]


@pytest.mark.parametrize(("namespace", "queue"), [("other", QUEUE.name), ("default", "other")])
async def test_a_worker_of_another_queue_or_namespace_is_none(
    engine: Engine, clock: ManualClock, namespace: str, queue: str
) -> None:
    await add(engine, every=10_000, skip_if_no_worker=True)
    engine.workers.register(namespace, "w", [queue])
    await clock.advance(10_000)
    assert (await names(engine))[-1] == "cron:skipped"


async def test_a_worker_that_has_fallen_silent_or_left_is_none(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=31_000, skip_if_no_worker=True, prevent_overlap=False)
    engine.workers.register("default", "w", [QUEUE.name], worker_id="w1")
    await clock.advance(31_000)
    assert (await names(engine))[-1] == "cron:skipped"
    engine.workers.heartbeat("default", "w1")
    await clock.advance(29_000)
    engine.workers.heartbeat("default", "w1")
    await clock.advance(2_000)
    assert (await names(engine))[-1] == "cron:fired"
    engine.workers.unregister("default", "w1")
    await clock.advance(31_000)
    assert (await names(engine))[-1] == "cron:skipped"


async def test_who_waits_for_a_job_is_a_worker(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=10_000, skip_if_no_worker=True)
    waiting = asyncio.ensure_future(claim(engine, wait_ms=60_000))
    await clock.advance(10_000)
    assert await waiting is not None


async def test_without_that_rule_nobody_looks_for_workers(engine: Engine, clock: ManualClock) -> None:
    await add(engine)
    await clock.advance(MINUTE)
    assert engine.store.totals().waiting == 1


async def test_the_jobs_of_a_cron_are_what_it_says(engine: Engine, clock: ManualClock) -> None:
    rules = encode_details(Details(stall_timeout=9_000, backoff_type="fixed"))
    job = CronJobTemplate(5, 70, 80_000, 1_000, JobFlag.REMOVE_ON_COMPLETE, rules)
    await add(engine, job=job)
    await clock.advance(MINUTE)
    assert engine.store.totals().delayed == 1
    await clock.advance(1_000)
    made = await claim_job(engine)
    assert (made.max_attempts, made.backoff, made.timeout, made.lease_ms) == (5, 70, 80_000, 9_000)
    await ack(engine, made)
    assert engine.store.totals().completed == 0


async def test_a_cron_whose_key_holds_for_a_time_overlaps_after_it(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=10_000, dedup=Dedup(15_000))
    await clock.advance(10_000)
    await clock.advance(10_000)
    assert (await names(engine))[-1] == "cron:skipped"
    await clock.advance(10_000)
    assert (await names(engine))[-1] == "cron:fired"
    assert engine.store.totals().waiting == 2


async def test_a_cron_that_replaces_has_one_waiting_job_with_the_latest_data(engine: Engine, clock: ManualClock) -> None:
    await add(engine, every=10_000, dedup=Dedup(replace=True), data=b"1")
    await clock.advance(10_000)
    await add(engine, every=10_000, dedup=Dedup(replace=True), data=b"2")
    await clock.advance(10_000)
    assert (await names(engine))[-1] == "cron:fired"
    assert await executions(engine) == 2
    delivery = await claim(engine)
    assert delivery is not None
    assert delivery.payload.data == b"2"
    assert engine.store.totals().waiting == 0
