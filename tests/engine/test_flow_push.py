"""A flow is pushed whole or not at all, on one engine; on several shards what was pushed of a refused one is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import InvalidInput
from penstock.core.ids import shard_of
from penstock.core.job import NewJob
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.engine.flow_push import PushFlow
from tests.support.engines import ack, claim_job, push
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import Job
    from penstock.engine.engine import Engine
    from penstock.engine.fleet import AnyEngine, Fleet

pytestmark = pytest.mark.anyio

#: One on each of three shards.
A, B, C = (QueueKey("default", name) for name in ("a", "e", "c"))


@pytest.fixture
async def fleet(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Any]:
    async with fleet_on(tmp_path, clock) as running:
        yield running


def tree() -> list[tuple[QueueKey, NewJob]]:
    """Return a leaf, two children and their parent, over three queues."""
    return [
        (B, NewJob(b"{}", job_id="leaf")),
        (C, NewJob(b"{}", job_id="left")),
        (A, NewJob(b"{}", job_id="right", needs=("leaf",))),
        (A, NewJob(b"{}", job_id="parent", needs=("left", "right"))),
    ]


async def states(engine: AnyEngine, *names: str) -> list[State | None]:
    found = [await engine.store.job_get("default", name) for name in names]
    return [None if each is None else State(each[0].state) for each in found]


async def finish(engine: AnyEngine, queue: QueueKey) -> Job:
    job = await claim_job(engine, queue=queue)
    await ack(engine, job)
    return job


async def test_a_flow_waits_from_the_leaves_up(engine: Engine) -> None:
    answers = await engine.run(PushFlow(tree()))
    assert [job.custom_id for (job,) in answers] == ["leaf", "left", "right", "parent"]
    assert await states(engine, "leaf", "left", "right", "parent") == [
        State.WAITING,
        State.WAITING,
        State.WAITING_CHILDREN,
        State.WAITING_CHILDREN,
    ]
    await finish(engine, B)
    await finish(engine, C)
    assert (await finish(engine, A)).custom_id == "right"
    assert (await finish(engine, A)).custom_id == "parent"


@pytest.mark.parametrize("taken", ["leaf", "right", "parent"])
async def test_nothing_of_a_flow_is_stored_if_an_id_is_taken(engine: Engine, taken: str) -> None:
    await push(engine, queue=C, job_id=taken)
    with pytest.raises(InvalidInput, match=f"^Flow job {taken} already exists$"):
        await engine.run(PushFlow(tree()))
    assert engine.store.totals().waiting == 1
    assert engine.store.totals().waiting_children == 0


async def test_of_two_flows_with_one_id_in_one_batch_one_is_stored(engine: Engine) -> None:
    first, second = engine.run(PushFlow(tree())), engine.run(PushFlow(tree()[1:2]))
    assert len(await first) == 4
    with pytest.raises(InvalidInput, match="Flow job left already exists"):
        await second
    assert engine.store.totals().waiting == 2


async def test_a_need_that_is_nowhere_refuses_all(engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="Dependency job not found: nobody"):
        await engine.run(PushFlow([*tree()[:2], (A, NewJob(b"{}", job_id="x", needs=("nobody",)))]))
    assert engine.store.totals().waiting == 0


async def test_a_flow_over_three_shards(fleet: Fleet) -> None:
    answers = await fleet.run(PushFlow(tree()))
    assert [shard_of(job.id) for (job,) in answers] == [1, 2, 0, 0]
    for relayer in fleet.relayers:
        relayer.start()
    assert await states(fleet, "left", "right", "parent") == [State.WAITING, State.WAITING_CHILDREN, State.WAITING_CHILDREN]
    await finish(fleet, B)
    await finish(fleet, C)
    for name in ("right", "parent"):
        job = await claim_job(fleet, queue=A, wait_ms=60_000)
        assert job.custom_id == name
        await ack(fleet, job)


@pytest.mark.parametrize("taken", ["leaf", "left", "right", "parent"])
async def test_what_was_stored_of_a_refused_flow_is_cancelled_on_every_shard(fleet: Fleet, taken: str) -> None:
    await push(fleet, queue=QueueKey("default", "b"), job_id=taken)
    with pytest.raises(InvalidInput, match=f"^Flow job {taken} already exists$"):
        await fleet.run(PushFlow(tree()))
    assert fleet.store.totals().waiting == 1
    assert fleet.store.totals().waiting_children == 0
    assert [name for name in ("leaf", "left", "right", "parent") if await fleet.store.job_get("default", name)] == [taken]
