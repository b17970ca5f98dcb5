"""What a worker reports about a job that it holds: completed, failed, still in progress, or released.

Each of these commands proves that the worker still holds the job: the job is active and, where a token is given, the token
is the latest one. A command that comes too late changes nothing, and its outcome is an error.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from penstock.core import limits
from penstock.core.errors import JobNotFound, QueueMoving, ServerError, StaleLease, WrongState
from penstock.core.job import DeathReason, JobFlag, JobRecord, details_of, put_details
from penstock.core.lifecycle import Arrow, State
from penstock.core.retry import after_failure
from penstock.engine.command import BY_RECEIPT, Command, IfUnknown, Lane
from penstock.engine.jobs.dependencies import refuse_copies
from penstock.engine.jobs.repeat import repeat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.errors import InvalidInput
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

#: Outcome of one item of a batch: None if it was done, else the reason.
ItemOutcome = ServerError | None
#: Outcomes which mean that the job does not have this lease any more.
LEASE_GONE: Final = (JobNotFound, StaleLease, WrongState)


class LeaseRef(NamedTuple):
    """A worker's reference to the lease of a job. Without a token it is valid as long as the job is active."""

    ref: JobRef
    token: int | None = None


class LeaseCommand(Command[list[ItemOutcome]]):
    """Base of the commands by which workers settle or renew jobs. Answers one outcome per hold, in order.

    ``namespace``: where the jobs are; None: in any namespace, if ``may`` is true for their queues. All other jobs count
    as unknown. ``when_settled``: called after the commit with the queue of the job, once for each job that was settled.
    """

    __slots__ = ("holds", "may", "namespace", "when_settled")

    if_unknown = IfUnknown.SETTLE
    urgent = True

    def __init__(
        self,
        namespace: str | None,
        holds: Sequence[LeaseRef],
        may: Callable[[QueueKey], bool] | None = None,
        when_settled: Callable[[QueueKey], None] | None = None,
    ) -> None:
        self.namespace = namespace
        self.holds = holds
        self.may = may
        self.when_settled = when_settled

    def tenant(self) -> str | None:
        """Return its namespace; for receipt handles, the share of commands that name none."""
        return BY_RECEIPT if self.namespace is None else self.namespace

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.holds)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs."""
        return [(self.namespace, hold.ref) for hold in self.holds]

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs for which it has no token. A command without a namespace has a token for each job."""
        if self.namespace is None:
            return ()
        return [(self.namespace, hold.ref) for hold in self.holds if hold.token is None]


S = TypeVar("S", bound=LeaseCommand)


class Ack(LeaseCommand):
    """Complete jobs. ``results`` (one per hold) are kept, byte for byte, as long as the completed jobs are.

    An item has the outcome InvalidInput if its result would be copied to too many jobs: see ``refuse_copies``.

    ``removes`` (one per hold): the job is removed, with any options of its own; None: by each job's options.
    """

    __slots__ = ("removes", "results")

    lane = Lane.ACKS

    def __init__(
        self,
        namespace: str | None,
        holds: Sequence[LeaseRef],
        results: Sequence[bytes | None],
        may: Callable[[QueueKey], bool] | None = None,
        *,
        removes: Sequence[bool] | None = None,
        when_settled: Callable[[QueueKey], None] | None = None,
    ) -> None:
        super().__init__(namespace, holds, may, when_settled)
        self.results = results
        self.removes = removes


