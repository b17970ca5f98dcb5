"""Ack and nack by id alone, for workers that never receive a lease token.

Without a token, no command can prove which delivery it is about. Penstock can only check whether the job has a lease, and
whether its last lease expired. So a command that comes after its lease expired is accepted: the work was done, or failed,
and doing it again is of no use. A command about a job that no worker can have is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import JobNotFound, QueueMoving, WrongState
from penstock.core.job import JobFlag, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command, IfUnknown, Lane
from penstock.engine.jobs.repeat import repeat
from penstock.engine.jobs.settle import complete_all, count_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.settle import ItemOutcome
    from penstock.engine.unit_of_work import UnitOfWork


_ACTIVE, _COMPLETED = State.ACTIVE.value, State.COMPLETED.value


class ClaimedJob(NamedTuple):
    """A job that a worker reports on: the queue from which it was claimed, and its id."""

    queue: QueueKey
    id: int
    error: str | None = None  #: why it failed, if it did
    lease_ms: int | None = None  #: length of the lease from now; None: the lease's own length


class ById(Command[list["ItemOutcome"]]):
    """Base of the commands by id. Answers one outcome per receipt, in order."""

    __slots__ = ("receipts",)

    if_unknown = IfUnknown.SETTLE_BY_ID
    urgent = True

    def __init__(self, receipts: Sequence[ClaimedJob]) -> None:
        self.receipts = receipts

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs, because it has no lease tokens."""
        return [(receipt.queue.namespace, receipt.id) for receipt in self.receipts]

    def tenant(self) -> str | None:
        """Return the namespace of its first job."""
        return self.receipts[0].queue.namespace if self.receipts else None

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.receipts)


class AckById(ById):
    """Complete jobs. A repeat for a job that is kept as completed changes nothing and is no error.

    A job has the outcome JobNotFound if it is not in its queue, WrongState if it is dead or if no worker can have it.
    """

    __slots__ = ()

    lane = Lane.ACKS


class NackById(ById):
    """Report failed jobs: each is retried after its backoff, or is dead if it has no attempts left.

    If the lease expired, that was counted as the failure already; then only the error is stored. A job has the outcome
    JobNotFound, or WrongState if no worker can have it.
    """

    __slots__ = ()


class RenewById(ById):
    """Renew leases: each ends its own length from now, or the receipt's ``lease_ms``.

    A job has the outcome JobNotFound, or WrongState if no worker has it.
    """

    __slots__ = ()


async def renew_by_id(engine: EngineContext, work: UnitOfWork, commands: Sequence[RenewById]) -> None:
    """Apply a batch of heartbeats."""

    def renew(receipt: ClaimedJob, job: JobRecord) -> ItemOutcome:
        if job.state != _ACTIVE:
            return _not_in_hand(job)
        engine.unconfirmed_leases.begin(work, job)
        if receipt.lease_ms is None:
            work.move(job, Arrow.HEARTBEAT)
        else:
            work.move(job, Arrow.RENEW, receipt.lease_ms)
        return None

    await _answer_each(work, commands, renew)


async def ack_by_id(engine: EngineContext, work: UnitOfWork, commands: Sequence[AckById]) -> None:
    """Apply a batch of acknowledgements."""
    find = await _finder(work, commands)
    done: dict[int, JobRecord] = {}
    for command in commands:
        outcomes: list[ItemOutcome] = []
        for receipt in command.receipts:
            job = find(receipt)
            if isinstance(job, QueueMoving):
                outcomes.append(job)
                continue
            if job is None:
                outcomes.append(_not_there(receipt))
                continue
            if job.state == _COMPLETED or job.id in done:
                outcomes.append(None)
                continue
            if _was_lost(job):
                # The lease expired before the worker was done. The worker takes the job again and settles it in one step.
                if job.state == State.DELAYED:
                    work.move(job, Arrow.PROMOTE)
                work.move(job, Arrow.CLAIM)
            if job.state == _ACTIVE:
                engine.unconfirmed_leases.begin(work, job)
                done[job.id] = job
                outcomes.append(None)
            else:
                outcomes.append(_not_in_hand(job))
        work.answer(command, outcomes)
    complete_all(work, list(done.values()))
    repeating = [job for job in done.values() if job.flags & JobFlag.REPEATS]
    if repeating:
        await repeat(engine, work, repeating)
    work.timings.append((engine.stats.ack_time, len(commands)))


async def nack_by_id(engine: EngineContext, work: UnitOfWork, commands: Sequence[NackById]) -> None:
    """Apply a batch of failures."""

    def fail(receipt: ClaimedJob, job: JobRecord) -> ItemOutcome:
        return _fail(engine, work, job, receipt.error)

    await _answer_each(work, commands, fail)


async def _answer_each(
    work: UnitOfWork, commands: Sequence[ById], act: Callable[[ClaimedJob, JobRecord], ItemOutcome]
) -> None:
    """Act on every job that is in the given queue. Answer each command with one outcome per receipt."""
    find = await _finder(work, commands)
    for command in commands:
        outcomes: list[ItemOutcome] = []
        for receipt in command.receipts:
            job = find(receipt)
            if job is None:
                outcomes.append(_not_there(receipt))
            elif isinstance(job, QueueMoving):
                outcomes.append(job)
            else:
                outcomes.append(act(receipt, job))
        work.answer(command, outcomes)


def _fail(engine: EngineContext, work: UnitOfWork, job: JobRecord, error: str | None) -> ItemOutcome:
    if job.state == _ACTIVE:
        engine.unconfirmed_leases.begin(work, job)
        count_failure(work, job, error)
    elif _was_lost(job):
        details = details_of(job)
        details.error = None if error is None else error[: limits.error_chars_max]
        put_details(job, details)
        work.touch(job)
    else:
        return _not_in_hand(job)
    return None


async def _finder(work: UnitOfWork, commands: Sequence[ById]) -> Callable[[ClaimedJob], JobRecord | QueueMoving | None]:
    """Read all jobs of the commands. The returned function gives each job, if it is in the given queue.

    QueueMoving: that queue is on another shard.
    """
    ids = [receipt.id for command in commands for receipt in command.receipts]
    await work.prefetch(ids)
    numbers: dict[QueueKey, int | None] = {}
    strange: set[QueueKey] = set()
    for key in {receipt.queue for command in commands for receipt in command.receipts}:
        queue = work.tx.queue_find(key)
        numbers[key] = None if queue is None else queue.number
        if work.is_elsewhere(key):
            strange.add(key)

    def find(receipt: ClaimedJob) -> JobRecord | QueueMoving | None:
        if receipt.queue in strange:
            return QueueMoving()
        job = work.cached(receipt.id)
        return None if job is None or job.queue != numbers[receipt.queue] else job

    return find


def _not_there(receipt: ClaimedJob) -> JobNotFound:
    return JobNotFound(
        f"There is no message {receipt.id} in this topic: it was acknowledged or deleted before, or the id is not right."
    )


def _was_lost(job: JobRecord) -> bool:
    """Return whether a lease of the job expired, and no worker has claimed or settled the job since."""
    return job.stalls > 0 and job.state in (State.WAITING, State.DELAYED)


def _not_in_hand(job: JobRecord) -> WrongState:
    state = State(job.state)
    if state is State.DEAD:
        return WrongState(state.label, f"Message {job.id} is in the dead letter queue. Delete it there.")
    return WrongState(state.label, f"Message {job.id} is {state.label}: no consumer has it. Dequeue it first.")
