"""Flows: jobs that wait for other jobs, and what happens when those end.

The end of a job is followed up in the transaction that ends it, as far as the limits of a batch allow: see the limits that
begin with ``flow_``. That transaction stores the rest as a ``JobEnd``. The next batches continue with it at once, in order.
So a crash loses nothing: a server that opens the store later finds what is left to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.dependencies import (
    Dependency,
    JobEnd,
    Need,
    RemoteJob,
    blame,
    consequence_of_failure,
    end_of,
    state_of_needed,
)
from penstock.core.errors import InvalidInput, JobNotFound, OwnAncestor
from penstock.core.events import EventKind
from penstock.core.job import DeathReason, JobFlag, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import NamespaceCommand
from penstock.engine.prefetch.commands import withdraw_ready

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from penstock.core.dependencies import NeedCount
    from penstock.core.job import JobRecord
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class Adopt(NamespaceCommand[None]):
    """Record on a job that it is a child of another job. Refused if that would make a job its own ancestor.

    ``known_as``: the name of the parent, if everything was checked already, because the two jobs are on different
    shards.
    """

    __slots__ = ("child", "known_as", "parent")

    def __init__(self, namespace: str, child: JobRef, parent: JobRef, known_as: str | None = None) -> None:
        super().__init__(namespace)
        self.child = child
        self.parent = parent
        self.known_as = known_as

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its two jobs."""
        return ((self.namespace, self.child), (self.namespace, self.parent))


