"""Changes to single jobs: promote, delay, reprioritise, edit, discard, cancel, retry, and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import InvalidInput, JobNotFound, JobQuarantined, ServerError, StaleLease, WrongState
from penstock.core.job import DeathReason, Payload, details_of, put_details, unique_key_is_over
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import NamespaceCommand
from penstock.store.contract import LogEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

#: Transitions whose value is a delay in ms, counted from the moment of the change.
_DELAYING = (Arrow.POSTPONE, Arrow.RESCHEDULE)


class MoveJob(NamespaceCommand[None]):
    """Apply a transition (``arrow``) to one job.

    ``value``: a delay in ms for postpone and reschedule, the new priority for reprioritize. Refused with JobNotFound, or
    with WrongState if the lifecycle has no such transition. ``token``: the lease of the worker that sends the command; for an
    active job it must be the latest, else StaleLease.
    """

    __slots__ = ("arrow", "ref", "token", "value")

    def __init__(self, namespace: str, ref: JobRef, arrow: Arrow, value: int = 0, token: int | None = None) -> None:
        super().__init__(namespace)
        self.ref = ref
        self.arrow = arrow
        self.value = value
        self.token = token

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job."""
        return ((self.namespace, self.ref),)

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job, unless it has a token."""
        return ((self.namespace, self.ref),) if self.token is None else ()


class EditData(NamespaceCommand[None]):
    """Replace the payload of a job that is waiting, delayed or active."""

    __slots__ = ("data", "ref")

    grows = True

    def __init__(self, namespace: str, ref: JobRef, data: bytes) -> None:
        super().__init__(namespace)
        self.ref = ref
        self.data = data

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job."""
        return ((self.namespace, self.ref),)

    def weight(self) -> int:
        """Return the weight of its payload."""
        return 1 + len(self.data) // limits.weight_bytes


class AddLog(NamespaceCommand[None]):
    """Add a line to a job's log. The last lines are kept for each job."""

    __slots__ = ("level", "message", "ref")

    grows = True

    def __init__(self, namespace: str, ref: JobRef, level: str, message: str) -> None:
        super().__init__(namespace)
        self.ref = ref
        self.level = level
        self.message = message

    def weight(self) -> int:
        """Return the weight of its line."""
        return 1 + len(self.message) // limits.weight_bytes

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job."""
        return ((self.namespace, self.ref),)


class ClearLog(NamespaceCommand[None]):
    """Delete a job's log, except the last ``keep`` lines."""

    __slots__ = ("keep", "ref")

    def __init__(self, namespace: str, ref: JobRef, keep: int = 0) -> None:
        super().__init__(namespace)
        self.ref = ref
        self.keep = keep

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return its job."""
        return ((self.namespace, self.ref),)


async def move_job(_engine: EngineContext, work: UnitOfWork, commands: Sequence[MoveJob]) -> None:
    """Apply a batch of single moves."""
    await work.prefetch([command.ref for command in commands])
    for command in commands:
        try:
            job = await _existing(work, command)
            if command.token is not None and job.state == State.ACTIVE and job.token != command.token:
                raise StaleLease
            await follow(work, job, command.arrow, command.value)
        except ServerError as error:
            work.refuse(command, error)
        else:
            work.answer(command, None)


async def follow(work: UnitOfWork, job: JobRecord, arrow: Arrow, value: int = 0) -> None:
    """Apply a transition to a job, and do what it needs besides the effects in the lifecycle."""
    if arrow in _DELAYING:
        value += work.now_ms
    elif arrow in (Arrow.REVIVE, Arrow.REPLAY):
        await _check_unique(work, job)
    work.move(job, arrow, value, note=DeathReason.DISCARDED if arrow is Arrow.DISCARD else str(arrow))
    if arrow is Arrow.DISCARD:
        details = details_of(job)
        details.reason = DeathReason.DISCARDED
        put_details(job, details)
    elif arrow is Arrow.REPLAY:
        await work.drop_result(job)


async def _check_unique(work: UnitOfWork, job: JobRecord) -> None:
    """Check that a job that becomes unfinished again can have its unique key: another job may have it by now."""
    if job.unique_key is None or job.state not in (State.DEAD, State.COMPLETED):
        return
    await work.flush()
    if unique_key_is_over(job, work.now_ms):
        job.unique_key = None
        await work.tx.job_rewrite([job])
    elif await work.tx.job_find_unique([(job.queue, job.unique_key)]):
        raise WrongState(State(job.state).label, "Another unfinished job has this job's uniqueKey.")


async def edit_data(_engine: EngineContext, work: UnitOfWork, commands: Sequence[EditData]) -> None:
    """Apply a batch of edits."""
    for command in commands:
        try:
            job = await _existing(work, command)
            old = (await work.tx.payload_load([job.id])).get(job.id)
            if old is None:
                raise JobQuarantined
            _check_size(job, command.data)
            work.move(job, Arrow.EDIT, len(command.data))
        except ServerError as error:
            work.refuse(command, error)
        else:
            await work.tx.payload_save([(job, Payload(command.data, old.options))])
            work.answer(command, None)


def _check_size(job: JobRecord, data: bytes) -> None:
    size_limit = details_of(job).size_limit
    if size_limit is not None and len(data) > size_limit:
        raise InvalidInput(f"Job data too large: {len(data)} bytes, and the job's sizeLimit is {size_limit}")


async def add_log(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AddLog]) -> None:
    """Apply a batch of log lines."""
    for command in commands:
        try:
            job = await _existing(work, command)
        except ServerError as error:
            work.refuse(command, error)
        else:
            work.tx.queue_touch(work.queue_of(job))  # so that no job gets a line after it was copied to another shard
            entry = LogEntry(work.now_ms, command.level, command.message)
            own = details_of(job).keep_logs
            await work.tx.log_append(
                job.id, entry, limits.logs_per_job_max if own is None else min(own, limits.logs_per_job_max)
            )
            work.answer(command, None)


async def clear_log(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ClearLog]) -> None:
    """Apply a batch of deleted logs."""
    for command in commands:
        try:
            job = await _existing(work, command)
        except ServerError as error:
            work.refuse(command, error)
        else:
            work.tx.queue_touch(work.queue_of(job))
            await work.tx.log_clear(job.id, command.keep)
            work.answer(command, None)


async def _existing(work: UnitOfWork, command: MoveJob | EditData | AddLog | ClearLog) -> JobRecord:
    job = await work.find(command.namespace, command.ref)
    if job is None:
        raise JobNotFound
    return job
