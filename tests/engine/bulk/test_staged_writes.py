"""Staged writes in the engine: what a crash, a shard or the time does to them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from penstock.core import bulk_records, limits
from penstock.core.bulk_records import EntryKind
from penstock.core.clock import yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import CommitUnknown, InvalidInput, QuotaExceeded, StageUnknown, TooMany
from penstock.core.queue import QueueKey
from penstock.engine.bulk.staged_writes import PackedRows, StagedWrites
from penstock.engine.engine import Engine
from penstock.store.contract import Search
from penstock.store.sqlite import SqliteStore
from tests.support.engines import push
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.context import ServerContext

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stages_of(engine: ServerContext) -> AsyncIterator[StagedWrites]:
    stages = StagedWrites(engine)
    stages.start()
    await yield_to_loop()
    yield stages
    await stages.stop()


def rows(count: int, queue: str = "mail", chunk: int = 10, **columns: object) -> list[PackedRows]:
    data = [b"%d" % number for number in range(count)]
    return [
        PackedRows(queue, len(some), bulk_records.pack({"data": some, **columns}))
        for some in (data[at : at + chunk] for at in range(0, count, chunk))
    ]


def waiting(engine: ServerContext, queue: str = "mail") -> int:
    found = engine.store.queue_find(QueueKey("default", queue))
    return 0 if found is None else engine.store.counts(found).waiting


async def pass_wall(clock: ManualClock, ms: int) -> None:
    """Let much time pass by the calendar, and enough for everybody to have looked at it."""
    clock.jump_wall(ms)
    await clock.advance(limits.MINUTE_MS + limits.SECOND_MS)


async def left(engine: ServerContext) -> list[int]:
    """Count what is kept of staged writes, by kind."""
    kinds = (EntryKind.STAGE, EntryKind.DRAFT, EntryKind.DUE, EntryKind.OPEN)
    return [sum([len(await each.store.entry_list(Search(kind))) for each in engine.engines]) for kind in kinds]


async def test_nothing_is_left_of_what_is_published(engine: Engine) -> None:
    async with stages_of(engine) as stages:
        await stages.stage("default", "t", 0, rows(25))
        await stages.stage("default", "t", 1, rows(5))
        assert (await stages.commit("default", "k", ["t", "t"], 1_000)).rows == 30
        assert waiting(engine) == 30
        assert await left(engine) == [0, 0, 0, 0]
        assert (await stages.state("default", "k")).published
        with pytest.raises(CommitUnknown):
            await stages.state("other", "k")


async def test_a_commit_needs_everything_it_names(engine: Engine) -> None:
    async with stages_of(engine) as stages:
        await stages.stage("default", "t", 0, rows(5))
        await stages.stage("other", "u", 0, rows(5))
        with pytest.raises(StageUnknown, match="'u'"):
            await stages.commit("default", "k", ["t", "u"], 0)
        assert (await stages.commit("default", "k", ["t"], 1_000)).published


async def test_damaged_drafts_are_told_of_once_and_hold_up_nobody(engine: Engine, clock: ManualClock) -> None:
    with capture_logs() as told:
        async with stages_of(engine) as stages:
            count = limits.publish_ahead_chunks + 2
            for number in range(count):
                (good,) = rows(5)
                await stages.stage("default", f"bad{number}", 0, [good._replace(body=good.body[:-1] + b"x")])
                await stages.commit("default", f"bad{number}", [f"bad{number}"], 0)
            await stages.stage("default", "good", 0, rows(5))
            await stages.commit("default", "good", ["good"], 0)
            for _ in range(10):
                await clock.advance(1_000)
            assert waiting(engine) == 5
            assert (await stages.state("default", "good")).published
            assert not (await stages.state("default", "bad0")).published
    assert len([each for each in told if "damaged" in each["event"]]) == count


async def test_publishing_goes_on_after_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    """After every single transaction, as if the power had failed behind it."""
    seen: set[int] = set()
    stops = 0
    while True:
        stops += 1
        store = await SqliteStore.open(tmp_path / f"data{stops}", clock, ballast_bytes=0, read_inline=True)
        engine = Engine(store, clock, durability=Durability.NEVER)
        stages = StagedWrites(engine)
        await stages.stage("default", "t", 0, rows(limits.slice_jobs_max * 3, chunk=limits.slice_jobs_max))
        await stages.commit("default", "k", ["t"], 0)
        stages.start()
        while waiting(engine) < stops * limits.slice_jobs_max and not (await stages.state("default", "k")).published:
            await yield_to_loop(1)
        seen.add(waiting(engine))
        stages.answer_all_waiters()
        for publisher in stages._publishers:
            publisher._stopping = publisher._stopped = True
        await stages.stop()
        async with stages_of(engine) as again:
            assert (await again.commit("default", "k", ["t"], 60_000)).published
            assert waiting(engine) == limits.slice_jobs_max * 3
        await engine.close()
        await store.close()
        if stops == 3:
            break
    assert min(seen) < limits.slice_jobs_max * 3


async def test_pushes_get_their_turn_while_much_is_published(engine: Engine) -> None:
    async with stages_of(engine) as stages:
        count = limits.slice_jobs_max * 20
        await stages.stage("default", "t", 0, rows(count, chunk=limits.slice_jobs_max))
        publishing = asyncio.ensure_future(stages.commit("default", "k", ["t"], 60_000))
        turns = 0
        while not publishing.done():
            await push(engine, queue=QueueKey("default", "other"))
            turns += 1
        assert turns >= 5
        assert waiting(engine) == count


async def test_what_is_not_committed_expires(engine: Engine, clock: ManualClock) -> None:
    async with stages_of(engine) as stages:
        await stages.stage("default", "t", 0, rows(2_000, chunk=1))
        clock.jump_wall(limits.stage_ms // 2)
        await stages.stage("default", "u", 0, rows(10))
        await pass_wall(clock, limits.stage_ms // 2 + 1)
        assert await left(engine) == [1, 1, 0, 0]
        with pytest.raises(StageUnknown):
            await stages.commit("default", "k", ["t"], 0)
        assert (await stages.commit("default", "k", ["u"], 1_000)).rows == 10
        await pass_wall(clock, limits.commit_kept_ms + 1)
        with pytest.raises(CommitUnknown):
            await stages.state("default", "k")


async def test_drafts_that_nobody_finished_expire(engine: Engine, clock: ManualClock) -> None:
    async with stages_of(engine) as stages:
        await stages._add(engine, "default", 77, [])
        await pass_wall(clock, limits.stage_ms + 1)
        assert await left(engine) == [0, 0, 0, 0]


async def test_there_is_a_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async with stages_of(engine) as stages:
        monkeypatch.setattr(limits, "stages_max", 1)
        await stages.stage("default", "t", 0, rows(1))
        with pytest.raises(TooMany, match="Commit or abort"):
            await stages.stage("default", "t", 1, rows(1))


async def test_each_shard_publishes_its_own(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock) as fleet, stages_of(fleet) as stages:
        queues = [f"q{number}" for number in range(9)]
        assert len({fleet.of(QueueKey("default", queue)).store.shard for queue in queues}) == 3
        parts = [each for queue in queues for each in rows(15, queue)]
        assert (await stages.stage("default", "t", 0, parts)).rows == 135
        assert (await stages.commit("default", "k", ["t"], 60_000)).published
        assert [waiting(fleet, queue) for queue in queues] == [15] * 9
        assert await left(fleet) == [0, 0, 0, 0]


async def test_shards_hear_of_a_commit_after_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock) as fleet:
        stages = StagedWrites(fleet)  # which does nothing by itself as long as it is not started
        queues = [f"q{number}" for number in range(9)]
        await stages.stage("default", "t", 0, [each for queue in queues for each in rows(15, queue)])
        await stages.commit("default", "k", ["t"], 0)
        assert sum(waiting(fleet, queue) for queue in queues) == 0
    clock.jump_wall(limits.stage_ms * 2)
    async with fleet_on(tmp_path, clock) as fleet, stages_of(fleet) as stages:
        assert (await stages.commit("default", "k", ["t"], 60_000)).duplicate
        assert [waiting(fleet, queue) for queue in queues] == [15] * 9


async def test_a_name_is_given_once_over_all_shards(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock) as fleet, stages_of(fleet) as stages:
        queues = [f"q{number}" for number in range(9)]
        names = [f"name{number}" for number in range(10)]
        for txn, queue in enumerate(queues):
            await stages.stage("default", f"t{txn}", 0, rows(10, queue, job_id=names))
        committing = stages.commit("default", "k", [f"t{txn}" for txn in range(9)], 60_000)
        task = asyncio.ensure_future(committing)
        for _ in range(200):
            await clock.advance(20)
        assert task.result().published
        assert sum(waiting(fleet, queue) for queue in queues) == 10


async def test_rows_follow_a_queue_to_another_shard(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock) as fleet:
        stages = StagedWrites(fleet)
        await stages.stage("default", "t", 0, rows(35))
        home = fleet.of(QueueKey("default", "mail"))
        other = next(engine for engine in fleet.engines if engine is not home)
        await stages.commit("default", "k", ["t"], 0)
        publisher = stages._publishers[home.store.shard]
        await stages._finish("default", "k")
        (entry,) = await home.store.entry_list(Search(EntryKind.DUE))
        chunks = await home.store.chunk_read(entry.number, -1, 10)
        moved: list[QueueKey] = []
        publisher._all = _Elsewhere(fleet, other, moved)  # type: ignore[assignment]
        publisher._stopping = False
        assert await publisher._carried(entry, chunks[:2]) == []
        # Had it crashed before it knew of that, it would carry the same once more.
        from penstock.engine.bulk.stage_commands import TakeOverChunks

        await other.run(TakeOverChunks(entry, chunks[:2]))
        carried = await other.store.chunk_read(entry.number, -1, 10)
        assert carried == chunks[:2]
        assert await home.store.chunk_read(entry.number, -1, 10) == chunks[2:]
        assert len(await other.store.entry_list(Search(EntryKind.DUE))) == 1


class _Elsewhere:
    """A fleet in which all queues are on one shard."""

    def __init__(self, fleet: ServerContext, engine: Engine, asked: list[QueueKey]) -> None:
        self.engines = fleet.engines
        self._engine = engine
        self._asked = asked

    def of(self, queue: QueueKey) -> Engine:
        self._asked.append(queue)
        return self._engine


@pytest.mark.parametrize("quotas", [{"default": 10}])
async def test_staged_rows_count_for_the_quota_of_their_namespace(engine: Engine, clock: ManualClock) -> None:
    async with stages_of(engine) as stages:
        await stages.stage("default", "t", 0, rows(6))
        with pytest.raises(QuotaExceeded, match="exceeded quota of 10"):
            await stages.stage("default", "t", 1, rows(5))
        with pytest.raises(InvalidInput, match="send fewer than 11 at once"):
            await stages.stage("default", "t", 1, rows(11))
        await stages.stage("other", "t", 1, rows(20))
        await push(engine, queue=QueueKey("default", "mail"))
        with pytest.raises(QuotaExceeded):
            await stages.stage("default", "u", 0, rows(4))
        await stages.stage("default", "t", 0, rows(3))  # in place of the six
        await stages.stage("default", "u", 0, rows(6))
        await stages.abort("default", "u")
        await stages.stage("default", "u", 0, rows(6))
        assert (await stages.commit("default", "k", ["t", "u"], 1_000)).rows == 9
        await clock.advance(limits.MINUTE_MS)
        await stages.stage("default", "v", 0, rows(10))  # what is published was counted before
