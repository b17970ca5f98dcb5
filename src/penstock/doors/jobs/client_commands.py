"""The commands that bunqueue's own client sends besides those that the HTTP API has, too. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import WrongState
from penstock.core.job import details_of
from penstock.core.lifecycle import Arrow, State
from penstock.doors.http.body import Reader
from penstock.doors.http.errors import Refused
from penstock.doors.jobs import client_wire as c
from penstock.doors.jobs import wire
from penstock.doors.jobs.call import Entry
from penstock.doors.jobs.client_views import (
    REASONS,
    client_reason,
    client_state,
    dead_entry,
    full_dead_view,
    full_job_view,
    next_retry_at,
)
from penstock.doors.jobs.commands import ID, QUEUE, DataReply
from penstock.doors.jobs.listings import choose
from penstock.doors.jobs.views import job_ref
from penstock.engine.change import MoveJob
from penstock.store.contract import Page, Place, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penstock.core.job import Job
    from penstock.core.queue import DlqConfig, Queue
    from penstock.doors.jobs.call import Call
    from penstock.doors.jobs.jobs import JobHandlers
    from penstock.doors.jobs.queues import QueueHandlers

JOBS = Reader(c.JobsQuery)
DEAD = Reader(c.DeadQuery)


def client_job_commands(jobs: JobHandlers) -> dict[str, Entry]:
    """Return the commands about jobs that answer otherwise here than over HTTP."""

    async def get(call: Call, id: str) -> c.FullJobReply:
        job, payload = await jobs.job(call.request, id)
        result = await jobs.store.result_get(job.id) if job.state == State.COMPLETED else None
        return c.FullJobReply(job=full_job_view(job, payload, jobs.store.queue_of(job).key.name, result))

    async def get_state(call: Call, id: str) -> wire.StateReply:
        found = await jobs.store.job_get(call.session.namespace, job_ref(id))
        return wire.StateReply(id=id, state="unknown" if found is None else client_state(found[0]))

    return {
        "GetJob": Entry(get, None, ID),
        "GetJobByCustomId": Entry(get, None, {"id": "customId"}),
        "GetState": Entry(get_state, None, ID),
    }


def client_queue_commands(queues: QueueHandlers) -> dict[str, Entry]:
    """Return the commands about queues that answer otherwise here than over HTTP, or that HTTP does not have."""

    async def list_jobs(call: Call, queue: str) -> c.FullJobsReply:
        query = JOBS.parse(await call.body())
        found = queues.queue(call.request, queue)
        names = ",".join(query.state) if isinstance(query.state, list) else query.state
        chosen = choose(names, paused=found is not None and found.settings.paused, apart=True)
        if found is None or query.limit == 0 or not chosen.states:
            return c.FullJobsReply(jobs=[])
        page = Page(found, chosen.states, query.limit, query.offset, chosen.prioritized, not query.asc)
        listed = await queues.store.job_page(page)
        done = [job.id for job, _ in listed if job.state == State.COMPLETED]
        results = await queues.engine.of(found.key).store.result_list(done) if done else {}
        return c.FullJobsReply(jobs=[full_job_view(job, body, queue, results.get(job.id)) for job, body in listed])

    return {
        "GetJobs": Entry(list_jobs, JOBS, QUEUE),
    }


def dead_letter_commands(queues: QueueHandlers) -> dict[str, Entry]:
    """Return the commands about dead letters that answer otherwise here than over HTTP, or that HTTP does not have."""

    async def list_dead(call: Call, queue: str) -> c.DeadEntriesReply:
        query = DEAD.parse(await call.body())
        found = queues.queue(call.request, queue)
        most = limits.list_jobs_max if query.count is None else min(query.count, limits.list_jobs_max)
        if found is None or most == 0:
            return c.DeadEntriesReply(jobs=[], entries=[])
        chosen = await _filtered(queues, found, query.filter or c.DeadFilter(), most)
        store = queues.engine.of(found.key).store
        bodies = {job.id: (job, body) for job, body in await store.job_fetch([job.id for job in chosen])}
        rule = found.settings.dlq
        entries = []
        for job_id in (job.id for job in chosen):
            if job_id in bodies:
                job, body = bodies[job_id]
                entries.append(dead_entry(full_dead_view(job, body, queue), job, rule))
        return c.DeadEntriesReply(jobs=[entry.job for entry in entries], entries=entries)

    async def stats(call: Call, queue: str) -> DataReply:
        found = queues.queue(call.request, queue)
        now_ms = queues.engine.clock.now_ms()
        counted = c.DeadStats(0, dict.fromkeys(REASONS, 0), {queue: 0}, 0, 0, None, None)
        if found is not None:
            async for heads in _dead(queues, found):
                for job in heads:
                    _count(counted, job, queue, found.settings.dlq, now_ms)
        return DataReply(data={"stats": counted})

    async def remove(call: Call, queue: str, job: str) -> DataReply:
        key = queues.queue_key(call.request, queue)
        found = await queues.store.job_get(key.namespace, job_ref(job))
        if found is None or queues.store.queue_of(found[0]).key != key or found[0].state != State.DEAD:
            return DataReply(data={"removed": False})
        try:
            await queues.engine.run(MoveJob(key.namespace, found[0].id, Arrow.PURGE))
        except WrongState as error:
            raise Refused(str(error)) from None
        return DataReply(data={"removed": True})

    return {
        "Dlq": Entry(list_dead, DEAD, QUEUE),
        "GetDlqStats": Entry(stats, None, QUEUE),
        "RemoveDlqJob": Entry(remove, None, QUEUE | {"job": "jobId"}),
    }


async def _dead(queues: QueueHandlers, queue: Queue) -> AsyncIterator[Sequence[Job]]:
    """Yield the dead jobs of a queue, those that died first in front, a slice at a time."""
    engine = queues.engine.of(queue.key)
    place, up_to = Place(0, 0), engine.highest_id()
    while page := await engine.store.job_select(Selection(queue, State.DEAD, limits.slice_jobs_max, up_to, after=place)):
        yield await engine.store.head_list([each.id for each in page])
        place = page[-1]


async def _filtered(queues: QueueHandlers, queue: Queue, wanted: c.DeadFilter, most: int) -> list[Job]:
    """Return the dead jobs of a queue that a filter lets through."""
    now_ms = queues.engine.clock.now_ms()
    most = min(most, wanted.limit) if wanted.limit else most
    chosen: list[Job] = []
    skip = wanted.offset
    async for heads in _dead(queues, queue):
        for job in heads:
            if not _passes(job, wanted, queue.settings.dlq, now_ms):
                continue
            if skip:
                skip -= 1
                continue
            chosen.append(job)
            if len(chosen) == most:
                return chosen
    return chosen


def _passes(job: Job, wanted: c.DeadFilter, rule: DlqConfig, now_ms: int) -> bool:
    entered = job.finished_at or job.created_at
    if wanted.reason and client_reason(details_of(job)) != wanted.reason:
        return False
    if wanted.older_than and entered > wanted.older_than:
        return False
    if wanted.newer_than and entered < wanted.newer_than:
        return False
    if wanted.retriable and not _is_due(next_retry_at(job, rule), now_ms):
        return False
    return not wanted.expired or _is_due(None if rule.max_age is None else entered + rule.max_age, now_ms)


def _is_due(at_ms: int | None, now_ms: int) -> bool:
    return at_ms is not None and at_ms <= now_ms


def _count(counted: c.DeadStats, job: Job, queue: str, rule: DlqConfig, now_ms: int) -> None:
    entered = job.finished_at or job.created_at
    counted.total += 1
    counted.by_queue[queue] += 1
    counted.by_reason[client_reason(details_of(job))] += 1
    counted.pending_retry += _is_due(next_retry_at(job, rule), now_ms)
    counted.expired += rule.max_age is not None and _is_due(entered + rule.max_age, now_ms)
    counted.oldest_entry = entered if counted.oldest_entry is None else min(counted.oldest_entry, entered)
    counted.newest_entry = entered if counted.newest_entry is None else max(counted.newest_entry, entered)
