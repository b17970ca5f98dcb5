"""Group commit: what is gathered together is committed together, and answered when it is as safe as was promised."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import OutcomeUnknown, ServerError, ShuttingDown, StorageFailed, StorageFull
from penstock.core.job import JobFlag, JobSpec
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey, StateCounts
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.transaction import SqliteTransaction
from tests.support.engines import QUEUE, ack, claim_all, claim_job, push, push_many, state

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


class SlowDisk:
    """An fdatasync that waits until it is let go, and can be told to fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Event()
        self.fails = False

    def __call__(self, _fd: int) -> None:
        self.calls += 1
        self.gate.wait(10)
        if self.fails:
            raise OSError(5, "Input/output error")


async def open_engine(tmp_path: Path, clock: ManualClock, disk: SlowDisk, durability: Durability) -> Engine:
    store = await SqliteStore.open(tmp_path / "data", clock, fdatasync=disk, ballast_bytes=0)
    return Engine(store, clock, durability=durability)


async def close(engine: Engine, disk: SlowDisk) -> None:
    disk.fails = False
    disk.gate.set()
    await engine.close()
    await engine.store.close()


async def test_concurrent_commands_share_one_transaction(engine: Engine) -> None:
    before = engine.stats.batches
    await asyncio.gather(*(push(engine) for _ in range(100)))
    assert engine.stats.batches == before + 1


async def test_with_always_nobody_is_answered_before_the_fsync_of_its_group(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    engine = await open_engine(tmp_path, clock, disk, Durability.ALWAYS)
    first = engine.run(Push(QUEUE, [JobSpec(b"1")]))
    await yield_to_loop()
    second, third = engine.run(Push(QUEUE, [JobSpec(b"2")])), engine.run(Push(QUEUE, [JobSpec(b"3")]))
    await yield_to_loop()
    assert engine.store.totals() == StateCounts(waiting=3)  # all are committed meanwhile
    assert not any(future.done() for future in (first, second, third))
    disk.gate.set()
    await asyncio.gather(first, second, third)
    assert disk.calls == 2  # one for the first, one for all that came during it
    await close(engine, disk)


@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.NEVER])
async def test_otherwise_the_commit_is_enough_unless_the_job_is_durable(
    tmp_path: Path, clock: ManualClock, durability: Durability
) -> None:
    disk = SlowDisk()
    engine = await open_engine(tmp_path, clock, disk, durability)
    durable = engine.run(Push(QUEUE, [JobSpec(b"1", flags=JobFlag.DURABLE)]))
    plain = engine.run(Push(QUEUE, [JobSpec(b"2")]))
    await plain
    assert not durable.done()
    disk.gate.set()
    await durable
    await close(engine, disk)


