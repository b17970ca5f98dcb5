"""Consumer groups in the engine: what is interrupted, what comes too late, what is forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.bulk_records import EntryKind, Epoch, SliceRef
from penstock.core.clock import yield_to_loop
from penstock.core.errors import EpochOver, EpochUnknown, TooMany
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.engine.bulk.consumer_groups import ConsumerGroups, GroupClaim, _Claimed
from penstock.engine.bulk.epoch_commands import BeginSettling, RecordEpoch, SettleSlice, SliceOutcome
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.store.contract import Search
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.api import EngineApi
    from penstock.engine.engine import Engine
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio

MAIL = QueueKey("default", "mail")
NAME = ("default", "g", 1)


def wish(most: int = 10, lease_ms: int = 60_000, wait_ms: int = 0, queues: tuple[str, ...] = ("mail",)) -> GroupClaim:
    return GroupClaim(queues, most, lease_ms, wait_ms)


async def fill(engine: EngineApi, count: int, flags: int = 0, queue: QueueKey = MAIL) -> None:
    await engine.run(Push(queue, [JobSpec(b"%d" % number, flags=flags) for number in range(count)]))


async def held(groups: ConsumerGroups, number: int) -> list[int]:
    """Return the jobs of an epoch that are the group's."""
    found: list[int] = []
    for each in await groups.read("default", "g", number, 0, 1):
        jobs, tokens = await groups._leases("default", "g", number, each.ref)
        fetched = await groups._fetch(jobs)
        found += [int(fetched[job].id) for job, token in zip(jobs, tokens, strict=True) if fetched[job].token == token]
    return found


@pytest.mark.parametrize("flags", [0, JobFlag.REMOVE_ON_COMPLETE])
async def test_an_acknowledgement_that_was_interrupted_is_finished_by_the_next(
    engine: Engine, flags: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "epoch_slice_jobs", 2)
    groups = ConsumerGroups(engine)
    await fill(engine, 5, flags)
    epoch = await groups.claim("default", "g", 1, wish())
    assert len(epoch.slices) == 3
    await engine.run(BeginSettling("default", "g", 1))
    for each in epoch.slices[:2]:
        await engine.run(SettleSlice(NAME, each.number, SliceOutcome.ACK))  # then the server died
    with pytest.raises(EpochUnknown):
        await groups.read("default", "g", 1, 0, 1)
    assert await groups.ack("default", "g", 1) == (5, 0)
    assert await groups.ack("default", "g", 1) == (0, 0)


async def test_a_claim_that_comes_too_late_is_refused_and_holds_nothing(engine: Engine) -> None:
    groups = ConsumerGroups(engine)
    await fill(engine, 5)
    await groups.claim("default", "g", 1, wish(2))
    await groups.ack("default", "g", 1)
    with pytest.raises(EpochOver):
        await engine.run(RecordEpoch("default", "g", 1, ["mail"], Epoch([SliceRef(0, 1, 2)])))
    with pytest.raises(EpochOver, match="epoch 2"):
        await groups.claim("default", "g", 1, wish(2))
    assert engine.store.totals().active == 0


async def test_of_two_claims_at_two_servers_one_counts_and_the_other_gives_back(engine: Engine) -> None:
    here, there = ConsumerGroups(engine), ConsumerGroups(engine)
    await fill(engine, 10)
    epochs = await asyncio.gather(*(each.claim("default", "g", 1, wish(4)) for each in (here, there)))
    assert epochs[0] == epochs[1]
    assert (engine.store.totals().active, engine.store.totals().waiting) == (4, 6)


async def test_leases_that_run_out_are_told_and_heartbeats_prevent_it(engine: Engine, clock: ManualClock) -> None:
    groups = ConsumerGroups(engine)
    await fill(engine, 3)
    await groups.claim("default", "g", 1, wish())
    await clock.advance(50_000)
    assert await groups.heartbeat("default", "g", 60_000) == ([1], 0)
    await clock.advance(50_000)
    assert len(await held(groups, 1)) == 3
    await clock.advance(20_000)
    assert (await groups.lost("default", "g", 1)).lost == 3
    assert await groups.heartbeat("default", "g", 60_000) == ([1], 3)
    assert await groups.release("default", "g") == 0
    assert (await groups.claim("default", "g", 1, wish())).rows == 3


