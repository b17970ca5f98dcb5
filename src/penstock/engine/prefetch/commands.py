"""The commands of the fast path. Doors do not use them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import QueueMoving
from penstock.core.job import Delivery, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command, QueueCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey, QueueSettings
    from penstock.engine.context import EngineContext
    from penstock.engine.prefetch.unconfirmed_leases import UnconfirmedLease
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import ReadyLists


def lists_of(work: UnitOfWork) -> ReadyLists:
    """Return the ready lists of the store of a unit of work. Only a store that has them has a ready cache."""
    lists = work.tx.ready_lists
    if lists is None:
        raise RuntimeError("This store has no ready lists.")
    return lists


def may_be_hot(settings: QueueSettings) -> bool:
    """Return whether jobs of a queue may be set aside: if the queue has a limit, each claim is checked on its own."""
    is_limited = settings.rate_limit is not None or settings.concurrency is not None or settings.limits_groups
    return not settings.paused and not is_limited and settings.stall.enabled


class SetAside(NamedTuple):
    """Jobs that were set aside for a ready list."""

    jobs: list[Delivery]
    generation: int
    epoch: int | None  #: epoch of the list; None if the list does not exist any more
    announced: bool = False  #: nothing was set aside yet, but the list is announced: repeat the command
    cut_at: JobRecord | None = None  #: the last job that was looked at, if more may wait behind it
    too_large: bool = False  #: the first job is too large for the list, so nothing was set aside


class Prefetch(QueueCommand[SetAside]):
    """Set up to ``count`` jobs aside, the first ones in order, for at least ``lease_ms``.

    The payloads of all have up to ``bytes_max``, and none has more than ``limits.fast_job_bytes_max``.

    A list must be announced before anything is set aside for it: see ``SetAside.announced``. Otherwise a push could be
    committed after the jobs were read and before the list is known. That job would not be on the list, and would not make an
    offer. A queue whose list was lost gets a new one when the jobs of the lost list are back, because they come first.
    ``is_empty``: the list has no jobs left; if there is nothing to fetch either, it is removed.
    """

    __slots__ = ("bytes_max", "count", "is_empty", "lease_ms")

    def __init__(self, queue: QueueKey, count: int, lease_ms: int, *, bytes_max: int, is_empty: bool) -> None:
        super().__init__(queue)
        self.count = count
        self.bytes_max = bytes_max
        self.lease_ms = lease_ms
        self.is_empty = is_empty

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return no queue: if the queue is on another shard, there is nothing to set aside here."""
        return ()

    def tenant(self) -> str | None:
        """Return None: the server itself sends it, for the claims of all."""
        return None

    def weight(self) -> int:
        """Return how many jobs it may set aside."""
        return self.count


class TakeBack(Command[None]):
    """Take jobs of a ready list back, by id and token: they return to their old places, and the list is removed."""

    __slots__ = ("epoch", "holds", "queue_number")

    def __init__(self, holds: Sequence[tuple[int, int]], queue_number: int | None = None, epoch: int | None = None) -> None:
        self.holds = holds
        self.queue_number = queue_number
        self.epoch = epoch

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.holds)


class RecordLeases(Command[None]):
    """Record which worker has each job that was handed out, by token."""

    __slots__ = ("leases",)

    def __init__(self, leases: Mapping[int, UnconfirmedLease]) -> None:
        self.leases = leases

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.leases)


class Abandon(Command[bool]):
    """Give up a generation of ready lists, if it has any; answers whether it did."""

    __slots__ = ("generation",)

    def __init__(self, generation: int) -> None:
        self.generation = generation


class Reclaim(Command[int]):
    """Release some jobs of lost ready lists, when it is known which of them were handed out; answers how many."""

    __slots__ = ()


class MarkLeasesRecorded(Command[None]):
    """Record that this server has recorded all leases that it handed out in generations before this one."""

    __slots__ = ("generation",)

    def __init__(self, generation: int) -> None:
        self.generation = generation


class ReadGeneration(Command[None]):
    """Read the current generation of ready lists. Every transaction reads it."""

    __slots__ = ()


async def withdraw_ready(engine: EngineContext, work: UnitOfWork, jobs: Iterable[JobRecord | None]) -> None:
    """Remove jobs from their ready lists before they are changed by id. They get their old positions back."""
    cache, handed_out = engine.ready_cache, engine.unconfirmed_leases
    if cache is None:
        return
    aside: dict[int, list[JobRecord]] = {}
    for job in jobs:
        if job is not None and job.state == State.ACTIVE and job.started_at is None and job.token not in handed_out:
            aside.setdefault(job.queue, []).append(job)
    for queue, some in aside.items():
        on_list = await cache.pull_out(lists_of(work).generation, queue, some)
        for job in some:
            if job.id in on_list:
                work.move(job, Arrow.RELEASE)


