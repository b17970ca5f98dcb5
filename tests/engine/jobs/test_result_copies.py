"""The result of a job is stored with each job that needs it: how many bytes of copies there may be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey, StateCounts
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.store.sqlite.transaction import SqliteTransaction
from tests.support.engines import QUEUE, ack, claim_all, claim_job, push, push_many, state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import ManualClock
    from penstock.core.dependencies import Dependency
    from penstock.core.job import JobRecord
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

CHILDREN = QueueKey("default", "children")
LARGE = b'"' + b"x" * 8_190 + b'"'


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large results may be copied three times."""
    monkeypatch.setattr(limits, "result_copies_bytes_max", 3 * len(LARGE))


@pytest.fixture
async def needed(engine: Engine) -> JobRecord:
    return await push(engine, queue=CHILDREN)


async def completed(engine: Engine, count: int, result: bytes = LARGE) -> list[JobRecord]:
    jobs = await push_many(engine, count, queue=CHILDREN)
    await claim_all(engine, count, queue=CHILDREN)
    await engine.run(Ack("default", [LeaseRef(job.id) for job in jobs], [result] * count))
    return jobs


async def test_a_result_that_would_be_copied_too_often_is_refused_and_the_job_stays_leased(
    engine: Engine, needed: JobRecord
) -> None:
    parents = await push_many(engine, 4, needs=(needed.id,))
    held = await claim_job(engine, queue=CHILDREN)
    outcome = await ack(engine, needed, LARGE, held.token)
    assert isinstance(outcome, InvalidInput)
    for part in (str(len(LARGE)), "3 jobs", str(limits.result_copies_bytes_max), "Acknowledge with a smaller result"):
        assert part in str(outcome)
    assert await state(engine, needed) is State.ACTIVE
    assert await engine.store.result_get(needed.id) is None
    assert await ack(engine, needed, b'"a reference"', held.token) is None
    assert [await state(engine, each) for each in parents] == [State.WAITING] * 4


async def test_a_result_that_is_copied_as_often_as_allowed_is_stored(engine: Engine, needed: JobRecord) -> None:
    await push_many(engine, 3, needs=(needed.id,))
    await claim_job(engine, queue=CHILDREN)
    assert await ack(engine, needed, LARGE) is None
    assert engine.store.totals() == StateCounts(waiting=3, completed=1)


async def test_the_other_items_of_an_acknowledgement_are_settled(engine: Engine, needed: JobRecord) -> None:
    others = await push_many(engine, 2, queue=CHILDREN)
    await push_many(engine, 4, needs=(needed.id,))
    await claim_all(engine, queue=CHILDREN)
    holds = [LeaseRef(job.id) for job in (others[0], needed, others[1])]
    outcomes = await engine.run(Ack("default", holds, [LARGE] * 3))
    assert [type(each) for each in outcomes] == [type(None), InvalidInput, type(None)]
    assert [await state(engine, each) for each in others] == [State.COMPLETED] * 2


async def test_only_a_large_result_of_a_job_that_others_need_is_counted(
    engine: Engine, needed: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    original = SqliteTransaction.need_open_count

    async def need_open_count(tx: SqliteTransaction, job_id: int, limit: int) -> int:
        counted.append(job_id)
        return await original(tx, job_id, limit)

    monkeypatch.setattr(SqliteTransaction, "need_open_count", need_open_count)
    small, alone = await push_many(engine, 2, queue=CHILDREN)
    await push(engine, needs=(needed.id, small.id))
    await claim_all(engine, queue=CHILDREN)
    holds = [LeaseRef(job.id) for job in (needed, needed, small, alone)]
    await engine.run(Ack("default", holds, [LARGE, LARGE, b"1", LARGE]))
    assert counted == [needed.id]


async def test_a_push_that_would_copy_too_many_bytes_of_results_makes_nothing(engine: Engine) -> None:
    jobs = await completed(engine, 2)
    needs = tuple(job.id for job in jobs)
    before = engine.store.totals()
    with pytest.raises(InvalidInput, match=r"more than 24576 bytes for this request\. Push the jobs in several requests"):
        await engine.run(Push(QUEUE, [JobSpec(b"1", needs=needs), JobSpec(b"2", needs=needs)]))
    assert engine.store.totals() == before
    await engine.run(Push(QUEUE, [JobSpec(b"1", needs=needs), JobSpec(b"2", needs=needs[:1])]))
    assert engine.store.totals().waiting == 2


@pytest.mark.parametrize("shared", [False, True])
async def test_a_batch_copies_results_up_to_its_limit(engine: Engine, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """Further pushes are in the next batch."""
    monkeypatch.setattr(limits, "flow_bytes_batch_max", 100 * len(LARGE))
    monkeypatch.setattr(limits, "flow_bytes_shared_max", len(LARGE) + 1)
    (job,) = await completed(engine, 1)
    added: list[int] = []
    original = SqliteTransaction.need_add

    async def need_add(tx: SqliteTransaction, needs: Sequence[Dependency]) -> None:
        added.append(len(needs))
        await original(tx, needs)

    monkeypatch.setattr(SqliteTransaction, "need_add", need_add)
    engine.fair_share.shared = shared
    await asyncio.gather(*[engine.run(Push(QUEUE, [JobSpec(b"1", needs=(job.id,))])) for _ in range(5)])
    assert added == ([2, 2, 1] if shared else [5])


async def test_a_batch_applies_fewer_bytes_of_results_while_several_namespaces_are_active(
    engine: Engine, clock: ManualClock, needed: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "flow_bytes_shared_max", len(LARGE))
    await push_many(engine, 3, needs=(needed.id,))
    await claim_job(engine, queue=CHILDREN)
    engine.fair_share.shared = True
    assert await ack(engine, needed, LARGE) is None
    assert engine.store.totals() == StateCounts(waiting=1, completed=1, waiting_children=2)
    await clock.advance(0)
    assert engine.store.totals() == StateCounts(waiting=3, completed=1)