class Nack(LeaseCommand):
    """Report failed jobs: each is retried after its backoff, or is dead if it has no attempts left.

    ``final``: each is dead, even if it has attempts left, because a retry is of no use. ``stack``: the stack trace, line
    by line; the first lines are kept for each job. ``delay_ms``: how long to wait before the retry, in place of each
    job's backoff. ``plan_ms``: see ``after_failure``. ``remove``: a job that would be dead is removed, whatever its own
    options are.
    """

    __slots__ = ("delay_ms", "error", "final", "plan_ms", "remove", "stack")

    def __init__(
        self,
        namespace: str | None,
        holds: Sequence[LeaseRef],
        error: str | None,
        *,
        final: bool = False,
        stack: Sequence[str] | None = None,
        delay_ms: int | None = None,
        plan_ms: Sequence[int] | None = None,
        remove: bool = False,
        may: Callable[[QueueKey], bool] | None = None,
        when_settled: Callable[[QueueKey], None] | None = None,
    ) -> None:
        super().__init__(namespace, holds, may, when_settled)
        self.delay_ms = delay_ms
        self.remove = remove
        self.plan_ms = plan_ms
        self.error = error
        self.final = final
        self.stack = stack


class Renew(LeaseCommand):
    """Renew leases of workers: each lease ends its number of ms from now.

    None: the lease's own length from now, or its present end, if that is later.
    """

    __slots__ = ("leases_ms",)

    def __init__(self, namespace: str, holds: Sequence[LeaseRef], leases_ms: Sequence[int | None]) -> None:
        super().__init__(namespace, holds)
        self.leases_ms = leases_ms


class Release(LeaseCommand):
    """Release jobs unchanged: they are ready again at once, at their old place, and no attempt is counted.

    ``delay_ms``: they are ready that much later, at the back, because this worker cannot do them and another one may.
    The moment since which this is so is stored.
    """

    __slots__ = ("delay_ms",)

    def __init__(
        self,
        namespace: str | None,
        holds: Sequence[LeaseRef],
        may: Callable[[QueueKey], bool] | None = None,
        *,
        delay_ms: int = 0,
    ) -> None:
        super().__init__(namespace, holds, may)
        self.delay_ms = delay_ms


class Requeue(LeaseCommand):
    """Give jobs back to a given place: no attempt is counted.

    ``arrow`` is RETURN (to the front), SEND_BACK (to the back) or SNOOZE (to the front, ``delay_ms`` from now; this is
    counted).
    """

    __slots__ = ("arrow", "delay_ms")

    def __init__(self, namespace: str, holds: Sequence[LeaseRef], arrow: Arrow, delay_ms: int = 0) -> None:
        super().__init__(namespace, holds)
        self.arrow = arrow
        self.delay_ms = delay_ms


class ReportProgress(LeaseCommand):
    """Report the progress of a job, from 0 to 100. This also renews the lease, because the worker is active."""

    __slots__ = ("message", "progress")

    def __init__(self, namespace: str, holds: Sequence[LeaseRef], progress: int, message: str | None) -> None:
        super().__init__(namespace, holds)
        self.progress = progress
        self.message = message


async def ack(engine: EngineContext, work: UnitOfWork, commands: Sequence[Ack]) -> None:
    """Apply a batch of acknowledgements."""
    repeating: list[JobRecord] = []
    refused = await _refused_results(work, commands)

    def finish(command: Ack, index: int, job: JobRecord) -> ItemOutcome:
        result = command.results[index]
        if refused and result is not None and (job.id, len(result)) in refused:
            return refused[job.id, len(result)]
        complete(work, job, remove=command.removes is not None and command.removes[index])
        if result is not None:
            work.keep_result(job, result)
        if job.flags & JobFlag.REPEATS:
            repeating.append(job)
        return None

    await settle(engine, work, commands, finish)
    if repeating:
        await repeat(engine, work, repeating)
    work.timings.append((engine.stats.ack_time, len(commands)))


async def _refused_results(work: UnitOfWork, commands: Sequence[Ack]) -> dict[tuple[int, int], InvalidInput]:
    """Return the large results that too many jobs need: see ``dependencies.refuse_copies``."""
    large = [
        (command, command.holds[index], result)
        for command in commands
        for index, result in enumerate(command.results)
        if result is not None and len(result) > limits.result_uncounted_bytes
    ]
    if not large:
        return {}
    await work.prefetch([hold.ref for _, hold, _ in large])
    needed: list[tuple[JobRecord, bytes]] = []
    for command, hold, result in large:
        with suppress(QueueMoving):  # the acknowledgement is refused for that reason
            job = await find_held(work, command, hold)
            if job is not None and _why_not(job, hold) is None:
                needed.append((job, result))
    return await refuse_copies(work, needed)


