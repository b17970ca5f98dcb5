"""Handlers about jobs: push, pull, settle, look up, intervene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Raw

from penstock.core import ids, limits
from penstock.core.dependencies import Need
from penstock.core.errors import BodyTooLarge, InvalidInput, PayloadTooLarge
from penstock.core.job import details_of
from penstock.core.lifecycle import Arrow
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader
from penstock.doors.http.long_poll import PullWaits, claim_for
from penstock.doors.http.route import Route
from penstock.doors.http.unknown import FieldCheck
from penstock.doors.jobs import wire
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
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, Nack, Release, Renew, ReportProgress
from penstock.engine.jobs.update import AddLog, ClearLog, EditData

if TYPE_CHECKING:
    from penstock.core.job import Job, NewJob
    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import Request
    from penstock.engine.sharding.engine import AnyEngine


class ChildrenPage(wire.RequestModel):
    """Which of a job's children, oldest first."""

    limit: Annotated[int, Meta(ge=1, le=limits.list_jobs_max)] = limits.list_jobs_max
    offset: Annotated[int, Meta(ge=0, le=limits.offset_max)] = 0


PUSH = BodyReader(wire.PushBody)
BULK = BodyReader(wire.BulkBody)
PUSH_CHECK: FieldCheck[wire.PushBody] = FieldCheck(wire.PushBody, wire.StrictPush)
BULK_CHECK: FieldCheck[wire.BulkBody] = FieldCheck(wire.BulkBody, wire.StrictBulk)
PULL = BodyReader(wire.HttpPullQuery)
PULL_BATCH = BodyReader(wire.HttpPullBatchBody)
STOP_WAITING = BodyReader(wire.StopWaitingBody)
ACK = BodyReader(wire.AckBody)
ACK_BATCH = BodyReader(wire.AckBatchBody)
FAIL = BodyReader(wire.FailBody)
DATA = BodyReader(wire.DataBody)
PRIORITY = BodyReader(wire.PriorityBody)
DELAY = BodyReader(wire.DelayBody)
POSTPONE = BodyReader(wire.PostponeBody)
TOKEN = BodyReader(wire.TokenBody)
WAIT = BodyReader(wire.WaitBody)
PROGRESS = BodyReader(wire.ProgressBody)
HEARTBEAT = BodyReader(wire.HeartbeatBody)
RELEASE_BATCH = BodyReader(wire.ReleaseBatchBody)
HEARTBEAT_BATCH = BodyReader(wire.HeartbeatBatchBody)
EXTEND = BodyReader(wire.ExtendBody)
EXTEND_BATCH = BodyReader(wire.ExtendBatchBody)
LOG = BodyReader(wire.LogBody)
CHILDREN = BodyReader(ChildrenPage)

NOT_ACTIVE = "Job not found or not active"
NOT_ALIVE = "Job not found or not active (or invalid token)"
NOT_LOCKED = "Lock not found or invalid token"
NOT_DELAYED = "Job not found or not delayed"
CANNOT_UPDATE = "Job not found or cannot be updated"


#: Turned into what the engine pushes without a pause.
_FEW_JOBS = 1_000
#: The same, while several namespaces are active.
_FEW_SHARED_JOBS = 100


def _few_new_jobs(bodies: list[wire.PushBody]) -> list[NewJob]:
    """Turn the jobs of a small body into what the engine pushes. Without steps, which cost a tenth of a bulk push."""
    new = []
    for index, each in enumerate(bodies):
        try:
            new.append(new_job(each))
        except InvalidInput as error:
            raise type(error)(f"jobs[{index}]: {error}") from None
    return new


def _new_jobs(bodies: list[wire.PushBody]) -> Steps[list[NewJob]]:
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


