"""How often a batch asks the store: on a store at the other end of a wire, every question is a round trip."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import bulk_records
from penstock.core.dependencies import JobEnd, Need
from penstock.core.job import IDEMPOTENCY_PREFIX, Dedup, JobSpec
from penstock.core.lifecycle import State
from penstock.core.queue import QueueKey
from penstock.engine.bulk.stage_commands import CommitStages
from penstock.engine.bulk.staged_writes import PackedRows, StagedWrites
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.jobs.settle_by_id import AckById, ClaimedJob, NackById
from penstock.engine.sharding.remote_dependencies import ApplyRemoteEnds, CancelIdle
from penstock.store.sqlite.transaction import SqliteTransaction
from tests.support.engines import QUEUE, claim_all, push, push_many, state

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

OTHER = QueueKey("tenant", "other")
MANY = 50


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the questions by name. What a batch asks anyway, about time that has passed, is left out."""
    counts: Counter[str] = Counter()

    def counted(name: str, method: Any) -> Any:
        async def call(self: Any, *args: Any, **more: Any) -> Any:
            counts[name] += 1
            return await method(self, *args, **more)

        return call

    for kind in SqliteTransaction.__mro__:
        for name, method in list(vars(kind).items()):
            if inspect.iscoroutinefunction(method) and not name.startswith("_") and name != "pause":
                monkeypatch.setattr(kind, name, counted(name, method))
    return counts


def messages(data: bytes, **more: Any) -> list[tuple[QueueKey, list[JobSpec]]]:
    return [
        (queue, [JobSpec(data, job_id=f"{IDEMPOTENCY_PREFIX}{n}", **more) for n in range(MANY)]) for queue in (QUEUE, OTHER)
    ]


async def test_messages_with_keys_are_looked_for_together(engine: Engine, asked: Counter[str]) -> None:
    now = engine.clock.now_ms()
    first = await engine.run(PushAcross(messages(b"1"), now))
    asked.clear()
    again = await engine.run(PushAcross(messages(b"2", priority=3), now))
    assert [[job.id for job in part] for part in again] == [[job.id for job in part] for part in first]
    assert asked == {"job_find_custom": 1, "payload_load": 1, "payload_save": 1, "job_save": 1}
    asked.clear()
    await engine.run(PushAcross(messages(b"2", priority=3), now))
    assert asked == {"job_find_custom": 1, "payload_load": 1}, "the same again changes nothing"


async def test_pushes_with_names_are_looked_for_together(engine: Engine, asked: Counter[str]) -> None:
    await push(engine)
    await engine.run(Push(OTHER, [JobSpec(b"1")]))

    def pushes() -> list[Push]:
        return [
            Push(queue, [JobSpec(b"1", job_id=f"j{n}"), JobSpec(b"2", unique_key=f"u{n}", dedup=Dedup(ttl=5_000))])
            for n in range(MANY)
            for queue in (QUEUE, OTHER)
        ]

    asked.clear()
    first = await asyncio.gather(*(engine.run(each) for each in pushes()))
    assert asked == {"job_find_custom": 1, "job_find_unique": 1, "job_insert": 1}
    asked.clear()
    again = await asyncio.gather(*(engine.run(each) for each in pushes()))
    assert [[job.id for job in jobs] for jobs in again] == [[job.id for job in jobs] for jobs in first]
    assert asked == {"job_find_custom": 1, "job_find_unique": 1}


async def test_jobs_that_are_replaced_are_written_together(engine: Engine, asked: Counter[str]) -> None:
    def pushes() -> Push:
        return Push(QUEUE, [JobSpec(b"%d" % n, unique_key=f"u{n % 5}", dedup=Dedup(replace=True)) for n in range(MANY)])

    first = await engine.run(pushes())
    asked.clear()
    again = await engine.run(pushes())
    assert [job.id for job in again] == [job.id for job in first]
    assert asked == {"job_find_unique": 1, "job_save": 1, "job_rewrite": 1, "payload_save": 1}


