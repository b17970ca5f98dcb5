"""Handlers about jobs: push, pull, settle, read and change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from penstock.core import ids, limits
from penstock.core.dependencies import Need
from penstock.core.errors import BodyTooLarge, InvalidInput, PayloadTooLarge
from penstock.core.job import details_of
from penstock.core.lifecycle import Arrow
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.http.field_check import FieldCheck
from penstock.doors.http.long_poll import PullWaits, claim_for
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import JobsDoor, hold, holds, in_other_words
from penstock.doors.jobs.mapping import (
    STATE_NAMES,
    job_ref,
    job_steps,
    job_view,
    new_job,
    take_payload,
    take_result,
    value_steps,
)
from penstock.doors.jobs.wire import replies, requests
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push, check_needs
from penstock.engine.jobs.settle import Ack, Nack, Release, Renew, ReportProgress
from penstock.engine.jobs.update import AddLog, ClearLog, EditData

if TYPE_CHECKING:
    from penstock.core.job import JobRecord, JobSpec
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi


class ChildrenPage(requests.RequestModel):
    """Which part of a job's children, oldest first."""

    limit: Annotated[int, Meta(ge=1, le=limits.list_jobs_max)] = limits.list_jobs_max
    offset: Annotated[int, Meta(ge=0, le=limits.offset_max)] = 0


PUSH = BodyReader(requests.PushBody)
BULK = BodyReader(requests.BulkBody)
PUSH_CHECK: FieldCheck[requests.PushBody] = FieldCheck(requests.PushBody, requests.StrictPush)
BULK_CHECK: FieldCheck[requests.BulkBody] = FieldCheck(requests.BulkBody, requests.StrictBulk)
PULL = BodyReader(requests.HttpPullQuery)
PULL_BATCH = BodyReader(requests.HttpPullBatchBody)
STOP_WAITING = BodyReader(requests.StopWaitingBody)
ACK = BodyReader(requests.AckBody)
ACK_BATCH = BodyReader(requests.AckBatchBody)
FAIL = BodyReader(requests.FailBody)
DATA = BodyReader(requests.DataBody)
PRIORITY = BodyReader(requests.PriorityBody)
DELAY = BodyReader(requests.DelayBody)
POSTPONE = BodyReader(requests.PostponeBody)
TOKEN = BodyReader(requests.TokenBody)
WAIT = BodyReader(requests.WaitBody)
PROGRESS = BodyReader(requests.ProgressBody)
HEARTBEAT = BodyReader(requests.HeartbeatBody)
RELEASE_BATCH = BodyReader(requests.ReleaseBatchBody)
HEARTBEAT_BATCH = BodyReader(requests.HeartbeatBatchBody)
EXTEND = BodyReader(requests.ExtendBody)
EXTEND_BATCH = BodyReader(requests.ExtendBatchBody)
LOG = BodyReader(requests.LogBody)
CHILDREN = BodyReader(ChildrenPage)

NOT_ACTIVE = "Job not found or not active"
NOT_ALIVE = "Job not found or not active (or invalid token)"
NOT_LOCKED = "Lock not found or invalid token"
NOT_DELAYED = "Job not found or not delayed"
CANNOT_UPDATE = "Job not found or cannot be updated"


#: Up to this many jobs are turned into ``JobSpec``s without a pause.
_FEW_JOBS = 1_000
#: The same limit while several namespaces are active.
_FEW_SHARED_JOBS = 100


def _few_new_jobs(bodies: list[requests.PushBody]) -> list[JobSpec]:
    """Turn the jobs of a small body into ``JobSpec``s. It has no steps, because they cost a tenth of a bulk push."""
    new = []
    for index, each in enumerate(bodies):
        try:
            new.append(new_job(each))
        except InvalidInput as error:
            raise type(error)(f"jobs[{index}]: {error}") from None
    return new


def _new_jobs(bodies: list[requests.PushBody]) -> Steps[list[JobSpec]]:
    new = []
    for index, each in enumerate(bodies):
        try:
            if len(memoryview(each.data)) > limits.small_body_bytes:
                new.append((yield from job_steps(each)))
            else:
                new.append(new_job(each))
        except InvalidInput as error:
            raise type(error)(f"jobs[{index}]: {error}") from None
        yield
    return new


def _is_large(raw: Raw) -> bool:
    return len(memoryview(raw)) > limits.small_body_bytes


