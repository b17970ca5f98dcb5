"""What keeps the store fast, checked without a stopwatch: every hot statement uses its index, and the log stays small."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Self

import pytest

from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.core.retention import Retention
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.maintenance.retention import TrimJournal
from penstock.engine.queues import admin
from penstock.store.contract import Page
from penstock.store.sqlite.store import FILE_NAME
from tests.support.engines import QUEUE, ack, claim_all, claim_job, fail, move, push, push_many

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def test_no_statement_ever_scans_the_jobs(engine: Engine, store: SqliteStore, clock: ManualClock) -> None:
    seen: set[str] = set()

    def record(_cursor: object, statement: str, _bindings: Any) -> bool:
        seen.add(statement)
        return True

    store.db.exec_trace = record
    await push_many(engine, 5)
    await push(engine, delay=1_000, ttl=5_000, unique_key="k", job_id="x", group_id="g")
    first, second = await claim_all(engine, 2)
    await ack(engine, first, b"1")
    await fail(engine, second)
    await move(engine, await push(engine), Arrow.DISCARD)
    await clock.advance(60_000)
    await claim_job(engine)
    await admin.clean(engine, QUEUE, 1, (State.WAITING, State.COMPLETED), 10)
    await admin.revive(engine, QUEUE)
    await admin.drain(engine, QUEUE)
    store.db.exec_trace = None
    assert len(seen) > 20
    for statement in seen:
        if re.match(r"\s*(select|update|delete)", statement) and "jobs" in statement:
            plan = [row[3] for row in store.db.execute(f"explain query plan {statement}", _nulls(statement))]
            assert not [step for step in plan if re.match(r"SCAN (j|jobs)$", step)], (statement, plan)


def _nulls(statement: str) -> tuple[None, ...]:
    return (None,) * statement.count("?")


async def test_the_log_is_moved_into_the_main_file_and_starts_again(
    engine: Engine, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.checkpointer.every(50)
    log = tmp_path / "data" / f"{FILE_NAME}-wal"
    for _ in range(60):
        await push_many(engine, 50)
        while store.checkpointer._task is not None:  # however slow its thread is here
            await asyncio.sleep(0)
    assert log.stat().st_size < 400 * 4120
    assert (tmp_path / "data" / FILE_NAME).stat().st_size > 300_000


class Steps:
    """Counts what SQLite's virtual machine does on a connection: a measure of work that no neighbour disturbs."""

    def __init__(self, db: apsw.Connection) -> None:
        self.count = 0
        self._db = db

    def __enter__(self) -> Self:
        self._db.set_progress_handler(self._step, 10)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.set_progress_handler(None)

    def _step(self) -> bool:
        self.count += 10
        return False


async def a_day_at_work(engine: Engine, clock: ManualClock) -> None:
    """Do everything once that is done all the time."""
    await push_many(engine, 5, priority=1)
    await push(engine, delay=1_000, ttl=5_000, unique_key="k", job_id="x", group_id="g", priority=1)
    first, second = await claim_all(engine, 2)
    await ack(engine, first, b"1")
    await fail(engine, second)
    await move(engine, await push(engine, priority=1), Arrow.DISCARD)
    await clock.advance(3_000)
    for job in await claim_all(engine, 5):
        await ack(engine, job)
    await engine.run(TrimJournal(Retention(journal_bytes_max=1 << 40)))


async def test_the_work_does_not_grow_with_what_lies_about(engine: Engine, store: SqliteStore, clock: ManualClock) -> None:
    await a_day_at_work(engine, clock)
    with Steps(store.db) as alone:
        await a_day_at_work(engine, clock)
    other = QueueKey("default", "other")
    for queue in (QUEUE, other):
        await push_many(engine, 3_000, queue=queue)
        await push_many(engine, 3_000, queue=queue, delay=10**9, ttl=10**9)
    await push_many(engine, 1_000, queue=other, priority=9)
    done = await claim_all(engine, 1_000, queue=other, lease_ms=10**7)
    await engine.run(Ack("default", [LeaseRef(job.id) for job in done[:500]], [None] * 500))
    for _ in range(500):
        await push(engine, queue=other)  # as many blocks of the journal
    with Steps(store.db) as crowded:
        await a_day_at_work(engine, clock)
    assert crowded.count < 1.5 * alone.count


async def test_a_page_of_waiting_jobs_costs_what_is_on_it(engine: Engine, store: SqliteStore) -> None:
    async def steps(offset: int) -> int:
        queue = store.queue_find(QUEUE)
        assert queue is not None
        await store.job_page(Page(queue, (State.WAITING,), 10, 0))  # opens the connection
        with Steps(store.readers._local.db) as counted:
            assert len(await store.job_page(Page(queue, (State.WAITING,), 10, offset))) == 10
        return counted.count

    await push_many(engine, 50)
    short = await steps(5)
    await push_many(engine, 5_000)
    assert await steps(5) < 1.5 * short


async def test_a_slice_of_a_queue_does_not_look_at_other_queues(engine: Engine, store: SqliteStore) -> None:
    async def steps() -> int:
        jobs = await push_many(engine, 20)
        await admin.clean(engine, QUEUE, 0, (State.WAITING,), 1)  # opens the connection
        with Steps(store.readers._local.db) as counted:
            assert await admin.drain(engine, QUEUE) == len(jobs) - 1
        return counted.count

    alone = await steps()
    await push_many(engine, 5_000, queue=QueueKey("default", "other"))
    assert await steps() < 1.5 * alone
