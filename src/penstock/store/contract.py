"""What the engine may ask of a store. It speaks of jobs and queues, never of SQL.

A store decides nothing: which state comes next, when to retry, who is dead are pure functions in ``core`` and ``engine``.
A store reads and writes batches, keeps them through a crash, and guards every write with the state and lease token that
were read (``tests/store/conformance`` is the proof, and runs against every store).

All calls are ``async`` in signature. A transaction of the SQLite store never suspends between its first call and its
commit, which is what makes it cheap; nothing above may rely on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.core import limits
from penstock.core.errors import StorageFailed, StorageFull

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    from penstock.core.apikey import ApiKey
    from penstock.core.bulk_records import BulkRecord, Chunk
    from penstock.core.clock import Clock
    from penstock.core.cron import Cron, CronKey
    from penstock.core.dependencies import Dependency, JobEnd, Need, NeedCount, Relay
    from penstock.core.events import Event
    from penstock.core.group_limits import GroupLimits
    from penstock.core.history import History
    from penstock.core.job import Delivery, Job, Payload
    from penstock.core.lifecycle import State
    from penstock.core.pool_shares import Shares
    from penstock.core.queue import Move, Queue, QueueKey, QueueSettings, Standing, StateCounts
    from penstock.core.reservations import Reservation
    from penstock.core.sharding import Layout
    from penstock.core.webhook import Webhook


class Capabilities(NamedTuple):
    """Where stores may differ. A difference the conformance suite may see has a name here."""

    name: str
    commit_is_durable: bool  #: a commit needs no further ``sync`` to survive a power cut
    is_shared: bool = False  #: other servers write too: counts lag behind them, and what is ready must be asked for
    lanes: int = 1  #: transactions of one server that may be under way at the same time


class Horizon(msgspec.Struct):
    """Lower bounds of the next moments something falls due; None = nothing is booked. Cheap to read at any time."""

    due_ms: int | None = None  #: wall clock: the earliest delayed job
    expiry_ms: int | None = None  #: wall clock: the earliest end of a time-to-live
    lapse_ms: int | None = None  #: steady clock: the earliest end of a lease
    cron_ms: int | None = None  #: wall clock: the earliest tick of a cron
    unfollowed: bool = False  #: there are ends (see ``end_add``), so there is something to do at once


class Whereabouts(NamedTuple):
    """Where a job is: in which queue, and how that stands here."""

    standing: Standing
    queue: QueueKey


class Place(NamedTuple):
    """Where a job stands among the jobs of its queue and state when they are gone through in order."""

    at: int  #: wall clock: when it finished, or is due; 0 for one that is waiting or active
    id: int


class Selection(NamedTuple):
    """A bounded choice of jobs of one queue in one state, in order: by when they finished or are due, then by id."""

    queue: Queue
    state: State
    limit: int
    up_to_id: int  #: leave alone what was pushed later, or was taken by a worker and came back since
    before_ms: int | None = None  #: only jobs pushed (or, if finished, finished) before this wall-clock time
    after: Place = Place(0, 0)  #: only jobs behind this place


class Page(NamedTuple):
    """A page of a listing, highest priority first."""

    queue: Queue
    states: tuple[State, ...]
    limit: int
    offset: int = 0
    prioritized: bool | None = (
        None  #: of the waiting jobs, only those with a priority above 0, or only the others; None: all
    )
    descending: bool = False  #: the other way round
    shared: bool = False  #: a thread that reads it pauses now and then, so that the event loop gets on


class Search(NamedTuple):
    """Which entries of the ledger, oldest first. None: any."""

    kind: int
    namespace: str | None = None
    name: str | None = None
    before_ms: int | None = None  #: those written before this wall-clock time
    limit: int = limits.stages_max
    bodies: bool = True  #: False: without their bodies, which may be large


class FinishedMinutes(NamedTuple):
    """When finished jobs ended."""

    total: int = 0
    last_at: int = 0  #: wall clock, ms: when the last of them ended; 0: there is none
    minutes: tuple[tuple[int, int], ...] = ()  #: minutes since 1970 with how many ended in each, newest first

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> FinishedMinutes:
        """Make it from rows: the minute, how many jobs, when the last of them ended. Newest first."""
        found = [tuple(row) for row in rows]
        last_at = found[0][2] if found else 0
        return cls(sum(row[1] for row in found), last_at, tuple((row[0], row[1]) for row in found))

    def per_minute(self, minutes_max: int) -> list[int]:
        """Return how many ended in each minute, newest first, up to the oldest in which one did. Gaps are zeros."""
        if not self.minutes:
            return []
        newest = self.minutes[0][0]
        places = [(newest - minute, count) for minute, count in self.minutes if newest - minute < minutes_max]
        counts = [0] * (places[-1][0] + 1)
        for place, count in places:
            counts[place] = count
        return counts


class LogEntry(msgspec.Struct, frozen=True):
    """One line a worker wrote about a job."""

    at: int  #: wall clock, ms
    level: str
    message: str


class Parcel(NamedTuple):
    """A job with all that belongs to it, on its way to another shard."""

    job: Job
    payload: Payload
    result: bytes | None
    logs: Sequence[LogEntry]
    needs: Sequence[Dependency]


class JournalBlock(msgspec.Struct, frozen=True):
    """The events of one commit: ``seq`` is the number of the first, the others follow without a gap."""

    seq: int
    at: int  #: wall clock, ms
    events: Sequence[Sequence[Any]]  #: see ``core.events``: kind, queue, job, custom id, and the fields of the kind
    queues: dict[int, tuple[str, str]]  #: namespace and name of every queue the events mention
    shard: int = 0
    around: tuple[str, str] = ("", "")  #: what to put around the number of an event to say where a reader of all shards is


class JournalPage(msgspec.Struct, frozen=True):
    """A stretch of the journal, with the events of one namespace, and those of none.

    In a block, an event of another namespace is ``store.journal.FOREIGN``. A block may end before its last event: the next page
    goes on there.
    """

    first: int  #: number of the first event of the first block that was read; 0 if there was none
    following: int  #: number of the event that the next page begins with
    blocks: Sequence[JournalBlock]  #: that have such events
    is_last: bool  #: it was read to the end of the journal


class Follower(Protocol):
    """Hears of what other servers have committed to the same store, in order and each once."""

    def __call__(self, blocks: Sequence[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Take note of some blocks.

        ``ready``: the numbers of queues in which something may have become claimable. ``webhooks``: they were changed.
        """


