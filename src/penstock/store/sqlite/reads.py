"""Long reads: listings, counts over many rows, the journal. They run in threads, on separate read-only connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from penstock.core import ids, limits
from penstock.core.clock import rest_in_thread
from penstock.core.dependencies import Need
from penstock.core.errors import StorageFailed
from penstock.core.job import Delivery, JobRecord, Payload
from penstock.core.lifecycle import State
from penstock.store.bounded_list import ORDER, BoundedList
from penstock.store.contract import FinishedMinutes, JournalBlock, LogEntry, MovedJob, Page, Place, Selection
from penstock.store.journal_pages import PageReader
from penstock.store.read_turns import ReadTurns
from penstock.store.sqlite import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import apsw

    from penstock.core.clock import Clock
    from penstock.core.dependencies import Dependency
    from penstock.core.pool_shares import Shares
    from penstock.store.contract import JournalPage

THREADS: Final = 2

T = TypeVar("T")

_FROM_STATE = {
    State.WAITING: "select id, priority, position from jobs indexed by jobs_ready where queue = :queue and state = 0",
    State.DELAYED: "select id, priority, position from jobs indexed by jobs_delayed where queue = :queue and state = 1",
    State.ACTIVE: "select id, priority, position from jobs indexed by jobs_leased where queue = :queue and state = 2",
    State.COMPLETED: "select id, priority, position from jobs where queue = :queue and state >= 3 and state = 3",
    State.DEAD: "select id, priority, position from jobs where queue = :queue and state >= 3 and state = 4",
    State.WAITING_CHILDREN: "select id, priority, position from jobs where queue = :queue and state >= 3 and state = 5",
}
# Queried alone, the waiting jobs that are not blocked come out of the index in order; no sort is needed.
_IN_LINE = """
select id, priority, position from (
  select id, priority, position from jobs where queue = :queue and state = 0 and blocked = 0 {0}
  union all
  select id, priority, position from jobs where queue = :queue and state = 0 and blocked = 1 {0}
  order by priority desc, position)
"""
#: By ``Page.prioritized``: the condition for waiting jobs.
_OF_WAITING = {None: "", True: "and priority > 0", False: "and priority <= 0"}
# Each uses the index of its state. A job that was claimed since has a token above the bound, and is skipped.
_BY_ID = (
    "select 0, id from jobs indexed by {} where queue = :queue and state = {} and id > :id and id <= :up_to and id < :young"
    " order by id limit :limit"
)
_BY_FINISH = (
    "select finished_at, id from jobs where state >= 3 and queue = :queue and state = {} and (finished_at, id) > (:at, :id)"
    " and finished_at < :before and id <= :up_to and token <= :up_to order by finished_at, id limit :limit"
)
_SELECT = {
    State.WAITING: _BY_ID.format("jobs_ready", 0),
    State.DELAYED: (
        "select run_at, id from jobs where queue = :queue and state = 1 and (run_at, id) > (:at, :id) and id <= :up_to"
        " and id < :young and token <= :up_to order by run_at, id limit :limit"
    ),
    State.ACTIVE: _BY_ID.format("jobs_leased", 2),
    State.COMPLETED: _BY_FINISH.format(3),
    State.DEAD: _BY_FINISH.format(4),
    State.WAITING_CHILDREN: _BY_ID.format("jobs_finished", "5 and state >= 3"),
}
_PRIORITIES = """
select priority, sum(number) from (
  select priority, count(*) as number from jobs where queue = ?1 and state = 0 group by priority
  union all
  select priority, count(*) as number from jobs where queue = ?1 and state = 1 group by priority)
group by priority order by priority
"""
_PRIORITIZED = """
select (select count(*) from jobs where queue = ?1 and state = 0 and blocked = 0 and priority > 0)
     + (select count(*) from jobs where queue = ?1 and state = 0 and blocked = 1 and priority > 0)
