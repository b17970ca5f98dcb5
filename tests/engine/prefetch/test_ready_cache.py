"""Ready lists: what is handed out from them, in which order, and what becomes of it when something goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.errors import JobNotFound, WrongState
from penstock.core.events import EventKind
from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import PushAcross
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob, NackById
from penstock.engine.jobs.update import EditData
from penstock.engine.queues import admin
from penstock.engine.queues.group_limits import ConfigureGroup
from tests.engine.prefetch.conftest import HOT_JOBS, engine_on
from tests.support.engines import QUEUE, ack, claim, claim_all, fail, move, push, push_many, renew, state, stored
from tests.support.receiver import until
from tests.support.redis import OwnRedis, OwnSentinel

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueSettings
    from penstock.engine.engine import Engine
    from penstock.engine.prefetch.ready_cache import ReadyCache

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio


def ready_cache(engine: Engine) -> ReadyCache:
    assert engine.ready_cache is not None
    return engine.ready_cache


async def heat(engine: Engine, count: int = 100) -> list[JobRecord]:
    """Push jobs and take some of them, so that the queue is hot; return all, in the order in which they should be taken."""
    pushed = await push_many(engine, count)
    taken = await claim_all(engine, HOT_JOBS)
    assert [job.id for job in taken] == [job.id for job in pushed[:HOT_JOBS]]
    return pushed[HOT_JOBS:]


async def take_fast(engine: Engine, count: int = 1) -> list[JobRecord]:
    """Take jobs that must come from a list."""
    before = ready_cache(engine).jobs_handed_out
    taken = await claim_all(engine, count)
    assert ready_cache(engine).jobs_handed_out == before + len(taken) > before
    return taken


async def ack_all(engine: Engine, jobs: list[JobRecord]) -> None:
    """Acknowledge jobs; each must be in our hands."""
    outcomes = await engine.run(Ack("default", [LeaseRef(job.id, job.token) for job in jobs], [None] * len(jobs)))
    assert outcomes == [None] * len(jobs)


def ids(jobs: list[JobRecord]) -> list[int]:
    return [job.id for job in jobs]


async def test_a_hot_queue_is_served_from_its_list_in_order(pair: Pair) -> None:
    a, _ = pair
    expected = await heat(a)
    taken = [job for _ in range(len(expected)) for job in await take_fast(a)]
    assert ids(taken) == ids(expected)
    assert await claim(a) is None
    await ack_all(a, taken)
    assert await state(a, taken[-1]) is State.COMPLETED


async def test_two_servers_share_the_list(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    taken: list[JobRecord] = []
    for _ in range(len(expected) // 2):
        taken += await take_fast(a)
        taken += await take_fast(b)
    assert ids(taken) == ids(expected)


async def test_nobody_gets_a_job_that_somebody_else_has(pair: Pair) -> None:
    expected = await heat(pair[0], 1_000)
    taken: list[int] = []

    async def work(engine: Engine) -> None:
        while jobs := await claim_all(engine, 7):
            taken.extend(ids(jobs))
            await ack_all(engine, jobs)

    await asyncio.gather(*(work(engine) for engine in pair for _ in range(4)))
    assert sorted(taken) == sorted(ids(expected))
    assert sum(ready_cache(engine).jobs_handed_out for engine in pair) > 500


async def test_a_later_job_of_higher_priority_goes_first(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    assert ids(await take_fast(a)) == [expected[0].id]
    urgent = await push(b, priority=5)
    most_urgent = await push(a, priority=9)
    in_front = await push(b, flags=1)
    assert ids(await take_fast(b)) == [most_urgent.id]
    assert ids(await take_fast(a)) == [urgent.id]
    assert ids(await take_fast(a)) == [in_front.id]
    assert ids(await take_fast(b, 3)) == ids(expected[1:4])
    last = await push(a, priority=-1)
    taken = [job.id for _ in range(len(expected) - 3) for job in await claim_all(b)]
    assert taken == [*ids(expected[4:]), last.id]


async def test_a_released_job_gets_its_place_back(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    (first,) = await take_fast(a)
    assert await ack(a, first, token=first.token) is None
    (second,) = await take_fast(a)
    assert await fail(a, second, token=second.token) is None
    assert await state(a, second) is State.DELAYED
    await move(a, second, Arrow.PROMOTE)
    rest = [job.id for _ in range(len(expected) - 1) for job in await claim_all(b)]
    assert rest == [*ids(expected[2:]), second.id]


async def test_a_lease_is_as_long_as_promised_and_the_store_learns_of_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair
    monkeypatch.setattr("penstock.core.limits.fast_note_ms", 0)
    await heat(a)
    jobs = await a.run(Claim(QUEUE, 2, lease_ms=20_000, owner="me"))
    handed_at = a.clock.steady_ms()
    job = jobs[0].job
    found = await stored(a, job)
    assert found is not None
    assert found.token == job.token
    assert found.lease_until is not None
    assert found.lease_until >= handed_at + 20_000 - 1
    await ready_cache(a).lease_recorder.note(60_000)
    found = await stored(a, job)
    assert found is not None
    assert found.started_at == job.started_at
    assert found.lease_until is not None
    assert abs(found.lease_until - handed_at - 20_000) <= 100
    assert found.lease_ms == 20_000
    assert await renew(a, job, token=job.token) is None


async def test_what_is_acknowledged_at_another_server_keeps_its_times(pair: Pair) -> None:
    a, b = pair
    await heat(a)
    (job,) = await take_fast(a)
    assert await ack(b, job, token=job.token) is None
    found = await stored(b, job)
    assert found is not None
    assert found.started_at is not None
    assert found.finished_at is not None
    assert found.started_at <= found.finished_at
    await ready_cache(a).lease_recorder.note(60_000)  # too late to change anything
    assert await state(a, job) is State.COMPLETED


def change(**changes: object) -> admin.Configure:
    def apply(old: QueueSettings) -> QueueSettings:
        return msgspec.structs.replace(old, **changes)

    return admin.Configure(QUEUE, EventKind.QUEUE_PAUSED, apply)


async def test_a_timeout_runs_from_when_a_job_is_handed_out(pair: Pair) -> None:
    a, _ = pair
    await push_many(a, 60, timeout=900)
    await claim_all(a, HOT_JOBS)
    (job,) = await take_fast(a)
    await ready_cache(a).lease_recorder.note(60_000)
    found = await stored(a, job)
    assert found is not None
    assert found.started_at is not None
    assert found.deadline is not None
    assert found.lease_until == found.deadline


async def test_a_server_that_serves_nobody_there_takes_everything_back(pair: Pair) -> None:
    """It has handed out nothing of the hot queue, and may not even have heard that it is hot."""
    a, b = pair
    expected = await heat(a)
    await take_fast(a)
    await b.run(change(paused=True))
    assert await claim(a) is None
    await b.run(change(paused=False, rate_limit=1))
    assert len([job for _ in range(5) for job in await claim_all(a, 10)]) <= 2
    await b.run(change(rate_limit=None))
    assert len(await claim_all(b, 200)) >= len(expected) - 4


async def test_a_limit_holds_for_what_was_on_a_list(pair: Pair) -> None:
    a, b = pair
    await heat(a)
    await take_fast(a)
    await b.run(change(concurrency=20))
    assert len(await claim_all(a, 50)) == 20 - HOT_JOBS - 1


async def test_what_is_on_the_list_of_another_server_can_be_meant(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    await take_fast(a)
    await move(b, expected[1], Arrow.CANCEL)
    await move(b, expected[3], Arrow.REPRIORITIZE, 7)
    await b.run(EditData("default", expected[4].id, b'"new"'))
    await move(b, expected[5], Arrow.DISCARD)
    assert await state(b, expected[5]) is State.DEAD
    first = await a.run(Claim(QUEUE))
    assert [job.id for job, _ in first] == [expected[3].id]
    rest = await a.run(Claim(QUEUE, 3))
    assert [job.id for job, _ in rest] == ids([expected[2], expected[4], expected[6]])
    assert rest[1].payload.data == b'"new"'


@pytest.mark.parametrize("at", [0, 1])
async def test_a_queue_is_emptied_with_what_is_on_its_list(pair: Pair, at: int) -> None:
    expected = await heat(pair[0])
    await take_fast(pair[0])
    assert await admin.drain(pair[at], QUEUE) == len(expected) - 1
    for engine in pair:
        assert await claim(engine) is None


@pytest.mark.parametrize("at", [0, 1])
async def test_a_queue_is_obliterated_with_what_is_on_its_list(pair: Pair, at: int) -> None:
    await heat(pair[0])
    await take_fast(pair[0])
    await admin.obliterate(pair[at], QUEUE)
    for engine in pair:
        assert await claim(engine) is None


@pytest.mark.parametrize("at", [0, 1])
async def test_words_without_a_token_about_a_job_on_a_list_are_not_believed(pair: Pair, at: int) -> None:
    a, b = pair
    expected = await heat(a)
    (held,) = await take_fast(a)
    (outcome,) = await pair[at].run(AckById([ClaimedJob(QUEUE, expected[2].id)]))
    assert isinstance(outcome, WrongState)
    (outcome,) = await pair[at].run(NackById([ClaimedJob(QUEUE, expected[3].id, "no")]))
    assert isinstance(outcome, WrongState)
    assert isinstance(await ack(pair[at], expected[4]), WrongState)
    assert isinstance(await fail(pair[at], expected[5]), WrongState)
    assert await b.run(AckById([ClaimedJob(QUEUE, held.id)])) == [None]  # that one was handed out, by the other server
    assert await state(b, held) is State.COMPLETED
    assert ids([job for _ in range(6) for job in await claim_all(a, 1)]) == ids(expected[1:7])


async def test_a_late_word_settles_a_job_that_is_on_a_list_again(pair: Pair) -> None:
    a, _ = pair
    expected = await heat(a)
    (late,) = [job for job, _ in await a.run(Claim(QUEUE, lease_ms=1))]
    await until_state(a, late, State.WAITING)
    await push_many(a, 30, priority=5)
    await claim_all(a, HOT_JOBS)
    await take_fast(a)  # which fetches the late one, too: it stands right behind these
    assert (await stored_token(a, late)) != late.token
    assert await a.run(AckById([ClaimedJob(QUEUE, late.id)])) == [None]
    assert await state(a, late) is State.COMPLETED
    assert late.id not in ids(await claim_all(a, len(expected)))


async def test_a_claim_keeps_its_arguments_when_a_list_serves_it(pair: Pair) -> None:
    a, _ = pair
    await heat(a)
    await take_fast(a)
    command = Claim(QUEUE)
    (delivery,) = await a.run(command)
    assert delivery.job.lease_ms
    assert command.lease_ms is None


async def test_an_ack_in_another_namespace_takes_no_job_off_a_list(pair: Pair) -> None:
    a, _ = pair
    expected = await heat(a)
    await take_fast(a)
    other = QUEUE._replace(namespace="other")
    await push(a, queue=other)
    (outcome,) = await a.run(AckById([ClaimedJob(other, expected[2].id)]))
    assert isinstance(outcome, JobNotFound)
    assert await state(a, expected[2]) is State.ACTIVE  # still set aside


async def stored_token(engine: Engine, job: JobRecord) -> int | None:
    found = await stored(engine, job)
    return None if found is None else found.token


async def until_state(engine: Engine, job: JobRecord, wanted: State) -> None:
    async with asyncio.timeout(60):
        while (await state(engine, job)) is not wanted:
            await push(engine, queue=QUEUE._replace(name="other"))  # time is told to pass with every batch
            await asyncio.sleep(0.01)


async def test_a_key_that_is_sent_again_renews_what_is_on_a_list(pair: Pair) -> None:
    a, b = pair
    await push_many(a, 20)
    keyed = (await a.run(PushAcross([(QUEUE, [JobSpec(b"old", job_id="idempotency:k")])], a.clock.now_ms())))[0][0]
    await claim_all(a, HOT_JOBS)
    await take_fast(a)
    again = await b.run(PushAcross([(QUEUE, [JobSpec(b"new", job_id="idempotency:k")])], b.clock.now_ms()))
    assert again[0][0].id == keyed.id
    taken = await a.run(Claim(QUEUE, 100))
    assert {job.id: payload.data for job, payload in taken}[keyed.id] == b"new"


async def test_cancelling_does_not_give_up_the_lists(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a, 300)

    async def work() -> list[JobRecord]:
        return [job for _ in range(60) for job in await claim_all(a, 1)]

    async def cancel() -> None:
        for job in expected[100:160:3]:
            await move(b, job, Arrow.CANCEL)

    taken, _ = await asyncio.gather(work(), cancel())
    assert ids(taken) == ids(expected[: len(taken)])
    assert ready_cache(a).generation == ready_cache(b).generation == 0


async def test_many_at_once_are_handed_out_by_the_database(pair: Pair) -> None:
    a, _ = pair
    expected = await heat(a, 600)
    await take_fast(a)
    before = ready_cache(a).jobs_handed_out
    taken = await claim_all(a, 100)
    taken += await claim_all(a, 100)
    assert ids(taken) == ids(expected[1:201])
    assert ready_cache(a).jobs_handed_out == before
    assert len(await claim_all(a, 1)) == 1


async def test_a_paused_queue_gives_nothing(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    await take_fast(a)
    await take_fast(b)
    await b.run(change(paused=True))
    assert await claim(a) is None
    assert await claim(b) is None
    await a.run(change(paused=False))
    assert ids(await claim_all(b, 3)) == ids(expected[2:5])


async def test_a_queue_with_a_paused_group_is_served_without_a_list(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    await take_fast(a)
    await push(a, group_id="g", priority=9)
    await b.run(ConfigureGroup(QUEUE, "g", lambda old, _: msgspec.structs.replace(old, paused=True)))
    assert ids(await claim_all(a, 3)) == ids(expected[1:4])
    before = ready_cache(a).jobs_handed_out
    assert ids(await claim_all(b, 3)) == ids(expected[4:7])
    assert ready_cache(a).jobs_handed_out == before
    assert ready_cache(a).depth(QUEUE) == 0


async def test_what_is_on_a_list_can_be_cancelled(pair: Pair) -> None:
    a, _ = pair
    expected = await heat(a)
    await take_fast(a)
    await move(a, expected[1], Arrow.CANCEL)
    assert ids(await claim_all(a, 2)) == ids([expected[2], expected[3]])


async def cold(engine: Engine) -> None:
    """Wait until nothing is set aside any more."""
    async with asyncio.timeout(60):
        while True:
            await push(engine, queue=QUEUE._replace(name="other"))  # a transaction, to look at what is hot
            if not engine.hot:
                return
            await asyncio.sleep(0.01)


async def test_what_nobody_wants_any_more_goes_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair
    monkeypatch.setattr("penstock.core.limits.fast_idle_ms", 0)
    expected = await heat(a)
    await take_fast(a)
    await cold(b)
    for job in expected[1:5]:
        assert await state(b, job) is State.WAITING
    assert ids(await claim_all(b, 2)) == ids(expected[1:3])


async def test_everything_comes_back_after_a_flush(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    expected = await heat(a)
    held = await take_fast(a, 3)
    held += await take_fast(b, 3)
    redis.client().flushall()
    await everything_comes_once(pair, expected, held)


async def test_everything_comes_back_after_a_crash_of_redis(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    expected = await heat(a)
    held = await take_fast(a, 3)
    held += await take_fast(b, 3)
    redis.kill()
    got = await claim_all(a, 3)  # by the database
    held += got
    redis.start()
    await everything_comes_once(pair, expected, held)


async def everything_comes_once(pair: Pair, expected: list[JobRecord], held: list[JobRecord]) -> None:
    """Take what is left, and see that each job is held by exactly one, without an attempt having been counted."""
    seen = ids(held)
    async with asyncio.timeout(60):
        while len(seen) < len(expected):
            for engine in pair:
                jobs = await claim_all(engine, 50)
                assert all(job.attempts == 0 for job in jobs)
                seen += ids(jobs)
                held += jobs
            await asyncio.sleep(0.01)
    assert sorted(seen) == sorted(ids(expected))
    await ack_all(pair[0], held)


async def test_a_failover_by_sentinel(shard: str) -> None:
    with (
        OwnRedis() as master,
        OwnRedis("--replicaof", "127.0.0.1", str(master.port)) as replica,
        OwnSentinel(master) as sentinel,
    ):
        await until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        await until(lambda: sentinel.client().sentinel_slaves("main"))
        async with engine_on(shard, sentinel.url) as a, engine_on(shard, sentinel.url) as b:
            expected = await heat(a)
            held = await take_fast(a, 3)
            held += await take_fast(b, 3)
            master.kill()
            held += await claim_all(a, 3)
            await until(lambda: replica.client().info("replication")["role"] == "master")
            await everything_comes_once((a, b), expected, held)
            before = ready_cache(a).jobs_handed_out
            async with asyncio.timeout(60):  # and lists are made again
                while ready_cache(a).jobs_handed_out == before:
                    await ack_all(a, await heat_again(a))


async def heat_again(engine: Engine) -> list[JobRecord]:
    await push_many(engine, 50)
    return [*await claim_all(engine, HOT_JOBS), *await claim_all(engine, 3)]


async def test_a_server_that_dies_leaves_nothing_behind(shard: str, redis: OwnRedis) -> None:
    async with engine_on(shard, redis.url) as b:
        async with engine_on(shard, redis.url) as a:
            expected = await heat(a)
            (first,) = await take_fast(a)
            path = ready_cache(a)
            monkey = pytest.MonkeyPatch()
            monkey.setattr(path, "close", nothing)  # it does not get to say goodbye
        monkey.undo()
        taken = [job.id for _ in range(len(expected) - 1) for job in await claim_all(b)]
        assert taken == ids(expected[1:])
        assert await ack(b, first, token=first.token) is None


async def nothing() -> None:
    pass
