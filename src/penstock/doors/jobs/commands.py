"""Commands of the jobs door, each with the handler that answers it and the fields it takes. docs/tcp.md explains them.

Others are in ``client_commands.py``, ``dead_letter_commands.py``, ``flow_push.py``, ``group_commands.py``,
``metric_commands.py``, ``queue_events.py`` and ``summary_commands.py``. ``CommandTable`` has them all.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from penstock import __version__
from penstock.core import limits
from penstock.core.dependencies import Need
from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import Arrow, State
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import Refused
from penstock.doors.http.namespace import check_namespace
from penstock.doors.jobs import crons as c
from penstock.doors.jobs import job_handlers as j
from penstock.doors.jobs import queues as q
from penstock.doors.jobs import webhooks as h
from penstock.doors.jobs import workers as w
from penstock.doors.jobs.base import hold, in_other_words
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.group_options import ask_for_groups
from penstock.doors.jobs.job_handlers import CHILDREN, TOKEN
from penstock.doors.jobs.jsonable import Unfit
from penstock.doors.jobs.mapping import STATE_NAMES, job_ref
from penstock.doors.jobs.wire import fields, replies, requests
from penstock.engine.jobs.dependencies import Adopt, CancelChildren, DropDependency
from penstock.engine.jobs.park import Park
from penstock.engine.jobs.settle import Release
from penstock.engine.jobs.update import ClearLog

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.crons import CronHandlers
    from penstock.doors.jobs.job_handlers import JobHandlers
    from penstock.doors.jobs.queues import QueueHandlers
    from penstock.doors.jobs.webhooks import WebhookHandlers
    from penstock.doors.jobs.workers import WorkerHandlers
    from penstock.doors.ops.health import OpsHandlers


QUEUE: Final = {"queue": "queue"}


ID: Final = {"id": "id"}


PROTOCOL_VERSION: Final = 3


class PullFields(requests.PullQuery):
    """How to pull one job. ``detach``: the job stays leased when the connection ends. ``group``: limits for all groups."""

    detach: bool = False
    group: requests.GroupOptions | None = None


class PullBatchFields(requests.PullBatchBody):
    """How to pull several jobs. ``detach``: the jobs stay leased when the connection ends.

    ``group``: limits for all groups.
    """

    detach: bool = False
    group: requests.GroupOptions | None = None


class LogsFields(requests.RequestModel):
    """Which lines of a log, counted from 0, both included. Negative numbers count from the end: -1 is the last line."""

    start: Annotated[int, Meta(ge=-limits.offset_max, le=limits.offset_max)] = 0
    end: Annotated[int, Meta(ge=-limits.offset_max, le=limits.offset_max)] = -1


class ClearLogsFields(requests.RequestModel):
    """How many of the last lines to keep."""

    keep_logs: fields.Lines = 0


class AuthFields(requests.RequestModel):
    """A token. ``namespace``: the namespace of this connection's commands from now on."""

    token: str
    namespace: str | None = None


class HelloReply(replies.Reply, kw_only=True):
    """The protocol version and the capabilities of the server."""

    protocol_version: int = PROTOCOL_VERSION
    capabilities: list[str]
    server: str = "penstock"
    version: str = __version__


class DataReply(replies.Reply, kw_only=True):
    """A reply with its content in ``data``, as the protocol requires for some commands."""

    data: dict[str, Any]


PULL = BodyReader(PullFields)


PULL_BATCH = BodyReader(PullBatchFields)


LOGS = BodyReader(LogsFields)


CLEAR_LOGS = BodyReader(ClearLogsFields)


AUTH = BodyReader(AuthFields)


