"""Many groups in one transaction are read by a few statements, with the same result as one by one."""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.core.clock import ManualClock
from penstock.core.durability import Durability
from penstock.core.job import JobSpec
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.queues.group_limits import ConfigureGroup
from penstock.store.sqlite import SqliteStore, job_groups
from tests.support.engines import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.core.group_limits import GroupLimits

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("limited", [False, True])
async def test_the_number_of_statements_does_not_grow_with_the_number_of_groups(
    engine: Engine, store: SqliteStore, limited: bool
) -> None:
    reads: list[str] = []

    def record(_cursor: object, statement: str, _bindings: Any) -> bool:
        if "group_id" in statement and statement.startswith("select"):
            reads.append(statement)
        return True

    if limited:
        await engine.run(ConfigureGroup(QUEUE, "g1", lambda now, _ms: msgspec.structs.replace(now, concurrency=2)))
    store.db.exec_trace = record
    await engine.run(Push(QUEUE, [JobSpec(b"1", group_id=f"g{number}") for number in range(500)]))
    store.db.exec_trace = None
    assert len(reads) < 10
    for statement in set(reads):
        plan = [
            row[3] for row in store.db.execute(f"explain query plan {statement}", (None,) * (3 if "?3" in statement else 2))
        ]
        assert not [step for step in plan if re.match(r"SCAN (j|jobs|g|groups)$", step)], (statement, plan)


def _limit(places: int) -> Callable[[GroupLimits, int], GroupLimits]:
    return lambda now, _ms: msgspec.structs.replace(now, concurrency=places, paused=places == 3)


async def _story(folder: Path, seed: int) -> list[Any]:
    """Do the same random work, and return which jobs are ready after each step."""
    choose, clock = random.Random(seed), ManualClock()
    store = await SqliteStore.open(folder, clock, ballast_bytes=0, read_inline=True)
    engine = Engine(store, clock, durability=Durability.NEVER)
    engine.start()
    groups = [f'g{number} "é\\' for number in range(12)]
    seen: list[Any] = []
    for step in range(25):
        await engine.run(
            Push(QUEUE, [JobSpec(b"1", group_id=choose.choice(groups), priority=choose.randrange(4)) for _ in range(40)])
        )
        if step % 5 == 4:
            await engine.run(ConfigureGroup(QUEUE, choose.choice(groups), _limit(choose.randrange(1, 4))))
        taken = await engine.run(Claim(QUEUE, 20))
        done = [LeaseRef(job.id, job.token) for job, _ in taken if choose.random() < 0.7]
        if done:
            await engine.run(Ack(QUEUE.namespace, done, [None] * len(done)))
        rows = "select group_id, priority, position, state, blocked from jobs order by position, priority"
        seen.append([tuple(row) for row in store.db.execute(rows)])
    await engine.close()
    await store.close()
    return seen


@pytest.mark.parametrize("seed", range(3))
def test_groups_that_are_read_together_have_the_same_ready_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stories = []
    for few in (0, 1_000):
        monkeypatch.setattr(job_groups, "_FEW", few)
        stories.append(asyncio.run(_story(tmp_path / str(few), seed)))
    assert any(blocked for *_, blocked in stories[0][-1])
    assert stories[0] == stories[1]
