"""Handlers about queues: listing, counting, pausing, emptying; dead letters, limits and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import InvalidInput, WrongState
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow, State, sources
from penstock.core.queue import QueueKey, QueueSettings, StateCounts
from penstock.doors import queue_lists
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import Refused
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import JobsDoor
from penstock.doors.jobs.listings import choose, counts_view, make_exclusive
from penstock.doors.jobs.mapping import STATES_BY_NAME, dead_job_view, job_name, job_ref, job_view
from penstock.doors.jobs.wire import replies, requests
from penstock.engine.jobs.update import MoveJob
from penstock.engine.queues import admin
from penstock.engine.queues.admin import Configure
from penstock.store.contract import Page

if TYPE_CHECKING:
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest


LIST = BodyReader(requests.ListQuery)
CLEAN = BodyReader(requests.CleanBody)
COUNT = BodyReader(requests.CountBody)
RETRY_COMPLETED = BodyReader(requests.RetryCompletedBody)
DLQ_LIST = BodyReader(requests.DlqQuery)
DLQ_RETRY = BodyReader(requests.DlqRetryBody)
LIMIT = BodyReader(requests.LimitBody)
RATE_LIMIT = BodyReader(requests.RateLimitBody)
STALL = BodyReader(requests.StallBody)
DLQ = BodyReader(requests.DlqBody)
MODE = BodyReader(requests.ModeBody)


_QUEUE: Final = "/queues/{queue}"
#: Tags of routes in the API reference.
_DEAD, _LIMITS, _CONFIG = "DLQ", "Rate Limiting & Concurrency", "Configuration"
_REQUIRED: Final[dict[str, Any]] = {"body_required": True}


class QueueHandlers(JobsDoor):
    """One method per route."""

    # Reading.

    async def list_queues(self, req: ApiRequest) -> replies.QueuesReply:
        namespace = self.namespace(req)
        steps = queue_lists.name_steps(self.store, namespace, queue_lists.has_jobs)
        names = await queue_lists.listed(req, self.store.queue_count(namespace), steps)
        return replies.QueuesReply(queues=names, partial=self.partial())

    async def list_jobs(self, req: ApiRequest, queue: str) -> replies.JobsReply:
        query = LIST.parse_query(req)
        found = self.queue(req, queue)
        chosen = choose(query.state, paused=found is not None and found.settings.paused, apart=False)
        limit = min(query.limit, limits.list_jobs_max)
        if found is None or limit == 0 or not chosen.states:
            return replies.JobsReply(jobs=[])
        page = Page(found, chosen.states, limit, query.offset, chosen.prioritized)
        return replies.JobsReply(jobs=await self.listed(page, lambda job, payload: job_view(job, payload, queue)))

    async def summary(self, req: ApiRequest) -> list[replies.QueueSummary]:
        """Return all queues in one answer: an array, without ``ok``."""
        namespace = self.namespace(req)
        return await queue_lists.listed(req, self.store.queue_count(namespace), self._summary_steps(namespace))

    def _summary_steps(self, namespace: str) -> Steps[list[replies.QueueSummary]]:
        names = yield from queue_lists.name_steps(self.store, namespace, queue_lists.has_jobs)
        rows: list[replies.QueueSummary] = []
        for some in queue_lists.slices_of(names):
            for name in some:
                queue = self.store.queue_find(QueueKey(namespace, name))
                if queue is None:  # removed since the last step
                    continue
                jobs = self.store.counts(queue)
                counts = replies.QueueCounts(jobs.waiting, jobs.active, jobs.delayed, jobs.completed, jobs.dead)
                rows.append(replies.QueueSummary(name, queue.settings.paused, counts))
            yield
        return rows

    async def counts(self, req: ApiRequest, queue: str) -> replies.CountsReply:
        counts = self._counts(req, queue)
        found = self.queue(req, queue)
        prioritized = 0 if found is None or not counts.waiting else await self.counted(found, self.store.prioritized_count)
        paused = found is not None and found.settings.paused
        return replies.CountsReply(counts=counts_view(counts, min(prioritized, counts.waiting), paused=paused))

    async def exclusive_counts(self, req: ApiRequest, queue: str) -> replies.CountsReply:
        """Return the counts as commands have them: each job is counted once."""
        reply = await self.counts(req, queue)
        make_exclusive(reply.counts, paused=self._settings(req, queue).paused)
        return reply

    async def count(self, req: ApiRequest, queue: str) -> replies.CountReply:
        counts = self._counts(req, queue)
        return replies.CountReply(count=counts.waiting + counts.active + counts.delayed)

    async def priority_counts(self, req: ApiRequest, queue: str) -> replies.PriorityCountsReply:
        found = self.queue(req, queue)
        counts = {} if found is None else await self.counted(found, self.store.priority_counts)
        return replies.PriorityCountsReply(queue=queue, counts=counts)

    async def paused(self, req: ApiRequest, queue: str) -> replies.PausedReply:
        return replies.PausedReply(paused=self._settings(req, queue).paused)

    def _counts(self, req: ApiRequest, queue: str) -> StateCounts:
        found = self.queue(req, queue)
        store = self.engine.of(self.queue_key(req, queue)).store
        if store.capabilities.is_shared:  # changes by other servers since the database was lost are not known here
            store.check_writable(grows=False)
        return StateCounts() if found is None else store.counts(found)

    def _settings(self, req: ApiRequest, queue: str) -> QueueSettings:
        found = self.queue(req, queue)
        return QueueSettings() if found is None else found.settings

    # Control.

    async def pause(self, req: ApiRequest, queue: str) -> replies.Ok:
        return await self._set(req, queue, EventKind.QUEUE_PAUSED, paused=True)

    async def resume(self, req: ApiRequest, queue: str) -> replies.Ok:
        return await self._set(req, queue, EventKind.QUEUE_RESUMED, paused=False)

    async def drain(self, req: ApiRequest, queue: str) -> replies.CountReply:
        key = self.queue_key(req, queue)
        return replies.CountReply(count=await admin.drain(self.engine, key))

    async def obliterate(self, req: ApiRequest, queue: str) -> replies.Ok:
        key = self.queue_key(req, queue)
        await admin.obliterate(self.engine, key)
        return replies.Ok()

    async def clean(self, req: ApiRequest, queue: str) -> replies.CleanReply:
        key = self.queue_key(req, queue)
        body = await CLEAN.read_optional(req)
        states = _cleaned(body.state)
        removed = await admin.clean(self.engine, key, body.grace, states, body.limit)
        return replies.CleanReply(count=len(removed), ids=[job_name(job) for job in removed])

    async def promote_jobs(self, req: ApiRequest, queue: str) -> replies.CountReply:
        key = self.queue_key(req, queue)
        body = await COUNT.read_optional(req)
        return replies.CountReply(count=await admin.move_many(self.engine, key, Arrow.PROMOTE, limit=body.count))

    async def retry_completed(self, req: ApiRequest, queue: str) -> replies.CountReply:
        key = self.queue_key(req, queue)
        body = await RETRY_COMPLETED.read_optional(req)
        if body.id is not None:
            return replies.CountReply(count=await self._bring_back(key, body.id, Arrow.REPLAY))
        before_ms = None if body.timestamp is None else body.timestamp + 1
        return replies.CountReply(
            count=await admin.move_many(self.engine, key, Arrow.REPLAY, limit=body.count, before_ms=before_ms)
        )

    # Dead letters.

    async def list_dlq(self, req: ApiRequest, queue: str) -> replies.DeadJobsReply:
        query = DLQ_LIST.parse_query(req)
        found = self.queue(req, queue)
        limit = min(query.count, limits.list_jobs_max)
        if found is None or limit == 0:
            return replies.DeadJobsReply(jobs=[])
        page = Page(found, (State.DEAD,), limit)
        return replies.DeadJobsReply(jobs=await self.listed(page, lambda job, payload: dead_job_view(job, payload, queue)))

    async def retry_dlq(self, req: ApiRequest, queue: str) -> replies.CountReply:
        key = self.queue_key(req, queue)
        body = await DLQ_RETRY.read_optional(req)
        if body.job_id is not None:
            return replies.CountReply(count=await self._bring_back(key, body.job_id, Arrow.REVIVE))
        return replies.CountReply(count=await admin.revive(self.engine, key, body.count))

    async def purge_dlq(self, req: ApiRequest, queue: str) -> replies.CountReply:
        key = self.queue_key(req, queue)
        return replies.CountReply(count=await admin.purge(self.engine, key))

    async def _bring_back(self, key: QueueKey, text: str, arrow: Arrow) -> int:
        """Move one job of a queue back to it. Return 0 if it has no such job."""
        found = await self.store.job_get(key.namespace, job_ref(text))
        if found is None or self.store.queue_of(found[0]).key != key or found[0].state not in sources(arrow):
            return 0
        try:
            await self.engine.run(MoveJob(key.namespace, found[0].id, arrow))
        except WrongState as error:
            raise Refused(str(error)) from None
        return 1

    # Limits and settings.

    async def get_rate_limit(self, req: ApiRequest, queue: str) -> replies.LimitReply:
        settings = self._settings(req, queue)
        until = settings.rate_limit_until
        is_over = until is not None and until <= self.engine.clock.now_ms()
        return replies.LimitReply(limit=None if is_over else settings.rate_limit)

    async def set_rate_limit(self, req: ApiRequest, queue: str) -> replies.Ok:
        body = await RATE_LIMIT.read(req)
        command = Configure(
            self.queue_key(req, queue),
            EventKind.RATELIMIT_SET,
            lambda settings: msgspec.structs.replace(
                settings,
                rate_limit=body.limit,
                rate_window_ms=body.duration or limits.SECOND_MS,
                rate_limit_until=self.engine.clock.now_ms() + body.ttl if body.ttl else None,
            ),
            lambda _settings: body.limit,
        )
        await self.engine.run(command)
        return replies.Ok()

    async def clear_rate_limit(self, req: ApiRequest, queue: str) -> replies.Ok:
        return await self._set(req, queue, EventKind.RATELIMIT_CLEARED, rate_limit=None)

    async def get_concurrency(self, req: ApiRequest, queue: str) -> replies.LimitReply:
        return replies.LimitReply(limit=self._settings(req, queue).concurrency)

    async def set_concurrency(self, req: ApiRequest, queue: str) -> replies.Ok:
        body = await LIMIT.read(req)
        return await self._set(req, queue, EventKind.CONCURRENCY_SET, concurrency=body.limit)

    async def clear_concurrency(self, req: ApiRequest, queue: str) -> replies.Ok:
        return await self._set(req, queue, EventKind.CONCURRENCY_CLEARED, concurrency=None)

    async def get_stall_config(self, req: ApiRequest, queue: str) -> replies.StallReply:
        return replies.StallReply(config=self._settings(req, queue).stall)

    async def set_stall_config(self, req: ApiRequest, queue: str) -> replies.Ok:
        body = await STALL.read(req)
        return await self._patch(req, queue, EventKind.CONFIG_STALL_CHANGED, "stall", body.config or body)

    async def get_mode(self, req: ApiRequest, queue: str) -> replies.ModeReply:
        return replies.ModeReply(mode="buffered" if self._settings(req, queue).buffered else "direct")

    async def set_mode(self, req: ApiRequest, queue: str) -> replies.Ok:
        body = await MODE.read(req)
        key = self.queue_key(req, queue)
        buffered = body.mode == "buffered"
        buffer = self.engine.of(key).buffer
        if buffered and (buffer is None or not buffer.has_copies):
            raise Refused("This server has no enqueue buffer. Start it with --store postgresql://… and --redis URL.")
        if buffered and buffer is not None and not buffer.is_open:
            raise Refused("The log of this server's enqueue buffer cannot be opened. Check the server's log, and --data.")
        command = Configure(
            key,
            EventKind.CONFIG_MODE_CHANGED,
            lambda settings: msgspec.structs.replace(settings, buffered=buffered),
            lambda _settings: body.mode,
        )
        await self.engine.run(command)
        return replies.Ok()

    async def get_dlq_config(self, req: ApiRequest, queue: str) -> replies.DlqReply:
        return replies.DlqReply(config=self._settings(req, queue).dlq)

    async def set_dlq_config(self, req: ApiRequest, queue: str) -> replies.Ok:
        body = await DLQ.read(req)
        return await self._patch(req, queue, EventKind.CONFIG_DLQ_CHANGED, "dlq", body.config or body)

    async def _set(self, req: ApiRequest, queue: str, event: EventKind, **changes: Any) -> replies.Ok:
        """Change one setting. The journal records its new value."""
        (value,) = changes.values()
        command = Configure(
            self.queue_key(req, queue),
            event,
            lambda settings: msgspec.structs.replace(settings, **changes),
            lambda _settings: value,
        )
        await self.engine.run(command)
        return replies.Ok()

    async def _patch(self, req: ApiRequest, queue: str, event: EventKind, name: str, patch: msgspec.Struct) -> replies.Ok:
        """Change parts of a group of settings. The journal records the whole group."""
        command = Configure(
            self.queue_key(req, queue),
            event,
            lambda settings: msgspec.structs.replace(settings, **{name: _patched(getattr(settings, name), patch)}),
            lambda settings: msgspec.to_builtins(getattr(settings, name)),
        )
        await self.engine.run(command)
        return replies.Ok()

    ROUTES: Final = (
        Route("GET", "/queues", list_queues, "List all queues", "Queues", replies.QueuesReply),
        Route("GET", "/queues/summary", summary, "Counts of all queues", "Queues", listed=replies.QueueSummary),
        Route("GET", f"{_QUEUE}/jobs/list", list_jobs, "List jobs by state", "Queues", replies.JobsReply, query=LIST),
        Route("GET", f"{_QUEUE}/counts", counts, "Job counts per state", "Queues", replies.CountsReply),
        Route("GET", f"{_QUEUE}/count", count, "Total job count", "Queues", replies.CountReply),
        Route(
            "GET", f"{_QUEUE}/priority-counts", priority_counts, "Counts per priority", "Queues", replies.PriorityCountsReply
        ),
        Route("GET", f"{_QUEUE}/paused", paused, "Check if paused", "Queues", replies.PausedReply),
        Route("POST", f"{_QUEUE}/pause", pause, "Pause queue", "Queues", replies.Ok),
        Route("POST", f"{_QUEUE}/resume", resume, "Resume queue", "Queues", replies.Ok),
        Route("POST", f"{_QUEUE}/drain", drain, "Drain queue", "Queues", replies.CountReply),
        Route("POST", f"{_QUEUE}/obliterate", obliterate, "Obliterate queue", "Queues", replies.Ok),
        Route("POST", f"{_QUEUE}/clean", clean, "Clean old jobs", "Queues", replies.CleanReply, body=CLEAN),
        Route(
            "POST", f"{_QUEUE}/promote-jobs", promote_jobs, "Promote delayed jobs", "Queues", replies.CountReply, body=COUNT
        ),
        Route(
            "POST",
            f"{_QUEUE}/retry-completed",
            retry_completed,
            "Retry completed jobs",
            "Queues",
            replies.CountReply,
            body=RETRY_COMPLETED,
        ),
        Route("GET", f"{_QUEUE}/dlq", list_dlq, "List DLQ jobs", _DEAD, replies.DeadJobsReply, query=DLQ_LIST),
        Route("POST", f"{_QUEUE}/dlq/retry", retry_dlq, "Retry DLQ jobs", _DEAD, replies.CountReply, body=DLQ_RETRY),
        Route("POST", f"{_QUEUE}/dlq/purge", purge_dlq, "Purge DLQ", _DEAD, replies.CountReply),
        Route("GET", f"{_QUEUE}/rate-limit", get_rate_limit, "Get rate limit", _LIMITS, replies.LimitReply),
        Route(
            "PUT",
            f"{_QUEUE}/rate-limit",
            set_rate_limit,
            "Set rate limit",
            _LIMITS,
            replies.Ok,
            body=RATE_LIMIT,
            **_REQUIRED,
        ),
        Route("DELETE", f"{_QUEUE}/rate-limit", clear_rate_limit, "Clear rate limit", _LIMITS, replies.Ok),
        Route("GET", f"{_QUEUE}/concurrency", get_concurrency, "Get concurrency", _LIMITS, replies.LimitReply),
        Route(
            "PUT", f"{_QUEUE}/concurrency", set_concurrency, "Set concurrency", _LIMITS, replies.Ok, body=LIMIT, **_REQUIRED
        ),
        Route("DELETE", f"{_QUEUE}/concurrency", clear_concurrency, "Clear concurrency", _LIMITS, replies.Ok),
        Route("GET", f"{_QUEUE}/stall-config", get_stall_config, "Stall detection config", _CONFIG, replies.StallReply),
        Route(
            "PUT",
            f"{_QUEUE}/stall-config",
            set_stall_config,
            "Set stall detection config",
            _CONFIG,
            replies.Ok,
            body=STALL,
            **_REQUIRED,
        ),
        Route("GET", f"{_QUEUE}/mode", get_mode, "When pushes are answered", _CONFIG, replies.ModeReply),
        Route(
            "PUT", f"{_QUEUE}/mode", set_mode, "Set when pushes are answered", _CONFIG, replies.Ok, body=MODE, **_REQUIRED
        ),
        Route("GET", f"{_QUEUE}/dlq-config", get_dlq_config, "DLQ config", _CONFIG, replies.DlqReply),
        Route("PUT", f"{_QUEUE}/dlq-config", set_dlq_config, "Set DLQ config", _CONFIG, replies.Ok, body=DLQ, **_REQUIRED),
    )

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        return self.bound(self.ROUTES)


def _cleaned(text: str | None) -> tuple[State, ...]:
    """Read a state to clean, or several separated by commas. Raises InvalidInput for a state that cannot be cleaned."""
    if not text or text == "all":
        return sources(Arrow.DRAIN)
    names = dict.fromkeys(_ALIASES.get(name.strip(), name.strip()) for name in text.split(","))
    known = [name for name, state in STATES_BY_NAME.items() if state in sources(Arrow.CLEAN)]
    if not all(name in known for name in names):
        raise InvalidInput(f"state must be one of: {', '.join(known)}")
    return tuple(STATES_BY_NAME[name] for name in names)


_ALIASES = {"wait": "waiting", "prioritized": "waiting", "paused": "waiting", "dead": "failed"}


def _patched(config: Any, patch: msgspec.Struct) -> Any:
    """Apply the fields of a patch; missing fields stay unchanged. Only a field that may be UNSET can be set to null."""
    given = {}
    for field in msgspec.structs.fields(config):
        value = getattr(patch, field.name)
        if value is msgspec.UNSET or (value is None and not _nullable(patch, field.name)):
            continue
        given[field.name] = value
    return msgspec.structs.replace(config, **given)


def _nullable(patch: msgspec.Struct, name: str) -> bool:
    return next(field.default is msgspec.UNSET for field in msgspec.structs.fields(patch) if field.name == name)