class JobCommands:
    """The commands about jobs that differ from the routes of the HTTP API."""

    def __init__(self, jobs: JobHandlers) -> None:
        self._jobs = jobs

    async def move_to_wait(self, call: CommandCall, id: str) -> replies.Ok:
        """Make a job ready from any state except completed."""
        job, _ = await self._jobs.job(call, id)
        if job.state == State.ACTIVE:
            token = j.TOKEN.parse(await call.body()).token
            await self._jobs.settle(Release(call.session.namespace, (hold(id, token),)), id, j.NOT_ACTIVE)
        elif job.state != State.WAITING:
            refusal = f"Cannot move job from state '{STATE_NAMES[job.state]}' to waiting"
            await self._jobs.move(call, id, Arrow.REVIVE if job.state == State.DEAD else Arrow.PROMOTE, refusal)
        return replies.Ok()

    async def move_to_delayed(self, call: CommandCall, id: str) -> replies.Ok:
        """Delay a job: an active one, or one that already waits, as bunqueue's clients require."""
        try:
            return await self._jobs.move_to_delayed(call, id)
        except Refused:
            with contextlib.suppress(Refused):
                return await self._jobs.change_delay(call, id)
            raise

    async def get_logs(self, call: CommandCall, id: str) -> replies.LogsReply:
        which = LOGS.parse(await call.body())
        reply = await self._jobs.get_logs(call, id)
        reply.data.logs = reply.data.logs[which.start : which.end + 1 or None]
        return reply

    async def clear_logs(self, call: CommandCall, id: str) -> replies.Ok:
        which = CLEAR_LOGS.parse(await call.body())
        await self._jobs.engine.run(ClearLog(call.session.namespace, job_ref(id), which.keep_logs))
        return replies.Ok()

    async def pull(self, call: CommandCall, queue: str) -> replies.PulledReply | replies.NothingReply:
        _check_detach(call)
        await ask_for_groups(self._jobs, call, queue, PULL)
        return await self._jobs.pull(call, queue)

    async def pull_batch(self, call: CommandCall, queue: str) -> replies.PulledBatchReply:
        _check_detach(call)
        await ask_for_groups(self._jobs, call, queue, PULL_BATCH)
        return await self._jobs.pull_batch(call, queue)

    async def ack_batch(self, call: CommandCall) -> replies.BatchReply:
        """Acknowledge several jobs, except those whose results have no JSON."""
        results: Any = call.message.get("results")
        unfit = {at: each.reason for at, each in enumerate(results) if type(each) is Unfit} if type(results) is list else {}
        for at in unfit:
            results[at] = None
        return await self._jobs.ack_each(call, unfit)


def job_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands about jobs."""
    own = JobCommands(jobs)
    return {
        # Producers.
        "PUSH": CommandEntry(jobs.push, j.PUSH, QUEUE),
        "PUSHB": CommandEntry(jobs.push_bulk, j.BULK, QUEUE),
        # Workers.
        "PULL": CommandEntry(own.pull, PULL, QUEUE, takes=True),
        "PULLB": CommandEntry(own.pull_batch, PULL_BATCH, QUEUE, takes=True),
        "ACK": CommandEntry(jobs.ack, j.ACK, ID, settles=True),
        "ACKB": CommandEntry(own.ack_batch, j.ACK_BATCH, settles=True),
        "FAIL": CommandEntry(jobs.fail, j.FAIL, ID, settles=True),
        "Progress": CommandEntry(jobs.report_progress, j.PROGRESS, ID),
        "JobHeartbeat": CommandEntry(jobs.heartbeat, j.HEARTBEAT, ID),
        "JobHeartbeatB": CommandEntry(jobs.heartbeat_batch, j.HEARTBEAT_BATCH),
        "ExtendLock": CommandEntry(jobs.extend_lock, j.EXTEND, ID),
        "ExtendLocks": CommandEntry(jobs.extend_locks, j.EXTEND_BATCH),
        # Reading.
        "GetResult": CommandEntry(jobs.get_result, None, ID),
        "GetProgress": CommandEntry(jobs.get_progress, None, ID),
        "WaitJob": CommandEntry(jobs.wait, j.WAIT, ID),
        # Changing.
        "Cancel": CommandEntry(jobs.cancel, None, ID, settles=True),
        "ChangePriority": CommandEntry(jobs.change_priority, j.PRIORITY, ID),
        "Promote": CommandEntry(jobs.promote, None, ID),
        "MoveToDelayed": CommandEntry(own.move_to_delayed, j.POSTPONE, ID, settles=True),
        "ChangeDelay": CommandEntry(jobs.change_delay, j.DELAY, ID),
        "MoveToWait": CommandEntry(own.move_to_wait, j.TOKEN, ID, settles=True),
        "Discard": CommandEntry(jobs.discard, j.TOKEN, ID, settles=True),
        # Logs.
        "AddLog": CommandEntry(jobs.add_log, j.LOG, ID),
        "GetLogs": CommandEntry(own.get_logs, LOGS, ID),
        "ClearLogs": CommandEntry(own.clear_logs, CLEAR_LOGS, ID),
    }


def _check_detach(call: CommandCall) -> None:
    """Raise InvalidInput before anything is pulled, because after the pull it would be too late."""
    if not isinstance(call.message.get("detach"), bool | None):
        raise InvalidInput("detach must be a boolean")


def queue_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about queues."""
    return {
        # Reading.
        "ListQueues": CommandEntry(queues.list_queues),
        "GetJobCounts": CommandEntry(queues.exclusive_counts, None, QUEUE),
        "GetCountsPerPriority": CommandEntry(queues.priority_counts, None, QUEUE),
        "Count": CommandEntry(queues.count, None, QUEUE),
        "IsPaused": CommandEntry(queues.paused, None, QUEUE),
        # Control.
        "Pause": CommandEntry(queues.pause, None, QUEUE),
        "Resume": CommandEntry(queues.resume, None, QUEUE),
        "Drain": CommandEntry(queues.drain, None, QUEUE),
        "Obliterate": CommandEntry(queues.obliterate, None, QUEUE),
        "Clean": CommandEntry(queues.clean, q.CLEAN, QUEUE),
        "PromoteJobs": CommandEntry(queues.promote_jobs, q.COUNT, QUEUE),
        "RetryCompleted": CommandEntry(queues.retry_completed, q.RETRY_COMPLETED, QUEUE),
        # Dead letters.
        "PurgeDlq": CommandEntry(queues.purge_dlq, None, QUEUE),
        # Limits and settings.
        "RateLimit": CommandEntry(queues.set_rate_limit, q.RATE_LIMIT, QUEUE),
        "RateLimitClear": CommandEntry(queues.clear_rate_limit, None, QUEUE),
        "SetConcurrency": CommandEntry(queues.set_concurrency, q.LIMIT, QUEUE),
        "ClearConcurrency": CommandEntry(queues.clear_concurrency, None, QUEUE),
        "SetStallConfig": CommandEntry(queues.set_stall_config, q.STALL, QUEUE),
        "GetStallConfig": CommandEntry(queues.get_stall_config, None, QUEUE),
        "SetDlqConfig": CommandEntry(queues.set_dlq_config, q.DLQ, QUEUE),
        "GetDlqConfig": CommandEntry(queues.get_dlq_config, None, QUEUE),
    }


