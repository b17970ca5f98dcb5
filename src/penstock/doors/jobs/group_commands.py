"""The commands of bunqueue about groups of jobs.

Jobs of one group run one after the other: that is the contract, and nothing about it can be set. So the commands that ask are
answered, and those that would change it are refused with what to do instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from penstock.core.errors import InvalidInput
from penstock.core.lifecycle import State
from penstock.doors.http.body import Reader
from penstock.doors.jobs import wire
from penstock.doors.jobs.call import Entry
from penstock.doors.jobs.commands import QUEUE, DataReply

if TYPE_CHECKING:
    from penstock.doors.jobs.call import Call
    from penstock.doors.jobs.queues import QueueHandlers

INSTEAD: Final = "Jobs of one group run one after the other, and a group has no {} of its own. {} the queue instead."


class GroupFields(wire.In):
    """Which group of a queue."""

    group_id: wire.Key


class ConcurrencyFields(GroupFields):
    """How many jobs of a group may be active at once: one."""

    concurrency: int


GROUP: Final = Reader(GroupFields)
CONCURRENCY: Final = Reader(ConcurrencyFields)


def group_commands(queues: QueueHandlers) -> dict[str, Entry]:
    """Return the commands about groups."""

    async def count(call: Call, queue: str, state: State, group: str | None) -> DataReply:
        found = queues.queue(call.request, queue)
        return DataReply(data={"count": 0 if found is None else await queues.store.group_count(found, state, group)})

    async def waiting(call: Call, queue: str) -> DataReply:
        return await count(call, queue, State.WAITING, GROUP.parse(await call.body()).group_id)

    async def active(call: Call, queue: str) -> DataReply:
        return await count(call, queue, State.ACTIVE, GROUP.parse(await call.body()).group_id)

    async def waiting_in_all(call: Call, queue: str) -> DataReply:
        return await count(call, queue, State.WAITING, None)

    async def set_concurrency(call: Call, queue: str) -> wire.Ok:
        queues.queue_key(call.request, queue)
        if CONCURRENCY.parse(await call.body()).concurrency != 1:
            raise InvalidInput(INSTEAD.format("concurrency", "Leave the group out, and limit"))
        return wire.Ok()

    def answer(data: dict[str, Any]) -> Entry:
        async def tell(call: Call, queue: str) -> DataReply:
            queues.queue_key(call.request, queue)
            GROUP.parse(await call.body())
            return DataReply(data=data)

        return Entry(tell, GROUP, QUEUE)

    def refuse(what: Literal["pause", "rate limit"], instead: str) -> Entry:
        async def tell(call: Call, queue: str) -> NoReturn:
            queues.queue_key(call.request, queue)
            GROUP.parse(await call.body())
            raise InvalidInput(INSTEAD.format(what, instead))

        return Entry(tell, GROUP, QUEUE)

    return {
        "GetGroupJobsCount": Entry(waiting, GROUP, QUEUE),
        "GetGroupActiveCount": Entry(active, GROUP, QUEUE),
        "GetGroupsJobsCount": Entry(waiting_in_all, None, QUEUE),
        "GetGroupConcurrency": answer({"concurrency": None}),
        "GetGroupRateLimit": answer({"limit": None}),
        "GetGroupRateLimitTtl": answer({"ttl": -2}),
        "IsGroupPaused": answer({"paused": False}),
        "RemoveGroupConcurrency": answer({"removed": 0}),
        "RemoveGroupRateLimit": answer({"removed": 0}),
        "ResumeGroup": answer({"changed": False}),
        "SetGroupConcurrency": Entry(set_concurrency, CONCURRENCY, QUEUE),
        "SetGroupRateLimit": refuse("rate limit", "Limit"),
        "RateLimitGroup": refuse("rate limit", "Limit"),
        "PauseGroup": refuse("pause", "Pause"),
    }
