"""The commands of the jobs door, each with the handler that answers it and the fields it takes. docs/tcp.md explains them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock import __version__
from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import Arrow, State
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import Refused
from penstock.doors.http.namespace import check_namespace
from penstock.doors.jobs import job_handlers as j
from penstock.doors.jobs import queues as q
from penstock.doors.jobs import wire
from penstock.doors.jobs.base import hold
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.group_options import ask_for_groups
from penstock.doors.jobs.jsonable import Unfit
from penstock.doors.jobs.mapping import STATE_NAMES, job_ref
from penstock.engine.jobs.settle import Release
from penstock.engine.jobs.update import ClearLog

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.job_handlers import JobHandlers
    from penstock.doors.jobs.queues import QueueHandlers
    from penstock.doors.ops.health import OpsHandlers

QUEUE: Final = {"queue": "queue"}
ID: Final = {"id": "id"}
PROTOCOL_VERSION: Final = 3


class PullFields(wire.PullQuery):
    """How to pull one job. ``detach``: it stays leased when the connection ends. ``group``: limits for all groups."""

    detach: bool = False
    group: wire.GroupOptions | None = None


class PullBatchFields(wire.PullBatchBody):
    """How to pull several jobs. ``detach``: they stay leased when the connection ends. ``group``: limits for all groups."""

    detach: bool = False
    group: wire.GroupOptions | None = None


class LogsFields(wire.RequestModel):
    """Which lines of a log, counted from 0, both included. Negative numbers count from the end: -1 is the last line."""

    start: Annotated[int, Meta(ge=-limits.offset_max, le=limits.offset_max)] = 0
    end: Annotated[int, Meta(ge=-limits.offset_max, le=limits.offset_max)] = -1


class ClearLogsFields(wire.RequestModel):
    """How many of the last lines stay."""

    keep_logs: wire.Lines = 0


class AuthFields(wire.RequestModel):
    """A token. ``namespace``: whose queues and jobs this connection is about from now on."""

    token: str
    namespace: str | None = None


class HelloReply(wire.Reply, kw_only=True):
    """What the server speaks."""

    protocol_version: int = PROTOCOL_VERSION
    capabilities: list[str]
    server: str = "penstock"
    version: str = __version__


class DataReply(wire.Reply, kw_only=True):
    """Something wrapped in ``data``, as the protocol has it for some commands."""

    data: dict[str, Any]


PULL = BodyReader(PullFields)
PULL_BATCH = BodyReader(PullBatchFields)
LOGS = BodyReader(LogsFields)
CLEAR_LOGS = BodyReader(ClearLogsFields)
AUTH = BodyReader(AuthFields)


def job_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands about jobs."""

    async def move_to_wait(call: CommandCall, id: str) -> wire.Ok:
        """Make a job ready from wherever it is, as long as it has not completed."""
        job, _ = await jobs.job(call.request, id)
        if job.state == State.ACTIVE:
            token = j.TOKEN.parse(await call.body()).token
            await jobs.settle(Release(call.session.namespace, (hold(id, token),)), id, j.NOT_ACTIVE)
        elif job.state != State.WAITING:
            refusal = f"Cannot move job from state '{STATE_NAMES[job.state]}' to waiting"
            await jobs.move(call.request, id, Arrow.REVIVE if job.state == State.DEAD else Arrow.PROMOTE, refusal)
        return wire.Ok()

    async def move_to_delayed(call: CommandCall, id: str) -> wire.Ok:
        """Put a job off: one that is active, or one that waits already, as bunqueue's clients ask for."""
        try:
            return await jobs.move_to_delayed(call.request, id)
        except Refused:
            with contextlib.suppress(Refused):
                return await jobs.change_delay(call.request, id)
            raise

    async def get_logs(call: CommandCall, id: str) -> wire.LogsReply:
        which = LOGS.parse(await call.body())
        reply = await jobs.get_logs(call.request, id)
        reply.data.logs = reply.data.logs[which.start : which.end + 1 or None]
        return reply

    async def clear_logs(call: CommandCall, id: str) -> wire.Ok:
        which = CLEAR_LOGS.parse(await call.body())
        await jobs.engine.run(ClearLog(call.session.namespace, job_ref(id), which.keep_logs))
        return wire.Ok()

    async def pull(call: CommandCall, queue: str) -> wire.PulledReply | wire.NothingReply:
        _check_detach(call)
        await ask_for_groups(jobs, call, queue, PULL)
        return await jobs.pull(call.request, queue)

    async def pull_batch(call: CommandCall, queue: str) -> wire.PulledBatchReply:
        _check_detach(call)
        await ask_for_groups(jobs, call, queue, PULL_BATCH)
        return await jobs.pull_batch(call.request, queue)

    async def ack_batch(call: CommandCall) -> wire.BatchReply:
        """Acknowledge several jobs, without those whose results have no JSON."""
        results: Any = call.message.get("results")
        unfit = {at: each.reason for at, each in enumerate(results) if type(each) is Unfit} if type(results) is list else {}
        for at in unfit:
            results[at] = None
        return await jobs.ack_each(call.request, unfit)

    return {
        # Producers.
        "PUSH": CommandEntry(jobs.push, j.PUSH, QUEUE),
        "PUSHB": CommandEntry(jobs.push_bulk, j.BULK, QUEUE),
        # Workers.
        "PULL": CommandEntry(pull, PULL, QUEUE, takes=True),
        "PULLB": CommandEntry(pull_batch, PULL_BATCH, QUEUE, takes=True),
        "ACK": CommandEntry(jobs.ack, j.ACK, ID, settles=True),
        "ACKB": CommandEntry(ack_batch, j.ACK_BATCH, settles=True),
        "FAIL": CommandEntry(jobs.fail, j.FAIL, ID, settles=True),
        "Progress": CommandEntry(jobs.report_progress, j.PROGRESS, ID),
        "JobHeartbeat": CommandEntry(jobs.heartbeat, j.HEARTBEAT, ID),
        "JobHeartbeatB": CommandEntry(jobs.heartbeat_batch, j.HEARTBEAT_BATCH),
        "ExtendLock": CommandEntry(jobs.extend_lock, j.EXTEND, ID),
        "ExtendLocks": CommandEntry(jobs.extend_locks, j.EXTEND_BATCH),
        # Looking.
        "GetResult": CommandEntry(jobs.get_result, None, ID),
        "GetProgress": CommandEntry(jobs.get_progress, None, ID),
        "WaitJob": CommandEntry(jobs.wait, j.WAIT, ID),
        # Intervening.
        "Cancel": CommandEntry(jobs.cancel, None, ID, settles=True),
        "ChangePriority": CommandEntry(jobs.change_priority, j.PRIORITY, ID),
        "Promote": CommandEntry(jobs.promote, None, ID),
        "MoveToDelayed": CommandEntry(move_to_delayed, j.POSTPONE, ID, settles=True),
        "ChangeDelay": CommandEntry(jobs.change_delay, j.DELAY, ID),
        "MoveToWait": CommandEntry(move_to_wait, j.TOKEN, ID, settles=True),
        "Discard": CommandEntry(jobs.discard, j.TOKEN, ID, settles=True),
        # Logs.
        "AddLog": CommandEntry(jobs.add_log, j.LOG, ID),
        "GetLogs": CommandEntry(get_logs, LOGS, ID),
        "ClearLogs": CommandEntry(clear_logs, CLEAR_LOGS, ID),
    }


