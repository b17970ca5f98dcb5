"""Dead jobs under a lease: a consumer inspects a dead job alone, and then removes it or puts it back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.core.errors import JobNotFound, ServerError, StaleLease, WrongState
from penstock.core.job import Delivery
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import BY_RECEIPT, Command, QueueCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.settle import LeaseRef
    from penstock.engine.unit_of_work import UnitOfWork


class LeaseDead(QueueCommand[list[Delivery]]):
    """Lease up to ``count`` dead jobs of a queue for ``lease_ms``.

    Dead jobs that another consumer has leased are left out.
    """

    __slots__ = ("count", "ids", "lease_ms")

    def __init__(self, queue: QueueKey, ids: Sequence[int], count: int, lease_ms: int) -> None:
        super().__init__(queue)
        self.ids = ids
        self.count = count
        self.lease_ms = lease_ms

    def weight(self) -> int:
        """Return the number of jobs among which it looks."""
        return 1 + len(self.ids)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs among which it looks."""
        return [(self.queue.namespace, job_id) for job_id in self.ids]


class SettleDead(Command[ServerError | None]):
    """Settle a leased dead job: remove it (PURGE), or end its lease (PUT_DOWN).

    ``may``: returns whether jobs of a queue may be changed; all other jobs count as unknown. ``when_settled``: called
    after the commit with the queue of the job.
    """

    __slots__ = ("arrow", "hold", "may", "when_settled")

    urgent = True

    def __init__(
        self,
        hold: LeaseRef,
        arrow: Arrow,
        may: Callable[[QueueKey], bool],
        when_settled: Callable[[QueueKey], None] | None = None,
    ) -> None:
        self.hold = hold
        self.arrow = arrow
        self.may = may
        self.when_settled = when_settled

    def tenant(self) -> str | None:
        """Return the share of commands that name no namespace."""
        return BY_RECEIPT

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job, of any namespace."""
        return ((None, self.hold.ref),)


async def lease_dead(_engine: EngineContext, work: UnitOfWork, commands: Sequence[LeaseDead]) -> None:
    """Apply a batch of claims of dead jobs."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        free: list[JobRecord] = []
        if queue is not None:
            await work.prefetch(command.ids)
            for job_id in command.ids:
                job = work.cached(job_id)
                if job is not None and job.queue == queue.number and job.state == State.DEAD and is_free(work, job):
                    free.append(job)
                if len(free) == command.count:
                    break
        payloads = await work.tx.payload_load([job.id for job in free]) if free else {}
        for job in free:
            if job.id in payloads:
                work.move(job, Arrow.INSPECT, command.lease_ms)
        work.answer(command, [Delivery(job, payloads[job.id]) for job in free if job.id in payloads])


async def settle_dead(_engine: EngineContext, work: UnitOfWork, commands: Sequence[SettleDead]) -> None:
    """Apply a batch of settlements of dead jobs."""
    await work.prefetch([command.hold.ref for command in commands])
    for command in commands:
        ref, token = command.hold
        job = await work.known(ref, command.may) if isinstance(ref, int) else None
        if job is None:
            work.answer(command, JobNotFound())
        elif job.token != token or is_free(work, job):
            work.answer(command, StaleLease())
        elif job.state != State.DEAD:
            work.answer(command, WrongState(State(job.state).label))
        else:
            work.move(job, command.arrow)
            if command.when_settled is not None:
                work.after_commit.append(partial(command.when_settled, work.queue_of(job).key))
            work.answer(command, None)


def is_free(work: UnitOfWork, job: JobRecord) -> bool:
    """Return whether a dead job has no lease."""
    return job.lease_until is None or job.lease_until <= work.steady_ms