async def test_a_claim_waits_at_all_queues(engine: Engine, clock: ManualClock) -> None:
    groups = ConsumerGroups(engine)
    claiming = asyncio.ensure_future(groups.claim("default", "g", 1, wish(wait_ms=1_000, queues=("a", "mail", "b"))))
    await yield_to_loop()
    assert engine.claim_waiters.size == 3
    await fill(engine, 5)
    assert (await claiming).rows == 5
    assert engine.claim_waiters.size == 0
    claiming = asyncio.ensure_future(groups.claim("default", "g", 2, wish(wait_ms=1_000)))
    await clock.advance(1_001)
    assert (await claiming).slices == []


async def test_whoever_is_gone_while_waiting_holds_nothing(engine: Engine) -> None:
    groups = ConsumerGroups(engine)
    claiming = asyncio.ensure_future(groups.claim("default", "g", 1, wish(wait_ms=1_000)))
    await yield_to_loop()
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    assert engine.claim_waiters.size == 0
    await fill(engine, 1)
    claimed = await engine.run(Claim(MAIL))
    assert len(claimed) == 1


async def test_there_are_limits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ConsumerGroups(engine)
    monkeypatch.setattr(limits, "epochs_max", 1)
    monkeypatch.setattr(limits, "groups_max", 1)
    await fill(engine, 5)
    await groups.claim("default", "g", 1, wish(1))
    with pytest.raises(TooMany, match="Acknowledge or release"):
        await groups.claim("default", "g", 2, wish(1))
    with pytest.raises(TooMany, match="consumer groups"):
        await groups.claim("default", "h", 1, wish(1))


