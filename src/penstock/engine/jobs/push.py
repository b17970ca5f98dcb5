"""Pushing jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from penstock.core import ids, limits
from penstock.core.bulk_records import BulkRecord, EntryKind
from penstock.core.errors import InvalidInput, NameContested, NamespaceLimit, QueueFull
from penstock.core.job import (
    NEVER_LEASED,
    JobFlag,
    JobRecord,
    JobSpec,
    Payload,
)
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command, IfUnknown, Lane, NamespaceCommand, QueueCommand
from penstock.engine.jobs import dependencies
from penstock.engine.jobs.build import build, build_one, create_queue, make, start_individually
from penstock.engine.jobs.uniqueness import ExistingJobs
from penstock.engine.prefetch.commands import withdraw_ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.core.queue import Queue, QueueKey
    from penstock.core.reservations import Permit
    from penstock.engine.command import AnyCommand, JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

#: Fields that give a new job a name, dependencies, another due or creation time, or another state at its start.
_SPECIAL: Final = frozenset({"job_id", "unique_key", "needs", "timestamp", "delay", "due_at", "flags"})


def _weight_of(jobs: Sequence[JobSpec]) -> int:
    """Return the weight of some jobs: each job, each of their dependencies, and their payloads."""
    return len(jobs) + sum([len(job.data) + len(job.needs) * limits.weight_bytes for job in jobs]) // limits.weight_bytes


def _named_by(queue: QueueKey, jobs: Sequence[JobSpec]) -> Iterable[tuple[str | None, JobRef]]:
    """Return the jobs that have the names of new jobs, and those that these need."""
    if not any_special(jobs):
        return ()
    refs: list[JobRef] = []
    for new in jobs:
        refs += new.needs if new.job_id is None else (new.job_id, *new.needs)
    return [(queue.namespace, ids.from_uuid(ref) or ref if isinstance(ref, str) else ref) for ref in refs]


def check_needs(jobs: Iterable[JobSpec]) -> None:
    """Refuse jobs that have more dependencies together than one request may have."""
    count = 0
    for job in jobs:
        count += len(job.needs)
    if count > limits.request_needs_max:
        raise InvalidInput(
            f"Too many dependencies in one request: {count}, and at most {limits.request_needs_max} are allowed. "
            "Push the jobs in several requests."
        )


class Push(QueueCommand[list[JobRecord]]):
    """Push jobs to a queue: all of them or, if one is refused, none.

    Answers one job per item, in order. If a ``job_id`` or ``unique_key`` is taken, the answer is the job that has it,
    and nothing new is stored for that item, unless its ``dedup`` replaces that job. ``permit``: the results of checks on
    other shards; None if there was nothing to check. ``room``: how many jobs may wait or be active in the queue,
    including these; refused with QueueFull. Other servers may push at the same moment.
    """

    __slots__ = ("durable", "jobs", "permit", "room")

    lane = Lane.PUSHES
    grows = True
    if_unknown = IfUnknown.PUSH

    def __init__(
        self, queue: QueueKey, jobs: Sequence[JobSpec], permit: Permit | None = None, room: int | None = None
    ) -> None:
        self.queue = queue
        self.jobs = jobs
        self.permit = permit
        self.room = room
        for job in jobs:
            if job.flags & JobFlag.DURABLE:
                self.durable = True
                return
        self.durable = False

    def tenant(self) -> str | None:
        """Return its namespace."""
        return self.queue.namespace

    def weight(self) -> int:
        """Return the weight of its jobs."""
        jobs = self.jobs
        if len(jobs) == 1:  # without a list, because most pushes have one job
            return 1 + len(jobs[0].needs) + len(jobs[0].data) // limits.weight_bytes
        return _weight_of(jobs)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that have the names of its jobs, and those that they need."""
        return _named_by(self.queue, self.jobs)