class StoreStatus(msgspec.Struct):
    """How the store is doing, for health checks and metrics."""

    writable: bool = True
    full: bool = False
    error: str | None = None
    since_ms: int | None = None  #: wall clock when it stopped being fine
    quarantined: int = 0
    refusal: str | None = None  #: what to answer while it is full, where the usual text would not be true
    reserve_bytes: int | None = None  #: held for acknowledgements on a full disk; None where there is no such reserve
    reserve_short: bool = False  #: it is smaller than the settings say

    def check(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if no write can be taken; ``grows`` = it would need more room."""
        if self.error is not None and not self.full:
            raise StorageFailed(f"Storage failed ({self.error}): nothing was stored. The server retries by itself.")
        if grows and self.full:
            raise StorageFull(self.refusal)


class Take(NamedTuple):
    """Some jobs that a namespace is to be given, counted against its quota."""

    namespace: str
    jobs: int  #: how many; below zero: so many were counted a moment ago and are not used
    quota: int | None  #: jobs in any minute; None: count them in any case


class Transaction(Protocol):
    """Reads and writes that happen together or not at all. Left with an exception, it is rolled back.

    ``now_ms`` and ``steady_ms`` are its time: read once, when it could begin.
    """

    now_ms: int
    steady_ms: int

    @property
    def freed(self) -> set[int]:
        """Numbers of the queues in which a damaged job was put aside: somebody else may have its place now."""

    @property
    def wrote(self) -> bool:
        """Tell, once it is over, whether anything was written."""

    @property
    def block(self) -> JournalBlock | None:
        """What it put into the journal, once it is over."""

    async def clock_mark(self) -> None:
        """Write down how much time has been counted for leases, where only this server counts it."""

    # Ready lists, which only some stores have: see FastTransaction.

    @property
    def generation(self) -> int:
        """Which generation of ready lists this is."""

    @property
    def hot(self) -> Mapping[int, int]:
        """Numbers of the queues that had a ready list when it began, each with its epoch."""

    @property
    def lost(self) -> Collection[int]:
        """Numbers of the queues whose ready list was lost when it began, and of which nothing may be handed out."""

    @property
    def heated(self) -> Sequence[int]:
        """Numbers of those of its queues that have a ready list, or have lost theirs, once it is over."""

    @property
    def lists_generation(self) -> int:
        """Which generation of ready lists ``heated`` is about."""

    # Queues.

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues whose numbers jobs here may have, but that are not served here: on their way, or gone. Usually none."""

    @property
    def layout(self) -> Layout | None:
        """Which of how many shards this is; None if nobody has said yet."""

    def queue_find(self, key: QueueKey) -> Queue | None:
        """Return a queue that exists and is served here."""

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        """Return a queue, made with default settings if it did not exist. Raises QueueMoving if it is on another shard.

        Raises NamespaceLimit, before anything is written, if its namespace has as many queues as it may, unless it ``must`` be.
        """

    def queue_touch(self, queue: Queue) -> None:
        """Have it checked at the end that nobody has changed a queue meanwhile, though no job of it is written."""

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        """Replace a queue's settings and creation time, in the store and in the object."""

    async def queue_remove(self, queue: Queue) -> None:
        """Forget a queue that has no jobs."""

    # Queues on their way from one shard to another.

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is known here and not served here."""

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        """Make a queue that is not here yet."""

    async def queue_move(self, queue: Queue, move: Move) -> None:
        """Write where a queue stands in its way. Raises RowChanged if it does not stand where it was read any more."""

    async def queue_count(self, queue: Queue) -> StateCounts:
        """Count the jobs of a queue, one by one."""

    async def queue_tied(self, queue: Queue) -> bool:
        """Tell whether a job of a queue needs one of another queue that lives, or the other way round."""

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        """Delete up to ``limit`` jobs of a queue with all that belongs to them, telling nobody; return how many."""

    async def queues_forget(self) -> None:
        """Forget all queues that are gone."""

    async def layout_save(self, layout: Layout) -> None:
        """Write which of how many shards this is. Raises RowChanged if it is not what was read any more."""

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        """Return which of some jobs are here, whatever the standing of their queues."""

    async def log_insert(self, logs: Sequence[tuple[int, Sequence[LogEntry]]]) -> None:
        """Write whole logs, by job, that has none yet."""

    def counts(self, queue: Queue) -> StateCounts:
        """Return how many jobs are in each state, including what this transaction has written."""

    async def is_empty(self, queue: Queue) -> bool:
        """Tell whether a queue has no jobs, exactly."""

    async def count_active(self, queue: Queue) -> int:
        """Return how many jobs of a queue are active, exactly, and until the end of the transaction nobody else adds one.

        Provided that everybody asks this before they claim, which they do for a queue with a concurrency limit.
        """

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        """Read how many jobs a rate limit had left, and when (steady ms); held like ``count_active``. None: not used yet."""

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        """Write how many jobs a rate limit has left. Forgotten with the limit or the queue."""

    # Groups of jobs that are paused or limited. Only those of queues whose settings say ``limits_groups`` count.

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        """Return what was set of a group, held for this transaction; None if nothing was."""

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        """Write what is set of groups, and have ``job_ready`` go by it. Forgotten with the queue."""

    async def groups_limited(self, queue: Queue) -> int:
        """Count the groups of which something is set.

        Until the end of the transaction nobody else adds one, provided that everybody asks this before they do.
        """

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Read what was set of the groups whose names come after one, in order."""

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        """Have ``job_ready`` look again at up to ``limit`` groups that time lets go on: their rate limit, or a hold.

        Returns the steady moment from which it lets the next one; None if there is none.
        """

    def queue_by_number(self, number: int) -> Queue:
        """Return the queue that jobs refer to by this number."""

    def namespace_number(self, name: str) -> int | None:
        """Return the number that jobs of a namespace carry; None if the namespace is unknown."""

    # Jobs, in batches.

    async def job_insert(self, jobs: Sequence[tuple[Job, Payload]]) -> None:
        """Write new jobs. Their ids are fresh."""

    async def job_load(self, ids: Iterable[int]) -> list[Job]:
        """Read jobs and hold them for this transaction. Unknown ids are left out; a damaged job is quarantined."""

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        """Read the jobs that carry producers' own ids, by namespace and id; held like ``job_load``, unknown ones left out."""

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        """Read the live (waiting, delayed, active or waiting-children) jobs that hold unique keys, by queue and key.

        Held like ``job_load``. Keys that nobody holds are left out.
        """

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[Job, Payload]]:
        """Read the next waiting jobs in order of priority, then position, held for this transaction.

        Of one group never more than its limit leaves free; a group at its limit is passed over. Fewer than ``limit`` when
        their payloads reach ``claim_batch_bytes_max``. ``bodies``: False if nobody will look at the payloads.
        """

    async def job_due(self, now_ms: int, limit: int) -> list[Job]:
        """Read delayed jobs that are due, earliest first."""

    async def job_lapsed(self, steady_ms: int, limit: int) -> list[Job]:
        """Read active jobs whose lease has ended."""

    async def job_expired(self, now_ms: int, limit: int) -> list[Job]:
        """Read waiting and delayed jobs whose time-to-live has ended."""

    async def job_save(self, jobs: Sequence[tuple[Job, int, int]]) -> None:
        """Write jobs back, each with the state and token it was read with. Raises RowChanged if one no longer has them."""

    async def job_lease(self, jobs: Sequence[tuple[Job, int, int]]) -> None:
        """The same as ``job_save`` for waiting jobs that were claimed at this moment, and of which nothing else was changed."""

    async def job_remove(self, jobs: Sequence[tuple[Job, int, int]]) -> None:
        """Delete jobs with all that belongs to them, guarded like ``job_save``."""

    async def job_rewrite(self, jobs: Sequence[Job]) -> None:
        """Write the part of jobs that otherwise never changes. The rest is as it was read or saved last; guarded by that."""

    async def payload_save(self, payloads: Sequence[tuple[Job, Payload]]) -> None:
        """Replace the payloads of jobs, each job once."""

    async def payload_load(self, ids: Iterable[int]) -> dict[int, Payload]:
        """Read the payloads of jobs, by id. Unknown ids are left out; a damaged job is quarantined."""

    async def result_save(self, results: Iterable[tuple[int, bytes]]) -> None:
        """Keep what workers answered, by job."""

    async def result_remove(self, ids: Iterable[int]) -> None:
        """Forget what workers answered."""

    async def result_load(self, job_id: int) -> bytes | None:
        """Read what a worker answered."""

    # Dependencies: who needs whom.

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        """Write new dependencies."""

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies on jobs that have ended, in the order of the ends, then of the waiting jobs.

        Of each end only those whose job has an id above its ``after`` and below its ``serial``.
        """

    async def need_of(self, job_id: int) -> list[Dependency]:
        """Read the open dependencies of a job, oldest needed job first."""

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        """Count the dependencies of some jobs, without reading what is in them. A job that has none is counted as zero."""

    async def need_find(self, namespace: int, name: str) -> list[int]:
        """Find jobs by the name users know them by that have failed and still keep a job of the namespace waiting.

        They may be gone; there may be several that had the same name one after the other.
        """

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies behind a needed and a waiting job, in the order of the needed ones."""

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        """Write where dependencies stand now."""

    # Ends of needed jobs that not everybody could be told of yet. While there are any, the horizon says so.

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        """Keep ends until they are removed. Their serials are fresh."""

    async def end_list(self, limit: int) -> list[JobEnd]:
        """Read up to ``limit`` ends, lowest serial first, and hold them for this transaction.

        Fewer when their results and errors reach ``flow_bytes_batch_max``.
        """

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        """Return which of some jobs have an end that is kept."""

    async def end_advance(self, end: JobEnd) -> None:
        """Write the ``after`` of an end that is kept."""

    async def end_remove(self, serials: Sequence[int]) -> None:
        """Forget ends."""

    # What other shards have asked to be told.

    async def relay_ask(self, jobs: Sequence[int], shard: int, *, alive: bool) -> None:
        """Note that a shard has asked just now to be told how jobs end. Asking again is fine.

        ``alive``: they live, so how they ended before is not told any more: who asks now must not take it for the end to come.
        """

    async def relay_asked(self, jobs: Sequence[int], shard: int) -> dict[int, int | None]:
        """Return for which of some jobs a shard has asked, and how often it was told of their ends; None: no end yet."""

    async def relay_end(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        """Have the ends of jobs told to all shards that have asked, instead of any earlier end of theirs.

        Each with the id of a job that does not need it any more, or 0.
        """

    async def relay_shards(self) -> set[int]:
        """Return the shards that are to be told something now."""

    async def relay_due(self, shard: int, limit: int) -> list[Relay]:
        """Read up to ``limit`` ends that a shard is to be told now. Fewer when they reach ``flow_bytes_batch_max``."""

    async def relay_again(self, relays: Sequence[tuple[Relay, int]]) -> None:
        """Note that ends were told, and are to be told again at a wall-clock time.

        One that was replaced, or is not to be told any more, is left alone.
        """

    async def relay_done(self, relays: Sequence[Relay], *, keep: bool) -> None:
        """Forget ends that were told; ``keep`` what was asked for, because there may be another one.

        One that was replaced, or asked for again meanwhile, is left alone.
        """

    async def relay_forget(self, jobs: Sequence[int]) -> None:
        """Forget who has asked about jobs that will not end any more. Ends that wait for being told still are."""

    # Names of a namespace whose queues live on several shards: see core.names.

    async def name_load(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reservation]:
        """Read reservations by namespace and name, and hold them for this transaction. Unknown ones are left out."""

    async def name_save(self, reservations: Sequence[tuple[Reservation, int]]) -> None:
        """Write reservations, each with the ticket it was read with, 0 for a new one. Raises RowChanged if it is not so."""

    async def name_page(self, after: tuple[str, str], limit: int) -> list[Reservation]:
        """Read up to ``limit`` reservations behind a namespace and name, in order."""

    async def name_remove(self, reservations: Sequence[Reservation]) -> None:
        """Forget reservations. One that was given anew or renewed meanwhile is left alone."""

    async def ticket_hold(self, tickets: Sequence[int]) -> set[int]:
        """Return which tickets were withdrawn. Until the end of the transaction none is."""

    async def ticket_withdraw(self, tickets: Sequence[int]) -> None:
        """Withdraw tickets. What others did by them is committed and seen, or will not happen."""

    async def ticket_trim(self, before_ms: int, limit: int) -> None:
        """Forget up to ``limit`` tickets that were withdrawn before a wall-clock time."""

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        """Add a line to a job's log and drop the oldest beyond ``keep``."""

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        """Empty a job's log, but for the last ``keep`` lines."""

    # Crons, in batches.

    async def cron_load(self, keys: Iterable[CronKey]) -> list[Cron]:
        """Read crons and hold them for this transaction. Unknown ones are left out."""

    async def cron_due(self, now_ms: int, limit: int) -> list[Cron]:
        """Read crons whose tick has come, earliest first."""

    async def cron_insert(self, crons: Sequence[tuple[Cron, bytes]]) -> None:
        """Write new crons with what their jobs carry, and number them. Their namespaces are known, their names free.

        Raises TooMany beyond ``crons_max``.
        """

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        """Return how many crons there are, and how many of them are of a namespace."""

    async def cron_save(self, crons: Sequence[tuple[Cron, int]]) -> None:
        """Write crons back, each with the tick it was read with. Raises RowChanged if one no longer has it."""

    async def cron_remove(self, crons: Sequence[tuple[Cron, int]]) -> None:
        """Delete crons with all that belongs to them, guarded like ``cron_save``."""

    async def cron_data_save(self, cron: Cron, data: bytes) -> None:
        """Replace what a cron's jobs carry."""

    async def cron_data_load(self, crons: Sequence[Cron]) -> dict[int, bytes]:
        """Read what the jobs of some crons carry, by the number of the cron.

        Fewer when they reach ``claim_batch_bytes_max``; the horizon then says that there is more to do at once.
        """

    # Webhooks.

    async def webhook_save(self, webhooks: Sequence[Webhook]) -> None:
        """Write webhooks, new ones and changed ones."""

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        """Forget webhooks. Unknown ids are left alone."""

    # The journal.

    def journal(self, events: Sequence[Event]) -> None:
        """Add events to the journal of this commit, in order."""

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        """Drop up to ``limit`` of the oldest blocks that are too old or too much; return how many went."""

    # The ledger: see core/bulk_records.py.

    async def entry_load(self, kind: int, namespace: str, name: str, number: int | None = None) -> list[BulkRecord]:
        """Read entries, all numbers or one, in order of the numbers; held like ``job_load``."""

    async def entry_load_all(self, kind: int, namespace: str, places: Sequence[tuple[str, int | None]]) -> list[BulkRecord]:
        """``entry_load`` for many: names, each with all its numbers (None) or one. Those of a name come in order."""

    async def entry_save(self, entries: Sequence[BulkRecord]) -> None:
        """Write entries: new ones, or in place of those that were read with that version. Raises RowChanged."""

    async def entry_remove(self, entries: Sequence[BulkRecord]) -> None:
        """Delete entries that were read with that version. Raises RowChanged."""

    async def chunk_add(self, chunks: Sequence[Chunk]) -> None:
        """Write new chunks."""

    async def chunk_take(self, owner: int, numbers: Sequence[int]) -> set[int]:
        """Delete chunks of an owner; return the numbers of those that were there."""

    async def chunk_drop(self, owner: int, limit: int) -> int:
        """Delete up to ``limit`` chunks of an owner; return how many."""


class FastTransaction(Transaction, Protocol):
    """What the fast path needs besides, of a store that has one: see ``engine.prefetch``."""

    async def hot_lock(self) -> bool:
        """Keep other transactions from announcing ready lists until this one ends; tell whether the shard has any list.

        Raises RowChanged if this generation was given up since the transaction began.
        """

    async def hot_add(self, queue: Queue) -> None:
        """Announce the ready list of a queue, after ``hot_lock``.

        What is leased for the list must be read by a later transaction: every push that does not know of the list is
        committed by then.
        """

    async def hot_fill(self, queue: int, epoch: int) -> int:
        """Note that jobs are leased for a ready list, which has the given epoch; return its new epoch.

        Raises RowChanged if the list was removed since the transaction began, or its generation was given up.
        """

    def claims_unlisted(self, queue: int) -> None:
        """Jobs of a queue are claimed that has no ready list: the commit raises RowChanged if it has one by then."""

    async def hot_remove(self, queue: int, epoch: int) -> None:
        """Note that a ready list is gone, unless something was leased for it since the given epoch."""

    async def abandon(self, generation: int) -> bool:
        """Begin a new generation, without any lists: those of the given one are lost. False if it is over already."""

    async def lost_remove(self) -> list[int]:
        """Note that everything that was on lost lists is back, where it is; return the numbers of these queues."""

    async def generation_noted(self, generation: int) -> None:
        """Note that the store knows who has what this server has handed out in earlier generations."""

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[Job]:
        """Read active jobs that nobody has started, of lists that were lost; held like job_load.

        None before every server that lives has noted what it has handed out, or the generation was given up ``grace_ms`` ago.
        """

    async def wal_stored(self, wal: int) -> int:
        """Return up to which number a server's log is stored, and hold that; 0 for an unknown one."""

    async def wal_advance(self, wal: int, before: int, number: int) -> None:
        """Note up to which number a server's log is stored. Raises RowChanged if somebody else has stored of it meanwhile."""


class Store(Protocol):
    """A place where jobs are safe."""

    capabilities: Capabilities
    shard: int  #: its number among the shards, part of every id
    node: int  #: the number of this server on it, part of every id too; known once it is open, and may change by keeping it
    servers: int  #: how many use it, this one included, as it was when ``keep_node`` was last called

    @property
    def clock(self) -> Clock:
        """What everything in it is timed by."""

    @property
    def source(self) -> str:
        """Where another process finds it, to read from it in bulk: ``sqlite:`` and a file, or a database. May hold a secret."""

    when_moved: list[Callable[[], None]]  #: called when a queue, or the layout, is not what it was: see ``Standing``
    shares: Shares  #: how many queues one namespace may have

    @property
    def layout(self) -> Layout | None:
        """Which of how many shards it is, as far as is known here; None if it is new, or was never reached."""

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues that are known here and not served here, by number."""

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is known here and not served here."""

    async def layout_begin(self, layout: Layout) -> None:
        """Say which of how many shards a new store is, now or once it can be reached. Raises StoreIncompatible."""

    async def layout_look(self) -> None:
        """Look whether another server has said by now which of how many shards a new store is."""

    async def stores_known(self) -> list[int]:
        """Return how many stores each server knows that uses this one and lives."""

    async def job_export(self, ids: Sequence[int]) -> list[Parcel]:
        """Read jobs with all that belongs to them, in the order of the ids, on its own connection.

        Unknown and damaged ones are left out. What comes after ``claim_batch_bytes_max`` is left out, too.
        """

    async def job_places(self, ids: Sequence[int]) -> dict[int, Whereabouts]:
        """Find out which of some jobs are here, in which queues, and how it stands with those."""

    @property
    def horizon(self) -> Horizon:
        """When something falls due next."""

    @property
    def id_floor(self) -> int:
        """The highest id this store has ever seen: new ones must be above it."""

    def transaction(self, id_mark: Callable[[], int], *, alone: bool = True) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction. ``id_mark`` tells at its end the highest id handed out so far, kept for the next start.

        ``alone``: no other transaction of this server is under way meanwhile. Without it, changes of queues and webhooks may be
        refused with RowChanged.
        """

    def follow(self, listener: Follower) -> None:
        """Call back with what other servers commit. Never called by a store that is not shared."""

    async def keep_node(self) -> None:
        """Show the other servers that this one lives, and that its ``node`` is taken."""

    async def lead(self, name: str, for_ms: int) -> int | None:
        """Take or renew the lead in something that one server at a time should do; None if another one has it.

        Returns the term: it grows whenever the lead changes hands.
        """

    async def quota_take(self, takes: Sequence[Take]) -> list[int]:
        """Count jobs against quotas, in order: each take as a whole or, if its quota has no room, not at all.

        Returns for each 0, or how many ms until there is room. What is counted is common to all servers that use the store. It
        is not part of any transaction, and need not survive a crash of the store. Raises StorageFailed if nobody can count.
        """

    async def key_add(self, key: ApiKey, most: int) -> None:
        """Keep a new API key, durably. Of ``most`` that there may be, the ones that are over make room. Raises TooMany."""

    async def key_revoke(self, key_id: str) -> bool:
        """Have an API key be no longer good, durably; tell whether there is such a key. Revoking twice is fine."""

    async def key_list(self) -> tuple[int, list[ApiKey]]:
        """Read all API keys, those that are over too, oldest first, and the number of changes that made them so."""

    async def key_revision(self) -> int:
        """Read how many changes of API keys there were, by all servers."""

    async def sync(self) -> None:
        """Return once everything committed before the call survives a power cut.

        Raises OutcomeUnknown if the disk would not have it, and takes no further writes until healed.
        """

    async def heal(self) -> bool:
        """Try to get out of trouble; True if the store takes writes again."""

    async def close(self) -> None:
        """Make everything durable and let go of the store."""

    def status(self) -> StoreStatus:
        """Tell how the store is doing, from memory."""

    def down(self) -> list[str]:
        """Tell what cannot be reached right now, so that lists and sums may lack something."""

    @property
    def journals(self) -> Sequence[Store]:
        """The parts that have a journal each."""

    def size_bytes(self) -> int:
        """Return what the store takes up on disk."""

    def check_writable(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if the store cannot take a write; ``grows`` = it would need more room."""

    # Reads outside of transactions: they see what is committed.

    def queue_find(self, key: QueueKey) -> Queue | None:
        """Return a queue that exists."""

    def queues(self) -> list[Queue]:
        """Return all queues."""

    def queue_by_number(self, number: int) -> Queue:
        """Return the queue that jobs refer to by this number."""

    def queue_of(self, job: Job) -> Queue:
        """Return the queue of a job."""

    def counts(self, queue: Queue) -> StateCounts:
        """Return how many jobs are in each state."""

    def totals(self) -> StateCounts:
        """Return how many jobs are in each state, over all queues."""

    async def job_get(self, namespace: str, ref: int | str) -> tuple[Job, Payload] | None:
        """Read one job by its id, or by its producer's own id. Raises JobQuarantined for a damaged one."""

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        """Find the ids of jobs by their producers' own ids. Unknown ones are left out."""

    async def job_select(self, selection: Selection) -> list[Place]:
        """Find a bounded choice of jobs, on its own connection. They may have moved on when somebody loads them."""

    async def job_page(self, page: Page) -> list[Delivery]:
        """Read a page of a listing, on its own connection."""

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        """Count waiting and delayed jobs per priority."""

    async def prioritized_count(self, queue: Queue) -> int:
        """Count the waiting jobs with a priority above 0. The cost grows with their number, not with the queue's length."""

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        """Count the waiting or active jobs of a group, or of all groups (None). The cost grows with their number."""

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        """Count the completed or dead jobs that are kept, by the minute of their end. The cost grows with their number."""

    async def result_get(self, job_id: int) -> bytes | None:
        """Read what a worker answered."""

    async def result_list(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Read what workers answered to some jobs, on its own connection; those without an answer are left out.

        Raises InvalidInput if they are larger than ``list_bytes_max``.
        """

    async def need_list(
        self, job_id: int, states: Sequence[Need] | None = None, limit: int = limits.list_jobs_max, offset: int = 0
    ) -> list[Dependency]:
        """Read dependencies of a job, in some states or all, oldest needed job first, on its own connection.

        Raises InvalidInput if they are larger than ``list_bytes_max``.
        """

    async def log_get(self, job_id: int) -> list[LogEntry]:
        """Read a job's log, oldest first."""

    async def job_fetch(self, ids: Sequence[int]) -> list[Delivery]:
        """Read some jobs with their payloads, on its own connection. Unknown and damaged ones are left out.

        What comes after ``claim_batch_bytes_max`` is left out, too: whoever asked asks again for the rest.
        """

    async def head_list(self, ids: Sequence[int]) -> list[Job]:
        """Read some jobs without their payloads, in this order. Unknown and damaged ones are left out."""

    async def entry_list(self, search: Search) -> list[BulkRecord]:
        """Read entries of the ledger, on its own connection."""

    async def entry_totals(self, kind: int) -> tuple[int, int]:
        """Return how many entries of a kind there are, and their weights together."""

    async def chunk_read(self, owner: int, after: int, limit: int) -> list[Chunk]:
        """Read the next chunks of an owner behind a number, in order, on its own connection.

        What comes after ``claim_batch_bytes_max`` is left out.
        """

    async def cron_get(self, key: CronKey) -> Cron | None:
        """Read one cron."""

    async def cron_list(self, namespace: str) -> list[Cron]:
        """Read all crons of a namespace, by name."""

    def cron_count(self) -> int:
        """Return how many crons there are, over all namespaces."""

    def webhook_list(self) -> list[Webhook]:
        """Return all webhooks of all namespaces, oldest first, from memory."""

    def webhook_find(self, webhook_id: int) -> Webhook | None:
        """Return a webhook, from memory. Inside of a transaction, as that has left it so far."""

    @property
    def history(self) -> History:
        """Which history the journal tells: numbers of events mean the same only within one."""

    @property
    def journal_next(self) -> int:
        """The number the next event of the journal will get."""

    async def journal_end(self) -> int:
        """Look up the number the next event will get, also after what other servers have just written."""

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        """Read up to ``limit`` blocks of the journal, from the one that holds the given number on."""

    async def journal_first(self) -> int | None:
        """Look up the number of the oldest event that is kept; None if none is."""

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        """Read the journal as one namespace sees it, from the block that holds the given number on.

        A page ends after ``bytes_max`` bytes of the namespace's events, or after ``limits.replay_read_bytes`` of all that was
        read, or ``limits.replay_blocks`` blocks. What other namespaces did is not decoded.
        """