_REQUIRED: Final[dict[str, Any]] = {"body_required": True}
_PUSHED: Final[dict[str, Any]] = {"body_required": True, "warned": True}


def _route(method: str, path: str, handler: Any, summary: str, reply: Any, **more: Any) -> Route:
    return Route(method, path, handler, summary, "Jobs", reply, **more)


class JobHandlers(JobsDoor):
    """One method per route."""

    def __init__(self, engine: EngineApi) -> None:
        super().__init__(engine)
        self._pulls = PullWaits()

    # Producers.

    async def push(self, req: ApiRequest, queue: str) -> replies.IdReply:
        key = self.queue_key(req, queue)
        try:
            body = await req.body()
        except BodyTooLarge:
            raise PayloadTooLarge("Job data too large (max 10MB)") from None
        pushed = PUSH_CHECK.sound(body) if req.warns else PUSH.sound(body)
        if pushed is not None:
            new = new_job(pushed)
        else:
            new = await in_slices(job_steps(await PUSH_CHECK.read(req, body, PUSH.steps(body))))
            await self.engine.fair_share.give_way()
        (job,) = await self.engine.run(Push(key, (new,)))
        return replies.IdReply(id=job.custom_id or ids.to_uuid(job.id))

    async def push_bulk(self, req: ApiRequest, queue: str) -> replies.IdsReply:
        key = self.queue_key(req, queue)
        text = await req.body()
        body = BULK_CHECK.sound(text) if req.warns else BULK.sound(text)
        if body is None:
            body = await BULK_CHECK.read(req, text, BULK.steps(text))
        few = _FEW_SHARED_JOBS if self.engine.fair_share.shared else _FEW_JOBS
        if len(body.jobs) <= few and len(text) <= limits.small_body_bytes:
            new = _few_new_jobs(body.jobs)
        else:
            await req.become_large()
            new = await in_slices(_new_jobs(body.jobs))
            await self.engine.fair_share.give_way()
        check_needs(new)
        pushed = await self.engine.run(Push(key, new))
        return replies.IdsReply(ids=[job.custom_id or ids.to_uuid(job.id) for job in pushed])  # ``job_name``, inlined

    # Workers.

    async def pull(self, req: ApiRequest, queue: str) -> replies.PulledReply | replies.NothingReply:
        key = self.queue_key(req, queue)
        query = PULL.parse_query(req)
        claim = Claim(key, wait_ms=query.timeout, lease_ms=query.lock_ttl, owner=query.owner)
        for job, payload in await claim_for(req, self.engine, claim, self._pulls, query.wait_id):
            return replies.PulledReply(job=job_view(job, payload, queue), token=ids.to_uuid(job.token))
        return replies.NothingReply()

    async def pull_batch(self, req: ApiRequest, queue: str) -> replies.PulledBatchReply:
        key = self.queue_key(req, queue)
        body = await PULL_BATCH.read(req)
        claim = Claim(key, body.count, wait_ms=body.timeout, lease_ms=body.lock_ttl, owner=body.owner)
        claimed = await claim_for(req, self.engine, claim, self._pulls, body.wait_id)
        return replies.PulledBatchReply(
            jobs=[job_view(job, payload, queue) for job, payload in claimed],
            tokens=[ids.to_uuid(job.token) for job, _ in claimed],
        )

    async def stop_waiting(self, req: ApiRequest) -> replies.CountReply:
        body = await STOP_WAITING.read(req)
        return replies.CountReply(count=self._pulls.end(self.namespace(req), body.wait_id))

    async def ack(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await ACK.read_optional(req)
        if body.result is not None:
            await in_slices(value_steps(body.result))
        result = None if body.result is None else take_result(body.result, depth_known=_is_large(body.result))
        removes = (True,) if body.remove_on_complete else None
        await self.settle(Ack(self.namespace(req), (hold(id, body.token),), (result,), removes=removes), id, NOT_ACTIVE)
        return replies.Ok()

    async def ack_batch(self, req: ApiRequest) -> replies.BatchReply:
        return await self.ack_each(req, {})

    async def ack_each(self, req: ApiRequest, refused: dict[int, str]) -> replies.BatchReply:
        """Acknowledge several jobs. A result that cannot be stored is an error of its job only.

        ``refused``: why results cannot be stored, by their positions, as far as that is known already.
        """
        body = await ACK_BATCH.read(req)
        texts, results = body.ids, [None] * len(body.ids) if body.results is None else body.results
        if len(results) != len(texts):
            raise InvalidInput("results must have as many items as ids")
        removes = body.remove_on_completes
        if removes is not None and len(removes) != len(texts):
            raise InvalidInput("removeOnCompletes must have as many items as ids")
        claims = holds(texts, body.tokens)
        kept: dict[int, bytes | None] = {}
        for index, result in enumerate(results):
            try:
                if index not in refused and result is not None and _is_large(result):
                    await in_slices(value_steps(result))
                    kept[index] = take_result(result, depth_known=True)
                elif index not in refused:
                    kept[index] = None if result is None or bytes(result) == b"null" else take_result(result)
            except InvalidInput as error:
                refused[index] = str(error)
        if texts and not kept:
            raise InvalidInput(next(iter(refused.values())))
        command = Ack(
            self.namespace(req),
            [claims[index] for index in kept],
            list(kept.values()),
            removes=None if removes is None else [removes[index] is True for index in kept],
        )
        count, errors = await self.settle_many(command, [texts[index] for index in kept], NOT_ACTIVE)
        return replies.BatchReply(
            count=count, errors=errors + [replies.ItemError(texts[at], why) for at, why in refused.items()]
        )

    async def fail(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await FAIL.read_optional(req)
        failure = Nack(
            self.namespace(req),
            (hold(id, body.token),),
            body.error,
            final=body.unrecoverable,
            stack=body.stack,
            delay_ms=body.delay,
            remove=body.remove_on_fail,
        )
        await self.settle(failure, id, NOT_ACTIVE)
        return replies.Ok()

    async def report_progress(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await PROGRESS.read(req)
        progress = min(100, max(0, body.progress))
        command = ReportProgress(self.namespace(req), (hold(id, body.token),), progress, body.message)
        await self.settle(command, id, NOT_ACTIVE)
        return replies.Ok()

    async def heartbeat(self, req: ApiRequest, id: str) -> replies.AliveReply:
        body = await HEARTBEAT.read_optional(req)
        command = Renew(self.namespace(req), (hold(id, body.token),), (body.duration,))
        await self.settle(command, id, NOT_ALIVE)
        return replies.AliveReply(data=replies.AliveData())

    async def heartbeat_batch(self, req: ApiRequest) -> replies.AliveBatchReply:
        body = await HEARTBEAT_BATCH.read(req)
        command = Renew(self.namespace(req), holds(body.ids, body.tokens), [None] * len(body.ids))
        count, errors = await self.settle_many(command, body.ids, NOT_ALIVE)
        return replies.AliveBatchReply(data=replies.AliveBatchData(count=count, errors=errors or msgspec.UNSET))

    async def release_batch(self, req: ApiRequest) -> replies.BatchReply:
        body = await RELEASE_BATCH.read(req)
        release = Release(self.namespace(req), holds(body.ids, body.tokens), delay_ms=body.delay)
        count, errors = await self.settle_many(release, body.ids, NOT_ACTIVE)
        return replies.BatchReply(count=count, errors=errors)

    async def extend_lock(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await EXTEND.read(req)
        command = Renew(self.namespace(req), (hold(id, body.token),), (body.duration,))
        await self.settle(command, id, NOT_LOCKED)
        return replies.Ok()

    async def extend_locks(self, req: ApiRequest) -> replies.CountReply:
        body = await EXTEND_BATCH.read(req)
        durations = [None] * len(body.ids) if body.durations is None else body.durations
        if len(durations) != len(body.ids):
            raise InvalidInput("durations must have as many items as ids")
        command = Renew(self.namespace(req), holds(body.ids, body.tokens), durations)
        count, _ = await self.settle_many(command, body.ids, NOT_LOCKED)
        return replies.CountReply(count=count)

    # Reading.

    async def get(self, req: ApiRequest, id: str) -> replies.JobReply:
        job, payload = await self.job(req, id)
        return replies.JobReply(job=job_view(job, payload, self.store.queue_of(job).key.name))

    async def get_state(self, req: ApiRequest, id: str) -> replies.StateReply:
        found = await self.store.job_get(self.namespace(req), job_ref(id))
        return replies.StateReply(id=id, state="unknown" if found is None else STATE_NAMES[found[0].state])

    async def get_result(self, req: ApiRequest, id: str) -> replies.ResultReply | replies.NoResultReply:
        found = await self.store.job_get(self.namespace(req), job_ref(id))
        result = None if found is None else await self.store.result_get(found[0].id, namespace=self.namespace(req))
        return replies.NoResultReply(id=id) if result is None else replies.ResultReply(id=id, result=Raw(result))

    async def get_progress(self, req: ApiRequest, id: str) -> replies.ProgressReply:
        job, _ = await self.job(req, id)
        return replies.ProgressReply(progress=job.progress, message=details_of(job).progress_message)

    async def wait(self, req: ApiRequest, id: str) -> replies.WaitReply | replies.CompletedReply:
        body = await WAIT.read_optional(req)
        waiting = self.engine.wait(self.namespace(req), job_ref(id), body.timeout)
        ending = await self.unless_gone(req, waiting)
        if ending is None or not ending.completed:
            return replies.WaitReply(completed=False)
        return replies.CompletedReply(result=Raw(ending.result or b"null"))

    async def get_children(self, req: ApiRequest, id: str) -> replies.ChildrenReply:
        job, _ = await self.job(req, id)
        return replies.ChildrenReply(values=await self.child_values(req, job, Need.DONE))

    async def child_values(self, req: ApiRequest, job: JobRecord, *states: Need) -> dict[str, Raw]:
        """Return the results of the jobs that a job depends on or, if they did not complete, why they failed.

        Results may be large: the request is a large one.
        """
        page = CHILDREN.parse_query(req)
        if Need.DONE in states:
            await req.become_large()
        needs = await self.store.need_list(job.id, states, page.limit, page.offset, namespace=self.namespace(req))
        return {
            each.name: Raw(each.result or b"null") if each.state is Need.DONE else Raw(msgspec.json.encode(each.error))
            for each in needs
        }

    # Changing.

    async def cancel(self, req: ApiRequest, id: str) -> replies.Ok:
        await self.job(req, id)
        await self.move(req, id, Arrow.CANCEL, "Job not found or cannot be cancelled")
        return replies.Ok()

    async def update_data(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await DATA.read(req)
        await in_slices(value_steps(body.data))
        data = take_payload(body.data, depth_known=_is_large(body.data))
        command = EditData(self.namespace(req), job_ref(id), data)
        await in_other_words(self.engine.run(command), CANNOT_UPDATE)
        return replies.Ok()

    async def change_priority(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await PRIORITY.read(req)
        await self.move(req, id, Arrow.REPRIORITIZE, "Job not found or not in queue", body.priority)
        return replies.Ok()

    async def promote(self, req: ApiRequest, id: str) -> replies.Ok:
        await self.move(req, id, Arrow.PROMOTE, NOT_DELAYED)
        return replies.Ok()

    async def move_to_delayed(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await POSTPONE.read(req)
        await self.move(req, id, Arrow.POSTPONE, NOT_ACTIVE, body.delay, token=body.token)
        return replies.Ok()

    async def change_delay(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await DELAY.read(req)
        await self.move(req, id, Arrow.RESCHEDULE, "Job not found or cannot change delay", body.delay)
        return replies.Ok()

    async def discard(self, req: ApiRequest, id: str) -> replies.Ok:
        body = await TOKEN.read_optional(req)
        await self.move(req, id, Arrow.DISCARD, "Job not found", token=body.token)
        return replies.Ok()

    # Logs.

    async def get_logs(self, req: ApiRequest, id: str) -> replies.LogsReply:
        job, _ = await self.job(req, id)
        lines = [
            replies.LogEntryReply(entry.at, entry.level, entry.message)
            for entry in await self.store.log_get(job.id, namespace=self.namespace(req))
        ]
        return replies.LogsReply(data=replies.LogData(lines, len(lines)))

    async def add_log(self, req: ApiRequest, id: str) -> replies.AddedReply:
        body = await LOG.read(req)
        command = AddLog(self.namespace(req), job_ref(id), body.level, body.message)
        await in_other_words(self.engine.run(command), "Job not found")
        return replies.AddedReply(data=replies.AddedData())

    async def clear_logs(self, req: ApiRequest, id: str) -> replies.Ok:
        await self.engine.run(ClearLog(self.namespace(req), job_ref(id)))
        return replies.Ok()

    ROUTES: Final = (
        _route("POST", "/queues/{queue}/jobs", push, "Push a job", replies.IdReply, body=PUSH, **_PUSHED),
        _route("POST", "/queues/{queue}/jobs/bulk", push_bulk, "Push jobs in bulk", replies.IdsReply, body=BULK, **_PUSHED),
        _route("GET", "/queues/{queue}/jobs", pull, "Pull a job", (replies.PulledReply, replies.NothingReply), query=PULL),
        _route(
            "POST",
            "/queues/{queue}/jobs/pull-batch",
            pull_batch,
            "Pull jobs in batch",
            replies.PulledBatchReply,
            body=PULL_BATCH,
            **_REQUIRED,
        ),
        _route(
            "POST",
            "/jobs/stop-waiting",
            stop_waiting,
            "End waiting pulls",
            replies.CountReply,
            body=STOP_WAITING,
            **_REQUIRED,
        ),
        _route("GET", "/jobs/{id}", get, "Get job by ID", replies.JobReply),
        _route("GET", "/jobs/custom/{id}", get, "Get job by custom ID", replies.JobReply),
        _route("DELETE", "/jobs/{id}", cancel, "Cancel a job", replies.Ok),
        _route("POST", "/jobs/{id}/ack", ack, "Acknowledge a job", replies.Ok, body=ACK),
        _route("POST", "/jobs/ack-batch", ack_batch, "Acknowledge batch", replies.BatchReply, body=ACK_BATCH, **_REQUIRED),
        _route("POST", "/jobs/{id}/fail", fail, "Fail a job", replies.Ok, body=FAIL),
        _route("GET", "/jobs/{id}/state", get_state, "Get job state", replies.StateReply),
        _route("GET", "/jobs/{id}/result", get_result, "Get job result", (replies.ResultReply, replies.NoResultReply)),
        _route("GET", "/jobs/{id}/progress", get_progress, "Get progress", replies.ProgressReply),
        _route("POST", "/jobs/{id}/progress", report_progress, "Update progress", replies.Ok, body=PROGRESS, **_REQUIRED),
        _route("PUT", "/jobs/{id}/data", update_data, "Update job data", replies.Ok, body=DATA, **_REQUIRED),
        _route("PUT", "/jobs/{id}/priority", change_priority, "Change priority", replies.Ok, body=PRIORITY, **_REQUIRED),
        _route("POST", "/jobs/{id}/promote", promote, "Promote delayed job", replies.Ok),
        _route("POST", "/jobs/{id}/move-to-wait", promote, "Move to waiting", replies.Ok),
        _route(
            "POST", "/jobs/{id}/move-to-delayed", move_to_delayed, "Move to delayed", replies.Ok, body=POSTPONE, **_REQUIRED
        ),
        _route("PUT", "/jobs/{id}/delay", change_delay, "Change delay", replies.Ok, body=DELAY, **_REQUIRED),
        _route("POST", "/jobs/{id}/discard", discard, "Discard to DLQ", replies.Ok, body=TOKEN),
        _route(
            "POST", "/jobs/{id}/wait", wait, "Wait for completion", (replies.CompletedReply, replies.WaitReply), body=WAIT
        ),
        _route("POST", "/jobs/{id}/heartbeat", heartbeat, "Job heartbeat", replies.AliveReply, body=HEARTBEAT),
        _route(
            "POST",
            "/jobs/heartbeat-batch",
            heartbeat_batch,
            "Job heartbeat batch",
            replies.AliveBatchReply,
            body=HEARTBEAT_BATCH,
            **_REQUIRED,
        ),
        _route(
            "POST",
            "/jobs/release-batch",
            release_batch,
            "Release jobs that were not begun",
            replies.BatchReply,
            body=RELEASE_BATCH,
            **_REQUIRED,
        ),
        _route("POST", "/jobs/{id}/extend-lock", extend_lock, "Extend lock", replies.Ok, body=EXTEND, **_REQUIRED),
        _route(
            "POST",
            "/jobs/extend-locks",
            extend_locks,
            "Extend locks batch",
            replies.CountReply,
            body=EXTEND_BATCH,
            **_REQUIRED,
        ),
        _route("GET", "/jobs/{id}/children", get_children, "Get children values", replies.ChildrenReply, query=CHILDREN),
        _route("GET", "/jobs/{id}/logs", get_logs, "Get logs", replies.LogsReply),
        _route("POST", "/jobs/{id}/logs", add_log, "Add log", replies.AddedReply, body=LOG, **_REQUIRED),
        _route("DELETE", "/jobs/{id}/logs", clear_logs, "Clear logs", replies.Ok),
    )

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        return self.bound(self.ROUTES)