async def prefetch(engine: EngineContext, work: UnitOfWork, commands: Sequence[Prefetch]) -> None:
    """Apply a batch of prefetches."""
    lists = lists_of(work)
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        found = SetAside([], lists.generation, None)
        if queue is not None:
            epoch = lists.hot.get(queue.number)
            if epoch is not None:
                found = await _set_aside(work, command, queue, epoch)
            elif may_be_hot(queue.settings) and queue.number not in lists.lost:
                found = found._replace(announced=await _announce(engine, work, queue))
        work.answer(command, found)


async def _announce(engine: EngineContext, work: UnitOfWork, queue: Queue) -> bool:
    """Announce the ready list of a queue to all servers; False if Redis fails."""
    lists, cache = lists_of(work), engine.ready_cache
    if not await lists.hot_lock() and not (cache is not None and await cache.begin_lists(lists.generation)):
        return False
    await lists.hot_add(queue)
    return True


async def _set_aside(work: UnitOfWork, command: Prefetch, queue: Queue, epoch: int) -> SetAside:
    """Lease the first jobs in order for a ready list that was announced before this transaction."""
    lists = lists_of(work)
    jobs: list[Delivery] = []
    await work.flush()
    ready = await work.tx.job_ready(queue, command.count) if may_be_hot(queue.settings) else []
    size, last, fits = 0, None, True
    for found, payload in ready:
        size += len(payload.data) + len(payload.options or b"")
        fits = size <= command.bytes_max and len(payload.data) <= limits.fast_job_bytes_max
        if not fits:
            break
        last = work.track(found)
        if last.expires_at is not None and last.expires_at <= work.now_ms:
            work.move(last, Arrow.EXPIRE)
        else:
            jobs.append(Delivery(last, payload))
    cut_at = last if not fits or len(ready) >= command.count else None
    if jobs:
        work.lease_all([job for job, _ in jobs], Arrow.PREFETCH, command.lease_ms)
        return SetAside(jobs, lists.generation, await lists.hot_fill(queue.number, epoch), cut_at=cut_at)
    if not command.is_empty:
        return SetAside([], lists.generation, epoch, cut_at=cut_at, too_large=not fits)
    await lists.hot_remove(queue.number, epoch)
    return SetAside([], lists.generation, None)


async def _still_here(work: UnitOfWork, job_id: int) -> JobRecord | None:
    """Return a job, unless its queue is moving to another shard. There its lease expires, or its worker settles it."""
    try:
        return await work.known(job_id)
    except QueueMoving:
        return None


async def take_back(_engine: EngineContext, work: UnitOfWork, commands: Sequence[TakeBack]) -> None:
    """Apply a batch of jobs that are taken back."""
    await work.prefetch([job_id for command in commands for job_id, _ in command.holds])
    for command in commands:
        for job_id, token in command.holds:
            job = await _still_here(work, job_id)
            if job is not None and job.state == State.ACTIVE and job.token == token and job.started_at is None:
                work.move(job, Arrow.RELEASE)
        if command.queue_number is not None and command.epoch is not None:
            await lists_of(work).hot_remove(command.queue_number, command.epoch)
        work.answer(command, None)


async def record_leases(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordLeases]) -> None:
    """Record a batch of leases. Jobs that were settled meanwhile are not changed."""
    await work.prefetch([lease.job_id for command in commands for lease in command.leases.values()])
    for command in commands:
        for token, lease in command.leases.items():
            job = await _still_here(work, lease.job_id)
            if job is not None and job.state == State.ACTIVE and job.token == token and job.started_at is None:
                if lease.owner is not None:
                    details = details_of(job)
                    details.owner = lease.owner
                    put_details(job, details)
                work.begin(job, lease.lease_ms, lease.at)
        work.answer(command, None)


async def abandon(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Abandon]) -> None:
    """Give up a generation, once."""
    lists = lists_of(work)
    for command in commands:
        given_up = bool(lists.hot) and await lists.abandon(command.generation)
        work.answer(command, given_up)


async def reclaim(engine: EngineContext, work: UnitOfWork, commands: Sequence[Reclaim]) -> None:
    """Release jobs of lost ready lists."""
    lists = lists_of(work)
    for command in commands:
        found = await lists.job_set_aside(work.steady_ms, limits.fast_grace_ms, limits.slice_jobs_max)
        for each in found:
            work.move(work.track(each), Arrow.RELEASE)
        if lists.lost:
            await work.flush()
            for number in await lists.lost_remove():
                key = work.tx.queue_by_number(number).key
                work.after_commit.append(partial(engine.claim_waiters.nudge_at, key, work.steady_ms))
        work.answer(command, len(found))


async def mark_leases_recorded(_engine: EngineContext, work: UnitOfWork, commands: Sequence[MarkLeasesRecorded]) -> None:
    """Record that the other servers need not wait for this one."""
    for command in commands:
        await lists_of(work).generation_noted(command.generation)
        work.answer(command, None)


async def read_generation(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ReadGeneration]) -> None:
    """Answer the commands. The start of the transaction has read the generation."""
    for command in commands:
        work.answer(command, None)
