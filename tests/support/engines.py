"""Short words for what engine tests do all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import QueueKey
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack, Renew
from penstock.engine.jobs.update import MoveJob

if TYPE_CHECKING:
    from penstock.core.job import Delivery, JobRecord
    from penstock.engine.api import EngineApi
    from penstock.engine.jobs.settle import ItemOutcome

QUEUE = QueueKey("default", "mail")


async def push(engine: EngineApi, *, queue: QueueKey = QUEUE, data: bytes = b"{}", **options: Any) -> JobRecord:
    (job,) = await engine.run(Push(queue, [JobSpec(data, **options)]))
    return job


async def push_many(engine: EngineApi, count: int, *, queue: QueueKey = QUEUE, **options: Any) -> list[JobRecord]:
    return await engine.run(Push(queue, [JobSpec(str(n).encode(), **options) for n in range(count)]))


async def claim(engine: EngineApi, *, queue: QueueKey = QUEUE, **options: Any) -> Delivery | None:
    claimed = await engine.run(Claim(queue, **options))
    return claimed[0] if claimed else None


async def claim_job(engine: EngineApi, **options: Any) -> JobRecord:
    claimed = await claim(engine, **options)
    assert claimed is not None
    return claimed.job


async def claim_all(engine: EngineApi, count: int = 1_000, *, queue: QueueKey = QUEUE, **options: Any) -> list[JobRecord]:
    return [delivery.job for delivery in await engine.run(Claim(queue, count, **options))]


async def ack(engine: EngineApi, job: JobRecord, result: bytes | None = None, token: int | None = None) -> ItemOutcome:
    (outcome,) = await engine.run(Ack("default", [LeaseRef(job.id, token)], [result]))
    return outcome


async def fail(engine: EngineApi, job: JobRecord, error: str | None = "broken", token: int | None = None) -> ItemOutcome:
    (outcome,) = await engine.run(Nack("default", [LeaseRef(job.id, token)], error))
    return outcome


async def renew(engine: EngineApi, job: JobRecord, lease_ms: int | None = None, token: int | None = None) -> ItemOutcome:
    (outcome,) = await engine.run(Renew("default", [LeaseRef(job.id, token)], [lease_ms]))
    return outcome


async def move(engine: EngineApi, job: JobRecord, arrow: Arrow, value: int = 0) -> None:
    await engine.run(MoveJob("default", job.id, arrow, value))


async def stored(engine: EngineApi, job: JobRecord) -> JobRecord | None:
    found = await engine.store.job_get("default", job.id)
    return None if found is None else found[0]


async def state(engine: EngineApi, job: JobRecord) -> State:
    found = await stored(engine, job)
    return State.NOWHERE if found is None else State(found.state)
