"""The enqueue buffer: what an early answer is worth when something crashes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
import pytest

from penstock.core import limits
from penstock.core.clock import SystemClock
from penstock.core.errors import NamespaceLimit, QueueFull, StorageFailed, StoreIncompatible, StoreLocked, TooMany
from penstock.core.events import EventKind
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.core.pool_shares import Shares
from penstock.engine.buffer.commands import StoreRecords
from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.queues.admin import Configure
from penstock.store.enqueue_log import EnqueueLog, LogRecord
from penstock.store.postgres import PostgresStore
from penstock.store.redis import BufferCopies, RedisLink
from tests.support.engines import QUEUE, ack, claim, claim_all, claim_job, push, push_many, state, stored
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from tests.support.redis import OwnRedis

pytestmark = pytest.mark.anyio

ID = "0" * 36
OTHERS = QUEUE._replace(namespace="others")


@asynccontextmanager
async def engine_on(url: str, redis: str, data: Path) -> AsyncIterator[Engine]:
    """An engine with a buffer, as a server would have it."""
    clock = SystemClock()
    store = await PostgresStore.open(url, clock)
    link = RedisLink(redis, clock)
    copies = BufferCopies(link, lambda: store.identity)
    engine = Engine(store, store.clock, buffer=lambda engine: EnqueueBuffer(engine, data, lambda: store.identity, copies))
    await buffer_of(engine).open()
    engine.start()
    await buffer_queue(engine, QUEUE)
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()
        await link.close()


def buffer_of(engine: Engine) -> EnqueueBuffer:
    assert engine.buffer is not None
    return engine.buffer


def copies_of(engine: Engine) -> BufferCopies:
    copies = buffer_of(engine).copies
    assert copies is not None
    return copies


async def buffer_queue(engine: Engine, queue: QueueKey) -> None:
    """Put a queue in buffered mode."""
    await engine.run(
        Configure(queue, EventKind.CONFIG_MODE_CHANGED, lambda settings: msgspec.structs.replace(settings, buffered=True))
    )


async def flushed(engine: Engine) -> None:
    """Wait until everything that was promised is stored."""
    async with asyncio.timeout(60):
        while buffer_of(engine).jobs:
            await asyncio.sleep(0.01)


async def copied(engine: Engine, count: int) -> tuple[EnqueueLog, list[LogRecord]]:
    """Wait until so many records of a log are in Redis, too."""
    wal = buffer_of(engine).enqueue_log
    assert wal is not None
    async with asyncio.timeout(60):
        while len(records := await copies_of(engine).read(wal.number, 100)) < count:
            await asyncio.sleep(0.01)
    return wal, records


def hold_back(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    """Have nothing stored."""
    patch.setattr(buffer_of(engine), "flush", lambda: None)


async def test_what_is_pushed_comes_out_in_order(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        pushed = await push_many(engine, 50)
        urgent = await push(engine, priority=3)
        later = await push(engine, delay=3_600_000)
        await flushed(engine)
        assert [job.id for job in await claim_all(engine, 51)] == [urgent.id, *(job.id for job in pushed)]
        assert await state(engine, later) is State.DELAYED
        found = await stored(engine, pushed[0])
        assert found is not None
        assert found.created_at == pushed[0].created_at


async def test_one_push_over_several_queues(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        direct = QUEUE._replace(name="direct")
        new = JobSpec(b"1")
        first, second = await engine.run(PushAcross([(QUEUE, [new, new]), (QUEUE, [new])], engine.clock.now_ms()))
        await flushed(engine)
        assert [job.id for job in await claim_all(engine)] == [job.id for job in [*first, *second]]
        (jobs,) = await engine.run(PushAcross([(direct, [new])], engine.clock.now_ms()))
        assert await state(engine, jobs[0]) is State.WAITING  # at once


async def test_what_has_a_name_is_stored_directly(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        hold_back(engine, monkeypatch)
        named = await push(engine, job_id="mine")
        assert await state(engine, named) is State.WAITING
        assert (await push(engine, job_id="mine")).id == named.id
        durable = await push(engine, flags=8)
        assert await state(engine, durable) is State.WAITING
        assert buffer_of(engine).jobs == 0


async def die(engine: Engine, patch: pytest.MonkeyPatch) -> list[JobRecord]:
    """Promise something, and end without storing it, as a crash would."""
    hold_back(engine, patch)
    promised = await push_many(engine, 20)
    assert [await stored(engine, job) for job in promised[:2]] == [None, None]
    return promised


async def test_a_server_that_crashed_keeps_its_word_when_it_is_back(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        with monkeypatch.context() as patch:
            promised = await die(engine, patch)
    redis.client().flushall()  # nobody else knows
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await flushed(engine)
        assert [job.id for job in await claim_all(engine)] == [job.id for job in promised]


async def test_another_server_keeps_it_if_that_one_stays_away(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path / "a") as a:
        with monkeypatch.context() as patch:
            promised = await die(a, patch)
            gone, _ = await copied(a, 1)
    async with engine_on(shard, redis.url, tmp_path / "b") as b:
        await buffer_of(b).adopt(gone.number)
        jobs = await claim_all(b)
        assert [job.id for job in jobs] == [job.id for job in promised]
        for job in jobs:
            assert await ack(b, job, token=job.token) is None
    async with engine_on(shard, redis.url, tmp_path / "a") as a:  # it is back, and finds all of it in its log
        await flushed(a)
        assert await claim(a) is None
        assert await state(a, promised[0]) is State.COMPLETED


def keep_logs(patch: pytest.MonkeyPatch) -> None:
    """Have nothing removed from logs, as if servers had crashed before they got to it."""
    close = EnqueueLog.close

    async def keep(wal: EnqueueLog, *, is_stored: bool = False) -> None:
        await close(wal)

    patch.setattr(EnqueueLog, "close", keep)
    patch.setattr(EnqueueLog, "forget", lambda _self, _number: None)


async def test_what_was_removed_since_is_not_brought_back(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the log was not shortened: how far it is stored is known by the database."""
    async with engine_on(shard, redis.url, tmp_path) as engine:
        keep_logs(monkeypatch)
        promised = await engine.run(Push(QUEUE, [JobSpec(b"1", flags=2)] * 5))  # gone when acknowledged
        await flushed(engine)
        for job in await claim_all(engine):
            assert await ack(engine, job, token=job.token) is None
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await flushed(engine)
        assert await claim(engine) is None
        assert await stored(engine, promised[0]) is None