async def test_keys_that_are_over_are_freed_together(engine: Engine, clock: ManualClock, asked: Counter[str]) -> None:
    def pushes() -> Push:
        return Push(QUEUE, [JobSpec(b"1", unique_key=f"u{n}", dedup=Dedup(ttl=1_000)) for n in range(MANY)])

    await engine.run(pushes())
    await clock.advance(1_000)
    asked.clear()
    await engine.run(pushes())
    assert asked == {"job_find_unique": 1, "job_rewrite": 1, "job_insert": 1}


async def test_names_of_a_new_queue_are_looked_for_together(engine: Engine, asked: Counter[str]) -> None:
    jobs = [JobSpec(b"1", job_id=f"j{n}", unique_key=f"u{n}") for n in range(MANY)]
    asked.clear()
    await engine.run(Push(QueueKey("new", "new"), jobs))
    assert (asked["job_find_custom"], asked["job_find_unique"]) == (1, 1)


async def test_jobs_that_need_others_find_them_together(engine: Engine, asked: Counter[str]) -> None:
    needed = await push_many(engine, MANY)
    await engine.run(Push(QUEUE, [JobSpec(b"1", job_id=f"own{n}") for n in range(MANY)]))
    asked.clear()
    await engine.run(Push(QUEUE, [JobSpec(b"2", needs=(job.id, f"own{n}")) for n, job in enumerate(needed)]))
    assert asked["job_load"] == asked["job_find_custom"] == 1


async def test_words_about_many_messages_are_looked_up_together(engine: Engine, asked: Counter[str]) -> None:
    made = await push_many(engine, MANY)
    await claim_all(engine)
    asked.clear()
    unknown = [AckById([ClaimedJob(QUEUE, 1_000_000 + n)]) for n in range(MANY)]
    acks = [AckById([ClaimedJob(QUEUE, job.id) for job in made[start : start + 5]]) for start in range(0, 25, 5)]
    nacks = [NackById([ClaimedJob(QUEUE, job.id, "no")]) for job in made[25:]]
    await asyncio.gather(*(engine.run(each) for each in [*unknown, *acks, *nacks]))
    assert asked["job_load"] == 2, "one for those that are done, one for those that failed"
    assert asked["job_find_custom"] == 0
    assert asked["job_save"] <= 2


async def test_many_staged_writes_are_committed_together(engine: Engine, asked: Counter[str]) -> None:
    stages = StagedWrites(engine)  # nobody publishes
    for number in range(MANY):
        await stages.stage(
            "default", f"t{number}", 0, [PackedRows("mail", 1, bulk_records.pack({"data": [b"%d" % number]}))]
        )
    asked.clear()
    commit, _ = await engine.run(CommitStages("default", "k", [f"t{number}" for number in range(MANY)]))
    assert commit.rows == MANY
    assert asked == {"entry_load": 1, "entry_load_all": 2, "entry_remove": 2, "entry_save": 2}


async def test_what_a_job_does_not_need_any_more_is_read_together(engine: Engine, asked: Counter[str]) -> None:
    """Ends of children on another shard, which were cancelled there."""
    children = await push_many(engine, MANY)
    parent = await push(engine, needs=tuple(child.id for child in children))
    asked.clear()
    await engine.run(ApplyRemoteEnds([(JobEnd(0, child.id, Need.DROPPED), parent.id) for child in children]))
    assert asked["need_of"] == asked["need_save"] == 1
    assert await state(engine, parent) is State.WAITING


async def test_children_that_are_cancelled_for_another_shard_are_recorded_together(
    engine: Engine, asked: Counter[str]
) -> None:
    children = await push_many(engine, MANY)
    asked.clear()
    cancelled = await engine.run(CancelIdle(QUEUE.namespace, [child.id for child in children], children[0].id))
    assert cancelled.idle == MANY
    assert asked["relay_asked"] == asked["relay_ask"] == 1