class DropDependency(NamespaceCommand[bool]):
    """Remove the dependency on a job from all jobs that need it. Answers whether there were any.

    The needed job may not exist any more.
    """

    __slots__ = ("needed",)

    def __init__(self, namespace: str, needed: JobRef) -> None:
        super().__init__(namespace)
        self.needed = needed

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the needed job."""
        return ((self.namespace, self.needed),)


class CancelChildren(NamespaceCommand[int]):
    """Cancel the children of a job that no worker has, and let the job continue without them; answers how many.

    Children that were removed count too, because no worker will get them. ``remote``: children on other shards, which were
    handled there. ``gone``: those of them that were removed.
    """

    __slots__ = ("gone", "ref", "remote")

    def __init__(
        self, namespace: str, ref: JobRef, remote: frozenset[int] = frozenset(), gone: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(namespace)
        self.ref = ref
        self.remote = remote
        self.gone = gone


async def record_needs(work: UnitOfWork, job: JobRecord, needed: Sequence[JobRecord | RemoteJob]) -> bool:
    """Record that a new job needs others; return whether one of them keeps it waiting.

    Needed jobs that have completed or failed count at once.
    """
    found: dict[int, Dependency] = {}
    free = False
    for each in needed:
        name, end = each if isinstance(each, RemoteJob) else await needed_state(work, each)
        free = free or end.frees
        found[end.job] = Dependency(job.id, end.job, end.state, name, end.result, end.error)
        if end.state.is_open and not isinstance(each, RemoteJob):
            await_(work, each)
    work.need(found.values())
    return not free and any(each.state.is_open for each in found.values())


async def needed_state(work: UnitOfWork, needed: JobRecord) -> RemoteJob:
    """Return the state of a job that another job begins to need."""
    result = await work.result_of(needed) if needed.state == State.COMPLETED else None
    return RemoteJob(work.name_of(needed), state_of_needed(needed, result))


def await_(work: UnitOfWork, needed: JobRecord, flags: int = JobFlag.AWAITED) -> None:
    """Record on a job that others need it."""
    if needed.flags & flags != flags:
        needed.flags |= flags
        work.touch(needed)


def copies_batch_max(engine: EngineContext) -> int:
    """Return how many bytes of results and errors one batch may copy to dependencies."""
    return limits.flow_bytes_shared_max if engine.fair_share.shared else limits.flow_bytes_batch_max


async def refuse_copies(work: UnitOfWork, results: Sequence[tuple[JobRecord, bytes]]) -> dict[tuple[int, int], InvalidInput]:
    """Return which results may not be stored, by job and size: with each open dependency on its job, a copy is stored.

    Dependencies are counted as far as the limit needs, and once for each job. Those of jobs on other shards do not count.
    """
    most: dict[int, int] = {}  # number of copies of the smallest result of each job that may be made
    for job, result in results:
        if job.flags & JobFlag.AWAITED:
            most[job.id] = max(most.get(job.id, 0), limits.result_copies_bytes_max // len(result))
    counts: dict[int, int] = {}
    for job_id, copies in most.items():
        counts[job_id] = await work.tx.need_open_count(job_id, copies + 1)
        await work.pause()
    return {
        (job.id, len(result)): InvalidInput(
            f"The result has {len(result)} bytes, and more than {limits.result_copies_bytes_max // len(result)} jobs need it. "
            f"It is stored with each of them, and at most {limits.result_copies_bytes_max} bytes of copies are allowed. "
            "Acknowledge with a smaller result, for example a reference to where it is stored."
        )
        for job, result in results
        if counts.get(job.id, 0) * len(result) > limits.result_copies_bytes_max
    }


def is_hopeless(needed: JobRecord | RemoteJob) -> bool:
    """Return whether a job that needs this one would be dead from the start."""
    if isinstance(needed, RemoteJob):
        return needed.end.buries
    return needed.state == State.DEAD and consequence_of_failure(needed).buries


# Following up.


class _FollowUpBudget:
    """How many more ends of jobs one batch may apply, by dependencies, bytes and levels."""

    def __init__(self, engine: EngineContext) -> None:
        self.needs = _needs_max(engine)
        self.bytes = copies_batch_max(engine)
        self.levels = limits.flow_levels_batch_max

    @property
    def is_used_up(self) -> bool:
        return self.needs <= 0 or self.bytes <= 0 or self.levels <= 0


def _needs_max(engine: EngineContext) -> int:
    return limits.flow_needs_batch_shared_max if engine.fair_share.shared else limits.flow_needs_batch_max


async def follow_up(engine: EngineContext, work: UnitOfWork) -> None:
    """Apply the ends of jobs in this batch to the jobs that need them, and continue along the chain."""
    budget = _FollowUpBudget(engine)
    while ends := await _fresh(engine, work):
        later: set[int] = set()
        # The ends of one job are applied in order. Ends that other servers have stored may not be known here yet.
        if engine.store.horizon.unfollowed or engine.store.capabilities.is_shared:
            later = await work.tx.end_pending([end.job for end in ends])
        left = await _apply_ends(work, [end for end in ends if end.job not in later], budget)
        left += [end for end in ends if end.job in later]
        if left:
            await work.tx.end_add(left)
    if work.given_up:  # last, because a job may complete and be removed in the same batch
        await work.tx.relay_forget(work.given_up)
        work.given_up = []


async def catch_up(engine: EngineContext, work: UnitOfWork) -> None:
    """Continue with the ends that did not fit into earlier batches."""
    ends: dict[int, JobEnd] = {}
    for end in await work.tx.end_list(_needs_max(engine)):
        if end.job in ends:  # one end at a time for each job
            break
        ends[end.job] = end
    left = {end.serial: end for end in await _apply_ends(work, list(ends.values()), _FollowUpBudget(engine))}
    await work.tx.end_remove([end.serial for end in ends.values() if end.serial not in left])
    for end in ends.values():
        reached = left.get(end.serial, end)
        if reached.after != end.after:
            await work.tx.end_advance(reached)


async def _fresh(engine: EngineContext, work: UnitOfWork) -> list[JobEnd]:
    """Return the ends that were not followed up yet, one for each job.

    Ends that other shards wait for are stored for them.
    """
    ends: dict[int, JobEnd] = {}
    remote: list[tuple[JobEnd, int]] = []
    for job, arrow in work.ended[work.followed :]:
        if job.flags & JobFlag.AWAITED and job.id not in ends:
            ends[job.id] = end_of(job, arrow, engine.end_serial(work), work.results.get(job.id))
            if job.has(JobFlag.AWAITED_REMOTELY):
                remote.append((ends[job.id], work.spared.get(job.id, 0)))
    if remote:
        await work.tx.relay_end(remote)
        work.after_commit.append(engine.signals.relays_written.emit)
    for end in work.ends:
        ends.setdefault(end.job, end)
    work.followed = len(work.ended)
    work.ends = []
    return list(ends.values())


async def _apply_ends(work: UnitOfWork, ends: Sequence[JobEnd], budget: _FollowUpBudget) -> list[JobEnd]:
    """Apply ends to the jobs that need the ended jobs, as far as the budget allows. Return the remaining ends, in order."""
    if budget.is_used_up or not ends:
        return list(ends)
    budget.levels -= 1
    now, left = ends[: budget.needs], ends[budget.needs :]
    by_job = {end.job: end for end in now}
    found = await work.tx.need_open(now, budget.needs + 1)
    reached: Dependency | None = None
    applied: list[tuple[Dependency, JobEnd]] = []
    for index, each in enumerate(found):
        if budget.needs <= 0 or budget.bytes <= 0:
            reached = found[index - 1]
            break
        end = by_job[each.needs]
        budget.needs -= 1
        budget.bytes -= end.weight
        if not (end.failed and each.state is Need.FAILED):  # that was applied before
            applied.append((each._replace(state=end.state, result=end.result, error=end.error), end))
    await _settle(work, applied)
    if reached is None:
        return list(left)
    last = by_job[reached.needs]
    return [last._replace(after=reached.job), *now[now.index(last) + 1 :], *left]


async def _settle(work: UnitOfWork, applied: Sequence[tuple[Dependency, JobEnd]]) -> None:
    """Write the new state of dependencies, and let their jobs continue, or fail."""
    if not applied:
        return
    by_job: dict[int, list[tuple[Dependency, JobEnd]]] = {}
    for each in applied:
        by_job.setdefault(each[0].job, []).append(each)
    await work.prefetch(by_job)  # first: it locks them, so that two servers that end two children count in order
    await work.tx.need_save([dependency for dependency, _ in applied])
    jobs = [job for job_id in by_job if (job := await work.known(job_id)) is not None]
    counts = await work.tx.need_count([job.id for job in jobs if job.state == State.WAITING_CHILDREN])
    for job in jobs:
        for dependency, end in by_job[job.id]:
            _apply_end(work, job, dependency, end)
        if job.state == State.WAITING_CHILDREN and not counts[job.id].open:
            _unblock(work, job, counts[job.id])


def _apply_end(work: UnitOfWork, job: JobRecord, dependency: Dependency, end: JobEnd) -> None:
    """Apply the end of a needed job to a job."""
    if end.failed:
        queue = work.queue_of(job)
        payload = {
            "parentJobId": work.name_of(job),
            "failedChildId": dependency.name,
            "queue": queue.key.name,
            "error": end.error,
        }
        work.journal_queue_event(EventKind.FLOW_FAILED, queue, payload)
    if job.state != State.WAITING_CHILDREN:
        return
    if end.frees:
        _unblock(work, job)
    elif end.buries:
        details = details_of(job)
        details.error, details.reason = blame(end, dependency.name), DeathReason.CHILD_FAILED
        put_details(job, details)
        arrow = Arrow.CHILD_REMOVE if job.has(JobFlag.REMOVE_ON_FAIL) else Arrow.CHILD_BURY
        work.move(job, arrow, error=details.error, note=DeathReason.CHILD_FAILED)
        work.failed += 1


def _unblock(work: UnitOfWork, job: JobRecord, count: NeedCount | None = None) -> None:
    """Let a job continue: it waits for no other job. ``count``: of its dependencies, if it needs none any more."""
    if count is not None and count.done == count.total:
        queue = work.queue_of(job)
        payload = {"parentJobId": work.name_of(job), "queue": queue.key.name, "childrenCount": count.total}
        work.journal_queue_event(EventKind.FLOW_COMPLETED, queue, payload)
    if job.run_at > work.now_ms:
        work.move(job, Arrow.UNBLOCK_LATER, job.run_at)
    else:
        work.move(job, Arrow.UNBLOCK)


# Commands of users.


async def adopt(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Adopt]) -> None:
    """Apply a batch of adoptions, as many as one batch may look up ancestors for; the others are in the next batch."""
    lookups = 0
    for index, command in enumerate(commands):
        if lookups >= limits.flow_lookups_batch_max:
            work.deferred += commands[index:]
            return
        child = await work.find(command.namespace, command.child)
        known_as = command.known_as
        if known_as is None:
            parent = await work.find(command.namespace, command.parent)
            if parent is not None and child is not None:
                descends, height = await _descends(work, command.namespace, parent, child)
                lookups += height
                if descends:
                    work.refuse(command, OwnAncestor())
                    continue
            known_as = None if parent is None else work.name_of(parent)
        if child is None or known_as is None:
            work.refuse(command, JobNotFound())
            continue
        details = details_of(child)
        details.parent = known_as
        put_details(child, details)
        work.touch(child)
        work.answer(command, None)


async def _descends(work: UnitOfWork, namespace: str, job: JobRecord | None, ancestor: JobRecord) -> tuple[bool, int]:
    """Return whether a job is another one, or one of its descendants, up to a bounded height; and how many were looked up."""
    for height in range(limits.flow_depth_max):
        if job is None:
            return False, height
        if job.id == ancestor.id:
            return True, height
        parent = details_of(job).parent
        job = None if parent is None else await work.find(namespace, work.ref_of(parent))
    return True, limits.flow_depth_max


async def drop_dependency(engine: EngineContext, work: UnitOfWork, commands: Sequence[DropDependency]) -> None:
    """Apply a batch of dropped dependencies."""
    for command in commands:
        needed = await work.find(command.namespace, command.needed)
        dropped = await _still_needed(engine, work, command)
        if needed is None and not dropped:
            work.refuse(command, JobNotFound())
            continue
        work.ends += dropped
        work.answer(command, bool(dropped))


async def _still_needed(engine: EngineContext, work: UnitOfWork, command: DropDependency) -> list[JobEnd]:
    """Return the ends that drop the dependency on a name. There is one for each needed job that the name refers to.

    There may be several: one existing job, and removed jobs that had the same custom id.
    """
    namespace = work.tx.namespace_number(command.namespace)
    if namespace is None:
        return []
    ids: list[int] = []
    if isinstance(command.needed, int):
        ids.append(command.needed)
    else:
        living = await work.find(command.namespace, command.needed)
        ids += [] if living is None else [living.id]
        ids += [job_id for job_id in await work.tx.need_find(namespace, command.needed) if job_id not in ids]
    ends = [JobEnd(engine.end_serial(work), job_id, Need.DROPPED) for job_id in ids]
    return [end for end in ends if await _is_needed_in(work, namespace, end)]


async def _is_needed_in(work: UnitOfWork, namespace: int, end: JobEnd) -> bool:
    for each in await work.tx.need_open([end], 1):
        job = await work.known(each.job)
        return job is not None and job.namespace == namespace
    return False


async def drop_needs(work: UnitOfWork, job_id: int, needed: Collection[int]) -> None:
    """Let a job continue without some of those that it needs."""
    dropped = [
        (each._replace(state=Need.DROPPED), JobEnd(0, each.needs, Need.DROPPED))
        for each in await work.tx.need_of(job_id)
        if each.needs in needed
    ]
    await _settle(work, dropped)


async def _lock_with_children(work: UnitOfWork, command: CancelChildren) -> None:
    """Lock a job and its children in the order of their ids: a worker that ends a child locks the child first, too."""
    ids = [command.ref] if isinstance(command.ref, int) else []
    number = work.tx.namespace_number(command.namespace)
    if isinstance(command.ref, str) and number is not None:
        ids = await work.tx.job_find_ids([(number, command.ref)])
    needs = [each.needs for job_id in ids for each in await work.tx.need_of(job_id) if each.needs not in command.remote]
    await work.prefetch([*ids, *needs])


async def cancel_children(engine: EngineContext, work: UnitOfWork, commands: Sequence[CancelChildren]) -> None:
    """Apply a batch of cancelled children, as many as one batch may look up; the others are in the next batch."""
    lookups = 0
    for index, command in enumerate(commands):
        if lookups >= limits.flow_lookups_batch_max:
            work.deferred += commands[index:]
            return
        await _lock_with_children(work, command)
        job = await work.find(command.namespace, command.ref)
        if job is None:
            work.refuse(command, JobNotFound())
            continue
        needs = [
            each for each in await work.tx.need_of(job.id) if each.needs not in command.remote or each.needs in command.gone
        ]
        lookups += len(needs)
        await work.prefetch([each.needs for each in needs])
        children = {each.needs: await work.known(each.needs) for each in needs}
        await withdraw_ready(engine, work, children.values())
        # A job that was removed has ended, and its end may be about to be applied. Then it is not too late for its result.
        ending = await work.tx.end_pending([each for each, child in children.items() if child is None])
        dropped: list[tuple[Dependency, JobEnd]] = []
        for each in needs:
            child = children[each.needs]
            idle = each.needs not in ending if child is None else child.state in (State.WAITING, State.DELAYED)
            if idle:
                dropped.append((each._replace(state=Need.DROPPED), JobEnd(0, each.needs, Need.DROPPED)))
        await _settle(work, dropped)
        for each, _ in dropped:
            child = children[each.needs]
            if child is not None:
                work.move(child, Arrow.CANCEL, note=str(Arrow.CANCEL))
        work.answer(command, len(dropped))
