"""The decisions of one transaction: the jobs that were read, the transitions, and what to announce afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.core import ids, lifecycle
from penstock.core.errors import QueueMoving, RowChanged
from penstock.core.events import ERROR_KINDS, Event, EventKind, job_event, job_events, queue_event
from penstock.core.job import JobFlag, Payload
from penstock.core.lifecycle import DUE_ARROWS, Arrow, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.dependencies import Dependency, JobEnd
    from penstock.core.ids import IdSource
    from penstock.core.job import JobRecord
    from penstock.core.lifecycle import Moment
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.command import AnyCommand, JobRef
    from penstock.engine.stats import Histogram
    from penstock.store.contract import Transaction

#: Replaces a payload that is not kept. It is JSON, because every door has to be able to show it.
_NOTHING: Final = Payload(b"null", None)
# Plain numbers: looking up a member of an enum costs more than the comparison.
_NOWHERE, _WAITING, _ACTIVE, _COMPLETED, _DEAD = (
    state.value for state in (State.NOWHERE, State.WAITING, State.ACTIVE, State.COMPLETED, State.DEAD)
)


class _Serials:
    """The moment of a piece of work, for transitions that need one serial for each job: the serials are made together."""

    def __init__(self, work: UnitOfWork, count: int) -> None:
        self.now_ms = work.now_ms
        self.steady_ms = work.steady_ms
        self.serial = iter(work.serials(count)).__next__


class UnitOfWork:
    """Given to every command of a batch in turn. Has one object for each job, however many commands use the job.

    Commands change jobs by ``move`` only, and end by ``answer`` or ``refuse``. Nothing is announced before the commit: calls
    that must follow it are added to ``after_commit``.
    """

    def __init__(self, tx: Transaction, source: IdSource, *, alone: bool = True) -> None:
        self.tx = tx
        self.alone = alone  #: this server has no other batch in progress, so all earlier commands are applied
        self.now_ms = tx.now_ms
        self.steady_ms = tx.steady_ms
        self.answers: list[tuple[AnyCommand, Any]] = []
        #: Answers that do not wait for the disk: their callers wait for another command that does.
        self.early: list[tuple[AnyCommand, Any]] = []
        self.refusals: list[tuple[AnyCommand, Exception]] = []
        self.deferred: list[AnyCommand] = []  #: commands that did not fit and come first in the next batch
        self.readied: list[Sequence[JobRecord]] = []  #: jobs that are ready now and were not before
        self.reconfigured: set[QueueKey] = set()  #: queues whose settings were changed
        self.ready: set[int] = set()  #: numbers of the queues in which something may have become claimable
        self.ended: list[tuple[JobRecord, Arrow]] = []  #: unfinished jobs that completed, died or were removed, and how
        self.followed = 0  #: how many of these were followed up for the jobs that need them
        self.ends: list[JobEnd] = []  #: other ends to apply to jobs that need the ended jobs
        self.spared: dict[int, int] = {}  #: by ended job: the job on another shard that does not need it any more
        self.given_up: list[int] = []  #: dead jobs that were removed, and for whose retry jobs of other shards wait
        self.results: dict[int, bytes] = {}  #: results of workers, by job
        self._unsaved_results: dict[int, bytes] = {}
        self._emptied: list[JobRecord] = []
        self.dead_letters: list[QueueKey] = []  #: queues of the messages that died, one entry for each
        self.after_commit: list[Callable[[], object]] = []
        self.when_undone: list[Callable[[], object]] = []  #: called if the work is not committed
        self.timings: list[tuple[Histogram, int]] = []  #: histograms, and how many commands to count in each
        self.pushed = self.pulled = self.completed = self.failed = 0
        self._away = tx.away
        self._ids = source
        self._known: dict[int, tuple[JobRecord, int, int]] = {}
        self._absent: set[int] = set()  #: ids that were looked up and do not exist
        self._named: dict[tuple[int, str], JobRecord | None] = {}  #: by namespace and custom id, as far as looked up
        self._changed: dict[int, None] = {}
        self._leased: dict[int, None] = {}  #: claimed, and perhaps changed afterwards
        self._born: list[tuple[JobRecord, Payload]] = []
        self._rewritten: dict[int, tuple[JobRecord, Payload]] = {}  #: jobs that took over the values of another push, by id
        self._needs: list[Dependency] = []
        self._events: list[Event] = []

    async def pause(self) -> None:
        """Let other requests be served, if the transaction has worked for long. To be called between the steps of long work."""
        await self.tx.pause()

    def serial(self) -> int:
        """Return a fresh id, place in line or lease token; each is greater than all before."""
        return self._ids.next(self.now_ms)

    def serials(self, count: int) -> list[int]:
        """Return several serials."""
        return self._ids.take(count, self.now_ms)

    def answer(self, command: AnyCommand, outcome: Any) -> None:
        """End a command with its answer."""
        self.answers.append((command, outcome))

    def answer_early(self, command: AnyCommand, outcome: Any) -> None:
        """End a command whose caller does not wait for the disk now, but will before it answers a client."""
        self.early.append((command, outcome))

    def refuse(self, command: AnyCommand, error: Exception) -> None:
        """End a command with an error of its own; the rest of the batch is not affected.

        Raises RowChanged if that is the error: then it is no answer, and the whole transaction has to be repeated.
        """
        if isinstance(error, RowChanged):
            raise error
        self.refusals.append((command, error))

    @property
    def queues_have_moved(self) -> bool:
        """Return whether queues were moved between shards, or are moving. Otherwise no queue is elsewhere."""
        layout = self.tx.layout
        return bool(self._away) or (layout is not None and layout.has_moved)

    def is_elsewhere(self, queue: QueueKey) -> bool:
        """Return whether a queue is on another shard, moving to one, or unknown here because another shard may have it."""
        if self.tx.queue_away(queue) is not None:
            return True
        layout = self.tx.layout
        return layout is not None and layout.has_moved and self.tx.queue_find(queue) is None and not layout.takes(queue)

    def keep_result(self, job: JobRecord, result: bytes) -> None:
        """Store the result of a worker, as long as the job is kept."""
        self.results[job.id] = self._unsaved_results[job.id] = result

    def drop_payload(self, job: JobRecord) -> None:
        """Delete the payload of a job. The job itself is kept only so that it is not done twice."""
        self._emptied.append(job)

    async def drop_result(self, job: JobRecord) -> None:
        """Delete the result of a job, from this batch or an earlier one."""
        self._unsaved_results.pop(job.id, None)
        await self.tx.result_remove([job.id])

    async def result_of(self, job: JobRecord) -> bytes | None:
        """Return the result of a job, from this batch or an earlier one."""
        return self._unsaved_results.get(job.id) or await self.tx.result_load(job.id)

    # Jobs.

    async def prefetch(self, refs: Iterable[JobRef]) -> None:
        """Read many jobs at once, so that ``find`` needs no reads."""
        absent = self._absent
        unknown = {ref: None for ref in refs if type(ref) is int and ref not in self._known and ref not in absent}
        if unknown:
            found = await self.tx.job_load(unknown)
            self._known.update({job.id: (job, job.state, job.token) for job in found})
            if len(found) < len(unknown):
                absent.update(unknown.keys() - {job.id for job in found})

    async def prefetch_named(self, names: Iterable[tuple[int, str]]) -> None:
        """Read many jobs at once by namespace and custom id, so that ``find`` needs no reads."""
        unknown = {name: None for name in names if name not in self._named}
        if unknown:
            found = await self.tx.job_find_custom(unknown)
            self._named.update(unknown)
            for name, job in found.items():
                self._named[name] = self.track(job)

    async def find(self, namespace: str, ref: JobRef) -> JobRecord | None:
        """Return a job of a namespace, with the changes that this transaction has made so far, or None.

        Raises QueueMoving if its queue is moving to another shard, or has moved.
        """
        number = self.tx.namespace_number(namespace)
        if number is None:
            return None
        if isinstance(ref, int):
            if ref not in self._known:
                await self.prefetch((ref,))
            known = self._known.get(ref)
            job = None if known is None else known[0]
        else:
            if (number, ref) not in self._named:
                await self.prefetch_named(((number, ref),))
            job = self._named[number, ref]
        if job is None or job.namespace != number:  # first: another namespace must not find out even that it is moving
            return None
        if self._away:
            self._check_here(job)
        return None if job.state == _NOWHERE else job

    async def known(self, job_id: int, may: Callable[[QueueKey], bool] | None = None) -> JobRecord | None:
        """Return a job by its id, with the changes that this transaction has made so far, or None if it was removed.

        ``may``: whether the caller has access to a queue; jobs of other queues count as removed. Raises QueueMoving.
        """
        if job_id not in self._known:
            await self.prefetch((job_id,))
        known = self._known.get(job_id)
        if known is None or (may is not None and not may(self.queue_of(known[0]).key)):
            return None
        if self._away:
            self._check_here(known[0])
        return None if known[0].state == _NOWHERE else known[0]

    def cached(self, job_id: int) -> JobRecord | None:
        """Return a job that ``prefetch`` has read, with the changes that this transaction has made so far, or None."""
        known = self._known.get(job_id)
        return None if known is None or known[0].state == _NOWHERE else known[0]

    def held(self, jobs: Sequence[int], tokens: Sequence[int]) -> tuple[list[JobRecord], list[tuple[int, int]]]:
        """Return the jobs, of those that ``prefetch`` has read, that these tokens lease, and the others by id and token.

        Jobs that are moving to another shard are among the others.
        """
        known, away = self._known, self._away
        held: list[JobRecord] = []
        others: list[tuple[int, int]] = []
        for job_id, token in zip(jobs, tokens, strict=True):
            found = known.get(job_id)
            if found is not None:
                job = found[0]
                if job.token == token and job.state == _ACTIVE and not (away and job.queue in away):
                    held.append(job)
                    continue
            others.append((job_id, token))
        return held, others

    def _check_here(self, job: JobRecord) -> None:
        if job.queue in self._away:
            raise QueueMoving

    def queue_of(self, job: JobRecord) -> Queue:
        """Return the queue of a job."""
        return self.tx.queue_by_number(job.queue)

    @staticmethod
    def name_of(job: JobRecord) -> str:
        """Return the id of a job as users see it."""
        return job.custom_id or ids.to_uuid(job.id)

    @staticmethod
    def ref_of(name: str) -> JobRef:
        """Return the job id or custom id that a name of a job is."""
        return ids.from_uuid(name) or name

    def track(self, job: JobRecord) -> JobRecord:
        """Register a job that was just read, and return the one object for it in this transaction."""
        known = self._known.get(job.id)
        if known is None:
            self._known[job.id] = (job, job.state, job.token)
            return job
        return known[0]

    def track_all(self, jobs: Sequence[JobRecord]) -> list[JobRecord]:
        """Register several jobs: see ``track``."""
        known = self._known
        if known:
            return [self.track(job) for job in jobs]
        known.update({job.id: (job, job.state, job.token) for job in jobs})
        return list(jobs)

    def create(self, jobs: list[JobRecord], payloads: Sequence[Payload], arrow: Arrow) -> None:
        """Start new jobs with a transition from no state. They are written by the next ``flush``."""
        target, _, kinds = lifecycle.start(jobs, arrow, self)
        for kind in kinds:
            self._events += job_events(kind, jobs)
        if target == _WAITING:
            self.ready.add(jobs[0].queue)
            self.readied.append(jobs)
        self._born += zip(jobs, payloads, strict=True)

    def move(self, job: JobRecord, arrow: Arrow, value: int = 0, *, note: object = None, error: str | None = None) -> None:
        """Apply a transition to a job: see ``lifecycle.move``. The note and the error go into the journal."""
        self._follow(job, arrow, value, note, error)
        self._changed[job.id] = None

    def begin(self, job: JobRecord, lease_ms: int, at: Moment) -> None:
        """Start the lease of a job that was set aside, from a moment that may be in the past."""
        lifecycle.move(job, Arrow.START, at, lease_ms)
        self._changed[job.id] = None

    def move_all(self, jobs: Sequence[JobRecord], arrow: Arrow, value: int = 0) -> None:
        """Apply a transition to several jobs in the same state: see ``move``. For transitions whose events need no note."""
        self._follow_all(jobs, arrow, value)
        self._changed.update(dict.fromkeys([job.id for job in jobs]))

    def lease_all(self, jobs: Sequence[JobRecord], arrow: Arrow, lease_ms: int) -> None:
        """Lease waiting jobs of which nothing else was changed. Does the same as ``move_all``, and writes less."""
        self._follow_all(jobs, arrow, lease_ms, _Serials(self, len(jobs)) if len(jobs) > 1 else self)
        self._leased.update(dict.fromkeys([job.id for job in jobs]))

    def _follow_all(self, jobs: Sequence[JobRecord], arrow: Arrow, value: int, moment: Moment | None = None) -> None:
        source = jobs[0].state
        due_at = [job.run_at for job in jobs] if arrow in DUE_ARROWS else ()
        target, _, kinds = lifecycle.move_all(jobs, arrow, moment or self, value)
        for kind in kinds:
            self._events += job_events(kind, jobs, due_at)
        if target == _WAITING:
            self.readied.append(jobs)
        if target == _WAITING or (source == _ACTIVE and target != _ACTIVE):
            self.ready.update([job.queue for job in jobs])
        if target in (_COMPLETED, _DEAD, _NOWHERE) and source not in (_COMPLETED, _DEAD):
            self.ended += [(job, arrow) for job in jobs]
            if target == _DEAD:
                for job in jobs:
                    self._note_death(job)

    @property
    def unwritten(self) -> int:
        """Number of jobs that the counts of their queues may not include yet: those that the next ``flush`` writes whole."""
        return len(self._born) + len(self._rewritten)

    def touch(self, job: JobRecord) -> None:
        """Write a job that was changed without a transition: its details or flags. A new job is written anyway."""
        if job.id in self._known:
            self._changed[job.id] = None

    def rewrite(self, job: JobRecord, payload: Payload) -> None:
        """Have the whole of a tracked job written by the next ``flush``, with another payload.

        However often this is done to a job, it is written once: PostgreSQL keeps every version of a row until the transaction
        ends, and each further write of the row has to pass all of them.
        """
        self._changed[job.id] = None
        self._rewritten[job.id] = job, payload

    def _follow(self, job: JobRecord, arrow: Arrow, value: int, note: object, error: str | None) -> None:
        source, due_at = job.state, job.run_at
        target, _, kinds = lifecycle.move(job, arrow, self, value)
        for kind in kinds:
            self._events.append(job_event(kind, job, error if kind in ERROR_KINDS else note, due_at))
        if target == _WAITING:
            self.ready.add(job.queue)  # something to claim
            self.readied.append((job,))
        elif source == _ACTIVE and target != _ACTIVE:
            self.ready.add(job.queue)  # a free place
        # A transition that removes a completed or dead job is not its end: the job ended before.
        if target in (_COMPLETED, _DEAD, _NOWHERE):
            if source not in (_COMPLETED, _DEAD):
                self.ended.append((job, arrow))
                if target == _DEAD:
                    self._note_death(job)
            elif target == _NOWHERE and job.flags & JobFlag.AWAITED_REMOTELY:
                self.given_up.append(job.id)

    def _note_death(self, job: JobRecord) -> None:
        if job.flags & JobFlag.MESSAGE:
            self.dead_letters.append(self.queue_of(job).key)

    def need(self, needs: Iterable[Dependency]) -> None:
        """Record what new jobs need. It is written by the next ``flush``."""
        self._needs += needs

    # The journal.

    def journal_queue_event(self, kind: EventKind, queue: Queue, note: object = None) -> None:
        """Journal an event of a queue."""
        self._events.append(queue_event(kind, queue.number, note))

    def journal_job_event(self, kind: EventKind, job: JobRecord) -> None:
        """Journal an event of a job that is not a transition. For a kind without a note."""
        self._events.append(job_event(kind, job))

    async def flush_and_track(self) -> None:
        """Flush, and register the jobs that were written for the first time, because a command will change one of them."""
        born = [job for job, _ in self._born]
        await self.flush()
        for job in born:
            self.track(job)

    async def flush(self) -> None:
        """Write everything decided so far, so that reads of this transaction include it."""
        if self._born:
            await self._insert_born()
        if self._needs:
            await self.tx.need_add(self._needs)
            self._needs = []
        if self._leased:
            leased = [self._known[job_id] for job_id in self._leased if job_id not in self._changed]
            self._leased = {}
            if leased:
                await self.tx.job_lease(leased)
                for job, _, _ in leased:
                    self._known[job.id] = (job, job.state, job.token)
        if self._changed:
            await self._flush_changed()
        if self._rewritten:
            rewritten, self._rewritten = list(self._rewritten.values()), {}
            await self.tx.job_rewrite([job for job, _ in rewritten])
            await self.tx.payload_save(rewritten)
        if self._events:
            self.tx.journal(self._events)
            self._events = []

    async def _insert_born(self) -> None:
        if self._changed:
            self._update_born()
        await self.tx.job_insert(self._born)
        if self._named:
            for job, _ in self._born:
                if job.custom_id is not None:
                    self._named.pop((job.namespace, job.custom_id), None)
        self._born = []
        self._absent.clear()

    def _update_born(self) -> None:
        """Let new jobs be inserted as they are by now: what was changed of them since they were made is no write of its own."""
        for place, (job, _) in enumerate(self._born):
            if job.id in self._changed:
                del self._changed[job.id]
                self._known[job.id] = (job, job.state, job.token)
                if job.id in self._rewritten:
                    self._born[place] = self._rewritten.pop(job.id)

    async def _flush_changed(self) -> None:
        changed = [self._known[job_id] for job_id in self._changed]
        self._changed = {}
        saved = [each for each in changed if each[0].state != _NOWHERE]
        gone = [each for each in changed if each[0].state == _NOWHERE]
        if saved:
            await self.tx.job_save(saved)
        if gone:
            await self.tx.job_remove(gone)
        for job, _, _ in saved:
            self._known[job.id] = (job, job.state, job.token)
        if self._unsaved_results:
            kept = {job.id for job, _, _ in saved}
            await self.tx.result_save([each for each in self._unsaved_results.items() if each[0] in kept])
            self._unsaved_results = {}
        if self._emptied:
            await self.tx.payload_save([(job, _NOTHING) for job in self._emptied if job.state != _NOWHERE])
            self._emptied = []