class PushAcross(Command[list[list[JobRecord]]]):
    """Push jobs to several queues: all of them or, if one is refused, none. Answers the jobs of each part, in order.

    If a ``job_id`` is taken, the answer is the job that has it. As long as that job was never delivered, it takes over
    the payload, priority and due time of the new one; afterwards it is not changed. This is the only command that pushes
    a job whose ``job_id`` begins with IDEMPOTENCY_PREFIX. ``asked_ms``: the wall-clock time from which the delays are
    counted, so that a repeated request for the same moment makes the same job. ``permit``: as for Push.
    """

    __slots__ = ("asked_ms", "parts", "permit")

    lane = Lane.PUSHES
    grows = True
    if_unknown = IfUnknown.PUSH

    def __init__(
        self, parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]], asked_ms: int, permit: Permit | None = None
    ) -> None:
        self.parts = parts
        self.asked_ms = asked_ms
        self.permit = permit

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return the queues of its parts."""
        return [key for key, _ in self.parts]

    def tenant(self) -> str | None:
        """Return the namespace of its first queue."""
        return self.parts[0][0].namespace if self.parts else None

    def weight(self) -> int:
        """Return the weight of its jobs."""
        return sum(_weight_of(jobs) for _, jobs in self.parts)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that have the names of its jobs, and those that they need."""
        return [each for queue, jobs in self.parts for each in _named_by(queue, jobs)]


class StagedChunk(NamedTuple):
    """A chunk of a staged write, whose jobs were checked when they were staged."""

    number: int
    queue: QueueKey
    jobs: Sequence[JobSpec] = ()
    fields: AbstractSet[str] = frozenset()  #: fields that the jobs set; all other fields have their defaults

    @property
    def is_plain(self) -> bool:
        """Return whether its jobs can be claimed at once, in order, and have no names. Then no job needs a check."""
        return self.fields.isdisjoint(_SPECIAL)


class Publish(Command[int]):
    """Make jobs of those chunks of a staged write that are still stored. Answers the number of new jobs.

    ``permit``: as for Push. ``last``: there are no more chunks; only then the answer waits for the fsync. ``rows``: of
    the only chunk, if some of its jobs are left out because their names are taken.
    """

    __slots__ = ("entry", "last", "parts", "permit", "rows")

    lane = Lane.PUSHES
    grows = True

    def __init__(
        self,
        entry: BulkRecord,
        parts: Sequence[StagedChunk],
        permit: Permit | None = None,
        *,
        last: bool = False,
        rows: int | None = None,
    ) -> None:
        self.rows = rows
        self.entry = entry  #: the draft, which is due
        self.parts = parts
        self.permit = permit
        self.last = last

    def tenant(self) -> str | None:
        """Return the namespace of the draft."""
        return self.entry.namespace

    def weight(self) -> int:
        """Return the weight of the jobs of its chunks."""
        return 1 + sum(_weight_of(part.jobs) for part in self.parts)

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return the queues of its parts."""
        return [part.queue for part in self.parts]

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that have the names of its jobs, and those that they need."""
        return [each for part in self.parts if not part.is_plain for each in _named_by(part.queue, part.jobs)]