async def test_groups_that_hold_nothing_make_room(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new checkpoint of Spark is a new group: a week of them must not lock everybody out."""
    groups = ConsumerGroups(engine)
    monkeypatch.setattr(limits, "groups_max", 3)
    await fill(engine, 5)
    await groups.claim("default", "holds", 1, wish(1))
    await groups.claim("default", "done", 1, wish(1))
    await groups.ack("default", "done", 1)
    await groups.claim("default", "idle", 1, wish(queues=("empty",)))
    with pytest.raises(TooMany, match="consumer groups in use"):
        await groups.claim("default", "new", 1, wish(1))
    clock.jump_wall(limits.group_idle_ms)
    await groups.claim("default", "idle", 1, wish(1))  # lives
    clock.jump_wall(1)
    await groups.claim("default", "new", 1, wish(1))
    assert [each.group for each in await groups.statuses(None)] == ["holds", "idle", "new"]
    assert (await groups.claim("default", "holds", 1, wish(1))).rows == 1
    assert await groups.ack("default", "done", 1) == (0, 0)  # a stream that comes back goes on with its next number


async def test_groups_that_are_gone_are_forgotten(engine: Engine, clock: ManualClock) -> None:
    groups = ConsumerGroups(engine)
    await fill(engine, 5)
    await groups.claim("default", "g", 1, wish(2))
    (status,) = await groups.statuses("default")
    assert (status.epochs, status.in_flight, status.lag, status.queues) == ([1], 2, 3, ["mail"])
    assert await groups.statuses("other") == []
    clock.jump_wall(limits.group_kept_ms - 1)
    await groups.run_once()
    assert len(await groups.statuses(None)) == 1
    clock.jump_wall(2)
    await groups.run_once()
    assert await groups.statuses(None) == []


async def test_a_group_consumes_from_all_shards(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock) as fleet:
        groups = ConsumerGroups(fleet)
        queues = tuple(f"q{number}" for number in range(9))
        for queue in queues:
            await fill(fleet, 20, queue=QueueKey("default", queue))
        epoch = await groups.claim("default", "g", 1, wish(150, queues=queues))
        assert epoch.rows == 150
        assert len(set(await held(groups, 1))) == 150
        (status,) = await groups.statuses("default")
        assert (status.in_flight, status.lag) == (150, 30)
        assert await groups.heartbeat("default", "g", 1_000) == ([1], 0)
        assert await groups.ack("default", "g", 1) == (150, 0)


async def notes(engine: EngineApi) -> int:
    """Count the slices that are noted."""
    return sum([len(await each.store.entry_list(Search(EntryKind.SLICE))) for each in engine.engines])


async def claim_without_note(groups: ConsumerGroups, most: int, lease_ms: int = 60_000) -> None:
    """Claim as a server does that dies before it has noted the epoch."""
    await groups._claim(_Claimed(*NAME), wish(most, lease_ms))


async def test_what_a_server_claimed_before_it_died_is_in_the_epoch(engine: Engine, clock: ManualClock) -> None:
    await fill(engine, 10)
    await claim_without_note(ConsumerGroups(engine), 4, 1_000)
    groups = ConsumerGroups(engine)
    epoch = await groups.claim("default", "g", 1, wish(6))
    assert (epoch.rows, len(epoch.slices)) == (6, 2)
    assert (engine.store.totals().active, engine.store.totals().waiting) == (6, 4)
    await clock.advance(30_000)  # the leases are as long as whoever asked last wants them
    assert await groups.ack("default", "g", 1) == (6, 0)
    assert await notes(engine) == 0


async def test_what_has_lapsed_meanwhile_is_claimed_again(engine: Engine, clock: ManualClock) -> None:
    await fill(engine, 4)
    await claim_without_note(ConsumerGroups(engine), 4, 1_000)
    await clock.advance(2_000)
    groups = ConsumerGroups(engine)
    assert (await groups.claim("default", "g", 1, wish(10))).rows == 4
    assert await groups.ack("default", "g", 1) == (4, 0)
    assert await notes(engine) == 0


async def test_what_nobody_asks_for_again_is_given_back(engine: Engine, clock: ManualClock) -> None:
    await fill(engine, 10)
    groups = ConsumerGroups(engine)
    await claim_without_note(groups, 4)
    assert await groups.release("default", "g") == 4
    await claim_without_note(groups, 4)
    await groups.claim("default", "g", 2, wish(2))
    await groups.run_once()
    assert engine.store.totals().active == 6
    clock.jump_wall(limits.slice_stray_ms + 1)
    await groups.run_once()
    assert engine.store.totals().active == 2
    assert await notes(engine) == 1


async def test_a_heartbeat_writes_only_when_half_of_the_lease_is_over(engine: Engine, clock: ManualClock) -> None:
    groups = ConsumerGroups(engine)
    await fill(engine, 3)
    await groups.claim("default", "g", 1, wish())
    for written, ms in ((False, 20_000), (True, 20_000), (False, 20_000), (True, 20_000)):
        await clock.advance(ms)
        assert await groups.heartbeat("default", "g", 60_000) == ([1], 0)
        (job, *_) = (await groups._fetch(await held(groups, 1))).values()
        assert (job.lease_until == clock.steady_ms() + 60_000) is written


async def test_a_job_with_a_damaged_payload_is_put_aside_once_it_is_read(engine: Engine, store: SqliteStore) -> None:
    groups = ConsumerGroups(engine)
    await fill(engine, 3)
    await groups.claim("default", "g", 1, wish())
    damaged = (await held(groups, 1))[1]
    store.db.execute("update payloads set data = x'00' where id = ?", (damaged,))
    await groups.examine([damaged])
    assert store.status().quarantined == 1
    assert (await groups.lost("default", "g", 1)).lost == 1
    assert await groups.ack("default", "g", 1) == (2, 1)


async def test_what_was_noted_on_a_shard_that_is_no_more_is_lost(engine: Engine) -> None:
    groups = ConsumerGroups(engine)
    await engine.run(RecordEpoch(*NAME, ["mail"], Epoch([SliceRef(1, 5, 7)])))
    assert [each.ref.shard for each in await groups.read(*NAME, 0, 1)] == [1]
    assert (await groups.lost(*NAME)).lost == 7
    assert await groups.heartbeat("default", "g", 60_000) == ([1], 7)
    assert await groups.ack(*NAME) == (0, 7)
