"""Pushes the next job of a repeating job, in the transaction that completes it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.repeat import successor
from penstock.engine.jobs.push import push_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord, JobSpec, Payload
    from penstock.core.queue import Queue
    from penstock.engine.context import EngineContext
    from penstock.engine.quota_check import QuotaCheck
    from penstock.engine.unit_of_work import UnitOfWork


async def repeat(engine: EngineContext, work: UnitOfWork, done: Sequence[JobRecord]) -> None:
    """Push the successors of jobs that were just completed. A job whose unique key another job took meanwhile has none."""
    # Read the payloads first, because the flush deletes those of jobs that are removed. Then flush, which frees unique keys.
    payloads = await work.tx.payload_load([job.id for job in done])
    await work.flush()
    pushes: list[tuple[Queue, JobSpec]] = []
    for job in done:
        payload = payloads.get(job.id)
        new = None if payload is None else _successor(work, job, payload)
        if new is not None:
            pushes.append((engine.store.queue_by_number(job.queue), new))
    if engine.quotas is not None and pushes:
        pushes = await _paced(engine.quotas, pushes)
    await push_inside(work, pushes)


async def _paced(quotas: QuotaCheck, pushes: Sequence[tuple[Queue, JobSpec]]) -> list[tuple[Queue, JobSpec]]:
    """Count jobs for their namespaces. Delay those that exceed a quota: without them, the repetition would end."""
    counts = Counter(queue.key.namespace for queue, _ in pushes)
    late = {namespace: list(delays) for namespace, delays in (await quotas.charge(counts)).items()}
    paced: list[tuple[Queue, JobSpec]] = []
    for queue, new in reversed(pushes):  # the last ones are delayed
        delays = late.get(queue.key.namespace)
        paced.append((queue, _put_off(new, delays.pop()) if delays else new))
    return paced[::-1]


def _put_off(new: JobSpec, ms: int) -> JobSpec:
    delay = min(max(new.delay, ms), limits.delay_ms_max)
    ttl = None if new.ttl is None else new.ttl + delay - new.delay
    return msgspec.structs.replace(new, delay=delay, ttl=ttl)


def _successor(work: UnitOfWork, job: JobRecord, payload: Payload) -> JobSpec | None:
    try:
        return successor(job, payload, work.now_ms)
    except (InvalidInput, msgspec.DecodeError):  # a rule that is not valid any more must not undo the ack
        return None
