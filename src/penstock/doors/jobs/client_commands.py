"""The commands that only bunqueue's own client sends, in addition to those of the HTTP API. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.lifecycle import State
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.jobs.client_views import (
    client_state,
    full_job_view,
)
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import ID, QUEUE, DataReply
from penstock.doors.jobs.listings import choose
from penstock.doors.jobs.mapping import job_name, job_ref
from penstock.doors.jobs.wire import client as c
from penstock.doors.jobs.wire import replies
from penstock.engine.jobs.unique_keys import UniqueKey
from penstock.engine.queues.limit_status import AskLimits
from penstock.store.contract import Page

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.job import JobRecord, Payload
    from penstock.core.time_slices import Steps
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.job_handlers import JobHandlers
    from penstock.doors.jobs.queues import QueueHandlers

JOBS = BodyReader(c.JobsQuery)
LIMITS = BodyReader(c.LimitsQuery)


def client_job_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands about jobs whose replies differ from those over HTTP."""

    async def get(call: CommandCall, id: str) -> c.FullJobReply:
        job, payload = await jobs.job(call, id)
        result = (
            await jobs.store.result_get(job.id, namespace=call.session.namespace) if job.state == State.COMPLETED else None
        )
        return c.FullJobReply(job=full_job_view(job, payload, jobs.store.queue_of(job).key.name, result))

    async def get_state(call: CommandCall, id: str) -> replies.StateReply:
        found = await jobs.store.job_get(call.session.namespace, job_ref(id))
        return replies.StateReply(id=id, state="unknown" if found is None else client_state(found[0]))

    return {
        "GetJob": CommandEntry(get, None, ID),
        "GetJobByCustomId": CommandEntry(get, None, {"id": "customId"}),
        "GetState": CommandEntry(get_state, None, ID),
    }


def _views(
    listed: Sequence[tuple[JobRecord, Payload]], queue: str, results: Mapping[int, bytes]
) -> Steps[list[c.FullJobView]]:
    """Return views of jobs with their results, in steps."""
    views = []
    for job, body in listed:
        views.append(full_job_view(job, body, queue, results.get(job.id)))
        yield
    return views


def client_queue_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about queues whose replies differ from those over HTTP, or that HTTP does not have."""

    async def list_jobs(call: CommandCall, queue: str) -> c.FullJobsReply:
        query = JOBS.parse(await call.body())
        found = queues.queue(call, queue)
        names = ",".join(query.state) if isinstance(query.state, list) else query.state
        chosen = choose(names, paused=found is not None and found.settings.paused, apart=True)
        if found is None or query.limit == 0 or not chosen.states:
            return c.FullJobsReply(jobs=[])
        page = Page(found, chosen.states, query.limit, query.offset, chosen.prioritized, not query.asc)
        listed = await queues.listed(page, lambda job, body: (job, body))
        done = [job.id for job, _ in listed if job.state == State.COMPLETED]
        results = await queues.engine.of(found.key).store.result_list(done, namespace=found.key.namespace) if done else {}
        return c.FullJobsReply(jobs=await in_slices(_views(listed, queue, results)))

    return {
        "GetJobs": CommandEntry(list_jobs, JOBS, QUEUE),
    }


def limit_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about limits and unique keys that HTTP does not have."""

    async def get_limits(call: CommandCall, queue: str) -> DataReply:
        asked = LIMITS.parse(await call.body())
        status = await queues.engine.run(AskLimits(queues.queue_key(call, queue), asked.max_jobs))
        rate = None if status.rate_limit is None else {"max": status.rate_limit, "duration": status.window_ms}
        shown = {
            "rateLimit": rate,
            "rateLimitTtl": status.wait_ms,
            "concurrencyLimit": status.concurrency,
            "maxed": status.maxed,
        }
        return DataReply(data={"limits": shown})

    async def key_holder(call: CommandCall, queue: str, key: str) -> DataReply:
        holder = await queues.engine.run(UniqueKey(queues.queue_key(call, queue), key))
        return DataReply(data={"jobId": None if holder is None else job_name(holder)})

    async def free_key(call: CommandCall, queue: str, key: str) -> DataReply:
        holder = await queues.engine.run(UniqueKey(queues.queue_key(call, queue), key, free=True))
        return DataReply(data={"count": 0 if holder is None else 1})

    async def free_key_of(call: CommandCall, id: str) -> DataReply:
        found = await queues.store.job_get(call.session.namespace, job_ref(id))
        holder = None
        if found is not None and found[0].unique_key is not None:
            job, unique_key = found[0], found[0].unique_key
            key = queues.store.queue_of(job).key
            holder = await queues.engine.run(UniqueKey(key, unique_key, free=True, only=job.id))
        return DataReply(data={"removed": holder is not None})

    by_key = QUEUE | {"key": "deduplicationId"}
    return {
        "GetQueueLimits": CommandEntry(get_limits, LIMITS, QUEUE),
        "GetDeduplicationJobId": CommandEntry(key_holder, None, by_key),
        "RemoveDeduplicationKey": CommandEntry(free_key, None, by_key),
        "RemoveJobDeduplicationKey": CommandEntry(free_key_of, None, ID),
    }