async def test_with_interval_the_disk_is_synced_soon_after_and_only_then(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    disk.gate.set()
    engine = await open_engine(tmp_path, clock, disk, Durability.INTERVAL)
    for _ in range(5):
        await push(engine)
    assert disk.calls == 0
    await clock.advance(100)
    while disk.calls == 0:
        await asyncio.sleep(0.01)
    await clock.advance(60_000)
    assert disk.calls == 1
    await close(engine, disk)


async def test_a_failed_fsync_answers_nobody_of_its_group_and_stops_all_writes(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    engine = await open_engine(tmp_path, clock, disk, Durability.ALWAYS)
    disk.fails = True
    waiting = [engine.run(Push(QUEUE, [JobSpec(b"1")]))]
    await yield_to_loop()
    waiting.append(engine.run(Push(QUEUE, [JobSpec(b"2")])))
    await yield_to_loop()
    disk.gate.set()
    for future in waiting:
        with pytest.raises(OutcomeUnknown, match="may or may not have happened"):
            await future
    with pytest.raises(StorageFailed, match="nothing was stored"):
        await push(engine)
    assert engine.store.status().error is not None
    disk.fails = False
    assert await engine.store.recover()
    assert (await push(engine)).state == State.WAITING
    await close(engine, disk)


async def test_a_store_that_keeps_failing_is_not_recovered(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    disk.gate.set()
    engine = await open_engine(tmp_path, clock, disk, Durability.ALWAYS)
    job = await push(engine)
    disk.fails = True
    with pytest.raises(OutcomeUnknown):
        await push(engine)
    assert not await engine.store.recover()
    with pytest.raises(StorageFailed):
        await ack(engine, job)
    disk.fails = False
    assert await engine.store.recover()
    await claim_job(engine)
    assert await ack(engine, job) is None
    await close(engine, disk)


async def test_one_bad_command_of_a_batch_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [engine.run(Push(QUEUE, [JobSpec(b"good")])) for _ in range(3)]
    bad = engine.run(Push(QUEUE, [JobSpec(b"bad", priority=2**70)]))  # does not fit into the store
    good += [engine.run(Push(QUEUE, [JobSpec(b"good")])) for _ in range(3)]
    with pytest.raises(ServerError):
        await bad
    assert len({job.id for (job,) in await asyncio.gather(*good)}) == 6
    assert engine.store.totals() == StateCounts(waiting=6)
    assert engine.stats.pushed == 6


async def test_waiting_callers_survive_a_batch_that_fails(engine: Engine) -> None:
    from penstock.engine.jobs.claim import Claim

    waiting = engine.run(Claim(QUEUE, wait_ms=60_000))
    await yield_to_loop()
    bad = engine.run(Push(QUEUE, [JobSpec(b"bad", priority=2**70)]))
    good = engine.run(Push(QUEUE, [JobSpec(b"good")]))
    with pytest.raises(ServerError):
        await bad
    (job,) = await good
    assert [delivery.job.id for delivery in await waiting] == [job.id]


async def test_an_error_of_sqlite_itself_stops_writes_until_recovery(
    engine: Engine, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await push(engine)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.store.sqlite.transaction.SqliteTransaction._begin", _raise_io_error)
        with pytest.raises(StorageFailed):
            await push(engine)
    with pytest.raises(StorageFailed):
        await push(engine)
    assert await store.recover()
    await push(engine)
    assert await state(engine, job) is State.WAITING


def _raise_io_error(_transaction: object) -> None:
    raise apsw.IOError("disk I/O error")


async def test_closing_finishes_what_was_submitted_and_refuses_the_rest(store: SqliteStore, clock: ManualClock) -> None:
    engine = Engine(store, clock)
    engine.start()
    submitted = [engine.run(Push(QUEUE, [JobSpec(b"1")])) for _ in range(10)]
    await engine.close()
    assert all(future.done() and future.exception() is None for future in submitted)
    with pytest.raises(ShuttingDown):
        await push(engine)


async def test_what_was_answered_is_there_after_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    store = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0)
    engine = Engine(store, clock)
    jobs = await push_many(engine, 10)
    first = await claim_job(engine)
    await ack(engine, first, b"1")
    second = await claim_job(engine)
    await engine.close()
    await store.close()
    store = await SqliteStore.open(tmp_path / "data", clock, ballast_bytes=0)
    engine = Engine(store, clock, durability=Durability.NEVER)
    assert store.totals() == StateCounts(waiting=8, active=1, completed=1)
    assert await ack(engine, second, token=second.token) is None  # leases outlive the server
    assert (await push(engine)).id > jobs[-1].id
    await engine.close()
    await store.close()


async def test_with_interval_what_is_committed_during_a_sync_is_synced_by_the_next(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = SlowDisk()
    engine = await open_engine(tmp_path, clock, disk, Durability.INTERVAL)
    await push(engine)
    await clock.advance(100)
    while disk.calls == 0:
        await asyncio.sleep(0.01)
    await push(engine)  # committed after the first fsync began
    await clock.advance(100)  # the alarm for it rings while that one still runs
    disk.gate.set()
    while disk.calls == 1:
        await asyncio.sleep(0.01)
    await close(engine, disk)


async def test_who_waits_for_an_end_is_not_told_before_it_is_on_disk(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    disk.gate.set()
    engine = await open_engine(tmp_path, clock, disk, Durability.ALWAYS)
    job = await push(engine)
    await claim_job(engine)
    disk.gate.clear()
    waiting = asyncio.ensure_future(engine.result_waiters.wait("default", job.id, 60_000))
    await yield_to_loop()
    acked = asyncio.ensure_future(ack(engine, job, b"1"))
    await yield_to_loop()
    assert await state(engine, job) is State.COMPLETED  # committed
    assert not waiting.done()
    assert not acked.done()
    disk.gate.set()
    assert await waiting == (True, b"1")
    assert await acked is None
    await close(engine, disk)


async def test_what_writes_nothing_needs_no_fsync_but_waits_for_one_under_way(tmp_path: Path, clock: ManualClock) -> None:
    disk = SlowDisk()
    disk.gate.set()
    engine = await open_engine(tmp_path, clock, disk, Durability.ALWAYS)
    job = await push(engine, job_id="mine")
    calls = disk.calls
    assert await claim_all(engine, queue=QueueKey("default", "empty")) == []
    assert (await push(engine, job_id="mine")).id == job.id
    assert disk.calls == calls
    disk.gate.clear()
    first = engine.run(Push(QUEUE, [JobSpec(b"1", job_id="other")]))
    await yield_to_loop()
    second = engine.run(Push(QUEUE, [JobSpec(b"1", job_id="other")]))  # finds the first, which is not on disk yet
    await yield_to_loop()
    assert not first.done()
    assert not second.done()
    disk.gate.set()
    assert (await first)[0].id == (await second)[0].id
    await close(engine, disk)


async def test_a_lease_begins_when_the_transaction_does_not_when_it_was_asked_for(
    engine: Engine, store: SqliteStore, clock: ManualClock
) -> None:
    await push(engine)
    store.checkpointer.finishing = True
    store.checkpointer._done.clear()
    claiming = asyncio.ensure_future(claim_job(engine, lease_ms=1_000))
    await yield_to_loop()
    await clock.advance(3_000)
    store.checkpointer.finishing = False
    store.checkpointer._done.set()
    job = await claiming
    assert job.lease_until == clock.steady_ms() + 1_000


async def test_the_ack_that_finds_the_disk_full_is_taken_from_the_reserve(
    engine: Engine, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await push(engine)
    await claim_job(engine)
    commit, failures = SqliteTransaction._commit, iter([apsw.FullError("database or disk is full")])

    def full_once(self: SqliteTransaction) -> None:
        for error in failures:
            raise error
        commit(self)

    monkeypatch.setattr(SqliteTransaction, "_commit", full_once)
    assert await ack(engine, job) is None
    assert store.status().full
    with pytest.raises(StorageFull):
        await push(engine)
