"""Snapshots expire by the clock, processes die and come back, a spool is shared: without a server around."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from penstock.bulkwork.arrow_files import Spooler
from penstock.bulkwork.pool import BulkProcesses
from penstock.bulkwork.spool import Spool
from penstock.config import Config
from penstock.core import limits
from penstock.core.errors import (
    BulkFailed,
    BulkUnavailable,
    ShuttingDown,
    SnapshotNotFound,
    SpoolFull,
    StorageFailed,
    TooMany,
)
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.doors.bulk.endpoints import BulkEndpoints
from penstock.store.bulk_reader import HEAD, JobsWanted
from penstock.store.postgres.bulk import _by_size
from penstock.store.sqlite.bulk import SqliteBulk
from tests.support.engines import push

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


class Asked:
    """A request, as far as the bulk endpoints look at it."""

    def __init__(self, body: bytes = b"", query: dict[str, str] | None = None) -> None:
        self.scope: Any = self
        self.headers: dict[str, str] = {}
        self.header = self.headers.get
        self._body = body
        self._query = query or {}

    def namespace(self) -> str:
        return DEFAULT_NAMESPACE

    async def body(self) -> bytes:
        return self._body

    def query(self) -> dict[str, str]:
        return self._query


@pytest.fixture
async def endpoints(engine: Engine, tmp_path: Path) -> AsyncIterator[BulkEndpoints]:
    made = BulkEndpoints(Config(data=tmp_path / "data", bulk_processes=1), engine)
    yield made
    await made.close()


async def ask(endpoints: BulkEndpoints, name: str, *words: str, **query: str) -> Any:
    """Call the handler of a route."""
    route = next(each for each in endpoints.routes() if f"{each.method} {each.path}" == name)
    return await route.handler(Asked(query=query), *words)


async def take(endpoints: BulkEndpoints) -> str:
    reply = await ask(endpoints, "POST /bulk/snapshots")
    name: str = msgspec.json.decode(reply.body)["id"]
    return name


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "data" / "spool").rglob("*.arrow"))


async def until_removed(tmp_path: Path, count: int) -> None:
    while len(files(tmp_path)) > count:
        await asyncio.sleep(0.01)


async def test_a_snapshot_goes_when_it_was_not_used_for_long(
    endpoints: BulkEndpoints, engine: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    await push(engine)
    unused, used = await take(endpoints), await take(endpoints)
    assert len(files(tmp_path)) == 2
    await clock.advance(9 * limits.MINUTE_MS)
    await ask(endpoints, "GET /bulk/snapshots/{id}/parts/{part}", used, "0")
    await clock.advance(limits.MINUTE_MS)
    await until_removed(tmp_path, 1)
    with pytest.raises(SnapshotNotFound):
        await ask(endpoints, "GET /bulk/snapshots/{id}/parts/{part}", unused, "0")
    file = await ask(endpoints, "GET /bulk/snapshots/{id}/parts/{part}", used, "0")
    assert file.size == files(tmp_path)[0].stat().st_size == endpoints.service.spool.used
    await clock.advance(10 * limits.MINUTE_MS)
    await until_removed(tmp_path, 0)
    assert endpoints.service.spool.used == 0


async def test_what_was_fetched_makes_room_for_more(
    endpoints: BulkEndpoints, engine: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    """Spark does not say when it needs a snapshot no longer: one notebook would be locked out after sixteen questions."""
    await push(engine)
    kept = [await take(endpoints) for _ in range(limits.bulk_snapshots_namespace_max)]
    for name in kept[3:6]:
        await ask(endpoints, "GET /bulk/snapshots/{id}/parts/{part}", name, "0")
        await clock.advance(1)
    with pytest.raises(TooMany):  # it may have to be asked for again: an answer can break off
        await take(endpoints)
    await clock.advance(limits.bulk_fetched_ms)
    for _ in range(3):
        await take(endpoints)
    for name in kept:
        if name in kept[3:6]:
            with pytest.raises(SnapshotNotFound):
                await ask(endpoints, "DELETE /bulk/snapshots/{id}", name)
        else:
            await ask(endpoints, "DELETE /bulk/snapshots/{id}", name)
    assert len(files(tmp_path)) == 3


async def test_what_was_fetched_goes_if_the_spool_is_half_full(
    endpoints: BulkEndpoints, engine: Engine, clock: ManualClock
) -> None:
    await push(engine)
    first, second = await take(endpoints), await take(endpoints)
    await ask(endpoints, "GET /bulk/snapshots/{id}/parts/{part}", second, "0")
    await clock.advance(limits.bulk_fetched_ms)
    endpoints.service.spool._bytes_max = endpoints.service.spool.used * 2 - 1
    await take(endpoints)
    await ask(endpoints, "DELETE /bulk/snapshots/{id}", first)
    with pytest.raises(SnapshotNotFound):
        await ask(endpoints, "DELETE /bulk/snapshots/{id}", second)


async def test_what_was_read_of_the_journal_goes_soon_after_it_was_answered(
    endpoints: BulkEndpoints, engine: Engine, clock: ManualClock, tmp_path: Path
) -> None:
    await push(engine)
    query = {"from": "1", "to": str(engine.durable_up_to)}
    await ask(endpoints, "GET /bulk/journal", **query)
    assert len(files(tmp_path)) == 1
    await clock.advance(limits.bulk_answer_ms)
    await until_removed(tmp_path, 0)
    assert endpoints.service.spool.used == 0


async def test_a_snapshot_is_read_from_one_moment(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bulk_chunk_rows", 2)
    for _ in range(6):
        await push(engine)
    reader = SqliteBulk(engine.store.source.removeprefix("sqlite:"))
    async with reader.jobs(JobsWanted()) as found:
        first = await anext(found.chunks)
        for _ in range(3):
            await push(engine)
        rest = [row async for rows in found.chunks for row in rows]
    assert (len(first), len(rest)) == (2, 4)
    async with reader.jobs(JobsWanted()) as found:
        assert len([row async for rows in found.chunks for row in rows]) == 9
    await reader.close()


async def test_a_damaged_job_is_left_out_of_a_snapshot_and_counted(engine: Engine, endpoints: BulkEndpoints) -> None:
    jobs = [await push(engine, data=b"%d" % number) for number in range(3)]
    engine.store.db.execute("update payloads set data = '7' where id = ?", (jobs[1].id,))  # type: ignore[attr-defined]
    reply = msgspec.json.decode((await ask(endpoints, "POST /bulk/snapshots")).body)
    assert (reply["rows"], reply["damaged"]) == (2, 1)


async def test_whoever_waits_for_a_process_takes_no_room_from_those_who_write(
    clock: ManualClock, engine: Engine, tmp_path: Path
) -> None:
    processes = BulkProcesses(1, clock)
    spool = Spool(tmp_path / "spool", 1_000, share=2)
    task = {"source": engine.store.source, "at_ms": 0}
    try:
        asked = [asyncio.ensure_future(processes.run("journal_at", spool, **task)) for _ in range(12)]
        done = await asyncio.gather(*asked, return_exceptions=True)
    finally:
        await processes.close()
    assert not any(isinstance(each, SpoolFull) for each in done)
    assert spool.used == 0


async def test_large_payloads_are_read_a_few_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bulk_chunk_bytes", 100)
    for size in (10, 10, 90, 500, 500, 10):
        await push(engine, data=b'"' + b"x" * (size - 2) + b'"')
    reader = SqliteBulk(engine.store.source.removeprefix("sqlite:"))
    async with reader.jobs(JobsWanted()) as found:
        assert [len(rows) async for rows in found.chunks] == [3, 1, 1, 1]
    async with reader.jobs(JobsWanted(payload=False)) as found:
        assert sum([len(rows) async for rows in found.chunks]) == 6
    await reader.close()
    heads = [(*[None] * HEAD.index("size"), size, None) for size in (10, 10, 90, 500, 500, 10)]
    assert [len(part) for part in _by_size(heads)] == [2, 1, 1, 1, 1]


def test_a_part_ends_when_it_is_large(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64())])
    batch = pa.record_batch([pa.array(range(1_000))], schema=schema)
    with Spooler(str(tmp_path), "x", schema, rows_max=10_000, room=10**6, bytes_max=12_000) as spooler:
        for _ in range(5):
            spooler.write(batch)
    assert [part.rows for part in spooler.parts] == [2_000, 2_000, 1_000]
    with pytest.raises(SpoolFull), Spooler(str(tmp_path), "y", schema, rows_max=1_500, room=30_000) as spooler:
        for _ in range(5):
            spooler.write(batch)
    assert list(tmp_path.glob("y*")) == []


async def test_a_spool_that_others_may_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(StorageFailed, match=r"Other users may use .*Run: chmod 700"):
        Spool(tmp_path / "spool", 100).directory()


async def test_a_server_without_arrow_says_what_is_missing(
    endpoints: BulkEndpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for name, query in (
        ("POST /bulk/snapshots", {}),
        ("GET /bulk/journal", {"from": "1"}),
        ("GET /bulk/journal/at", {"timestamp": "1"}),
    ):
        with pytest.raises(BulkUnavailable, match=r"pip install 'penstock-queue\[bulk\]'"):
            await ask(endpoints, name, **query)
    assert (await ask(endpoints, "GET /bulk")).shards[0].journal_first == 1


async def test_a_task_that_takes_too_long_is_ended(clock: ManualClock, engine: Engine) -> None:
    processes = BulkProcesses(1, clock)
    assert await processes.run("journal_at", source=engine.store.source, at_ms=0) is None
    (pid,) = processes.pids
    os.kill(pid, signal.SIGSTOP)
    stuck = asyncio.ensure_future(processes.run("journal_at", source=engine.store.source, at_ms=0))
    await clock.advance(limits.bulk_task_ms_max)
    with pytest.raises(BulkFailed):
        await stuck
    assert await processes.run("journal_at", source=engine.store.source, at_ms=0) is None
    assert processes.pids != [pid]
    await processes.close()


async def test_who_comes_when_too_many_wait_is_refused(
    clock: ManualClock, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "bulk_tasks_max", 2)
    processes = BulkProcesses(1, clock)
    waiting = [asyncio.ensure_future(processes.run("journal_at", source=engine.store.source, at_ms=0)) for _ in range(3)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes].count(TooMany) == 1
    assert outcomes.count(None) == 2
    await processes.close()
    with pytest.raises(ShuttingDown):
        await processes.run("journal_at", source=engine.store.source, at_ms=0)


async def test_who_gives_up_does_not_leave_its_answer_to_the_next(clock: ManualClock, engine: Engine) -> None:
    processes = BulkProcesses(1, clock)
    await push(engine)
    assert await processes.run("journal_at", source=engine.store.source, at_ms=0) == 1
    given_up = asyncio.ensure_future(processes.run("journal_at", source=engine.store.source, at_ms=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert await processes.run("journal_at", source=engine.store.source, at_ms=10**13) is None
    await processes.close()


async def test_servers_share_a_spool_and_clean_up_after_the_dead_only(tmp_path: Path) -> None:
    one, other = Spool(tmp_path / "spool", 100), Spool(tmp_path / "spool", 100)
    mine = one.directory()
    other.clean()
    assert mine.is_dir()
    os.close(one._lock)  # as if it were dead
    other.clean()
    assert not mine.exists()
    theirs = other.directory()
    other.keep(60)
    with other.room() as room:
        assert room == 40
        with pytest.raises(SpoolFull), other.room():
            pass
    await other.remove(theirs, 60)
    assert other.used == 0
    other.close()
    assert not (tmp_path / "spool").exists()
