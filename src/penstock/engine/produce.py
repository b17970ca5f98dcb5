"""Pushing jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from penstock.core import ids, limits
from penstock.core.errors import InvalidInput, NameContested, QueueFull, QueueMoving
from penstock.core.events import EventKind
from penstock.core.job import (
    IDEMPOTENCY_PREFIX,
    NEVER_LEASED,
    Job,
    JobFlag,
    NewJob,
    Payload,
    details_of,
    put_details,
    unique_key_is_over,
)
from penstock.core.ledger import Entry, EntryKind
from penstock.core.lifecycle import Arrow, State
from penstock.engine import flows
from penstock.engine.command import Command, Lane
from penstock.engine.fast.commands import call_back

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from penstock.core.flow import Afar
    from penstock.core.job import Dedup
    from penstock.core.names import Permit
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.work import JobRef, Work

_NOWHERE = State.NOWHERE.value
#: Fields by which a new job has a name, needs others, is due or was made at another time, or enters elsewhere.
_SPECIAL: Final = frozenset({"job_id", "unique_key", "needs", "timestamp", "delay", "due_at", "flags"})

MISSPELT: Final = "jobId is spelled like an id that Penstock gives out. Choose another, or leave it out."


class Push(Command[list[Job]]):
    """Put jobs on a queue: all of them or, if one is refused, none.

    Answers one job per item, in order. A ``job_id`` or ``unique_key`` that is taken answers with the job that has it, and
    nothing new is stored for that item, unless its ``dedup`` says that it takes the other's place. ``permit``: what was found
    out on other shards; without any there is nothing to be found out. ``room``: how many jobs may wait or be active in the
    queue, these included; refused with QueueFull. Others may be pushing at the same moment at other servers.
    """

    __slots__ = ("durable", "jobs", "permit", "queue", "room")

    lane = Lane.PUSHES
    grows = True

    def __init__(
        self, queue: QueueKey, jobs: Sequence[NewJob], permit: Permit | None = None, room: int | None = None
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


class PushAcross(Command[list[list[Job]]]):
    """Put jobs on several queues: all of them or, if one is refused, none. Answers the jobs of each part, in order.

    A ``job_id`` that is taken answers with the job that has it. As long as that job was handed to nobody, it takes over what
    the new one says (payload, priority, when it is due); afterwards it stays as it is. This is the one way to push a job whose
    ``job_id`` begins with IDEMPOTENCY_PREFIX. ``asked_ms``: the wall-clock time that the delays are counted from, so that
    asking twice for the same moment is asking for the same. ``permit``: as for Push.
    """

    __slots__ = ("asked_ms", "parts", "permit")

    lane = Lane.PUSHES
    grows = True

    def __init__(
        self, parts: Sequence[tuple[QueueKey, Sequence[NewJob]]], asked_ms: int, permit: Permit | None = None
    ) -> None:
        self.parts = parts
        self.asked_ms = asked_ms
        self.permit = permit


class Part(NamedTuple):
    """A chunk of a staged write, whose jobs were checked when they were staged."""

    number: int
    queue: QueueKey
    jobs: Sequence[NewJob] = ()
    fields: AbstractSet[str] = frozenset()  #: what the jobs say; the rest is as it is by default

    @property
    def is_plain(self) -> bool:
        """Tell whether its jobs can be taken at once, one after the other, and have no names. Nobody need look at each."""
        return self.fields.isdisjoint(_SPECIAL)


class Publish(Command[int]):
    """Make jobs of chunks of a staged write, those that are still there; answers how many are new.

    ``permit``: as for Push. ``last``: there are no more chunks; only then the answer waits for the disk. ``rows``: of the only
    chunk, if some of its jobs are left out here because their names are taken.
    """

    __slots__ = ("entry", "last", "parts", "permit", "rows")

    lane = Lane.PUSHES
    grows = True

    def __init__(
        self,
        entry: Entry,
        parts: Sequence[Part],
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


class PushAgain(Command[list[Job | None]]):
    """Push jobs whose names another queue's jobs have on this shard: answers those, as a push does; None where there is none.

    ``asked_ms``: as for PushAcross; None: as for Push.
    """

    __slots__ = ("asked_ms", "jobs", "namespace")

    grows = True

    def __init__(self, namespace: str, jobs: Sequence[NewJob], asked_ms: int | None) -> None:
        self.namespace = namespace
        self.jobs = jobs
        self.asked_ms = asked_ms


async def push(engine: Engine, work: Work, commands: Sequence[Push]) -> None:
    """Apply a batch of pushes."""
    commands = await _permitted(work, commands)
    names = _Names(work)
    special = {command: None for command in commands if any_special(command.jobs)}
    if special:
        await names.prefetch([(command.queue, new) for command in special for new in command.jobs])
    for command in commands:
        if not command.jobs:
            work.answer(command, [])
            continue
        queue = work.tx.queue_find(command.queue) or await work.tx.queue_open(command.queue)
        named = command in special
        if named:
            try:
                names.afar = {} if command.permit is None else command.permit.afar
                await names.check(queue, command.jobs)
            except InvalidInput as error:
                work.refuse(command, error)
                continue
        if command.room is not None and not await _has_room(work, queue, command, command.room, names):
            work.refuse(command, QueueFull(queue.key, command.room))
            continue
        if queue.created_at is None:
            await work.tx.queue_save(queue, queue.settings, work.now_ms)
            work.tell(EventKind.QUEUE_CREATED, queue)
        if named:
            # Whoever has a name already is answered instead of a new job.
            jobs = []
            for new in command.jobs:
                found, _ = await names.find(queue, new)
                jobs.append(found or names.keep(await _make_one(work, queue, new, names)))
        else:
            jobs = _make(work, queue, command.jobs)
        work.answer(command, jobs)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def _has_room(work: Work, queue: Queue, command: Push, room: int, names: _Names) -> bool:
    """Tell whether a queue may take what is ready at once of a push: delayed jobs do not count, nor those that are there."""
    ready = [new for new in command.jobs if not new.delay and new.due_at is None]
    counts = work.tx.counts(queue)
    if counts.waiting + counts.active + work.unwritten + len(ready) <= room:  # there is plenty, whatever is new in it
        return True
    await work.flush()  # so that what came before it in this batch is counted
    counts = work.tx.counts(queue)
    new = [each for each in ready if each.job_id is None or await names.resolve(queue, each.job_id) is None]
    return not new or counts.waiting + counts.active + len(new) <= room


async def push_across(engine: Engine, work: Work, commands: Sequence[PushAcross]) -> None:
    """Apply a batch of pushes to several queues each."""
    commands = await _permitted(work, commands)
    names = _Names(work)
    await names.prefetch([(key, new) for command in commands for key, jobs in command.parts for new in jobs])
    repeats: list[tuple[Job, NewJob]] = []
    for command in commands:
        late_ms = work.now_ms - command.asked_ms
        pushed: list[list[Job]] = []
        for key, jobs in command.parts:
            queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
            if queue.created_at is None:
                await work.tx.queue_save(queue, queue.settings, work.now_ms)
                work.tell(EventKind.QUEUE_CREATED, queue)
            due = [_counted_from(new, late_ms) for new in jobs]
            if not any_special(due):
                pushed.append(_make(work, queue, due))
                continue
            made: list[Job] = []
            for new in due:
                found, _ = await names.find(queue, new)
                if found is None:
                    found = names.keep(_make(work, queue, (new,))[0])
                else:
                    repeats.append((found, new))
                made.append(found)
            pushed.append(made)
        work.answer(command, pushed)
    if repeats:
        await _renew(engine, work, repeats)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def push_again(engine: Engine, work: Work, commands: Sequence[PushAgain]) -> None:
    """Apply a batch of pushes under names that are taken."""
    repeats: list[tuple[Job, NewJob]] = []
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


_Permitted = TypeVar("_Permitted", Push, PushAcross, Publish)


async def _permitted(work: Work, commands: Sequence[_Permitted]) -> Sequence[_Permitted]:
    """Refuse the commands whose names were given to another shard meanwhile, or that have taken too long; return the others."""
    permits = [command.permit for command in commands if command.permit is not None]
    if not permits:
        return commands
    tickets = [ticket for permit in permits for ticket in permit.tickets]
    withdrawn = frozenset(await work.tx.ticket_hold(tickets) if tickets else ())
    allowed: list[_Permitted] = []
    for command in commands:
        permit = command.permit
        lost = frozenset[int]() if permit is None else withdrawn.intersection(permit.tickets)
        if permit is not None and (lost or permit.is_over):  # its time is looked at now that nobody can withdraw anything
            work.refuse(command, NameContested(withdrawn=lost))
        else:
            allowed.append(command)
    return allowed


def _counted_from(new: NewJob, late_ms: int) -> NewJob:
    """Let the delay of a new job have begun so long ago."""
    return msgspec.structs.replace(new, delay=max(0, new.delay - late_ms)) if new.delay else new


async def _renew(engine: Engine, work: Work, repeats: Sequence[tuple[Job, NewJob]]) -> None:
    """Let jobs that were handed to nobody yet take over what the pushes say that named them again, in order."""
    await work.flush_and_meet()  # some may have been made in this very batch
    await call_back(engine, work, [job for job, _ in repeats])
    some: list[tuple[Job, NewJob]] = []
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


async def _take_over(work: Work, repeats: Sequence[tuple[Job, NewJob]]) -> None:
    payloads = await work.tx.payload_load({job.id for job, _ in repeats})
    changed: dict[int, tuple[Job, Payload]] = {}
    for job, new in repeats:
        old = payloads.get(job.id)
        if old is None:  # damaged, and put aside just now
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


async def publish(_engine: Engine, work: Work, commands: Sequence[Publish]) -> None:
    """Apply a batch of chunks. Each is deleted by the transaction that makes jobs of it, so that it is made so once."""
    for command in await _permitted(work, commands):
        if work.tx.away and any(work.tx.queue_away(part.queue) is not None for part in command.parts):
            work.refuse(command, QueueMoving())
            continue
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


async def _note_known(work: Work, draft: Entry, count: int) -> None:
    """Note how many rows of a draft made no new jobs, as their names were taken: whoever wrote them may want to know."""
    found = await work.tx.entry_load(EntryKind.KNOWN, draft.namespace, draft.name, draft.number)
    known = found[0] if found else Entry(EntryKind.KNOWN, draft.namespace, draft.name, draft.number, 0)
    await work.tx.entry_save([known._replace(at=work.now_ms, weight=known.weight + count)])


async def _push_staged(work: Work, parts: Sequence[Part]) -> int:
    """Push jobs; return how many are new. A name that is taken stays whose it is."""
    pushed = work.pushed
    names = _Names(work)
    named = [part for part in parts if not part.is_plain and any_special(part.jobs)]
    if named:
        await work.flush()  # so that names given earlier in this batch are seen
        await names.prefetch([(part.queue, new) for part in named for new in part.jobs])
    for part in parts:
        queue = work.tx.queue_find(part.queue) or await work.tx.queue_open(part.queue)
        if queue.created_at is None:
            await work.tx.queue_save(queue, queue.settings, work.now_ms)
            work.tell(EventKind.QUEUE_CREATED, queue)
        if part.is_plain:
            work.create(_build(work, queue, part.jobs), part.jobs, Arrow.ENQUEUE)
            work.pushed += len(part.jobs)
        elif part not in named:
            _make(work, queue, part.jobs)
        else:
            for new in part.jobs:
                found, _ = await names.find(queue, new)
                if found is None:
                    names.keep(await _make_one(work, queue, new, names))
    return work.pushed - pushed


async def push_inside(work: Work, pushes: Sequence[tuple[Queue, NewJob]]) -> list[Job | None]:
    """Push jobs that the server itself has to push; None for one whose name is taken. What was decided before is flushed.

    One that takes the place of the job that has its name is answered with that job.
    """
    names = _Names(work)
    await names.prefetch([(queue.key, new) for queue, new in pushes])
    jobs: list[Job | None] = []
    for queue, new in pushes:
        if queue.created_at is None:
            await work.tx.queue_save(queue, queue.settings, work.now_ms)
            work.tell(EventKind.QUEUE_CREATED, queue)
        found, replaced = await names.find(queue, new)
        if found is None:
            jobs.append(names.keep(await _make_one(work, queue, new, names)))
        else:
            jobs.append(found if replaced else None)
    await work.flush()
    return jobs


def any_special(jobs: Sequence[NewJob]) -> bool:
    """Tell whether one of the jobs has a name, needs others, or was made at another time."""
    for new in jobs:  # noqa: SIM110 - any() with a generator takes three times as long
        if new.job_id is not None or new.unique_key is not None or new.needs or new.timestamp is not None:
            return True
    return False


async def _make_one(work: Work, queue: Queue, new: NewJob, names: _Names) -> Job:
    """Make a job that may have to wait for others."""
    job = _build_one(work, queue, new)
    needed = [found for ref in new.needs if (found := await names.resolve_any(queue, ref)) is not None]
    if needed and await flows.book_needs(work, job, needed):
        work.create([job], (new,), Arrow.AWAIT)
    else:
        start_apart(work, [job], (new,))
    work.pushed += 1
    return job


class _Moments(NamedTuple):
    """When a job was made, when it is ready, and when its time-to-live and its hold on its unique key end. Wall clock, ms."""

    created_at: int
    run_at: int
    expires_at: int | None
    unique_until: int | None


def _moments(new: NewJob, now_ms: int) -> _Moments:
    made = now_ms if new.timestamp is None else new.timestamp
    due_at = new.due_at
    if due_at is None:
        due_at = made + new.delay if new.delay else now_ms
    return _Moments(
        made,
        max(now_ms, due_at),
        None if new.ttl is None else made + new.ttl,
        None if new.dedup is None or new.dedup.ttl is None else now_ms + new.dedup.ttl,
    )


def _build_one(work: Work, queue: Queue, new: NewJob) -> Job:
    """The same as ``_build``, for a job that may have been made at another time, or hold its key for some time only."""
    (job,) = _build(work, queue, (new,))
    if new.timestamp is None and new.dedup is None:
        return job
    made, ready, ends, unique_until = _moments(new, work.now_ms)
    job = msgspec.structs.replace(job, created_at=made, run_at=ready, expires_at=ends)
    if unique_until is not None:
        details = details_of(job)
        details.unique_until = unique_until
        put_details(job, details)
    return job


def _build(work: Work, queue: Queue, jobs: Sequence[NewJob]) -> list[Job]:
    """Turn what a producer asked for into jobs that are nowhere yet."""
    return build(queue, work.serials(len(jobs)), jobs, work.now_ms)


def build(queue: Queue, serials: Sequence[int], jobs: Sequence[NewJob], now: int) -> list[Job]:
    """Turn what a producer asked for at a moment into jobs that are nowhere yet, with these ids."""
    namespace, number = queue.namespace_number, queue.number
    return [
        Job(
            serial,
            namespace,
            number,
            now,
            new.max_attempts,
            new.backoff,
            new.timeout,
            new.group_id,
            new.unique_key,
            new.job_id,
            None if new.ttl is None else now + new.ttl,
            new.flags,
            _NOWHERE,
            new.priority,
            serial,
            now + new.delay if new.due_at is None else max(now, new.due_at),
            size=len(new.data),
            details=new.details,
        )
        for serial, new in zip(serials, jobs, strict=True)
    ]


def _make(work: Work, queue: Queue, jobs: Sequence[NewJob]) -> list[Job]:
    """Make jobs and bring them to life."""
    made = _build(work, queue, jobs)
    for new in jobs:
        if new.delay or new.due_at is not None or new.flags & JobFlag.LIFO:
            start_apart(work, made, jobs)
            break
    else:
        work.create(made, jobs, Arrow.ENQUEUE)
    work.pushed += len(made)
    return made


def start_apart(work: Work, made: list[Job], jobs: Sequence[NewJob]) -> None:
    """Bring jobs to life that do not all begin in the same way."""
    apart: dict[Arrow, tuple[list[Job], list[NewJob]]] = {}
    for job, new in zip(made, jobs, strict=True):
        at_once = Arrow.ENQUEUE_FRONT if new.flags & JobFlag.LIFO else Arrow.ENQUEUE
        arrow = Arrow.SCHEDULE if job.run_at > work.now_ms else at_once
        of_arrow = apart.setdefault(arrow, ([], []))
        of_arrow[0].append(job)
        of_arrow[1].append(new)
    for arrow, (some, payloads) in apart.items():
        work.create(some, payloads, arrow)


async def _replace(work: Work, job: Job, new: NewJob) -> None:
    """Make a job that nobody works on what another push says, as if it were new. Its id stays, and so do those that need it."""
    before = details_of(job)
    moments = _moments(new, work.now_ms)
    work.move(job, Arrow.EDIT, len(new.data))
    if job.priority != new.priority:
        work.move(job, Arrow.REPRIORITIZE, new.priority)
    job.max_attempts, job.backoff, job.timeout = new.max_attempts, new.backoff, new.timeout
    job.group_id, job.created_at = new.group_id, moments.created_at
    job.flags = new.flags | (job.flags & JobFlag.AWAITS)
    job.details = new.details
    details = details_of(job)
    details.parent = before.parent
    extends = new.dedup is not None and new.dedup.extend and new.dedup.ttl is not None
    details.unique_until = moments.unique_until if extends else before.unique_until
    put_details(job, details)
    if moments.run_at > work.now_ms:
        work.move(job, Arrow.REPLACE_LATER, moments.run_at)
    else:
        work.move(job, Arrow.REPLACE)
    job.expires_at = moments.expires_at
    await work.flush()
    await work.tx.job_rewrite([job])
    await work.tx.payload_save([(job, new)])


class _Names:
    """Finds out who has a name already: a job in the store, or one made earlier in this batch."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._custom: dict[tuple[int, str], Job] = {}
        self._unique: dict[tuple[int, str], Job] = {}
        self._holders: dict[tuple[int, str], Job | None] = {}  #: of unique keys in the store, as far as looked for
        self.afar: dict[JobRef, Afar] = {}  #: jobs of other shards that the command needs which is being looked at

    async def prefetch(self, jobs: Sequence[tuple[QueueKey, NewJob]]) -> None:
        """Read everybody at once who is named by new jobs, so that what follows has them at hand."""
        tx = self._work.tx
        refs: list[JobRef] = []
        own: list[tuple[int, str]] = []
        keys: list[tuple[int, str]] = []
        for key, new in jobs:
            if new.job_id is None and new.unique_key is None and not new.needs:
                continue
            namespace = tx.namespace_number(key.namespace)
            if namespace is None:
                continue
            for name in (new.job_id, *new.needs):
                ref = ids.from_uuid(name) or name if isinstance(name, str) else name
                if isinstance(ref, str):
                    own.append((namespace, ref))
                elif ref is not None:
                    refs.append(ref)
            queue = None if new.unique_key is None else tx.queue_find(key)
            if queue is not None and new.unique_key is not None:
                keys.append((queue.number, new.unique_key))
        if refs:
            await self._work.prefetch(refs)
        if own:
            await self._work.prefetch_named(own)
        if keys:
            await self._look_for(keys)

    async def check(self, queue: Queue, jobs: Sequence[NewJob]) -> None:
        """Refuse what cannot be: see each error.

        An own id that is spelled like Penstock's, unless it names a job: nobody could find it by that id. One that begins as
        only idempotency keys do. A need that names no job: what is pushed can only need what was pushed before, so needs
        never form a circle.
        """
        earlier: set[str] = set()
        for new in jobs:
            number = None if new.job_id is None else ids.from_uuid(new.job_id)
            if number is not None and await self._work.find(queue.key.namespace, number) is None:
                raise InvalidInput(MISSPELT)
            if new.job_id is not None and new.job_id.startswith(IDEMPOTENCY_PREFIX):
                raise InvalidInput(f"jobId must not begin with {IDEMPOTENCY_PREFIX!r}. Choose another, or leave it out.")
            for ref in new.needs:
                name = ref if isinstance(ref, str) else ids.to_uuid(ref)
                if name == new.job_id:
                    raise InvalidInput("A job cannot depend on itself")
                if name in earlier:
                    continue
                needed = await self.resolve_any(queue, ref)
                if needed is None:
                    raise InvalidInput(f"Dependency job not found: {name}")
                if flows.is_hopeless(needed):
                    raise InvalidInput(f"Dependency job has failed: {name}")
            if new.job_id is not None:
                earlier.add(new.job_id)

    async def resolve(self, queue: Queue, ref: int | str) -> Job | None:
        """Return the job that a need names: made earlier in this batch, or stored."""
        made = self._custom.get((queue.namespace_number, ref)) if isinstance(ref, str) else None
        return made or await self._work.find(queue.key.namespace, ref)

    async def resolve_any(self, queue: Queue, ref: int | str) -> Job | Afar | None:
        """Return the job that a need names, on this shard or another."""
        return self.afar.get(ref) or await self.resolve(queue, ref)

    async def find(self, queue: Queue, new: NewJob) -> tuple[Job | None, bool]:
        """Return the job that has one of the new job's names, and tell whether the new one has taken its place."""
        if new.job_id is not None:
            made = self._custom.get((queue.namespace_number, new.job_id))
            found = made or await self._work.find(queue.key.namespace, ids.from_uuid(new.job_id) or new.job_id)
            if found is not None:
                return found, False
        holder = None if new.unique_key is None else await self._holder(queue, new.unique_key)
        if holder is None:
            return None, False
        if unique_key_is_over(holder, self._work.now_ms):
            await self._free_key(holder)
            return None, False
        return holder, new.dedup is not None and await self._duplicate(holder, new, new.dedup)

    async def _holder(self, queue: Queue, unique_key: str) -> Job | None:
        key = (queue.number, unique_key)
        made = self._unique.get(key)
        if made is not None:
            return made
        if key not in self._holders:
            await self._look_for((key,))
        return self._holders[key]

    async def _look_for(self, keys: Sequence[tuple[int, str]]) -> None:
        found = await self._work.tx.job_find_unique(dict.fromkeys(keys))
        self._holders.update(dict.fromkeys(keys))
        self._holders.update((key, self._work.meet(job)) for key, job in found.items())

    async def _free_key(self, holder: Job) -> None:
        """Take the unique key from a job whose time to hold it is over."""
        await self._work.flush_and_meet()
        if holder.unique_key is not None:
            self._holders[holder.queue, holder.unique_key] = None
        holder.unique_key = None
        await self._work.tx.job_rewrite([holder])

    async def _duplicate(self, holder: Job, new: NewJob, dedup: Dedup) -> bool:
        """Do what a duplicate says about the job that has its key; tell whether it has taken that one's place."""
        work = self._work
        if dedup.replace and not new.needs and holder.state in (State.WAITING, State.DELAYED):
            await work.flush_and_meet()  # it may be of this very batch
            await _replace(work, holder, new)
            return True
        details = details_of(holder)
        if dedup.extend and dedup.ttl is not None and details.unique_until is not None:
            details.unique_until = work.now_ms + dedup.ttl
            put_details(holder, details)
            work.touch(holder)
        return False

    def keep(self, job: Job) -> Job:
        """Remember the names of a job that was just made."""
        if job.custom_id is not None:
            self._custom[job.namespace, job.custom_id] = job
        if job.unique_key is not None:
            self._unique[job.queue, job.unique_key] = job
        return job
