"""The commands about dead letters, as bunqueue's own client sends them. docs/tcp.md explains them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import WrongState
from penstock.core.job import details_of
from penstock.core.lifecycle import Arrow, State
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import Refused
from penstock.doors.http.route import Route
from penstock.doors.jobs.client_views import REASONS, client_reason, dead_entry, full_dead_view, next_retry_at
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import QUEUE, DataReply
from penstock.doors.jobs.mapping import job_ref
from penstock.doors.jobs.wire import client as c
from penstock.doors.jobs.wire import replies
from penstock.engine.jobs.update import MoveJob
from penstock.engine.queues import admin
from penstock.store.bounded_list import BoundedList
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penstock.core.job import JobRecord, Payload
    from penstock.core.queue import DlqConfig, Queue
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.queues import QueueHandlers

DEAD = BodyReader(c.DeadQuery)
RETRY_DEAD = BodyReader(c.RetryDeadBody)


def dead_letter_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about dead letters whose replies differ from those over HTTP, or that HTTP does not have."""
    letters = DeadLetters(queues)
    return {
        "Dlq": CommandEntry(letters.list_dead, DEAD, QUEUE),
        "GetDlqStats": CommandEntry(letters.stats, None, QUEUE),
        "RetryDlq": CommandEntry(letters.retry, RETRY_DEAD, QUEUE),
        "RemoveDlqJob": CommandEntry(letters.remove, None, QUEUE | {"job": "jobId"}),
    }


def _entries(found: Sequence[tuple[JobRecord, Payload]], queue: str, rule: DlqConfig) -> Steps[list[c.DeadEntry]]:
    """Return views of dead jobs, in steps."""
    entries = []
    for job, body in found:
        entries.append(dead_entry(full_dead_view(job, body, queue), job, rule))
        yield
    return entries


class DeadLetters:
    """One method per command."""

    def __init__(self, queues: QueueHandlers) -> None:
        self.queues = queues

    async def list_dead(self, call: CommandCall, queue: str) -> c.DeadEntriesReply:
        query = DEAD.parse(await call.body())
        found = self.queues.queue(call, queue)
        most = limits.list_jobs_max if query.count is None else min(query.count, limits.list_jobs_max)
        if found is None or most == 0:
            return c.DeadEntriesReply(jobs=[], entries=[])
        listing: BoundedList[JobRecord] = BoundedList(
            "These dead jobs, each listed twice, are", "Request fewer with count or limit"
        )
        for job in await self._filtered(found, query.filter or c.DeadFilter(), most):
            listing.add(job, 2 * job.size)
        chosen = listing.items
        store = self.queues.engine.of(found.key).store
        bodies = {
            job.id: (job, body)
            for job, body in await store.job_fetch([job.id for job in chosen], namespace=found.key.namespace)
        }
        rule = found.settings.dlq
        found_again = [bodies[job.id] for job in chosen if job.id in bodies]
        entries = await in_slices(_entries(found_again, queue, rule))
        return c.DeadEntriesReply(jobs=[entry.job for entry in entries], entries=entries)

    async def stats(self, call: CommandCall, queue: str) -> DataReply:
        return DataReply(data={"stats": await self._counted(call, queue)})

    async def http_stats(self, req: ApiRequest, queue: str) -> c.DeadStatsReply:
        """Answer ``GET /queues/{queue}/dlq/stats``, where the figures are not wrapped in ``data``."""
        return c.DeadStatsReply(stats=await self._counted(req, queue))

    async def _counted(self, req: ApiRequest, queue: str) -> c.DeadStats:
        found = self.queues.queue(req, queue)
        now_ms = self.queues.engine.clock.now_ms()
        counted = c.DeadStats(0, dict.fromkeys(REASONS, 0), {queue: 0}, 0, 0, None, None)

        async def count(dead_of: Queue) -> None:
            async for heads in _dead(self.queues, dead_of):
                for job in heads:
                    _count(counted, job, queue, dead_of.settings.dlq, now_ms)

        if found is not None:
            await self.queues.counted(found, count)
        return counted

    async def _filtered(self, queue: Queue, wanted: c.DeadFilter, most: int) -> list[JobRecord]:
        """Return the dead jobs of a queue that match a filter. All of them are read, as for a count."""
        return await self.queues.counted(queue, partial(_filtered, self.queues, wanted=wanted, most=most))

    def routes(self) -> list[Route]:
        """Return the routes that HTTP also has."""
        path = "/queues/{queue}/dlq/stats"
        return self.queues.namespaced(Route("GET", path, self.http_stats, "DLQ statistics", "DLQ", c.DeadStatsReply))

    async def remove(self, call: CommandCall, queue: str, job: str) -> DataReply:
        key = self.queues.queue_key(call, queue)
        found = await self.queues.store.job_get(key.namespace, job_ref(job))
        if found is None or self.queues.store.queue_of(found[0]).key != key or found[0].state != State.DEAD:
            return DataReply(data={"removed": False})
        try:
            await self.queues.engine.run(MoveJob(key.namespace, found[0].id, Arrow.PURGE))
        except WrongState as error:
            raise Refused(str(error)) from None
        return DataReply(data={"removed": True})

    async def retry(self, call: CommandCall, queue: str) -> replies.CountReply:
        wanted = RETRY_DEAD.parse(await call.body()).filter
        if wanted is None:
            return await self.queues.retry_dlq(call, queue)
        found = self.queues.queue(call, queue)
        if found is None:
            return replies.CountReply(count=0)
        chosen = await self._filtered(found, wanted, limits.offset_max)
        count = await admin.revive_some(self.queues.engine, found.key, [job.id for job in chosen])
        return replies.CountReply(count=count)


async def _dead(queues: QueueHandlers, queue: Queue) -> AsyncIterator[Sequence[JobRecord]]:
    """Yield the dead jobs of a queue, those that died first in front, in slices."""
    engine = queues.engine.of(queue.key)
    place, up_to = Place(0, 0), engine.highest_id()
    while page := await engine.store.job_select(Selection(queue, State.DEAD, limits.slice_jobs_max, up_to, after=place)):
        yield await engine.store.head_list([each.id for each in page], namespace=queue.key.namespace)
        place = page[-1]
        await queues.engine.fair_share.give_way()


async def _filtered(queues: QueueHandlers, queue: Queue, wanted: c.DeadFilter, most: int) -> list[JobRecord]:
    """Return the dead jobs of a queue that match a filter."""
    now_ms = queues.engine.clock.now_ms()
    most = min(most, wanted.limit) if wanted.limit else most
    chosen: list[JobRecord] = []
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


def _passes(job: JobRecord, wanted: c.DeadFilter, rule: DlqConfig, now_ms: int) -> bool:
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


def _count(counted: c.DeadStats, job: JobRecord, queue: str, rule: DlqConfig, now_ms: int) -> None:
    entered = job.finished_at or job.created_at
    counted.total += 1
    counted.by_queue[queue] += 1
    counted.by_reason[client_reason(details_of(job))] += 1
    counted.pending_retry += _is_due(next_retry_at(job, rule), now_ms)
    counted.expired += rule.max_age is not None and _is_due(entered + rule.max_age, now_ms)
    counted.oldest_entry = entered if counted.oldest_entry is None else min(counted.oldest_entry, entered)
    counted.newest_entry = entered if counted.newest_entry is None else max(counted.newest_entry, entered)