def ops_commands(ops: OpsHandlers) -> dict[str, CommandEntry]:
    """Return the commands for operators."""

    async def prometheus(call: CommandCall) -> DataReply:
        page = await ops.prometheus(call)
        return DataReply(data={"metrics": page.body.decode()})

    async def storage(call: CommandCall) -> DataReply:
        status: dict[str, Any] = msgspec.to_builtins(await ops.storage(call))
        del status["ok"]
        return DataReply(data={"error": None, "since": None} | status)

    async def stats(call: CommandCall) -> dict[str, Any]:
        reply: dict[str, Any] = msgspec.to_builtins(await ops.stats(call))
        reply["stats"] |= msgspec.to_builtins(ops.more_stats())
        return reply

    return {
        "Ping": CommandEntry(ops.ping),
        "Stats": CommandEntry(stats),
        "Prometheus": CommandEntry(prometheus),
        "StorageStatus": CommandEntry(storage),
        "CompactMemory": CommandEntry(ops.collect_garbage),
    }


def session_commands() -> dict[str, CommandEntry]:
    """Return the commands about the session itself."""

    async def auth(call: CommandCall) -> replies.Ok:
        shown = AUTH.parse(await call.body())
        await call.session.show_token(shown.token, None if shown.namespace is None else check_namespace(shown.namespace))
        return replies.Ok()

    async def hello(_call: CommandCall) -> HelloReply:
        return HelloReply(capabilities=["pipelining", "separate-job-name"])

    return {"Auth": CommandEntry(auth, AUTH, public=True), "Hello": CommandEntry(hello)}


NAME: Final = {"id": "name"}


def cron_commands(crons: CronHandlers) -> dict[str, CommandEntry]:
    """Return the commands about crons."""
    return {
        "Cron": CommandEntry(crons.save, c.CRON),
        "CronGet": CommandEntry(crons.get, None, NAME),
        "CronList": CommandEntry(crons.list_crons),
        "CronDelete": CommandEntry(crons.delete, None, NAME),
    }


NOT_FOUND: Final = "Job not found"


class ValuesData(replies.Out):
    """The results of children, or why they failed, by their ids."""

    values: dict[str, Raw]


class ValuesReply(replies.Reply, kw_only=True):
    """The values of children, in the reply's envelope."""

    data: ValuesData