class PushAgain(NamespaceCommand[list[JobRecord | None]]):
    """Push jobs whose names jobs of other queues have on this shard.

    Answers those jobs, as a push does; None: there is none. ``asked_ms``: as for PushAcross; None: as for Push.
    """

    __slots__ = ("asked_ms", "jobs")

    grows = True
    if_unknown = IfUnknown.PUSH

    def __init__(self, namespace: str, jobs: Sequence[JobSpec], asked_ms: int | None) -> None:
        super().__init__(namespace)
        self.jobs = jobs
        self.asked_ms = asked_ms

    def weight(self) -> int:
        """Return the weight of its jobs."""
        return _weight_of(self.jobs)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that have the names of its jobs."""
        return [(self.namespace, ids.from_uuid(new.job_id) or new.job_id) for new in self.jobs if new.job_id is not None]


async def push(engine: EngineContext, work: UnitOfWork, commands: Sequence[Push]) -> None:
    """Apply a batch of pushes."""
    commands = await permitted(work, commands)
    names = ExistingJobs(work)
    special = {command: None for command in commands if any_special(command.jobs)}
    if special:
        await names.prefetch([(command.queue, new) for command in special for new in command.jobs])
    copied = 0
    for index, command in enumerate(commands):
        if copied >= dependencies.copies_batch_max(engine):  # the results that the others copy do not fit into this batch
            work.deferred += commands[index:]
            break
        if not command.jobs:
            work.answer(command, [])
            continue
        queue = work.tx.queue_find(command.queue) or await open_queues(work, command, (command.queue,))
        if queue is None:
            continue
        named = command in special
        if named:
            await names.prefetch_opened(queue)
            try:
                names.begin(command.permit)
                await names.check(queue, command.jobs)
            except InvalidInput as error:
                work.refuse(command, error)
                continue
        if command.room is not None and not await _has_room(work, queue, command, command.room, names):
            work.refuse(command, QueueFull(queue.key, command.room))
            continue
        if queue.created_at is None:
            await create_queue(work, queue)
        if named:
            # If a name is taken, the answer is the job that has it, not a new job.
            jobs = []
            for new in command.jobs:
                await work.pause()
                found, _ = await names.find_and_journal(queue, new)
                jobs.append(found or names.keep(await make_one(work, queue, new, names)))
            copied += names.copied
        else:
            jobs = make(work, queue, command.jobs)
        work.answer(command, jobs)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def open_queues(work: UnitOfWork, command: AnyCommand, keys: Sequence[QueueKey]) -> Queue | None:
    """Create the new queues of a push before anything else is done for it, and return the last of its queues.

    None: this command alone was refused, because its namespace has the maximum number of queues.
    """
    queue: Queue | None = None
    try:
        for key in keys:
            queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
    except NamespaceLimit as error:
        work.refuse(command, error)
        return None
    return queue


async def _has_room(work: UnitOfWork, queue: Queue, command: Push, room: int, names: ExistingJobs) -> bool:
    """Return whether a queue has room for the new ready jobs of a push. Delayed and existing jobs do not count."""
    ready = [new for new in command.jobs if not new.delay and new.due_at is None]
    counts = work.tx.counts(queue)
    if counts.waiting + counts.active + work.unwritten + len(ready) <= room:  # there is room even if all are new
        return True
    await work.flush()  # so that earlier commands of this batch are counted
    counts = work.tx.counts(queue)
    new = [each for each in ready if each.job_id is None or await names.resolve(queue, each.job_id) is None]
    return not new or counts.waiting + counts.active + len(new) <= room


async def push_across(engine: EngineContext, work: UnitOfWork, commands: Sequence[PushAcross]) -> None:
    """Apply a batch of pushes to several queues each."""
    commands = await permitted(work, commands)
    names = ExistingJobs(work)
    await names.prefetch([(key, new) for command in commands for key, jobs in command.parts for new in jobs])
    repeats: list[tuple[JobRecord, JobSpec]] = []
    for command in commands:
        late_ms = work.now_ms - command.asked_ms
        pushed: list[list[JobRecord]] = []
        if await open_queues(work, command, [key for key, _ in command.parts]) is None and command.parts:
            continue
        for key, jobs in command.parts:
            queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
            if queue.created_at is None:
                await create_queue(work, queue)
            await names.prefetch_opened(queue)
            due = [_counted_from(new, late_ms) for new in jobs]
            if not any_special(due):
                pushed.append(make(work, queue, due))
                continue
            made: list[JobRecord] = []
            for new in due:
                await work.pause()
                found, _ = await names.find_and_journal(queue, new)
                if found is None:
                    found = names.keep(make(work, queue, (new,))[0])
                else:
                    repeats.append((found, new))
                made.append(found)
            pushed.append(made)
        work.answer(command, pushed)
    if repeats:
        await _renew(engine, work, repeats)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def push_again(engine: EngineContext, work: UnitOfWork, commands: Sequence[PushAgain]) -> None:
    """Apply a batch of pushes whose names are taken."""
    repeats: list[tuple[JobRecord, JobSpec]] = []
    for command in commands:
        number = work.tx.namespace_number(command.namespace)
        refs = [work.ref_of(new.job_id or "") for new in command.jobs]
        if number is not None:
            await work.prefetch(refs)
            await work.prefetch_named([(number, ref) for ref in refs if isinstance(ref, str)])
        found = [await work.find(command.namespace, ref) for ref in refs]
        if command.asked_ms is not None:
            late_ms = work.now_ms - command.asked_ms
            repeats += [
                (job, _counted_from(new, late_ms)) for job, new in zip(found, command.jobs, strict=True) if job is not None
            ]
        work.answer(command, found)
    if repeats:
        await _renew(engine, work, repeats)


_Permitted = TypeVar("_Permitted", bound=Push | PushAcross | Publish)


async def permitted(work: UnitOfWork, commands: Sequence[_Permitted]) -> Sequence[_Permitted]:
    """Refuse commands whose names were given to another shard meanwhile, or whose permit has expired. Return the others."""
    permits = [command.permit for command in commands if command.permit is not None]
    if not permits:
        return commands
    tickets = [ticket for permit in permits for ticket in permit.tickets]
    withdrawn = frozenset(await work.tx.ticket_hold(tickets) if tickets else ())
    allowed: list[_Permitted] = []
    for command in commands:
        permit = command.permit
        lost = frozenset[int]() if permit is None else withdrawn.intersection(permit.tickets)
        if permit is not None and (lost or permit.is_over):  # checked here: no other command can withdraw anything now
            work.refuse(command, NameContested(withdrawn=lost))
        else:
            allowed.append(command)
    return allowed


def _counted_from(new: JobSpec, late_ms: int) -> JobSpec:
    """Count the delay of a new job from an earlier moment."""
    return msgspec.structs.replace(new, delay=max(0, new.delay - late_ms)) if new.delay else new


async def _renew(engine: EngineContext, work: UnitOfWork, repeats: Sequence[tuple[JobRecord, JobSpec]]) -> None:
    """Let jobs that were never delivered take over the fields of later pushes with the same names, in order."""
    await work.flush_and_track()  # some may have been made in this batch
    await withdraw_ready(engine, work, [job for job, _ in repeats])
    some: list[tuple[JobRecord, JobSpec]] = []
    size = 0
    for job, new in repeats:
        untouched = job.token == NEVER_LEASED or (job.started_at is None and not job.attempts and not job.stalls)
        if not untouched or job.state not in (State.WAITING, State.DELAYED):
            continue
        some.append((job, new))
        size += job.size
        if size >= limits.claim_batch_bytes_max:  # not all payloads at once
            await _take_over(work, some)
            some, size = [], 0
    if some:
        await _take_over(work, some)


async def _take_over(work: UnitOfWork, repeats: Sequence[tuple[JobRecord, JobSpec]]) -> None:
    payloads = await work.tx.payload_load({job.id for job, _ in repeats})
    changed: dict[int, tuple[JobRecord, Payload]] = {}
    for job, new in repeats:
        old = payloads.get(job.id)
        if old is None:  # damaged, and moved to quarantine just now
            continue
        if (old.data, old.options) != (new.data, new.options):
            work.move(job, Arrow.EDIT, len(new.data))
            payloads[job.id] = Payload(new.data, new.options)
            changed[job.id] = (job, payloads[job.id])
        if job.priority != new.priority:
            work.move(job, Arrow.REPRIORITIZE, new.priority)
        run_at = work.now_ms + new.delay
        if job.state == State.DELAYED and not new.delay:
            work.move(job, Arrow.PROMOTE)
        elif job.state == State.DELAYED and job.run_at != run_at:
            work.move(job, Arrow.RESCHEDULE, run_at)
    if changed:
        await work.tx.payload_save(list(changed.values()))


async def publish(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Publish]) -> None:
    """Apply a batch of chunks. The transaction that makes jobs of a chunk also deletes it, so this happens once."""
    for command in await permitted(work, commands):
        count, draft = 0, command.entry
        if command.parts:
            taken = await work.tx.chunk_take(draft.number, [part.number for part in command.parts])
            here = [part for part in command.parts if part.number in taken]
            count = await _push_staged(work, [part for part in here if part.jobs])
            rows = command.rows if here and command.rows is not None else sum(len(part.jobs) for part in here)
            if rows > count:
                await _note_known(work, draft, rows - count)
        if command.last:
            due = await work.tx.entry_load(EntryKind.DUE, draft.namespace, draft.name, draft.number)
            await work.tx.entry_remove(due)
            work.answer(command, count)
        else:
            work.answer_early(command, count)
    await work.flush()


async def _note_known(work: UnitOfWork, draft: BulkRecord, count: int) -> None:
    """Record how many rows of a draft made no new jobs, because their names were taken. Clients can read it."""
    found = await work.tx.entry_load(EntryKind.KNOWN, draft.namespace, draft.name, draft.number)
    known = found[0] if found else BulkRecord(EntryKind.KNOWN, draft.namespace, draft.name, draft.number, 0)
    await work.tx.entry_save([known._replace(at=work.now_ms, weight=known.weight + count)])


async def _push_staged(work: UnitOfWork, parts: Sequence[StagedChunk]) -> int:
    """Push jobs; return the number of new ones. A job whose name is taken is not pushed."""
    pushed = work.pushed
    names = ExistingJobs(work)
    named = [part for part in parts if not part.is_plain and any_special(part.jobs)]
    if named:
        await work.flush()  # so that names of earlier commands in this batch are found
        await names.prefetch([(part.queue, new) for part in named for new in part.jobs])
    for part in parts:
        queue = work.tx.queue_find(part.queue) or await work.tx.queue_open(part.queue)
        if queue.created_at is None:
            await create_queue(work, queue)
        if part.is_plain:
            work.create(build(queue, work.serials(len(part.jobs)), part.jobs, work.now_ms), part.jobs, Arrow.ENQUEUE)
            work.pushed += len(part.jobs)
        elif part not in named:
            make(work, queue, part.jobs)
        else:
            await names.prefetch_opened(queue)
            for new in part.jobs:
                await work.pause()
                found, _ = await names.find_and_journal(queue, new)
                if found is None:
                    names.keep(await make_one(work, queue, new, names))
    return work.pushed - pushed


async def push_inside(work: UnitOfWork, pushes: Sequence[tuple[Queue, JobSpec]]) -> list[JobRecord | None]:
    """Push jobs for the server itself; None for a job whose name is taken. Earlier decisions are flushed first.

    A job that replaces the job with its name is answered with that job.
    """
    names = ExistingJobs(work)
    await names.prefetch([(queue.key, new) for queue, new in pushes])
    jobs: list[JobRecord | None] = []
    for queue, new in pushes:
        if queue.created_at is None:
            await create_queue(work, queue)
        found, replaced = await names.find_and_journal(queue, new)
        if found is None:
            jobs.append(names.keep(await make_one(work, queue, new, names)))
        else:
            jobs.append(found if replaced else None)
    await work.flush()
    return jobs


def any_special(jobs: Sequence[JobSpec]) -> bool:
    """Return whether one of the jobs has a name, needs others, or has another creation time."""
    for new in jobs:  # noqa: SIM110 - any() with a generator takes three times as long
        if new.job_id is not None or new.unique_key is not None or new.needs or new.timestamp is not None:
            return True
    return False


async def make_one(work: UnitOfWork, queue: Queue, new: JobSpec, names: ExistingJobs) -> JobRecord:
    """Make a job that may have to wait for others."""
    job = build_one(work, queue, new)
    needed = [found for ref in new.needs if (found := await names.resolve_any(queue, ref)) is not None]
    if needed and await dependencies.record_needs(work, job, needed):
        work.create([job], (new,), Arrow.AWAIT)
    else:
        start_individually(work, [job], (new,))
    work.pushed += 1
    return job
