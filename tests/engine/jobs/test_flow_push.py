"""A flow is pushed whole or not at all, on one engine; on several shards what was pushed of a refused one is cancelled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import InvalidInput, OutcomeUnknown, PartlyDone, StorageFailed
from penstock.core.ids import shard_of
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.engine.jobs.flow_push import PushFlow
from tests.support.engines import ack, claim_job, push
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.core.job import JobRecord
    from penstock.engine.api import EngineApi
    from penstock.engine.engine import Engine
    from penstock.engine.sharding.engine import ShardedEngine

pytestmark = pytest.mark.anyio

#: One on each of three shards.
A, B, C = (QueueKey("default", name) for name in ("a", "e", "c"))


@pytest.fixture
async def fleet(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Any]:
    async with fleet_on(tmp_path, clock) as running:
        yield running


def tree() -> list[tuple[QueueKey, JobSpec]]:
    """Return a leaf, two children and their parent, over three queues."""
    return [
        (B, JobSpec(b"{}", job_id="leaf")),
        (C, JobSpec(b"{}", job_id="left")),
        (A, JobSpec(b"{}", job_id="right", needs=("leaf",))),
        (A, JobSpec(b"{}", job_id="parent", needs=("left", "right"))),
    ]


async def states(engine: EngineApi, *names: str) -> list[State | None]:
    found = [await engine.store.job_get("default", name) for name in names]
    return [None if each is None else State(each[0].state) for each in found]


async def finish(engine: EngineApi, queue: QueueKey) -> JobRecord:
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
        await engine.run(PushFlow([*tree()[:2], (A, JobSpec(b"{}", job_id="x", needs=("nobody",)))]))
    assert engine.store.totals().waiting == 0


async def test_a_flow_over_three_shards(fleet: ShardedEngine) -> None:
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
async def test_what_was_stored_of_a_refused_flow_is_cancelled_on_every_shard(fleet: ShardedEngine, taken: str) -> None:
    await push(fleet, queue=QueueKey("default", "b"), job_id=taken)
    with pytest.raises(InvalidInput, match=f"^Flow job {taken} already exists$"):
        await fleet.run(PushFlow(tree()))
    assert fleet.store.totals().waiting == 1
    assert fleet.store.totals().waiting_children == 0
    assert [name for name in ("leaf", "left", "right", "parent") if await fleet.store.job_get("default", name)] == [taken]


def lose(
    fleet: ShardedEngine,
    shard: int,
    error: Exception,
    before: Callable[[], Awaitable[Any]] | None = None,
    *,
    late: bool = False,
) -> None:
    """Have a shard fail at the next part of a flow, before or (``late``) after it has stored it."""
    engine = fleet.engines[shard]
    run = engine.run

    async def fail(command: Any) -> Any:
        if before is not None:
            await before()
        if late:
            await run(command)
        raise error

    def failing(command: Any) -> Any:
        return fail(command) if isinstance(command, PushFlow) else run(command)

    engine.run = failing


@pytest.mark.parametrize("late", [False, True])
async def test_an_unknown_outcome_cancels_nothing_and_tells_what_is_stored(fleet: ShardedEngine, late: bool) -> None:
    lose(fleet, 2, OutcomeUnknown(), late=late)
    with pytest.raises(OutcomeUnknown) as told:
        await fleet.run(PushFlow(tree()))
    assert "Of 4 jobs, 1 are stored (leaf); 1 may be stored (left); 2 are not stored (right, parent)." in str(told.value)
    assert "Nothing was cancelled" in str(told.value)
    left = State.WAITING if late else None
    assert await states(fleet, "leaf", "left", "right", "parent") == [State.WAITING, left, None, None]


async def test_a_parent_that_is_stored_after_all_keeps_its_children(fleet: ShardedEngine) -> None:
    lose(fleet, 0, OutcomeUnknown(), late=True)
    with pytest.raises(OutcomeUnknown, match=r"2 are stored \(leaf, left\); 2 may be stored \(right, parent\)\."):
        await fleet.run(PushFlow(tree()))
    for relayer in fleet.relayers:
        relayer.start()
    await finish(fleet, B)
    await finish(fleet, C)
    for name in ("right", "parent"):
        job = await claim_job(fleet, queue=A, wait_ms=60_000)
        assert job.custom_id == name
        await ack(fleet, job)


async def test_what_a_worker_has_of_a_refused_flow_is_told(fleet: ShardedEngine) -> None:
    lose(fleet, 0, StorageFailed(), lambda: claim_job(fleet, queue=B))
    with pytest.raises(PartlyDone) as told:
        await fleet.run(PushFlow(tree()))
    assert "1 of 4 jobs of the flow are stored and could not be cancelled: leaf." in str(told.value)
    assert "othing was stored" not in str(told.value)
    assert await states(fleet, "leaf", "left", "right", "parent") == [State.ACTIVE, None, None, None]


async def test_a_shard_that_is_known_to_be_down_refuses_a_flow_before_any_of_it_is_stored(fleet: ShardedEngine) -> None:
    store: Any = fleet.engines[0].store
    store._stop_writes("pulled out")
    lose(fleet, 1, AssertionError("a part of the flow was stored"))
    with pytest.raises(StorageFailed, match="Shard 0 is down"):
        await fleet.run(PushFlow(tree()))
    assert [engine.store.totals().waiting for engine in fleet.engines] == [0, 0, 0]