"""
_JOURNAL = (
    "select seq, at, body from journal where seq >= coalesce((select max(seq) from journal where seq <= ?1), 0)"
    " order by seq limit ?2"
)
_JOURNAL_PAGE = (
    "select seq, count, at, body from journal where seq >= coalesce((select max(seq) from journal where seq <= ?1), 0)"
    " order by seq"
)

_BODIES = (
    f"select {rows.HEAD}, {rows.BODY}, coalesce((select length(data) from results r where r.id = j.id), 0)"  # noqa: S608
    " from json_each(?) w cross join jobs j on j.id = w.value left join payloads p on p.id = j.id"
)
_HEADS = f"select {rows.HEAD} from json_each(?) w cross join jobs j on j.id = w.value order by w.key"  # noqa: S608
_RESULTS_OF = "select r.id, r.data from json_each(?) w cross join results r on r.id = w.value"
_LOGS_OF = (
    "select l.job, l.at, l.level, l.message from json_each(?) w cross join logs l on l.job = w.value order by l.job, l.line"
)
_NEEDS_OF = (
    "select d.job, d.needs, d.state, d.name, d.result, d.error"
    " from json_each(?) w cross join dependencies d on d.job = w.value order by d.job, d.needs"
)


class Readers:
    """A few threads, each with its own connection, opened at its first use.

    ``shares``: see ``ReadTurns``. ``inline``: read without a thread, for tests.
    """

    def __init__(
        self, connect: Callable[[], apsw.Connection], clock: Clock, shares: Callable[[], Shares], *, inline: bool
    ) -> None:
        self._connect = connect
        self._inline = inline
        self._turns = ReadTurns(THREADS, clock, shares)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-read")
        self._local = threading.local()
        self._open: list[apsw.Connection] = []
        self._closed = False

    async def run(self, namespace: str, read: Callable[[apsw.Connection], T], *, bounded: bool = False) -> T:
        """Run a read of a namespace in one of the threads. ``bounded``: see ``ReadTurns.take``, which may raise TooMany."""
        self._check_open()
        if self._inline:
            return self._call(read)
        await self._turns.take(namespace, bounded=bounded)
        try:
            self._check_open()
            reading = asyncio.get_running_loop().run_in_executor(self._threads, self._call, read)
        except BaseException:
            self._turns.give_back(namespace)
            raise
        # The thread goes on if the caller is cancelled, so the turn ends with the read.
        reading.add_done_callback(lambda _: self._turns.give_back(namespace))
        return await asyncio.shield(reading)

    def _check_open(self) -> None:
        if self._closed:  # the store is being opened again, or cannot be opened
            raise StorageFailed

    @property
    def waiting(self) -> int:
        """Return how many reads wait for a thread."""
        return self._turns.waiting

    def close(self) -> None:
        """Wait for reads in progress and close all connections. Reads that wait for a thread fail with StorageFailed."""
        self._closed = True
        self._threads.shutdown()
        for connection in self._open:
            connection.close()

    def _call(self, read: Callable[[apsw.Connection], T]) -> T:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = self._connect()
            self._open.append(db)
        return read(db)


def page(db: apsw.Connection, wanted: Page) -> list[Delivery]:
    """Read a page of jobs, highest priority first, then by position. Damaged jobs are left out."""
    some = {State.WAITING: _OF_WAITING[wanted.prioritized]}
    if wanted.states == (State.WAITING,) and not wanted.descending:
        source = _IN_LINE.format(some[State.WAITING])
    else:
        source = " union all ".join(f"{_FROM_STATE[state]} {some.get(state, '')}" for state in wanted.states)
    order = ORDER[wanted.descending]
    found: BoundedList[Delivery] = BoundedList(f"These {wanted.limit} jobs are", "Request fewer")
    for row in db.execute(
        f"with page as materialized (select id, priority, position from ({source})"  # noqa: S608
        f" order by {order.format('')} limit :limit offset :offset)"
        f" select {rows.HEAD}, {rows.BODY} from page join jobs j on j.id = page.id left join payloads p on p.id = j.id"
        f" order by {order.format('page.')}",
        {"queue": wanted.queue.number, "limit": wanted.limit, "offset": wanted.offset},
    ):
        try:
            job, payload = rows.read_job_body(row)
        except rows.DamagedRow:
            continue
        found.add(Delivery(job, payload), job.size)
        if wanted.shared and not len(found.items) % limits.share_read_rows:
            rest_in_thread()
    return found.items


def select(db: apsw.Connection, wanted: Selection) -> list[Place]:
    """Find jobs, in order."""
    before = ids.ID_MAX if wanted.before_ms is None else wanted.before_ms
    bounds = {
        "queue": wanted.queue.number,
        "at": wanted.after.at,
        "id": wanted.after.id,
        "up_to": wanted.up_to_id,
        "before": before,
        "young": ids.ID_MAX if wanted.before_ms is None else ids.first_of(before),  # ids grow with time
        "limit": wanted.limit,
    }
    return [Place(*row) for row in db.execute(_SELECT[wanted.state], bounds)]


def export(db: apsw.Connection, wanted: Sequence[int]) -> list[MovedJob]:
    """Read jobs with all their data, in the order of the ids. Damaged ones are left out."""
    try:
        bodies = _bodies(db, wanted)
    except UnicodeDecodeError:  # a flipped bit in a text: read one by one, so that only that job is left out
        bodies = [body for job_id in wanted for body in _bodies_or_none(db, job_id)]
    chosen = (msgspec.json.encode([job.id for job, _ in bodies]).decode(),)
    results = dict(db.execute(_RESULTS_OF, chosen))
    lines: dict[int, list[LogEntry]] = {}
    for job_id, at, level, message in db.execute(_LOGS_OF, chosen):
        lines.setdefault(job_id, []).append(LogEntry(at, level, message))
    needed: dict[int, list[Dependency]] = {}
    for row in db.execute(_NEEDS_OF, chosen):
        each = rows.read_dependency(row)
        needed.setdefault(each.job, []).append(each)
    return [
        MovedJob(job, payload, results.get(job.id), lines.get(job.id, ()), needed.get(job.id, ())) for job, payload in bodies
    ]


def fetch(db: apsw.Connection, wanted: Sequence[int]) -> list[Delivery]:
    """Read jobs with their payloads, up to a number of bytes. Damaged ones are left out."""
    try:
        bodies = _bodies(db, wanted)
    except UnicodeDecodeError:  # a flipped bit in a text: read one by one, so that only that job is left out
        bodies = [body for job_id in wanted for body in _bodies_or_none(db, job_id)]
    return [Delivery(*body) for body in bodies]


def _bodies(db: apsw.Connection, wanted: Sequence[int]) -> list[tuple[JobRecord, Payload]]:
    """Read jobs up to a number of bytes, with their results."""
    found: list[tuple[JobRecord, Payload]] = []
    size = 0
    for *row, more in db.execute(_BODIES, (msgspec.json.encode(wanted).decode(),)):
        with contextlib.suppress(rows.DamagedRow):
            job, payload = rows.read_job_body(tuple(row))
            found.append((job, payload))
            size += job.size + more
        if size >= limits.claim_batch_bytes_max:
            break
    return found


def _bodies_or_none(db: apsw.Connection, job_id: int) -> list[tuple[JobRecord, Payload]]:
    try:
        return _bodies(db, [job_id])
    except UnicodeDecodeError:
        return []


def priority_counts(db: apsw.Connection, queue: int) -> dict[int, int]:
    """Count waiting and delayed jobs per priority, lowest first."""
    counts: dict[int, int] = {}
    for priority, count in db.execute(_PRIORITIES, (queue,)):
        counts[priority] = count
        if not len(counts) % limits.count_rest_rows:
            rest_in_thread()
    return counts


def prioritized_count(db: apsw.Connection, queue: int) -> int:
    """Count the waiting jobs with a priority above 0: two ranges of the index."""
    ((count,),) = db.execute(_PRIORITIZED, (queue,))
    return int(count)


def group_count(db: apsw.Connection, queue: int, state: State, group: str | None) -> int:
    """Count the waiting or active jobs of a group, or of all groups: a range of an index."""
    which = "group_id is not null" if group is None else "group_id = ?"
    # The state is part of the text, so that SQLite uses the index of that state.
    statement = f"select count(*) from jobs where queue = ? and state = {state.value} and {which}"  # noqa: S608
    ((count,),) = db.execute(statement, (queue,) if group is None else (queue, group))
    return int(count)


def finished_minutes(db: apsw.Connection, queue: int, state: State) -> FinishedMinutes:
    """Count completed or dead jobs by the minute of their end: a range of an index."""
    statement = (
        f"select finished_at / {limits.MINUTE_MS} as minute, count(*), max(finished_at) from jobs"  # noqa: S608
        f" where queue = ? and state = {state.value} group by minute order by minute desc"
    )
    return FinishedMinutes.of(db.execute(statement, (queue,)))


def heads(db: apsw.Connection, wanted: Sequence[int]) -> list[JobRecord]:
    """Read jobs without their payloads, in the order of the ids. Damaged ones are left out."""
    found = []
    for row in db.execute(_HEADS, (msgspec.json.encode(wanted).decode(),)):
        with contextlib.suppress(rows.DamagedRow):
            found.append(rows.read_job(row))
    return found


def results(db: apsw.Connection, wanted: Sequence[int]) -> dict[int, bytes]:
    """Read the results of some jobs."""
    found: BoundedList[tuple[int, bytes]] = BoundedList("What workers answered to these jobs is", "Request fewer")
    for job_id, data in db.execute(_RESULTS_OF, (msgspec.json.encode(wanted).decode(),)):
        found.add((job_id, bytes(data)), len(data))
    return dict(found.items)


def needs(db: apsw.Connection, job_id: int, states: Sequence[Need] | None, limit: int, offset: int) -> list[Dependency]:
    """Read dependencies of a job, oldest needed job first."""
    wanted = ", ".join(str(state.value) for state in (Need if states is None else states))
    found: BoundedList[Dependency] = BoundedList("What these children answered is", "Request them with limit and offset")
    for row in db.execute(
        "select job, needs, state, name, result, error from dependencies"  # noqa: S608 - numbers of our own
        f" where job = ? and state in ({wanted}) order by needs limit ? offset ?",
        (job_id, limit, offset),
    ):
        each = rows.read_dependency(row)
        found.add(each, len(each.result or b"") + len(each.error or ""))
    return found.items


def logs(db: apsw.Connection, job_id: int) -> list[LogEntry]:
    """Read the log of a job, oldest first."""
    lines = db.execute("select at, level, message from logs where job = ? order by line", (job_id,))
    return [LogEntry(at, level, message) for at, level, message in lines]


def journal(db: apsw.Connection, seq: int, limit: int) -> list[JournalBlock]:
    """Read blocks of the journal, from the one that contains the given number on."""
    blocks = []
    for first, at, body in db.execute(_JOURNAL, (seq, limit)):
        queues, events = _decode_body(body)
        blocks.append(JournalBlock(first, at, events, queues))
    return blocks


def journal_first(db: apsw.Connection) -> int | None:
    """Read the number of the oldest stored event."""
    return next((seq for (seq,) in db.execute("select seq from journal order by seq limit 1")), None)


def journal_page(db: apsw.Connection, seq: int, namespace: str, bytes_max: int) -> JournalPage:
    """Read a page of the journal for one namespace. Only one block is in memory at a time."""
    page = PageReader(seq, namespace, bytes_max)
    for first, count, at, body in db.execute(_JOURNAL_PAGE, (seq,)):
        page.add(first, count, at, body)
        if page.is_full:
            break
    return page.page()


_decode_body = msgspec.msgpack.Decoder(tuple[dict[int, tuple[str, str]], list[list[object]]]).decode