def complete(work: UnitOfWork, job: JobRecord, *, remove: bool = False) -> None:
    """Complete an active job. If the job repeats, the caller pushes its successor. ``remove``: see Ack."""
    work.completed += 1
    if remove or job.flags & JobFlag.REMOVE_ON_COMPLETE:
        work.move(job, Arrow.COMPLETE_REMOVE)
    else:
        work.move(job, Arrow.COMPLETE)
        if job.flags & JobFlag.MESSAGE:
            work.drop_payload(job)


def complete_all(work: UnitOfWork, jobs: Sequence[JobRecord]) -> None:
    """Complete several active jobs: see ``complete``."""
    kept = [job for job in jobs if not job.flags & JobFlag.REMOVE_ON_COMPLETE]
    if kept:
        work.move_all(kept, Arrow.COMPLETE)
        for job in kept:
            if job.flags & JobFlag.MESSAGE:
                work.drop_payload(job)
    if len(kept) < len(jobs):
        work.move_all([job for job in jobs if job.flags & JobFlag.REMOVE_ON_COMPLETE], Arrow.COMPLETE_REMOVE)
    work.completed += len(jobs)


async def nack(engine: EngineContext, work: UnitOfWork, commands: Sequence[Nack]) -> None:
    """Apply a batch of failures."""

    def count(command: Nack, _index: int, job: JobRecord) -> None:
        count_failure(
            work,
            job,
            command.error,
            final=command.final,
            stack=command.stack,
            delay_ms=command.delay_ms,
            plan_ms=command.plan_ms,
            remove=command.remove,
        )

    await settle(engine, work, commands, count)


def count_failure(
    work: UnitOfWork,
    job: JobRecord,
    error: str | None,
    *,
    final: bool = False,
    stack: Sequence[str] | None = None,
    delay_ms: int | None = None,
    plan_ms: Sequence[int] | None = None,
    remove: bool = False,
) -> None:
    """Count a failure of an active job: it is retried, or dead. For the options see Nack."""
    work.failed += 1
    arrow, run_at = after_failure(job, work.now_ms, final=final, delay_ms=delay_ms, plan_ms=plan_ms)
    if remove and arrow is Arrow.BURY:
        arrow = Arrow.BURY_REMOVE
    reason = DeathReason.UNRECOVERABLE if final else DeathReason.MAX_ATTEMPTS
    details = details_of(job)
    details.error = None if error is None else error[: limits.error_chars_max]
    details.reason = reason if arrow is Arrow.BURY else None
    details.stack = None if stack is None else _shortened(stack, details.stack_limit)
    details.deferred_since = None
    if details.first_failed_at is None:
        details.first_failed_at = work.now_ms
    put_details(job, details)
    work.move(job, arrow, run_at, error=details.error, note=reason)


def _shortened(stack: Sequence[str], lines_max: int | None) -> list[str]:
    """Return the first lines of a stack trace: as many as a job keeps and as fit."""
    kept: list[str] = []
    room = limits.stack_chars_max
    for line in stack[: limits.stack_lines if lines_max is None else lines_max]:
        if room <= 0:
            break
        kept.append(line[:room])
        room -= len(line)
    return kept


async def renew(engine: EngineContext, work: UnitOfWork, commands: Sequence[Renew]) -> None:
    """Apply a batch of heartbeats and extensions."""

    def extend(command: Renew, index: int, job: JobRecord) -> None:
        lease_ms = command.leases_ms[index]
        if lease_ms is None:
            work.move(job, Arrow.HEARTBEAT)
        else:
            work.move(job, Arrow.RENEW, lease_ms)

    await settle(engine, work, commands, extend)


