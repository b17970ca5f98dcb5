"""Builds jobs from the requests of producers, and starts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.core.events import EventKind
from penstock.core.job import JobFlag, JobRecord, JobSpec, details_of, put_details
from penstock.core.lifecycle import Arrow, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue import Queue
    from penstock.engine.unit_of_work import UnitOfWork

_NOWHERE = State.NOWHERE.value


async def create_queue(work: UnitOfWork, queue: Queue) -> None:
    """Store a queue that gets its first jobs, and journal that. For a queue whose ``created_at`` is None."""
    await work.tx.queue_save(queue, queue.settings, work.now_ms)
    work.journal_queue_event(EventKind.QUEUE_CREATED, queue)


class Moments(NamedTuple):
    """When a job was made, when it is ready, and when its time-to-live and its hold on its unique key end.

    Wall clock, ms.
    """

    created_at: int
    run_at: int
    expires_at: int | None
    unique_until: int | None


def moments_of(new: JobSpec, now_ms: int) -> Moments:
    """Return the moments of a new job that is pushed now."""
    made = now_ms if new.timestamp is None else new.timestamp
    due_at = new.due_at
    if due_at is None:
        due_at = made + new.delay if new.delay else now_ms
    return Moments(
        made,
        max(now_ms, due_at),
        None if new.ttl is None else made + new.ttl,
        None if new.dedup is None or new.dedup.ttl is None else now_ms + new.dedup.ttl,
    )


def build_one(work: UnitOfWork, queue: Queue, new: JobSpec) -> JobRecord:
    """Build a job from a request. The job may have another creation time, or hold its unique key for a limited time only."""
    (job,) = _build(work, queue, (new,))
    if new.timestamp is None and new.dedup is None:
        return job
    made, ready, ends, unique_until = moments_of(new, work.now_ms)
    job = msgspec.structs.replace(job, created_at=made, run_at=ready, expires_at=ends)
    if unique_until is not None:
        details = details_of(job)
        details.unique_until = unique_until
        put_details(job, details)
    return job


def _build(work: UnitOfWork, queue: Queue, jobs: Sequence[JobSpec]) -> list[JobRecord]:
    """Build jobs from requests. The jobs are in no state yet."""
    return build(queue, work.serials(len(jobs)), jobs, work.now_ms)


def build(queue: Queue, serials: Sequence[int], jobs: Sequence[JobSpec], now: int) -> list[JobRecord]:
    """Build jobs from requests that were made at a given moment, with the given ids. The jobs are in no state yet."""
    namespace, number = queue.namespace_number, queue.number
    return [
        JobRecord(
            serial,
            namespace,
            number,
            now,
            new.max_attempts,
            new.backoff,
            new.timeout,
            new.group_id,
            new.unique_key,
            new.job_id,
            None if new.ttl is None else now + new.ttl,
            new.flags,
            _NOWHERE,
            new.priority,
            serial,
            now + new.delay if new.due_at is None else max(now, new.due_at),
            size=len(new.data),
            details=new.details,
        )
        for serial, new in zip(serials, jobs, strict=True)
    ]


def make(work: UnitOfWork, queue: Queue, jobs: Sequence[JobSpec]) -> list[JobRecord]:
    """Build jobs and start them."""
    made = _build(work, queue, jobs)
    for new in jobs:
        if new.delay or new.due_at is not None or new.flags & JobFlag.LIFO:
            start_individually(work, made, jobs)
            break
    else:
        work.create(made, jobs, Arrow.ENQUEUE)
    work.pushed += len(made)
    return made


def start_individually(work: UnitOfWork, made: list[JobRecord], jobs: Sequence[JobSpec]) -> None:
    """Start jobs that do not all start with the same transition."""
    apart: dict[Arrow, tuple[list[JobRecord], list[JobSpec]]] = {}
    for job, new in zip(made, jobs, strict=True):
        at_once = Arrow.ENQUEUE_FRONT if new.flags & JobFlag.LIFO else Arrow.ENQUEUE
        arrow = Arrow.SCHEDULE if job.run_at > work.now_ms else at_once
        of_arrow = apart.setdefault(arrow, ([], []))
        of_arrow[0].append(job)
        of_arrow[1].append(new)
    for arrow, (some, payloads) in apart.items():
        work.create(some, payloads, arrow)
