"""Flows: jobs that wait for other jobs, and what happens when those end. It happens in the transaction of the end itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import InvalidInput, JobNotFound, WrongState
from penstock.core.events import EventKind
from penstock.core.flow import Dependency, Need, after_failure
from penstock.core.job import DeathReason, JobFlag, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job
    from penstock.engine.engine import Engine
    from penstock.engine.work import JobRef, Work

_COMPLETIONS = (Arrow.COMPLETE, Arrow.COMPLETE_REMOVE)


class Adopt(Command[None]):
    """Note on a job which job it is a child of. Refused if that would make a job its own ancestor."""

    __slots__ = ("child", "namespace", "parent")

    def __init__(self, namespace: str, child: JobRef, parent: JobRef) -> None:
        self.namespace = namespace
        self.child = child
        self.parent = parent


class Unneed(Command[bool]):
    """Let all jobs that need a job go on without it; answers whether there were any."""

    __slots__ = ("namespace", "needed")

    def __init__(self, namespace: str, needed: JobRef) -> None:
        self.namespace = namespace
        self.needed = needed


class CancelChildren(Command[int]):
    """Cancel the jobs that a job needs and nobody works on yet, and let it go on without them; answers how many."""

    __slots__ = ("namespace", "ref")

    def __init__(self, namespace: str, ref: JobRef) -> None:
        self.namespace = namespace
        self.ref = ref


async def book_needs(work: Work, job: Job, needed: Sequence[Job]) -> bool:
    """Book that a new job needs others; tell whether one of them keeps it waiting.

    Those that have completed count at once, and so do those that have failed.
    """
    found: dict[int, Dependency] = {}
    free = False
    for each in needed:
        state, result, error = Need.PENDING, None, None
        if each.state == State.COMPLETED:
            state, result = Need.DONE, await work.result_of(each)
        elif each.state == State.DEAD:
            state, _, frees = after_failure(each)
            free = free or frees
            error = details_of(each).error
        found[each.id] = Dependency(job.id, each.id, state, work.name_of(each), result, error)
        if state.is_open and not each.has(JobFlag.AWAITED):
            each.flags |= JobFlag.AWAITED
            work.touch(each)
    await work.tx.need_add(list(found.values()))
    return not free and any(each.state.is_open for each in found.values())


def is_hopeless(needed: Job) -> bool:
    """Tell whether a job that needs this one would be dead from the start."""
    return needed.state == State.DEAD and after_failure(needed).buries


async def follow_up(work: Work) -> None:
    """See what the jobs that have ended so far in this batch mean for those that need them, and so on along the chain."""
    while work.followed < len(work.ended):
        ended = {job.id: (job, arrow) for job, arrow in work.ended[work.followed :] if job.has(JobFlag.AWAITED)}
        work.followed = len(work.ended)
        if not ended:
            return
        waiting = await work.tx.need_open(ended)
        await work.prefetch([each.job for each in waiting])
        for each in waiting:
            needed, arrow = ended[each.needs]
            if arrow in _COMPLETIONS:
                done = each._replace(state=Need.DONE, result=work.results.get(needed.id), error=None)
                await _save(work, done)
            elif each.state is Need.PENDING:
                await _fail(work, each, needed, arrow)


async def _fail(work: Work, dependency: Dependency, needed: Job, arrow: Arrow) -> None:
    """A needed job failed, or is gone without having completed."""
    consequence = after_failure(needed)
    error = details_of(needed).error or f"the job was gone before it completed ({arrow})"
    parent = await work.known(dependency.job)
    if parent is not None:
        queue = work.queue_of(parent)
        payload = {
            "parentJobId": work.name_of(parent),
            "failedChildId": dependency.name,
            "queue": queue.key.name,
            "error": error,
        }
        work.tell(EventKind.FLOW_FAILED, queue, payload)
    await _save(work, dependency._replace(state=consequence.state, error=error), frees=consequence.frees)
    if consequence.buries and parent is not None and parent.state == State.WAITING_CHILDREN:
        details = details_of(parent)
        details.error = f"Child job {dependency.name} failed: {error}"[: limits.error_chars_max]
        details.reason = DeathReason.CHILD_FAILED
        put_details(parent, details)
        removed = parent.has(JobFlag.REMOVE_ON_FAIL)
        work.move(
            parent,
            Arrow.CHILD_REMOVE if removed else Arrow.CHILD_BURY,
            error=details.error,
            note=DeathReason.CHILD_FAILED,
        )
        work.failed += 1


async def _save(work: Work, dependency: Dependency, *, frees: bool = False) -> None:
    """Write down where a dependency stands, and let its job go on if nothing keeps it any more."""
    await work.tx.need_save([dependency])
    job = await work.known(dependency.job)
    if job is None or job.state != State.WAITING_CHILDREN:
        return
    needs = await work.tx.need_list(job.id)
    if not frees and any(each.state.is_open for each in needs):
        return
    if all(each.state is Need.DONE for each in needs):
        queue = work.queue_of(job)
        payload = {"parentJobId": work.name_of(job), "queue": queue.key.name, "childrenCount": len(needs)}
        work.tell(EventKind.FLOW_COMPLETED, queue, payload)
    if job.run_at > work.now_ms:
        work.move(job, Arrow.UNBLOCK_LATER, job.run_at)
    else:
        work.move(job, Arrow.UNBLOCK)


async def adopt(_engine: Engine, work: Work, commands: Sequence[Adopt]) -> None:
    """Apply a batch of adoptions."""
    for command in commands:
        child = await work.find(command.namespace, command.child)
        parent = await work.find(command.namespace, command.parent)
        if child is None or parent is None:
            work.refuse(command, JobNotFound())
            continue
        if await _descends(work, command.namespace, parent, child):
            work.refuse(command, InvalidInput("A job cannot be its own ancestor"))
            continue
        details = details_of(child)
        details.parent = work.name_of(parent)
        put_details(child, details)
        work.touch(child)
        work.answer(command, None)


async def _descends(work: Work, namespace: str, job: Job | None, ancestor: Job) -> bool:
    """Tell whether a job is another, or a child of its child, and so on, up to a bounded height."""
    for _ in range(limits.flow_depth_max):
        if job is None:
            return False
        if job.id == ancestor.id:
            return True
        parent = details_of(job).parent
        job = None if parent is None else await work.find(namespace, work.ref_of(parent))
    return True


async def unneed(_engine: Engine, work: Work, commands: Sequence[Unneed]) -> None:
    """Apply a batch of dropped dependencies."""
    for command in commands:
        needed = await work.find(command.namespace, command.needed)
        if needed is None:
            work.refuse(command, JobNotFound())
            continue
        waiting = await work.tx.need_open([needed.id])
        for each in waiting:
            await _save(work, each._replace(state=Need.DROPPED))
        work.answer(command, bool(waiting))


async def cancel_children(_engine: Engine, work: Work, commands: Sequence[CancelChildren]) -> None:
    """Apply a batch of cancelled children."""
    for command in commands:
        job = await work.find(command.namespace, command.ref)
        if job is None:
            work.refuse(command, JobNotFound())
            continue
        count = 0
        for each in await work.tx.need_list(job.id):
            child = await work.known(each.needs)
            if each.state.is_open and child is not None and child.state in (State.WAITING, State.DELAYED):
                await _save(work, each._replace(state=Need.DROPPED))
                try:
                    work.move(child, Arrow.CANCEL, note=str(Arrow.CANCEL))
                except WrongState:
                    continue
                count += 1
        work.answer(command, count)
