"""What keeps the store fast, checked without a stopwatch: every hot statement uses its index, and the log stays small."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.lifecycle import Arrow, State
from penstock.engine import admin
from penstock.store.contract import Page
from penstock.store.sqlite import store as store_module
from penstock.store.sqlite.store import FILE_NAME
from tests.support.engines import QUEUE, ack, claim_all, claim_job, fail, move, push, push_many

if TYPE_CHECKING:
    from pathlib import Path

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
        while store.checkpointer.finishing:
            await asyncio.sleep(0)
    assert log.stat().st_size < 400 * 4120
    assert (tmp_path / "data" / FILE_NAME).stat().st_size > 300_000


async def test_a_listing_of_waiting_jobs_reads_no_more_than_its_page(engine: Engine, store: SqliteStore) -> None:
    await push_many(engine, 2_000)
    queue = store.queue_find(QUEUE)
    assert queue is not None
    page = await store.job_page(Page(queue, (State.WAITING,), 10, 5))
    assert len(page) == 10


def test_the_limits_of_the_store_have_names() -> None:
    assert store_module.CHECKPOINT_PAGES > store_module.CHECKPOINT_PAGES_FULL
