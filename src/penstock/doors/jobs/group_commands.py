"""The commands of bunqueue about groups of jobs: the number of jobs, pause, concurrency and rate limit of a group.

Jobs of one group run one after the other, unless its concurrency allows more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.core import limits
from penstock.core.lifecycle import State
from penstock.doors.http.body import BodyReader
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import QUEUE, DataReply
from penstock.doors.jobs.wire import fields, replies, requests
from penstock.engine.queues.group_limits import AskGroup, ConfigureGroup
from penstock.engine.queues.limit_status import NO_RATE_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.group_limits import GroupLimits
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.queues import QueueHandlers


class GroupFields(requests.RequestModel):
    """Which group of a queue."""

    group_id: fields.Key


class ConcurrencyFields(GroupFields):
    """How many jobs of a group may be active at once."""

    concurrency: fields.Positive


class RateFields(GroupFields):
    """How many jobs of a group may be claimed within a period, in ms."""

    max: fields.Positive
    duration: fields.Positive


class HoldFields(GroupFields):
    """For how long no job of a group is claimed, in ms."""

    duration: fields.Positive


class WaitFields(GroupFields):
    """``max_jobs``: the rate limit counts as free until this many jobs of its window were claimed."""

    max_jobs: fields.Positive | None = None


GROUP: Final = BodyReader(GroupFields)
CONCURRENCY: Final = BodyReader(ConcurrencyFields)
RATE: Final = BodyReader(RateFields)
HOLD: Final = BodyReader(HoldFields)
WAIT: Final = BodyReader(WaitFields)


class GroupCommands:
    """The handlers of the commands about groups."""

    def __init__(self, queues: QueueHandlers) -> None:
        self._queues = queues

    def table(self) -> dict[str, CommandEntry]:
        """Return the commands by their names."""
        return {
            "GetGroupJobsCount": CommandEntry(self.waiting, GROUP, QUEUE),
            "GetGroupActiveCount": CommandEntry(self.active, GROUP, QUEUE),
            "GetGroupsJobsCount": CommandEntry(self.waiting_in_all, None, QUEUE),
            "SetGroupConcurrency": CommandEntry(self.set_concurrency, CONCURRENCY, QUEUE),
            "GetGroupConcurrency": CommandEntry(self.get_concurrency, GROUP, QUEUE),
            "RemoveGroupConcurrency": CommandEntry(self.remove_concurrency, GROUP, QUEUE),
            "SetGroupRateLimit": CommandEntry(self.set_rate, RATE, QUEUE),
            "GetGroupRateLimit": CommandEntry(self.get_rate, GROUP, QUEUE),
            "GetGroupRateLimitTtl": CommandEntry(self.rate_wait, WAIT, QUEUE),
            "RemoveGroupRateLimit": CommandEntry(self.remove_rate, GROUP, QUEUE),
            "RateLimitGroup": CommandEntry(self.hold, HOLD, QUEUE),
            "PauseGroup": CommandEntry(partial(self.set_paused, paused=True), GROUP, QUEUE),
            "ResumeGroup": CommandEntry(partial(self.set_paused, paused=False), GROUP, QUEUE),
            "IsGroupPaused": CommandEntry(self.is_paused, GROUP, QUEUE),
        }

    async def _count(self, call: CommandCall, queue: str, state: State, group: str | None) -> DataReply:
        found = self._queues.queue(call, queue)
        if found is None:
            return DataReply(data={"count": 0})
        count = await self._queues.counted(found, partial(self._queues.store.group_count, state=state, group=group))
        return DataReply(data={"count": count})

    async def waiting(self, call: CommandCall, queue: str) -> DataReply:
        """Count the waiting jobs of a group."""
        return await self._count(call, queue, State.WAITING, GROUP.parse(await call.body()).group_id)

    async def active(self, call: CommandCall, queue: str) -> DataReply:
        """Count the active jobs of a group."""
        return await self._count(call, queue, State.ACTIVE, GROUP.parse(await call.body()).group_id)

    async def waiting_in_all(self, call: CommandCall, queue: str) -> DataReply:
        """Count the waiting jobs of all groups."""
        return await self._count(call, queue, State.WAITING, None)

    async def _change(
        self, call: CommandCall, queue: str, group: str, make: Callable[[GroupLimits, int], GroupLimits]
    ) -> bool:
        return await self._queues.engine.run(ConfigureGroup(self._queues.queue_key(call, queue), group, make))

    async def _ask(self, call: CommandCall, queue: str, group: str) -> tuple[GroupLimits, int]:
        return await self._queues.engine.run(AskGroup(self._queues.queue_key(call, queue), group))

    async def set_concurrency(self, call: CommandCall, queue: str) -> replies.Ok:
        """Set how many jobs of a group may be active at once."""
        asked = CONCURRENCY.parse(await call.body())
        await self._change(call, queue, asked.group_id, lambda group, _: replace(group, concurrency=asked.concurrency))
        return replies.Ok()

    async def get_concurrency(self, call: CommandCall, queue: str) -> DataReply:
        """Return how many jobs of a group may be active at once, if that was set."""
        group, _ = await self._ask(call, queue, GROUP.parse(await call.body()).group_id)
        return DataReply(data={"concurrency": group.concurrency})

    async def remove_concurrency(self, call: CommandCall, queue: str) -> DataReply:
        """Remove the concurrency of a group: its jobs run one after the other again."""
        name = GROUP.parse(await call.body()).group_id
        removed = await self._change(call, queue, name, lambda group, _: replace(group, concurrency=None))
        return DataReply(data={"removed": int(removed)})

    async def set_rate(self, call: CommandCall, queue: str) -> replies.Ok:
        """Set how many jobs of a group may be claimed within a period."""
        asked = RATE.parse(await call.body())
        await self._change(call, queue, asked.group_id, lambda group, _: _with_rate(group, asked.max, asked.duration))
        return replies.Ok()

    async def get_rate(self, call: CommandCall, queue: str) -> DataReply:
        """Return the rate limit of a group, if it has one."""
        group, _ = await self._ask(call, queue, GROUP.parse(await call.body()).group_id)
        limit = None if group.rate_limit is None else {"max": group.rate_limit, "duration": group.rate_window_ms}
        return DataReply(data={"limit": limit})

    async def remove_rate(self, call: CommandCall, queue: str) -> DataReply:
        """Remove the rate limit of a group."""
        name = GROUP.parse(await call.body()).group_id
        removed = await self._change(call, queue, name, lambda group, _: _with_rate(group, None, limits.SECOND_MS))
        return DataReply(data={"removed": int(removed)})

    async def rate_wait(self, call: CommandCall, queue: str) -> DataReply:
        """Return for how long the rate limit of a group holds, in ms; -2: it does not hold."""
        asked = WAIT.parse(await call.body())
        group, steady_ms = await self._ask(call, queue, asked.group_id)
        found = self._queues.queue(call, queue)
        defaults = None if found is None else found.settings.group_defaults
        wait_ms = group.wait_ms(steady_ms, asked.max_jobs, defaults)
        return DataReply(data={"ttl": NO_RATE_LIMIT if wait_ms is None else wait_ms})

    async def hold(self, call: CommandCall, queue: str) -> replies.Ok:
        """Stop claims of a group's jobs for a period."""
        asked = HOLD.parse(await call.body())
        await self._change(call, queue, asked.group_id, lambda group, now: replace(group, held_until=now + asked.duration))
        return replies.Ok()

    async def set_paused(self, call: CommandCall, queue: str, *, paused: bool) -> DataReply:
        """Pause or resume a group."""
        name = GROUP.parse(await call.body()).group_id
        changed = await self._change(call, queue, name, lambda group, _: replace(group, paused=paused))
        return DataReply(data={"changed": changed})

    async def is_paused(self, call: CommandCall, queue: str) -> DataReply:
        """Return whether a group is paused."""
        group, _ = await self._ask(call, queue, GROUP.parse(await call.body()).group_id)
        return DataReply(data={"paused": group.paused})


def group_commands(queues: QueueHandlers) -> dict[str, CommandEntry]:
    """Return the commands about groups."""
    return GroupCommands(queues).table()


def _with_rate(group: GroupLimits, limit: int | None, window_ms: int) -> GroupLimits:
    """Return the limits of a group with another rate limit, of which nothing is used."""
    return replace(group, rate_limit=limit, rate_window_ms=window_ms, window_at=None, taken=0)