class JobHandlers(JobsDoor):
    """One method per route."""

    def __init__(self, engine: AnyEngine) -> None:
        super().__init__(engine)
        self._pulls = PullWaits()

    # Producers.

    async def push(self, req: Request, queue: str) -> wire.IdReply:
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
            await self.engine.share.give_way()
        (job,) = await self.engine.run(Push(key, (new,)))
        return wire.IdReply(id=job.custom_id or ids.to_uuid(job.id))

    async def push_bulk(self, req: Request, queue: str) -> wire.IdsReply:
        key = self.queue_key(req, queue)
        text = await req.body()
        body = BULK_CHECK.sound(text) if req.warns else BULK.sound(text)
        if body is None:
            body = await BULK_CHECK.read(req, text, BULK.steps(text))
        few = _FEW_SHARED_JOBS if self.engine.share.shared else _FEW_JOBS
        if len(body.jobs) <= few and len(text) <= limits.small_body_bytes:
            new = _few_new_jobs(body.jobs)
        else:
            await req.become_large()
            new = await in_slices(_new_jobs(body.jobs))
            await self.engine.share.give_way()
        pushed = await self.engine.run(Push(key, new))
        return wire.IdsReply(ids=[job.custom_id or ids.to_uuid(job.id) for job in pushed])  # ``job_name``, written out

    # Workers.

    async def pull(self, req: Request, queue: str) -> wire.PulledReply | wire.NothingReply:
        key = self.queue_key(req, queue)
        query = PULL.parse_query(req)
        claim = Claim(key, wait_ms=query.timeout, lease_ms=query.lock_ttl, owner=query.owner)
        for job, payload in await claim_for(req, self.engine, claim, self._pulls, query.wait_id):
            return wire.PulledReply(job=job_view(job, payload, queue), token=ids.to_uuid(job.token))
        return wire.NothingReply()

    async def pull_batch(self, req: Request, queue: str) -> wire.PulledBatchReply:
        key = self.queue_key(req, queue)
        body = await PULL_BATCH.read(req)
        claim = Claim(key, body.count, wait_ms=body.timeout, lease_ms=body.lock_ttl, owner=body.owner)
        claimed = await claim_for(req, self.engine, claim, self._pulls, body.wait_id)
        return wire.PulledBatchReply(
            jobs=[job_view(job, payload, queue) for job, payload in claimed],
            tokens=[ids.to_uuid(job.token) for job, _ in claimed],
        )

    async def stop_waiting(self, req: Request) -> wire.CountReply:
        body = await STOP_WAITING.read(req)
        return wire.CountReply(count=self._pulls.end(self.namespace(req), body.wait_id))

    async def ack(self, req: Request, id: str) -> wire.Ok:
        body = await ACK.read_optional(req)
        if body.result is not None:
            await in_slices(value_steps(body.result))
        result = None if body.result is None else take_result(body.result, depth_known=_is_large(body.result))
        removes = (True,) if body.remove_on_complete else None
        await self.settle(Ack(self.namespace(req), (hold(id, body.token),), (result,), removes=removes), id, NOT_ACTIVE)
        return wire.Ok()

    async def ack_batch(self, req: Request) -> wire.BatchReply:
        return await self.ack_each(req, {})

    async def ack_each(self, req: Request, refused: dict[int, str]) -> wire.BatchReply:
        """Acknowledge several jobs. A result that cannot be kept is an error of its job alone.

        ``refused``: why results cannot be kept, by their positions, as far as that is known already.
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
        settlement = Ack(
            self.namespace(req),
            [claims[index] for index in kept],
            list(kept.values()),
            removes=None if removes is None else [removes[index] is True for index in kept],
        )
        count, errors = await self.settle_many(settlement, [texts[index] for index in kept], NOT_ACTIVE)
        return wire.BatchReply(count=count, errors=errors + [wire.ItemError(texts[at], why) for at, why in refused.items()])

    async def fail(self, req: Request, id: str) -> wire.Ok:
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
        return wire.Ok()

    async def report_progress(self, req: Request, id: str) -> wire.Ok:
        body = await PROGRESS.read(req)
        progress = min(100, max(0, body.progress))
        settlement = ReportProgress(self.namespace(req), (hold(id, body.token),), progress, body.message)
        await self.settle(settlement, id, NOT_ACTIVE)
        return wire.Ok()

    async def heartbeat(self, req: Request, id: str) -> wire.AliveReply:
        body = await HEARTBEAT.read_optional(req)
        settlement = Renew(self.namespace(req), (hold(id, body.token),), (body.duration,))
        await self.settle(settlement, id, NOT_ALIVE)
        return wire.AliveReply(data=wire.AliveData())

    async def heartbeat_batch(self, req: Request) -> wire.AliveBatchReply:
        body = await HEARTBEAT_BATCH.read(req)
        settlement = Renew(self.namespace(req), holds(body.ids, body.tokens), [None] * len(body.ids))
        count, errors = await self.settle_many(settlement, body.ids, NOT_ALIVE)
        return wire.AliveBatchReply(data=wire.AliveBatchData(count=count, errors=errors or msgspec.UNSET))

    async def release_batch(self, req: Request) -> wire.BatchReply:
        body = await RELEASE_BATCH.read(req)
        release = Release(self.namespace(req), holds(body.ids, body.tokens), delay_ms=body.delay)
        count, errors = await self.settle_many(release, body.ids, NOT_ACTIVE)
        return wire.BatchReply(count=count, errors=errors)

    async def extend_lock(self, req: Request, id: str) -> wire.Ok:
        body = await EXTEND.read(req)
        settlement = Renew(self.namespace(req), (hold(id, body.token),), (body.duration,))
        await self.settle(settlement, id, NOT_LOCKED)
        return wire.Ok()

    async def extend_locks(self, req: Request) -> wire.CountReply:
        body = await EXTEND_BATCH.read(req)
        durations = [None] * len(body.ids) if body.durations is None else body.durations
        if len(durations) != len(body.ids):
            raise InvalidInput("durations must have as many items as ids")
        settlement = Renew(self.namespace(req), holds(body.ids, body.tokens), durations)
        count, _ = await self.settle_many(settlement, body.ids, NOT_LOCKED)
        return wire.CountReply(count=count)

    # Looking.

    async def get(self, req: Request, id: str) -> wire.JobReply:
        job, payload = await self.job(req, id)
        return wire.JobReply(job=job_view(job, payload, self.store.queue_of(job).key.name))

    async def get_state(self, req: Request, id: str) -> wire.StateReply:
        found = await self.store.job_get(self.namespace(req), job_ref(id))
        return wire.StateReply(id=id, state="unknown" if found is None else STATE_NAMES[found[0].state])

    async def get_result(self, req: Request, id: str) -> wire.ResultReply | wire.NoResultReply:
        found = await self.store.job_get(self.namespace(req), job_ref(id))
        result = None if found is None else await self.store.result_get(found[0].id)
        return wire.NoResultReply(id=id) if result is None else wire.ResultReply(id=id, result=Raw(result))

    async def get_progress(self, req: Request, id: str) -> wire.ProgressReply:
        job, _ = await self.job(req, id)
        return wire.ProgressReply(progress=job.progress, message=details_of(job).progress_message)

    async def wait(self, req: Request, id: str) -> wire.WaitReply | wire.CompletedReply:
        body = await WAIT.read_optional(req)
        waiting = self.engine.wait(self.namespace(req), job_ref(id), body.timeout)
        ending = await self.unless_gone(req, waiting)
        if ending is None or not ending.completed:
            return wire.WaitReply(completed=False)
        return wire.CompletedReply(result=Raw(ending.result or b"null"))

    async def get_children(self, req: Request, id: str) -> wire.ChildrenReply:
        job, _ = await self.job(req, id)
        return wire.ChildrenReply(values=await self.child_values(req, job, Need.DONE))

    async def child_values(self, req: Request, job: Job, *states: Need) -> dict[str, Raw]:
        """Return what the jobs that a job needs have answered or, if they did not complete, why they failed."""
        page = CHILDREN.parse_query(req)
        needs = await self.store.need_list(job.id, states, page.limit, page.offset)
        return {
            each.name: Raw(each.result or b"null") if each.state is Need.DONE else Raw(msgspec.json.encode(each.error))
            for each in needs
        }

    # Intervening.

    async def cancel(self, req: Request, id: str) -> wire.Ok:
        await self.job(req, id)
        await self.move(req, id, Arrow.CANCEL, "Job not found or cannot be cancelled")
        return wire.Ok()

    async def update_data(self, req: Request, id: str) -> wire.Ok:
        body = await DATA.read(req)
        await in_slices(value_steps(body.data))
        data = take_payload(body.data, depth_known=_is_large(body.data))
        command = EditData(self.namespace(req), job_ref(id), data)
        await in_other_words(self.engine.run(command), CANNOT_UPDATE)
        return wire.Ok()

    async def change_priority(self, req: Request, id: str) -> wire.Ok:
        body = await PRIORITY.read(req)
        await self.move(req, id, Arrow.REPRIORITIZE, "Job not found or not in queue", body.priority)
        return wire.Ok()

    async def promote(self, req: Request, id: str) -> wire.Ok:
        await self.move(req, id, Arrow.PROMOTE, NOT_DELAYED)
        return wire.Ok()

    async def move_to_delayed(self, req: Request, id: str) -> wire.Ok:
        body = await POSTPONE.read(req)
        await self.move(req, id, Arrow.POSTPONE, NOT_ACTIVE, body.delay, token=body.token)
        return wire.Ok()

    async def change_delay(self, req: Request, id: str) -> wire.Ok:
        body = await DELAY.read(req)
        await self.move(req, id, Arrow.RESCHEDULE, "Job not found or cannot change delay", body.delay)
        return wire.Ok()

    async def discard(self, req: Request, id: str) -> wire.Ok:
        body = await TOKEN.read_optional(req)
        await self.move(req, id, Arrow.DISCARD, "Job not found", token=body.token)
        return wire.Ok()

    # Logs.

    async def get_logs(self, req: Request, id: str) -> wire.LogsReply:
        job, _ = await self.job(req, id)
        lines = [wire.LogLine(entry.at, entry.level, entry.message) for entry in await self.store.log_get(job.id)]
        return wire.LogsReply(data=wire.LogData(lines, len(lines)))

    async def add_log(self, req: Request, id: str) -> wire.AddedReply:
        body = await LOG.read(req)
        command = AddLog(self.namespace(req), job_ref(id), body.level, body.message)
        await in_other_words(self.engine.run(command), "Job not found")
        return wire.AddedReply(data=wire.AddedData())

    async def clear_logs(self, req: Request, id: str) -> wire.Ok:
        await self.engine.run(ClearLog(self.namespace(req), job_ref(id)))
        return wire.Ok()

    def routes(self) -> list[Route]:
        """Return what this part of the contract answers."""

        def route(method: str, path: str, handler: Any, summary: str, reply: Any, **more: Any) -> Route:
            return Route(method, path, handler, summary, "Jobs", reply, **more)

        required: dict[str, Any] = {"body_required": True}
        pushed = required | {"warned": True}
        return self.namespaced(
            route("POST", "/queues/{queue}/jobs", self.push, "Push a job", wire.IdReply, body=PUSH, **pushed),
            route(
                "POST",
                "/queues/{queue}/jobs/bulk",
                self.push_bulk,
                "Push jobs in bulk",
                wire.IdsReply,
                body=BULK,
                **pushed,
            ),
            route("GET", "/queues/{queue}/jobs", self.pull, "Pull a job", (wire.PulledReply, wire.NothingReply), query=PULL),
            route(
                "POST",
                "/queues/{queue}/jobs/pull-batch",
                self.pull_batch,
                "Pull jobs in batch",
                wire.PulledBatchReply,
                body=PULL_BATCH,
                **required,
            ),
            route(
                "POST",
                "/jobs/stop-waiting",
                self.stop_waiting,
                "End pulls that wait",
                wire.CountReply,
                body=STOP_WAITING,
                **required,
            ),
            route("GET", "/jobs/{id}", self.get, "Get job by ID", wire.JobReply),
            route("GET", "/jobs/custom/{id}", self.get, "Get job by custom ID", wire.JobReply),
            route("DELETE", "/jobs/{id}", self.cancel, "Cancel a job", wire.Ok),
            route("POST", "/jobs/{id}/ack", self.ack, "Acknowledge a job", wire.Ok, body=ACK),
            route(
                "POST", "/jobs/ack-batch", self.ack_batch, "Acknowledge batch", wire.BatchReply, body=ACK_BATCH, **required
            ),
            route("POST", "/jobs/{id}/fail", self.fail, "Fail a job", wire.Ok, body=FAIL),
            route("GET", "/jobs/{id}/state", self.get_state, "Get job state", wire.StateReply),
            route("GET", "/jobs/{id}/result", self.get_result, "Get job result", (wire.ResultReply, wire.NoResultReply)),
            route("GET", "/jobs/{id}/progress", self.get_progress, "Get progress", wire.ProgressReply),
            route(
                "POST", "/jobs/{id}/progress", self.report_progress, "Update progress", wire.Ok, body=PROGRESS, **required
            ),
            route("PUT", "/jobs/{id}/data", self.update_data, "Update job data", wire.Ok, body=DATA, **required),
            route("PUT", "/jobs/{id}/priority", self.change_priority, "Change priority", wire.Ok, body=PRIORITY, **required),
            route("POST", "/jobs/{id}/promote", self.promote, "Promote delayed job", wire.Ok),
            route("POST", "/jobs/{id}/move-to-wait", self.promote, "Move to waiting", wire.Ok),
            route(
                "POST",
                "/jobs/{id}/move-to-delayed",
                self.move_to_delayed,
                "Move to delayed",
                wire.Ok,
                body=POSTPONE,
                **required,
            ),
            route("PUT", "/jobs/{id}/delay", self.change_delay, "Change delay", wire.Ok, body=DELAY, **required),
            route("POST", "/jobs/{id}/discard", self.discard, "Discard to DLQ", wire.Ok, body=TOKEN),
            route(
                "POST", "/jobs/{id}/wait", self.wait, "Wait for completion", (wire.CompletedReply, wire.WaitReply), body=WAIT
            ),
            route("POST", "/jobs/{id}/heartbeat", self.heartbeat, "Job heartbeat", wire.AliveReply, body=HEARTBEAT),
            route(
                "POST",
                "/jobs/heartbeat-batch",
                self.heartbeat_batch,
                "Job heartbeat batch",
                wire.AliveBatchReply,
                body=HEARTBEAT_BATCH,
                **required,
            ),
            route(
                "POST",
                "/jobs/release-batch",
                self.release_batch,
                "Give back jobs that were not begun",
                wire.BatchReply,
                body=RELEASE_BATCH,
                **required,
            ),
            route("POST", "/jobs/{id}/extend-lock", self.extend_lock, "Extend lock", wire.Ok, body=EXTEND, **required),
            route(
                "POST",
                "/jobs/extend-locks",
                self.extend_locks,
                "Extend locks batch",
                wire.CountReply,
                body=EXTEND_BATCH,
                **required,
            ),
            route(
                "GET", "/jobs/{id}/children", self.get_children, "Get children values", wire.ChildrenReply, query=CHILDREN
            ),
            route("GET", "/jobs/{id}/logs", self.get_logs, "Get logs", wire.LogsReply),
            route("POST", "/jobs/{id}/logs", self.add_log, "Add log", wire.AddedReply, body=LOG, **required),
            route("DELETE", "/jobs/{id}/logs", self.clear_logs, "Clear logs", wire.Ok),
        )