def _check_detach(call: CommandCall) -> None:
    """Raise InvalidInput before anything is pulled: afterwards it would be too late."""
    if not isinstance(call.message.get("detach"), bool | None):
        raise InvalidInput("detach must be a boolean")


def queue_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about queues."""
    return {
        # Looking.
        "ListQueues": CommandEntry(queues.list_queues),
        "GetJobCounts": CommandEntry(queues.counts_apart, None, QUEUE),
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
        page = await ops.prometheus(call.request)
        return DataReply(data={"metrics": page.body.decode()})

    async def storage(call: CommandCall) -> DataReply:
        status: dict[str, Any] = msgspec.to_builtins(await ops.storage(call.request))
        del status["ok"]
        return DataReply(data={"error": None, "since": None} | status)

    async def stats(call: CommandCall) -> dict[str, Any]:
        reply: dict[str, Any] = msgspec.to_builtins(await ops.stats(call.request))
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

    async def auth(call: CommandCall) -> wire.Ok:
        shown = AUTH.parse(await call.body())
        await call.session.show_token(shown.token, None if shown.namespace is None else check_namespace(shown.namespace))
        return wire.Ok()

    async def hello(_call: CommandCall) -> HelloReply:
        return HelloReply(capabilities=["pipelining", "separate-job-name"])

    return {"Auth": CommandEntry(auth, AUTH, public=True), "Hello": CommandEntry(hello)}
