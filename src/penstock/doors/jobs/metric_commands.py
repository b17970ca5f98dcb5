"""The command ``Metrics``: totals of the server, or the finished jobs of one queue. docs/tcp.md explains it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import State
from penstock.doors.http.body import BodyReader
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.wire import replies, requests
from penstock.store.contract import FinishedMinutes

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.queues import QueueHandlers
    from penstock.doors.ops.health import OpsHandlers

STATES: Final = {"completed": State.COMPLETED, "failed": State.DEAD}


class MetricsFields(requests.RequestModel):
    """Which finished jobs of a queue, and which minutes, newest first, both included. ``end`` -1: up to the last."""

    queue: str | None = None
    type: str | None = None
    start: Annotated[int, Meta(ge=0, le=limits.offset_max)] = 0
    end: Annotated[int, Meta(ge=-1, le=limits.offset_max)] = -1


class MetricsMeta(replies.Out):
    """The total number of jobs, when the last one ended (wall clock, ms), and how many ended in that minute."""

    count: int
    prev_ts: int = msgspec.field(name="prevTS")
    prev_count: int


class QueueMetrics(replies.Out):
    """``data``: jobs by minute, newest minute first. ``count``: how many minutes there are."""

    meta: MetricsMeta
    data: list[int]
    count: int


class QueueMetricsReply(replies.Reply, kw_only=True):
    """The metrics of a queue, in the reply's envelope."""

    data: QueueMetrics


METRICS: Final = BodyReader(MetricsFields)


def metric_commands(ops: OpsHandlers, queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the command."""

    async def of_queue(call: CommandCall) -> QueueMetricsReply:
        asked = METRICS.parse(await call.body())
        key = queues.queue_key(call, asked.queue or "")
        state = STATES.get(asked.type or "")
        if state is None:
            raise InvalidInput("Metrics type must be 'completed' or 'failed'")
        found = queues.queue(call, key.name)
        ended = (
            FinishedMinutes()
            if found is None
            else await queues.counted(found, partial(queues.store.finished_minutes, state=state))
        )
        per_minute = ended.per_minute(limits.metric_minutes_max)
        meta = MetricsMeta(ended.total, ended.last_at, per_minute[0] if per_minute else 0)
        end = None if asked.end == -1 else asked.end + 1
        return QueueMetricsReply(data=QueueMetrics(meta, per_minute[asked.start : end], len(per_minute)))

    async def metrics(call: CommandCall) -> QueueMetricsReply | dict[str, Any]:
        if call.message.get("queue") is not None:
            return await of_queue(call)
        return {"ok": True, "metrics": msgspec.to_builtins(ops.all_metrics())}

    return {"Metrics": CommandEntry(metrics, METRICS, narrows=True)}