def slices_of(holds: Sequence[LeaseRef]) -> list[Sequence[LeaseRef]]:
    """Divide holds into parts for one command each."""
    return [holds[start : start + limits.slice_jobs_max] for start in range(0, len(holds), limits.slice_jobs_max)]


async def release_left(engine: EngineApi, namespace: str, holds: Sequence[LeaseRef]) -> None:
    """Release the jobs of a client that has left, in slices, one after the other. Where that fails, their leases expire."""
    for some in slices_of(holds):
        with suppress(ServerError):
            await engine.run(Release(namespace, some))


async def release(engine: EngineContext, work: UnitOfWork, commands: Sequence[Release]) -> None:
    """Apply a batch of releases."""

    def release_job(command: Release, _index: int, job: JobRecord) -> None:
        if not command.delay_ms:
            work.move(job, Arrow.RELEASE)
            return
        details = details_of(job)
        if details.deferred_since is None:
            details.deferred_since = work.now_ms
            put_details(job, details)
        work.move(job, Arrow.POSTPONE, work.now_ms + command.delay_ms, note=str(Arrow.POSTPONE))

    await settle(engine, work, commands, release_job)


async def requeue(engine: EngineContext, work: UnitOfWork, commands: Sequence[Requeue]) -> None:
    """Apply a batch of jobs that are given back. Jobs that go to the front together keep their order."""
    to_front: list[JobRecord] = []

    def put(command: Requeue, _index: int, job: JobRecord) -> None:
        if command.arrow is Arrow.RETURN:
            to_front.append(job)
            return
        if command.arrow is Arrow.SNOOZE:
            details = details_of(job)
            details.dacks += 1
            put_details(job, details)
        work.move(job, command.arrow, work.now_ms + command.delay_ms)

    await settle(engine, work, commands, put)
    for job in sorted({job.id: job for job in to_front}.values(), key=lambda each: each.position, reverse=True):
        if job.state == State.ACTIVE:  # it may have been settled in this batch already
            work.move(job, Arrow.RETURN)


async def report_progress(engine: EngineContext, work: UnitOfWork, commands: Sequence[ReportProgress]) -> None:
    """Apply a batch of progress reports."""

    def note(command: ReportProgress, _index: int, job: JobRecord) -> None:
        details = details_of(job)
        details.progress_message = command.message
        put_details(job, details)
        work.move(job, Arrow.PROGRESS, command.progress, note=command.message)

    await settle(engine, work, commands, note)


async def settle(
    engine: EngineContext, work: UnitOfWork, commands: Sequence[S], act: Callable[[S, int, JobRecord], ItemOutcome]
) -> None:
    """Act on every job whose lease is valid, and return for the others why not. ``act`` may return why it did nothing."""
    await work.prefetch([hold.ref for command in commands for hold in command.holds])
    for command in commands:
        outcomes: list[ItemOutcome] = []
        for index, hold in enumerate(command.holds):
            try:
                job = await find_held(work, command, hold)
            except QueueMoving as error:
                outcomes.append(error)
                continue
            problem = _why_not(job, hold)
            if job is not None and problem is None:
                engine.unconfirmed_leases.begin(work, job)
                problem = act(command, index, job)
                if problem is None and command.when_settled is not None:
                    work.after_commit.append(partial(command.when_settled, work.queue_of(job).key))
            outcomes.append(problem)
        work.answer(command, outcomes)


async def find_held(work: UnitOfWork, command: LeaseCommand, hold: LeaseRef) -> JobRecord | None:
    """Find the job of a hold, if it is on this shard and the caller has access to it. Raises QueueMoving."""
    if command.namespace is not None:
        return await work.find(command.namespace, hold.ref)
    return None if isinstance(hold.ref, str) else await work.known(hold.ref, command.may)


def _why_not(job: JobRecord | None, hold: LeaseRef) -> ItemOutcome:
    if job is None:
        return JobNotFound()
    if job.state != State.ACTIVE:
        return WrongState(State(job.state).label)
    if hold.token is not None and hold.token != job.token:
        return StaleLease()
    return None
