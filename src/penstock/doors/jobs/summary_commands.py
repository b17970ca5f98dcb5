"""Commands that bunqueue's MCP server and dashboard send. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.time_slices import Pauses
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.wire import replies

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.queues import QueueHandlers


class QueueRow(replies.Out):
    """A queue and how many jobs it has in each state; ``waiting`` without jobs that have a priority."""

    name: str
    waiting: int
    prioritized: int
    delayed: int
    active: int
    dlq: int
    paused: bool


class QueueRows(replies.Out):
    """All queues, and the time of the counts: wall clock, ms."""

    queues: list[QueueRow]
    timestamp: int


class QueueRowsReply(replies.Reply, kw_only=True):
    """All queues, in the reply's envelope."""

    data: QueueRows


def summary_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands that list all queues at once."""

    async def all_queues(call: CommandCall) -> QueueRowsReply:
        rows = []
        pauses = Pauses()
        for each in await queues.summary(call):
            counts = (await queues.exclusive_counts(call, each.name)).counts
            waiting, prioritized = counts.waiting, counts.prioritized
            if each.paused:
                waiting, prioritized = counts.paused, 0
            row = QueueRow(each.name, waiting, prioritized, counts.delayed, counts.active, counts.failed, each.paused)
            rows.append(row)
            if pauses.is_due:
                await pauses.pause()
                await queues.engine.fair_share.give_way()
        return QueueRowsReply(data=QueueRows(rows, queues.engine.clock.now_ms()))

    return {"DashboardQueues": CommandEntry(all_queues)}