async def test_a_gap_in_the_copies_is_left_to_the_owner(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path / "a") as a:
        with monkeypatch.context() as patch:
            hold_back(a, patch)
            first, second = await push(a), await push(a)
            gone, _ = await copied(a, 2)
    async with engine_on(shard, redis.url, tmp_path / "b") as b:
        await copies_of(b).forget(gone.number, 1)
        await buffer_of(b).adopt(gone.number)
        assert await claim(b) is None
    async with engine_on(shard, redis.url, tmp_path / "a") as a:
        await flushed(a)
        assert [job.id for job in await claim_all(a)] == [first.id, second.id]


async def test_two_who_store_the_same_log_store_it_once(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path / "a") as a, engine_on(shard, redis.url, tmp_path / "b") as b:
        hold_back(a, monkeypatch)
        promised = await push_many(a, 30)
        wal, records = await copied(a, 1)
        stored_up_to = await asyncio.gather(*(each.run(StoreRecords(wal.number, records)) for each in (a, b, a, b)))
        assert set(stored_up_to) == {records[-1].number}
        assert [job.id for job in await claim_all(b)] == [job.id for job in promised]


async def test_the_database_may_be_away_for_a_while(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        assert isinstance(engine.store, PostgresStore)
        await push(engine)
        await flushed(engine)
        engine.store.lost(StorageFailed("a test"))
        pushed = await push_many(engine, 10)  # answered all the same
        await flushed(engine)  # by itself
        assert [job.id for job in await claim_all(engine)][1:] == [job.id for job in pushed]


async def test_what_is_in_the_log_is_answered_whatever_is_known_of_its_queue_by_then(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        wal = buffer_of(engine).enqueue_log
        assert wal is not None
        append = wal.append

        def lose_the_catalog(body: bytes) -> tuple[int, asyncio.Future[None]]:
            monkeypatch.setattr(engine.store, "queue_find", lambda _key: None)  # as when the connection is lost
            return append(body)

        monkeypatch.setattr(wal, "append", lose_the_catalog)
        job = await push(engine)
        monkeypatch.undo()
        await flushed(engine)
        assert (await claim_job(engine)).id == job.id


async def test_a_full_buffer_says_so(shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        with monkeypatch.context() as patch:
            hold_back(engine, patch)
            patch.setattr(limits, "buffer_jobs_max", 10)
            await push_many(engine, 8)
            with pytest.raises(TooMany, match="buffer is full"):
                await push_many(engine, 3)
            await push_many(engine, 2)


async def test_a_namespace_with_its_share_of_the_buffer_leaves_room_for_others(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await buffer_queue(engine, OTHERS)
        engine.limit_namespaces(Shares(lambda: True))
        with monkeypatch.context() as patch:
            hold_back(engine, patch)
            patch.setattr(limits, "buffer_jobs_max", 10)
            await push_many(engine, 5)
            with pytest.raises(NamespaceLimit, match="buffered jobs"):
                await push(engine)
            await push_many(engine, 2, queue=OTHERS)
            patch.setattr(limits, "buffer_jobs_max", 100)
            patch.setattr(limits, "buffer_bytes_max", 4_000)
            await push(engine, data=b"1" * 1_500)
            with pytest.raises(NamespaceLimit, match="buffered bytes"):
                await push(engine)
            await push(engine, queue=OTHERS)


async def test_pushes_in_bulk_of_a_namespace_are_not_stored_before_those_of_others(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await buffer_queue(engine, OTHERS)
        engine.fair_share.shared = True
        with monkeypatch.context() as patch:
            hold_back(engine, patch)
            many = [asyncio.ensure_future(push_many(engine, 100)) for _ in range(40)]
            await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
            await push(engine, queue=OTHERS)
            assert buffer_of(engine).jobs <= limits.buffer_ahead_weight + 100 + 1
            assert not all(each.done() for each in many)
            many[-1].cancel()
        buffer_of(engine).flush()
        pushed = [job.id for jobs in await asyncio.gather(*many[:-1]) for job in jobs]
        await flushed(engine)
        taken = [job.id for job in await claim_all(engine)]
        assert taken == pushed[: len(taken)]


async def test_bulk_pushes_do_not_wait_for_a_database_that_fails(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        assert isinstance(engine.store, PostgresStore)
        engine.fair_share.shared = True
        await push(engine)
        await flushed(engine)
        engine.store.lost(StorageFailed("a test"))
        await asyncio.gather(*(push_many(engine, 100) for _ in range(20)))
        await flushed(engine)


async def test_one_transaction_stores_no_more_of_the_log_than_a_batch_may_have(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        buffer, weights = buffer_of(engine), []
        store = buffer._store

        async def weigh(log_number: int, records: list[LogRecord], *, cost: int = 1, is_all: bool = False) -> int:
            weights.append((StoreRecords(log_number, records, cost=cost).weight(), len(records)))
            return await store(log_number, records, cost=cost, is_all=is_all)

        with monkeypatch.context() as patch:
            hold_back(engine, patch)
            await asyncio.gather(*(push_many(engine, 1_000) for _ in range(10)))
        monkeypatch.setattr(buffer, "_store", weigh)
        buffer.flush()
        await flushed(engine)
        assert sum(weight for weight, _ in weights) >= 10_000
        assert all(weight <= limits.batch_weight_max for weight, _ in weights)


def push_within(engine: Engine, room: int, count: int = 1, **options: Any) -> asyncio.Future[list[JobRecord]]:
    """Push to a queue that may hold so many jobs, as the messages door does."""
    return engine.run(Push(QUEUE, [JobSpec(b"1", **options)] * count, room=room))


async def test_what_is_promised_takes_up_room(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        for _ in range(3):
            await push_within(engine, 3)
        with pytest.raises(QueueFull):
            await push_within(engine, 3)
        with pytest.raises(QueueFull):
            await push_within(engine, 3, job_id="named")  # which is never promised
        await push_within(engine, 3, delay=3_600_000)  # which takes up no room
        job = await claim_job(engine)
        with pytest.raises(QueueFull):
            await push_within(engine, 3)
        assert await ack(engine, job, token=job.token) is None
        await push_within(engine, 3)
        with pytest.raises(QueueFull):
            await push_within(engine, 3)
        await flushed(engine)
        assert len(await claim_all(engine)) == 3


async def test_pushes_that_come_together_share_the_room(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        answers = await asyncio.gather(*(push_within(engine, 10, count=3) for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(each, list) for each in answers) == 3
        assert sum(isinstance(each, QueueFull) for each in answers) == 5
        await flushed(engine)
        assert len(await claim_all(engine)) == 9


async def test_with_plenty_of_room_pushes_are_answered_early(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        with monkeypatch.context() as patch:
            hold_back(engine, patch)
            (job,) = await push_within(engine, 100)
            assert await stored(engine, job) is None
        await flushed(engine)


async def test_without_the_database_nobody_can_tell_whether_there_is_room(
    shard: str, redis: OwnRedis, tmp_path: Path
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        assert isinstance(engine.store, PostgresStore)
        engine.store.lost(StorageFailed("a test"))
        await push_within(engine, 2, count=2)  # there is, as far as this server knows
        with pytest.raises((StorageFailed, QueueFull)):  # full if the server has found the database again by then
            await push_within(engine, 2)
        await flushed(engine)  # by itself
        assert len(await claim_all(engine)) == 2


async def test_the_messages_door_keeps_the_capacity_of_a_buffered_queue(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    env = {"PENSTOCK_STORES": shard, "PENSTOCK_REDIS": redis.url}
    with ServerProcess(tmp_path / "data", env=env) as server:
        async with server.async_client() as http:
            path, message = "/namespaces/shop/queues/orders", {"body": "eA=="}
            assert (await http.post("/namespaces", json={"name": "shop"})).status_code == 201
            assert (await http.post(path, json={"max_messages": 3})).status_code == 201
            buffered = await http.put("/queues/orders/mode", json={"mode": "buffered"}, headers={"X-Namespace": "shop"})
            assert buffered.status_code == 200
            answers = [await http.post(f"{path}/messages", json=message) for _ in range(5)]
            assert [answer.status_code for answer in answers] == [201, 201, 201, 429, 429]
            assert "at capacity (3 messages)" in answers[-1].text
            (taken,) = (await http.get(f"{path}/messages?n=1")).json()["messages"]
            assert (await http.post(f"{path}/messages", json=message)).status_code == 429  # in flight counts
            assert (await http.delete(f"/messages/{taken['receipt_handle']}")).status_code == 204
            assert (await http.post(f"{path}/messages", json=message)).status_code == 201


async def test_without_redis_the_log_is_enough(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        redis.kill()
        pushed = await push_many(engine, 10)
        await flushed(engine)
        assert [job.id for job in await claim_all(engine)] == [job.id for job in pushed]


async def test_a_redis_without_memory_does_not_show_a_server_as_gone(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await push(engine)
        await flushed(engine)
        log_number = log_of(engine).number
        redis.client().config_set("maxmemory", "1")
        await buffer_of(engine).show_life()
        (owner,) = redis.client().keys(f"penstock:*:owner:{log_number}")
        redis.client().pexpire(owner, 5_000)
        await buffer_of(engine).show_life()
        assert redis.client().pttl(owner) > 5_000
        pushed = await push_many(engine, 10)
        await flushed(engine)
        assert [job.id for job in await claim_all(engine)][1:] == [job.id for job in pushed]


def log_of(engine: Engine) -> EnqueueLog:
    wal = buffer_of(engine).enqueue_log
    assert wal is not None
    return wal


async def test_when_the_log_cannot_be_written_pushes_are_stored_directly(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_on(shard, redis.url, tmp_path) as engine:

        def broken(_self: EnqueueLog, _data: bytes) -> None:
            raise OSError("no more room")

        monkeypatch.setattr(EnqueueLog, "_put", broken)
        with pytest.raises(Exception, match="may or may not"):
            await push(engine)
        job = await push(engine)
        assert await state(engine, job) is State.WAITING


async def test_a_database_that_knows_less_of_a_log_than_its_owner(shard: str, redis: OwnRedis, tmp_path: Path) -> None:
    """Such as one that was restored: what is in the log is stored, and nobody waits for what is gone."""
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await push_many(engine, 3)
        await push(engine)
        await flushed(engine)
        await forget(shard, "update wals set stored = 0")
        job = await push(engine)
        await flushed(engine)
        assert await state(engine, job) is State.WAITING


async def test_a_database_that_knows_more_of_a_log_than_its_owner(
    shard: str, redis: OwnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose owner got an old copy of its disk: its next numbers were used already."""
    keep_logs(monkeypatch)
    async with engine_on(shard, redis.url, tmp_path) as engine:
        await push(engine)
        await flushed(engine)
    await forget(shard, "update wals set stored = 1000")
    async with engine_on(shard, redis.url, tmp_path) as engine:
        pushed = await push_many(engine, 3)
        await flushed(engine)
        assert [await state(engine, job) for job in pushed] == [State.WAITING] * 3


async def forget(shard: str, statement: str) -> None:
    db = await asyncpg.connect(shard, server_settings={"search_path": "penstock"})
    assert await db.execute(statement) == "UPDATE 1"
    await db.close()


async def test_while_the_disk_of_the_log_is_full_pushes_are_stored_directly_and_what_was_promised_is_kept(
    shard: str, redis: OwnRedis, tmp_path: Path
) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs more rights than we have")
    try:
        async with engine_on(shard, redis.url, disk / "log") as engine:
            buffer = buffer_of(engine)
            assert buffer.enqueue_log is not None
            for _ in range(30):  # more than there is room for
                job = await push(engine, data=b"x" * 100_000)
                if buffer.enqueue_log.failure is not None:
                    break
            assert await state(engine, job) is State.WAITING, "the one that found no room was stored"
            with pytest.raises(StorageFailed, match="No space left"):
                buffer.enqueue_log.append(b"")
            await flushed(engine)
            remount = ["mount", "-o", "remount,size=256m", str(disk)]
            subprocess.run(remount, check=True)
            async with asyncio.timeout(60):
                while buffer.enqueue_log.failure is not None:
                    await asyncio.sleep(0.01)
            before = buffer.last_number
            await push(engine)
            assert buffer.last_number == before + 1, "it is used again"
            await flushed(engine)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# The log by itself.


def open_log(
    directory: Path, identity: str = ID, *, stored: int = 0, accept_loss: bool = False
) -> tuple[EnqueueLog, list[LogRecord]]:
    """Open a log as a start does. ``stored``: up to which number a database has it."""
    wal, left = EnqueueLog.open(directory, identity, SystemClock())
    try:
        wal.check(stored, accept_loss=accept_loss)
    except BaseException:
        wal._lock.release()
        raise
    wal.begin()
    return wal, left


async def test_a_log_on_a_full_disk_is_opened_and_can_be_stored(tmp_path: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs more rights than we have")
    try:
        wal, _ = open_log(disk / "log")
        await wal.append(b"x" * 50)[1]
        await wal.close()
        with (disk / "filler").open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4_096)
        wal, left = open_log(disk / "log")
        assert [record.body for record in left] == [b"x" * 50]
        with pytest.raises(StorageFailed, match="No space left"):
            wal.append(b"y")
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        wal.revive()
        await wal.append(b"z")[1]
        await wal.close()
        wal, left = open_log(disk / "log")
        assert [record.body for record in left] == [b"x" * 50, b"z"]
        await wal.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_file_that_cannot_be_made_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wal, _ = open_log(tmp_path)
    monkeypatch.setattr(limits, "enqueue_log_file_bytes", 10)

    def full(_self: EnqueueLog) -> tuple[int, Path]:
        raise OSError("no more room")

    monkeypatch.setattr(EnqueueLog, "_make_file", full)
    await wal.append(b"x" * 50)[1]  # it is durable, whatever comes next
    async with asyncio.timeout(60):
        while wal.failure is None:
            await asyncio.sleep(0.01)
    with pytest.raises(StorageFailed):
        wal.append(b"y")
    await wal.close()
    monkeypatch.undo()
    wal, left = open_log(tmp_path)
    assert [record.body for record in left] == [b"x" * 50]
    await wal.close()


async def test_a_log_is_read_back(tmp_path: Path) -> None:
    wal, left = open_log(tmp_path)
    assert left == []
    waiting = [wal.append(str(n).encode()) for n in range(100)]
    await asyncio.gather(*(durable for _, durable in waiting))
    with pytest.raises(StoreLocked):
        open_log(tmp_path)
    await wal.close()
    wal, left = open_log(tmp_path)
    assert [(record.number, record.body) for record in left] == [(n + 1, str(n).encode()) for n in range(100)]
    wal.forget(100)
    await wal.close()
    wal, left = open_log(tmp_path)
    assert left == []
    number, durable = wal.append(b"next")
    assert number == 101
    await durable
    await wal.close()
    with pytest.raises(StoreIncompatible, match="another database"):
        open_log(tmp_path, "1" * 36)


async def unanswered(directory: Path) -> bytes:
    """Return the bytes of a fourth record, as a server writes them before it syncs and answers."""
    wal, _ = open_log(directory)
    await asyncio.gather(*(wal.append(b"x" * 5)[1] for _ in range(4)))
    await wal.close()
    (path,) = directory.glob("*.wal")
    return path.read_bytes()[-21:]


@pytest.mark.parametrize("cut", [1, 3, 10, 17])
async def test_a_torn_end_that_was_never_answered_is_cut_off(tmp_path: Path, cut: int) -> None:
    fourth = await unanswered(tmp_path / "other")
    log = tmp_path / "log"
    wal, _ = open_log(log)
    await asyncio.gather(*(wal.append(b"x" * 5)[1] for _ in range(3)))
    await wal.close()
    (path,) = log.glob("*.wal")
    path.write_bytes(path.read_bytes() + fourth[:-cut])
    wal, left = open_log(log)
    assert [record.number for record in left] == [1, 2, 3]
    number, durable = wal.append(b"again")
    await durable
    await wal.close()
    assert number == 4
    wal, left = open_log(log)
    assert [record.body for record in left] == [b"x" * 5] * 3 + [b"again"]
    await wal.close()


@pytest.mark.parametrize("cut", [1, 17, 21, 42, 63, 64, 122])
async def test_a_log_behind_its_mark_is_refused_unless_the_database_has_the_rest(tmp_path: Path, cut: int) -> None:
    wal, _ = open_log(tmp_path)
    await asyncio.gather(*(wal.append(b"x" * 5)[1] for _ in range(3)))
    await wal.close()
    (path,) = tmp_path.glob("*.wal")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    kept = max(0, 3 - -(-cut // 21))
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(StoreIncompatible, match=f"records {kept + 1} to 3 are missing, which is {3 - kept} pushes"):
        open_log(tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    wal, left = EnqueueLog.open(tmp_path, ID, SystemClock())
    assert wal.missing(3) is None  # stored, so not missed
    await wal.close()
    wal, left = open_log(tmp_path, accept_loss=True)
    assert [record.number for record in left] == list(range(1, kept + 1))
    await wal.close()
    wal, left = open_log(tmp_path)  # what was accepted once is not asked again
    assert len(left) == kept
    await wal.append(b"next")[1]
    await wal.close()
    wal, left = open_log(tmp_path)
    assert left[-1].body == b"next"
    await wal.close()


async def test_a_log_of_several_files_that_was_cut_is_refused(tmp_path: Path) -> None:
    for _ in range(3):  # each start begins a file
        wal, _ = open_log(tmp_path)
        await asyncio.gather(*(wal.append(b"x" * 5)[1] for _ in range(2)))
        await wal.close()
    wal, left = open_log(tmp_path)
    await wal.close()
    assert len(left) == 6
    files = sorted(tmp_path.glob("*.wal"))
    whole = [path.read_bytes() for path in files]
    assert len(files) == 4
    for keep in (0, 59, 80, 100):
        files[1].write_bytes(whole[1][:keep])
        with pytest.raises(StoreIncompatible, match="cut short"):
            open_log(tmp_path)
    files[1].write_bytes(whole[1])
    for keep in (0, 59, 80, 100):  # the last one has no record
        files[2].write_bytes(whole[2][:keep])
        with pytest.raises(StoreIncompatible, match=r"to 6 are missing"):
            open_log(tmp_path)
    files[2].write_bytes(whole[2])
    for path in files[:2]:  # stored
        path.rename(path.with_suffix(".stored"))
    for keep in (0, 59, 80, 100):
        files[2].write_bytes(whole[2][:keep])
        with pytest.raises(StoreIncompatible, match=r"to 6 are missing"):
            open_log(tmp_path, stored=4)
    for path in files[:2]:
        path.with_suffix(".stored").rename(path)
    files[2].write_bytes(whole[2][:80])
    wal, left = open_log(tmp_path, accept_loss=True)
    assert len(left) == 5
    await wal.append(b"next")[1]
    await wal.close()
    wal, left = open_log(tmp_path)
    assert [record.number for record in left] == [1, 2, 3, 4, 5, 6]
    assert left[-1].body == b"next"
    await wal.close()


async def test_the_mark_of_a_log_that_is_lost_and_one_that_was_closed(tmp_path: Path) -> None:
    wal, _ = open_log(tmp_path)
    await wal.append(b"x")[1]
    await wal.close()
    mark = tmp_path / "penstock.mark"
    content = mark.read_bytes()
    for damaged in (b"", bytes(8_192)):
        mark.write_bytes(damaged)
        with pytest.raises(StoreIncompatible, match=r"penstock.mark is missing or damaged"):
            open_log(tmp_path)
    mark.write_bytes(content)
    (path,) = tmp_path.glob("*.wal")
    path.write_bytes(path.read_bytes().replace(b"WAL-2", b"WAL-1"))  # made by a version without marks
    mark.unlink()
    wal, left = open_log(tmp_path)
    assert len(left) == 1
    await wal.append(b"y")[1]
    await wal.close(is_stored=True)
    assert not list(tmp_path.glob("*.wal"))
    wal, left = open_log(tmp_path)  # whatever the database knows: it may have been restored
    assert left == []
    await wal.append(b"z")[1]
    await wal.close()
    next(tmp_path.glob("*.wal")).unlink()
    with pytest.raises(StoreIncompatible, match="of another database"):
        open_log(tmp_path, "1" * 36)


async def test_damage_in_the_middle_stops_the_start(tmp_path: Path) -> None:
    wal, _ = open_log(tmp_path)
    await asyncio.gather(*(wal.append(b"x" * 50)[1] for _ in range(3)))
    await wal.close()
    (path,) = tmp_path.glob("*.wal")
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreIncompatible, match="damaged at byte"):
        open_log(tmp_path)


async def test_files_are_of_bounded_size_and_go_when_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "enqueue_log_file_bytes", 1_000)
    wal, _ = open_log(tmp_path)
    for _ in range(50):
        await wal.append(b"x" * 100)[1]
    assert len(list(tmp_path.glob("*.wal"))) > 3
    wal.forget(30)
    await wal.close()
    wal, left = open_log(tmp_path)
    assert left[-1].number == 50
    assert 20 <= left[0].number <= 31
    wal.forget(50)
    assert len(list(tmp_path.glob("*.wal"))) == 1
    wal.begin_anew()
    assert wal.append(b"new")[0] == 1
    await wal.close()