class DependencyRemovedReply(replies.Reply, kw_only=True):
    """Whether there was a dependency to remove."""

    removed: bool


class MovedData(replies.Out):
    """Whether the job was moved to wait for its children."""

    moved: bool = True


class MovedReply(replies.Reply, kw_only=True):
    """The result of the move, in the reply's envelope."""

    data: MovedData


def flow_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands about jobs that wait for other jobs."""

    async def answered(call: CommandCall, id: str) -> ValuesReply:
        job, _ = await jobs.job(call, id)
        return ValuesReply(data=ValuesData(await jobs.child_values(call, job, Need.DONE)))

    async def failed(call: CommandCall, id: str) -> replies.ChildrenReply:
        job, _ = await jobs.job(call, id)
        return replies.ChildrenReply(values=await jobs.child_values(call, job, Need.FAILED, Need.CONTINUED))

    async def ignored(call: CommandCall, id: str) -> replies.ChildrenReply:
        job, _ = await jobs.job(call, id)
        return replies.ChildrenReply(values=await jobs.child_values(call, job, Need.IGNORED))

    async def adopt(call: CommandCall, child: str, parent: str) -> replies.Ok:
        command = Adopt(call.session.namespace, job_ref(child), job_ref(parent))
        await in_other_words(jobs.engine.run(command), NOT_FOUND)
        return replies.Ok()

    async def unneed(call: CommandCall, id: str) -> DependencyRemovedReply:
        command = DropDependency(call.session.namespace, job_ref(id))
        return DependencyRemovedReply(removed=await in_other_words(jobs.engine.run(command), NOT_FOUND))

    async def cancel_children(call: CommandCall, id: str) -> replies.CountReply:
        command = CancelChildren(call.session.namespace, job_ref(id))
        return replies.CountReply(count=await in_other_words(jobs.engine.run(command), NOT_FOUND))

    async def park(call: CommandCall, id: str) -> MovedReply:
        token = TOKEN.parse(await call.body()).token
        await jobs.settle(Park(call.session.namespace, (hold(id, token),)), id, "Job is not active")
        return MovedReply(data=MovedData())

    return {
        "MoveToWaitingChildren": CommandEntry(park, TOKEN, ID, settles=True),
        "GetChildrenValues": CommandEntry(answered, CHILDREN, ID),
        "GetFailedChildrenValues": CommandEntry(failed, CHILDREN, ID),
        "GetIgnoredChildrenFailures": CommandEntry(ignored, CHILDREN, ID),
        "UpdateParent": CommandEntry(adopt, None, {"child": "childId", "parent": "parentId"}),
        "RemoveChildDependency": CommandEntry(unneed, None, ID),
        "RemoveUnprocessedChildren": CommandEntry(cancel_children, None, ID),
    }


def webhook_commands(webhooks: WebhookHandlers) -> dict[str, CommandEntry]:
    """Return the commands about webhooks."""
    return {
        "AddWebhook": CommandEntry(webhooks.add, h.ADD),
        "RemoveWebhook": CommandEntry(webhooks.remove, None, {"id": "webhookId"}),
        "ListWebhooks": CommandEntry(webhooks.list_webhooks),
        "SetWebhookEnabled": CommandEntry(webhooks.set_enabled, h.ENABLED, ID),
    }


def worker_commands(workers: WorkerHandlers) -> dict[str, CommandEntry]:
    """Return the commands about workers. A worker is unregistered when the connection that registered it ends."""

    async def register(call: CommandCall) -> Any:
        reply = await workers.register(call)
        worker = workers.workers.find(call.session.namespace, reply.data.worker_id)
        if worker is not None:
            call.session.at_end[worker.id] = partial(workers.workers.withdraw, worker)
        return reply

    async def unregister(call: CommandCall, id: str) -> Any:
        call.session.at_end.pop(id, None)
        return await workers.unregister(call, id)

    async def heartbeat(call: CommandCall, id: str) -> Any:
        w.heartbeat(workers.workers, call.session.namespace, id, w.HEARTBEAT.parse(await call.body()))
        return w.WorkerHeardReply()

    return {
        "RegisterWorker": CommandEntry(register, w.REGISTER),
        "Heartbeat": CommandEntry(heartbeat, w.HEARTBEAT, ID),
        "UnregisterWorker": CommandEntry(unregister, None, {"id": "workerId"}),
        "ListWorkers": CommandEntry(workers.list_workers),
    }
