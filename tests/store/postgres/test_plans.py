"""What a listing costs: it reads the jobs of its own queue, however many other queues and namespaces have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.store.contract import Page
from penstock.store.postgres import reads
from tests.store.postgres.conftest import engine_on
from tests.support.engines import QUEUE, ack, claim_all, push_many

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.core.queue import Queue

pytestmark = pytest.mark.anyio

FOREIGN, OWN = 6_000, 10
STORED = (State.WAITING, State.DELAYED, State.ACTIVE, State.COMPLETED, State.DEAD, State.WAITING_CHILDREN)


@pytest.fixture
async def small(shard: str) -> AsyncIterator[tuple[asyncpg.Connection, Queue]]:
    """A small queue on a shard on which another namespace has a large one."""
    async with engine_on(shard) as engine:
        await push_many(engine, FOREIGN, queue=QueueKey("foreign", "large"))
        await push_many(engine, OWN)
        await ack(engine, (await claim_all(engine, 2))[0])
        queue = engine.store.queue_find(QUEUE)
        assert queue is not None
    db = await asyncpg.connect(shard, server_settings={"search_path": "penstock"})
    await db.execute("analyze")
    yield db, queue
    await db.close()


async def plan(db: asyncpg.Connection, statement: str, *parameters: int) -> str:
    for place, value in enumerate(parameters, 1):
        statement = statement.replace(f"${place}", str(value))
    return "\n".join(row[0] for row in await db.fetch(f"explain {statement}"))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("prioritized", [None, True, False])
async def test_a_listing_of_all_states_reads_no_jobs_of_other_queues(
    small: tuple[asyncpg.Connection, Queue], prioritized: bool | None, descending: bool
) -> None:
    db, queue = small
    wanted = Page(queue, STORED, 5, 0, prioritized, descending)
    assert "Seq Scan on jobs_live" not in await plan(db, reads.page_statement(wanted), queue.number, 5, 0)
    assert len(await reads.page(db, wanted._replace(limit=100))) == (2 if prioritized else OWN)


async def test_counts_of_priorities_read_no_jobs_of_other_queues(small: tuple[asyncpg.Connection, Queue]) -> None:
    db, queue = small
    assert "Seq Scan on jobs_live" not in await plan(db, reads.PRIORITY_COUNTS, queue.number)
    assert await reads.priority_counts(db, queue.number) == {0: OWN - 2}
