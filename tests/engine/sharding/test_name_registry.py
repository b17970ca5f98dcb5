"""A producer's own id is given once per namespace, whichever shards the queues are on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import InvalidInput, NameContested, StorageFailed
from penstock.core.ids import shard_of, to_uuid
from penstock.core.job import IDEMPOTENCY_PREFIX, JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.core.reservations import Permit, Reservation
from penstock.core.sharding import home_of, shard_for
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.sharding.name_registry import ForgetNames, ListNames, NameRegistry, NameRequest, Reserve
from tests.support.engines import ack, claim_job, push
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.sharding.engine import ShardedEngine

pytestmark = pytest.mark.anyio

#: One on each of three shards.
QUEUES = [QueueKey("default", name) for name in ("a", "e", "c")]


@pytest.fixture
async def fleet(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Any]:
    assert [shard_for(queue, 3) for queue in QUEUES] == [0, 1, 2]
    async with fleet_on(tmp_path, clock) as running:
        yield running


async def reservations(fleet: ShardedEngine) -> list[Reservation]:
    return [each for engine in fleet.engines for each in await engine.run(ListNames())]


async def in_time(clock: ManualClock, coroutine: Any, ms: int = 10 * limits.name_wait_ms) -> Any:
    """Let time pass until somebody is answered."""
    task = asyncio.ensure_future(coroutine)
    await yield_to_loop()
    for _ in range(ms // limits.name_look_ms):
        if not task.done():
            await clock.advance(limits.name_look_ms)
    return await task


@pytest.mark.parametrize("name", [f"n{number}" for number in range(6)])
async def test_a_name_is_given_once_in_all_queues(fleet: ShardedEngine, name: str) -> None:
    first, *others = [await push(fleet, queue=queue, job_id=name) for queue in QUEUES]
    assert [job.id for job in others] == [first.id, first.id]
    assert fleet.store.totals().waiting == 1
    assert len([queue.key for queue in fleet.store.queues()]) == 1  # nothing was made where nothing was pushed
    elsewhere = await push(fleet, queue=QueueKey("other", "a"), job_id=name)
    assert elsewhere.id != first.id


async def test_only_what_has_a_name_or_needs_somebody_asks_other_shards(
    fleet: ShardedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for engine in fleet.engines:

        def noting(command: Any, run: Any = engine.run) -> Any:
            asked.append(type(command).__name__)
            return run(command)

        monkeypatch.setattr(engine, "run", noting)
    (job,) = await fleet.run(Push(QUEUES[0], [JobSpec(b"1", unique_key="k")]))
    assert asked == ["Push"]
    asked.clear()
    names = [name for name in (f"n{number}" for number in range(100)) if home_of("default", name, 3) == 2]
    await fleet.run(Push(QUEUES[0], [JobSpec(b"1", job_id=name) for name in names]))
    assert asked == ["Reserve", "Push"]
    asked.clear()
    await fleet.run(Push(QUEUES[0], [JobSpec(b"1", needs=(job.id,))]))
    assert asked == ["Push"]
    asked.clear()
    await fleet.run(Push(QUEUES[1], [JobSpec(b"1", needs=(job.id,)), JobSpec(b"2", needs=(job.id,))]))
    assert asked == ["WatchJobs", "Push"]


async def test_those_who_come_at_the_same_moment_get_one_job(fleet: ShardedEngine, clock: ManualClock) -> None:
    wanted = [(queue, f"n{number}") for number in range(20) for queue in QUEUES]
    jobs: list[JobRecord] = await in_time(
        clock, asyncio.gather(*(push(fleet, queue=queue, job_id=name) for queue, name in wanted))
    )
    ids: dict[str, set[int]] = {}
    for (_, name), job in zip(wanted, jobs, strict=True):
        ids.setdefault(name, set()).add(job.id)
    assert all(len(same) == 1 for same in ids.values())
    assert fleet.store.totals().waiting == 20


async def test_a_key_in_several_queues_of_one_push_is_one_message_which_is_renewed(
    fleet: ShardedEngine, clock: ManualClock
) -> None:
    key = f"{IDEMPOTENCY_PREFIX}k"
    parts = [(queue, [JobSpec(str(number).encode(), job_id=key)]) for number, queue in enumerate(QUEUES)]
    answers = await fleet.run(PushAcross(parts, clock.now_ms()))
    assert len({job.id for (job,) in answers}) == 1
    found = await fleet.store.job_get("default", key)
    assert found is not None
    assert found[1].data == b"2"  # the last word counts, as it does on one shard
    ((again,),) = await fleet.run(PushAcross([(QUEUES[1], [JobSpec(b"3", job_id=key, priority=4)])], clock.now_ms()))
    assert (again.id, again.priority) == (found[0].id, 4)


async def test_a_bulk_push_has_some_of_its_jobs_elsewhere(fleet: ShardedEngine) -> None:
    here = await push(fleet, queue=QUEUES[0], job_id="known")
    new = [JobSpec(b"1"), JobSpec(b"2", job_id="known"), JobSpec(b"3", job_id="new", needs=("known",))]
    plain, known, fresh = await fleet.run(Push(QUEUES[1], new))
    assert known.id == here.id
    assert [shard_of(job.id) for job in (plain, fresh)] == [1, 1]
    assert fleet.store.totals().waiting_children == 1
    await claim_job(fleet, queue=QUEUES[0])
    await ack(fleet, here)
    await yield_to_loop(100)
    assert fleet.store.totals().waiting_children == 0


async def test_an_id_of_ours_names_its_job_from_any_queue_and_nothing_else(fleet: ShardedEngine) -> None:
    job = await push(fleet, queue=QUEUES[0])
    assert (await push(fleet, queue=QUEUES[1], job_id=to_uuid(job.id))).id == job.id
    with pytest.raises(InvalidInput, match="has the form of an id"):
        await push(fleet, queue=QUEUES[1], job_id=to_uuid(job.id + 1))


async def test_a_name_whose_job_is_gone_can_be_given_on_another_shard(fleet: ShardedEngine, clock: ManualClock) -> None:
    for round_ in range(3):
        for queue in (*QUEUES, QUEUES[-1]):
            job = await in_time(clock, push(fleet, queue=queue, job_id="n", flags=JobFlag.REMOVE_ON_COMPLETE))
            assert shard_of(job.id) == shard_for(queue, 3)
            assert (await claim_job(fleet, queue=queue)).id == job.id
            await ack(fleet, job)
        await clock.advance(round_ * limits.ticket_ms)


async def test_a_push_that_broke_off_keeps_a_name_for_a_moment_only(fleet: ShardedEngine, clock: ManualClock) -> None:
    home = fleet.engines[home_of("default", "n", 3)]
    (held,) = await home.run(Reserve([NameRequest("default", "n", 0)]))
    waiting = asyncio.ensure_future(push(fleet, queue=QUEUES[1], job_id="n"))
    await clock.advance(limits.name_wait_ms // 2)
    assert not waiting.done()  # it may still come
    job = await in_time(clock, waiting)
    # And if it comes now, it is too late: that is certain.
    late = Push(QUEUES[0], [JobSpec(b"1", job_id="n")], Permit(clock, clock.steady_ms() + 1, (held.reservation.ticket,)))
    with pytest.raises(NameContested):
        await fleet.engines[0].run(late)
    assert (await push(fleet, queue=QUEUES[0], job_id="n")).id == job.id
    assert fleet.store.totals().waiting == 1


async def test_a_push_on_the_same_shard_goes_on_where_another_broke_off(fleet: ShardedEngine) -> None:
    home = fleet.engines[home_of("default", "n", 3)]
    await home.run(Reserve([NameRequest("default", "n", 0)]))
    assert shard_of((await push(fleet, queue=QUEUES[0], job_id="n")).id) == 0


async def test_a_push_whose_ticket_is_withdrawn_under_way_tries_again(
    fleet: ShardedEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, somebody else is given the name, and both end with one job."""
    engine = fleet.engines[0]
    slow, go_on = engine.run, asyncio.Event()

    async def later(command: Any) -> Any:
        await go_on.wait()
        return await slow(command)

    monkeypatch.setattr(
        engine, "run", lambda command: asyncio.ensure_future(later(command)) if isinstance(command, Push) else slow(command)
    )
    one = asyncio.ensure_future(push(fleet, queue=QUEUES[0], job_id="n"))
    await yield_to_loop()
    other = await in_time(clock, push(fleet, queue=QUEUES[1], job_id="n"))
    go_on.set()
    assert (await in_time(clock, one)).id == other.id
    assert fleet.store.totals().waiting == 1


