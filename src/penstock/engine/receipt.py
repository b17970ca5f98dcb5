"""Ack and nack by id alone, for workers that never see a lease token.

Without a token nobody can prove which delivery they speak of. What can be told is whether the job is in anybody's hands, and
whether somebody lost it because a lease ran out. So a word that comes after the end of its lease is heard: the work it speaks
of was done, or did fail, and doing it again would help nobody. A word about a job that nobody can have in hand is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import JobNotFound, WrongState
from penstock.core.job import JobFlag, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command
from penstock.engine.repeat import repeat
from penstock.engine.settle import complete, count_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job
    from penstock.core.queue import QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work


class _ById(Command[None]):
    """What both share: the queue and the id of a job."""

    __slots__ = ("id", "queue")

    def __init__(self, queue: QueueKey, job_id: int) -> None:
        self.queue = queue
        self.id = job_id


class AckById(_ById):
    """A job is done. Saying so again, or of a job that is gone, changes nothing and is no error.

    Refused with WrongState if the job is dead, or if nobody can have it in hand.
    """

    __slots__ = ()


class NackById(_ById):
    """A job failed: it is retried after its backoff, or dead if it has no attempts left.

    If its lease ran out, that was counted as the failure already; then only ``error`` is noted. Refused with JobNotFound, or
    with WrongState if nobody can have it in hand.
    """

    __slots__ = ("error",)

    def __init__(self, queue: QueueKey, job_id: int, error: str | None) -> None:
        super().__init__(queue, job_id)
        self.error = error


async def ack_by_id(engine: Engine, work: Work, commands: Sequence[AckById]) -> None:
    """Apply a batch of acknowledgements."""
    repeating: list[Job] = []
    await work.prefetch([command.id for command in commands])
    for command in commands:
        if work.tx.queue_find(command.queue) is None and work.refuse_strange(command, command.queue):
            continue
        job = await _find(work, command)
        if job is None or job.state == State.COMPLETED:
            work.answer(command, None)
            continue
        if _was_lost(job):
            # Its worker took too long and is done after all: it takes the job back and settles it in one go.
            if job.state == State.DELAYED:
                work.move(job, Arrow.PROMOTE)
            work.move(job, Arrow.CLAIM)
        if job.state != State.ACTIVE:
            work.refuse(command, _not_in_hand(job))
            continue
        complete(work, job)
        if job.flags & JobFlag.REPEATS:
            repeating.append(job)
        work.answer(command, None)
    if repeating:
        await repeat(engine, work, repeating)
    work.timings.append((engine.stats.ack_time, len(commands)))


async def nack_by_id(_engine: Engine, work: Work, commands: Sequence[NackById]) -> None:
    """Apply a batch of failures."""
    await work.prefetch([command.id for command in commands])
    for command in commands:
        if work.tx.queue_find(command.queue) is None and work.refuse_strange(command, command.queue):
            continue
        job = await _find(work, command)
        if job is None:
            work.refuse(command, JobNotFound(f"There is no message {command.id} in this topic."))
            continue
        if job.state == State.ACTIVE:
            count_failure(work, job, command.error)
        elif _was_lost(job):
            details = details_of(job)
            details.error = None if command.error is None else command.error[: limits.error_chars_max]
            put_details(job, details)
            work.touch(job)
        else:
            work.refuse(command, _not_in_hand(job))
            continue
        work.answer(command, None)


async def _find(work: Work, command: _ById) -> Job | None:
    """Return the job that is meant, if it is on the queue that is meant."""
    job = await work.find(command.queue.namespace, command.id)
    return None if job is None or work.queue_of(job).key != command.queue else job


def _was_lost(job: Job) -> bool:
    """Tell whether a lease of the job ran out, and nobody has taken it or finished with it since."""
    return job.stalls > 0 and job.state in (State.WAITING, State.DELAYED)


def _not_in_hand(job: Job) -> WrongState:
    state = State(job.state)
    if state is State.DEAD:
        return WrongState(state.label, f"Message {job.id} is in the dead letter queue. Delete it there.")
    return WrongState(state.label, f"Message {job.id} is {state.label}: nobody has it in hand. Dequeue it first.")
