"""The commands about flows. docs/tcp.md explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Raw

from penstock.core.dependencies import Need
from penstock.doors.jobs import wire
from penstock.doors.jobs.base import hold, in_other_words
from penstock.doors.jobs.command_call import CommandEntry
from penstock.doors.jobs.commands import ID
from penstock.doors.jobs.job_handlers import CHILDREN, TOKEN
from penstock.doors.jobs.mapping import job_ref
from penstock.engine.jobs.dependencies import Adopt, CancelChildren, DropDependency
from penstock.engine.jobs.park import Park

if TYPE_CHECKING:
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.job_handlers import JobHandlers

NOT_FOUND: Final = "Job not found"


class ValuesData(wire.Out):
    """What children answered, or why they failed, by their ids."""

    values: dict[str, Raw]


class ValuesReply(wire.Reply, kw_only=True):
    """The same, in its envelope."""

    data: ValuesData


class DependencyRemovedReply(wire.Reply, kw_only=True):
    """Whether there was something to remove."""

    removed: bool


class MovedData(wire.Out):
    """The job was parked."""

    moved: bool = True


class MovedReply(wire.Reply, kw_only=True):
    """The same, in its envelope."""

    data: MovedData


def flow_commands(jobs: JobHandlers) -> dict[str, CommandEntry]:
    """Return the commands about jobs that wait for other jobs."""

    async def answered(call: CommandCall, id: str) -> ValuesReply:
        job, _ = await jobs.job(call.request, id)
        return ValuesReply(data=ValuesData(await jobs.child_values(call.request, job, Need.DONE)))

    async def failed(call: CommandCall, id: str) -> wire.ChildrenReply:
        job, _ = await jobs.job(call.request, id)
        return wire.ChildrenReply(values=await jobs.child_values(call.request, job, Need.FAILED, Need.CONTINUED))

    async def ignored(call: CommandCall, id: str) -> wire.ChildrenReply:
        job, _ = await jobs.job(call.request, id)
        return wire.ChildrenReply(values=await jobs.child_values(call.request, job, Need.IGNORED))

    async def adopt(call: CommandCall, child: str, parent: str) -> wire.Ok:
        command = Adopt(call.session.namespace, job_ref(child), job_ref(parent))
        await in_other_words(jobs.engine.run(command), NOT_FOUND)
        return wire.Ok()

    async def unneed(call: CommandCall, id: str) -> DependencyRemovedReply:
        command = DropDependency(call.session.namespace, job_ref(id))
        return DependencyRemovedReply(removed=await in_other_words(jobs.engine.run(command), NOT_FOUND))

    async def cancel_children(call: CommandCall, id: str) -> wire.CountReply:
        command = CancelChildren(call.session.namespace, job_ref(id))
        return wire.CountReply(count=await in_other_words(jobs.engine.run(command), NOT_FOUND))

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