async def test_what_has_taken_too_long_is_found_out_again(
    fleet: ShardedEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = fleet.engines[0]
    run, pushes = engine.run, []

    async def slowly(command: Push) -> Any:
        pushes.append(command)
        if len(pushes) == 1:
            await clock.advance(limits.permit_ms + 1)
        return await run(command)

    monkeypatch.setattr(
        engine, "run", lambda command: asyncio.ensure_future(slowly(command)) if isinstance(command, Push) else run(command)
    )
    job = await in_time(clock, push(fleet, queue=QUEUES[0], job_id="n"))
    assert len(pushes) == 2
    assert fleet.store.totals().waiting == 1
    assert shard_of(job.id) == 0


async def test_without_the_home_of_a_name_only_that_name_is_refused(
    fleet: ShardedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {home_of("default", f"n{number}", 3): f"n{number}" for number in range(50)}
    down = fleet.engines[2]

    def refuse(command: Any) -> Any:
        raise StorageFailed("it is down")

    monkeypatch.setattr(down, "run", refuse)
    with pytest.raises(StorageFailed, match="Shard 2 has the reservation of this jobId"):
        await push(fleet, queue=QUEUES[0], job_id=names[2])
    await push(fleet, queue=QUEUES[0], job_id=names[1])
    await push(fleet, queue=QUEUES[0])


async def test_names_of_jobs_that_are_gone_are_forgotten_and_no_others(fleet: ShardedEngine, clock: ManualClock) -> None:
    kept = [await push(fleet, queue=queue, job_id=f"kept-{queue.name}") for queue in QUEUES]
    for queue in QUEUES:
        for number in range(5):
            gone = await push(fleet, queue=queue, job_id=f"gone-{queue.name}-{number}", priority=9, flags=2)
            assert (await claim_job(fleet, queue=queue)).id == gone.id
            await ack(fleet, gone)
    sweepers = [NameRegistry(engine, fleet.engines) for engine in fleet.engines]

    async def sweep() -> set[str]:
        for sweeper in sweepers:
            sweeper.start()
            await sweeper.run_once()
            await sweeper.stop()
        return {each.name for each in await reservations(fleet)}

    assert len(await sweep()) == 3 + 15  # a push may still be under way
    await clock.advance(limits.ticket_ms + 1)
    assert await sweep() == {job.custom_id for job in kept}
    for queue in QUEUES:
        await push(fleet, queue=queue, job_id=f"gone-{queue.name}-0")
    assert fleet.store.totals().waiting == 6


async def test_reservations_are_listed_in_pages_and_removed_by_name(fleet: ShardedEngine) -> None:
    await push(fleet, queue=QUEUES[0], job_id="n")
    home = fleet.engines[home_of("default", "n", 3)]
    page = await home.run(ListNames())
    assert await home.run(ListNames(page[-1].key)) == []
    await home.run(ForgetNames(page))
    assert await home.run(ListNames()) == []
