"""Pushing jobs again that repeat, in the transaction in which they were done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import InvalidInput
from penstock.core.repeat import successor
from penstock.engine.produce import push_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job, NewJob, Payload
    from penstock.core.queue import Queue
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work


async def repeat(engine: Engine, work: Work, done: Sequence[Job]) -> None:
    """Push the successors of jobs that were just done. One whose unique key somebody else took meanwhile has none."""
    # The payloads first: those that are removed when done are gone with the flush. Then the flush, which frees unique keys.
    payloads = await work.tx.payload_load([job.id for job in done])
    await work.flush()
    pushes: list[tuple[Queue, NewJob]] = []
    for job in done:
        payload = payloads.get(job.id)
        new = None if payload is None else _successor(work, job, payload)
        if new is not None:
            pushes.append((engine.store.queue_by_number(job.queue), new))
    await push_inside(work, pushes)


def _successor(work: Work, job: Job, payload: Payload) -> NewJob | None:
    try:
        return successor(job, payload, work.now_ms)
    except (InvalidInput, msgspec.DecodeError):  # a rule that nobody understands any more must not undo the ack
        return None
