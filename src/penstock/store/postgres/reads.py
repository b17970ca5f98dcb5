"""Read-only queries: single jobs, listings, counts over many rows, the journal. They see committed data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core import ids, limits
from penstock.core.clock import yield_to_loop
from penstock.core.dependencies import Need
from penstock.core.job import Delivery, JobRecord, Payload
from penstock.core.lifecycle import State
from penstock.core.queue import MoveStep, QueueKey
from penstock.store.bounded_list import ORDER, BoundedList
from penstock.store.contract import FinishedMinutes, JobPlace, JournalBlock, LogEntry, MovedJob, Page, Place, Selection
from penstock.store.journal_pages import PageReader
from penstock.store.postgres import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from penstock.core.dependencies import Dependency
    from penstock.store.contract import JournalPage


_BODY = f"select {rows.HEAD}, p.options, p.data from jobs j join payloads p on p.id = j.id"  # noqa: S608
_NAMESPACE = "(select number from namespaces where name = $2)"
_BY_ID = f"{_BODY} where j.id = $1 and j.namespace = {_NAMESPACE}"
_BY_NAME = f"{_BODY} where j.id = (select job from names where custom_id = $1 and namespace = {_NAMESPACE})"  # noqa: S608
_IDS_BY_NAME = f"select custom_id, job from names where custom_id = any ($1::text[]) and namespace = {_NAMESPACE}"  # noqa: S608
_IN_LINE = """
select id, priority, position from (
  (select id, priority, position from jobs where queue = $1 and state = 0 and blocked = 0 {0}
   order by priority desc, position limit $2::bigint + $3::bigint)
  union all
  (select id, priority, position from jobs where queue = $1 and state = 0 and blocked = 1 {0}
   order by priority desc, position limit $2::bigint + $3::bigint)) as line
"""
#: By ``Page.prioritized``: the condition for waiting jobs.
_OF_WAITING = {None: "", True: "and priority > 0", False: "and priority <= 0"}
# A job that was claimed since has a token above the bound, and is skipped.
_SELECT_BY_ID = (
    "select 0::bigint, id from jobs where queue = $1 and state = {} and id > $3 and id <= $4 and id < $6"
    " and $2::bigint is not null and $5::bigint is not null order by id limit $7"
)
_SELECT_BY_FINISH = (
    "select finished_at, id from jobs where queue = $1 and state = {} and (finished_at, id) > ($2, $3)"
    " and finished_at < $5 and id <= $4 and token <= $4 and $6::bigint is not null order by finished_at, id limit $7"
)
_SELECT = {
    State.WAITING: _SELECT_BY_ID.format(0),
    State.DELAYED: (
        "select run_at, id from jobs where queue = $1 and state = 1 and (run_at, id) > ($2, $3) and id <= $4"
        " and id < $6 and token <= $4 and $5::bigint is not null order by run_at, id limit $7"
    ),
    State.ACTIVE: _SELECT_BY_ID.format(2),
    State.COMPLETED: _SELECT_BY_FINISH.format(3),
    State.DEAD: _SELECT_BY_FINISH.format(4),
    State.WAITING_CHILDREN: _SELECT_BY_ID.format(5),
}
_JOURNAL = (
    "select seq, at, body from journal where count > 0 and seq >="
    " coalesce((select max(seq) from journal where count > 0 and seq <= $1), 0) order by seq limit $2"
)
JOURNAL_FIRST: Final = "select seq from journal where count > 0 order by seq limit 1"
# The first block whose size, with the earlier ones, reaches the bound is the last one. A page is full then: see PageReader.
_JOURNAL_PAGE = """
select seq, count, at, body from (
  select seq, count, at, body, sum(octet_length(body)) over (order by seq) - octet_length(body) as ahead from (
    select seq, count, at, body from journal where count > 0 and seq >=
      coalesce((select max(seq) from journal where count > 0 and seq <= $1), 0) order by seq limit $2) as listed) as sized
where ahead < $3 order by seq
"""
_NEEDS = (
    "select job, needs, state, name, result, error from dependencies where job = $1 and state = any ($2::smallint[])"
    " order by needs limit $3 offset $4"
)
_SIZES = "select id, size from jobs where id = any ($1::bigint[])"
_WEIGHTS = """
select j.id, j.size + coalesce((select length(data) from results r where r.id = j.id), 0)
       + coalesce((select sum(length(result)) from dependencies d where d.job = j.id), 0)::bigint
from jobs j where j.id = any ($1::bigint[])
"""
_BODIES = f"{_BODY} where j.id = any ($1::bigint[])"
_LOGS_OF = "select job, at, level, message from logs where job = any ($1::bigint[]) order by job, line"
_NEEDS_OF_ALL = (
    "select job, needs, state, name, result, error from dependencies where job = any ($1::bigint[]) order by job, needs"
)
_PLACES = (
    "select j.id, q.standing, n.name, q.name from jobs j join queues q on q.number = j.queue"
    " join namespaces n on n.number = q.namespace where j.id = any ($1::bigint[])"
)
#: A query for each state: see ``page_statement``.
PRIORITY_COUNTS: Final = """
select priority, count(*) from (
  select priority from jobs where queue = $1 and state = 0 union all select priority from jobs where queue = $1 and state = 1
) as ahead group by priority order by priority
"""
#: The one character that PostgreSQL cannot store in a text.
ZERO: Final = "\0"
decode_body = msgspec.msgpack.Decoder(tuple[dict[int, tuple[str, str]], list[list[object]]]).decode


async def job(db: Connection, namespace: str, ref: int | str) -> tuple[JobRecord, Payload] | None:
    """Read one job with its payload."""
    if isinstance(ref, str) and ZERO in ref:  # such a name cannot be stored
        return None
    row = await db.fetchrow(_BY_ID if isinstance(ref, int) else _BY_NAME, ref, namespace)
    return None if row is None else rows.read_job_body(row)


async def named(db: Connection, namespace: str, names: Sequence[str]) -> dict[str, int]:
    """Find the ids of jobs by their custom ids."""
    possible = [name for name in names if ZERO not in name]
    return dict(await db.fetch(_IDS_BY_NAME, possible, namespace)) if possible else {}


async def fetch(db: Connection, wanted: Sequence[int]) -> list[Delivery]:
    """Read jobs with their payloads, up to a number of bytes."""
    sizes: dict[int, int] = dict(await db.fetch(_SIZES, wanted))
    return [Delivery(*rows.read_job_body(row)) for row in await db.fetch(_BODIES, _first(wanted, sizes))]


def _first(wanted: Sequence[int], sizes: dict[int, int]) -> list[int]:
    """Return the first of some jobs that exist, up to a number of bytes."""
    chosen: list[int] = []
    size = 0
    for job_id in wanted:
        if job_id in sizes:
            chosen.append(job_id)
            size += sizes[job_id]
            if size >= limits.claim_batch_bytes_max:
                break
    return chosen


async def export(db: Connection, wanted: Sequence[int]) -> list[MovedJob]:
    """Read jobs with all their data, in the order of the ids, up to a number of bytes."""
    chosen = _first(wanted, dict(await db.fetch(_WEIGHTS, wanted)))
    bodies = {row[0]: rows.read_job_body(row) for row in await db.fetch(_BODIES, chosen)}
    results = dict(await db.fetch("select id, data from results where id = any ($1::bigint[])", chosen))
    lines: dict[int, list[LogEntry]] = {}
    for job_id, at, level, message in await db.fetch(_LOGS_OF, chosen):
        lines.setdefault(job_id, []).append(LogEntry(at, level, message.decode()))
    needed: dict[int, list[Dependency]] = {}
    for row in await db.fetch(_NEEDS_OF_ALL, chosen):
        each = rows.read_dependency(row)
        needed.setdefault(each.job, []).append(each)
    return [
        MovedJob(*bodies[job_id], results.get(job_id), lines.get(job_id, ()), needed.get(job_id, ()))
        for job_id in chosen
        if job_id in bodies
    ]


async def places(db: Connection, wanted: Sequence[int]) -> dict[int, JobPlace]:
    """Find which jobs are here, in which queues, and the state of the moves of these queues."""
    found = await db.fetch(_PLACES, wanted)
    return {job_id: JobPlace(MoveStep(step), QueueKey(*key)) for job_id, step, *key in found}


async def result(db: Connection, job_id: int) -> bytes | None:
    """Read the result of a job."""
    data: bytes | None = await db.fetchval("select data from results where id = $1", job_id)
    return data


async def needs(db: Connection, job_id: int, states: Sequence[Need] | None, limit: int, offset: int) -> list[Dependency]:
    """Read dependencies of a job, oldest needed job first."""
    wanted = [state.value for state in (Need if states is None else states)]
    found: BoundedList[Dependency] = BoundedList("What these children answered is", "Request them with limit and offset")
    async with db.transaction(readonly=True):
        async for row in db.cursor(_NEEDS, job_id, wanted, limit, offset, prefetch=50):
            each = rows.read_dependency(row)
            found.add(each, len(each.result or b"") + len(each.error or ""))
    return found.items


async def logs(db: Connection, job_id: int) -> list[LogEntry]:
    """Read the log of a job, oldest first."""
    found = await db.fetch("select at, level, message from logs where job = $1 order by line", job_id)
    return [LogEntry(at, level, message.decode()) for at, level, message in found]


async def select(db: Connection, wanted: Selection) -> list[Place]:
    """Find jobs, in order."""
    before = ids.ID_MAX if wanted.before_ms is None else wanted.before_ms
    young = ids.ID_MAX if wanted.before_ms is None else ids.first_of(before)  # ids grow with time
    found = await db.fetch(
        _SELECT[wanted.state], wanted.queue.number, wanted.after.at, wanted.after.id, wanted.up_to_id, before, young,
        wanted.limit,
    )  # fmt: skip
    return [Place(*row) for row in found]


def page_statement(wanted: Page) -> str:
    """Return the statement that reads a page: of the number of the queue, the limit and the offset.

    Each state has its own index that begins with the queue. One condition for several states would match none of them, and
    the jobs of all queues would be read, also those of other namespaces.
    """
    if wanted.states == (State.WAITING,) and not wanted.descending:
        source = _IN_LINE.format(_OF_WAITING[wanted.prioritized])
    else:
        source = " union all ".join(
            f"select id, priority, position from jobs where queue = $1 and state = {state.value}"  # noqa: S608
            f" {_OF_WAITING[wanted.prioritized] if state is State.WAITING else ''}"
            for state in dict.fromkeys(wanted.states)
        )
    order = ORDER[wanted.descending]
    return (
        f"with page as materialized (select id, priority, position from ({source}) as s"  # noqa: S608
        f" order by {order.format('')} limit $2 offset $3)"
        f" select {rows.HEAD}, p.options, p.data from page join jobs j on j.id = page.id join payloads p on p.id = j.id"
        f" order by {order.format('page.')}"
    )


async def page(db: Connection, wanted: Page) -> list[Delivery]:
    """Read a page of jobs, highest priority first, then by position."""
    found: BoundedList[Delivery] = BoundedList(f"These {wanted.limit} jobs are", "Request fewer")
    statement = page_statement(wanted)
    async with db.transaction(readonly=True):
        async for row in db.cursor(statement, wanted.queue.number, wanted.limit, wanted.offset, prefetch=100):
            head, body = rows.read_job_body(row)
            found.add(Delivery(head, body), head.size)
    return found.items


async def priority_counts(db: Connection, queue: int) -> dict[int, int]:
    """Count waiting and delayed jobs per priority, lowest first. The rows come in pieces: there may be two million."""
    async with db.transaction(readonly=True):
        found = await db.cursor(PRIORITY_COUNTS, queue)
        counts: dict[int, int] = {}
        while rows := await found.fetch(limits.count_rest_rows):
            counts.update(rows)
        return counts


async def prioritized_count(db: Connection, queue: int) -> int:
    """Count the waiting jobs with a priority above 0: two ranges of the index."""
    statement = "select count(*) from jobs where queue = $1 and state = 0 and blocked in (0, 1) and priority > 0"
    return int(await db.fetchval(statement, queue))


async def group_count(db: Connection, queue: int, state: State, group: str | None) -> int:
    """Count the waiting or active jobs of a group, or of all groups: a range of an index."""
    which = "group_id is not null" if group is None else "group_id = $2"
    statement = f"select count(*) from jobs where queue = $1 and state = {state.value} and {which}"  # noqa: S608
    return int(await db.fetchval(statement, queue, *(() if group is None else (group,))))


async def finished_minutes(db: Connection, queue: int, state: State) -> FinishedMinutes:
    """Count completed or dead jobs by the minute of their end: a range of an index."""
    statement = (
        f"select finished_at / {limits.MINUTE_MS} as minute, count(*), max(finished_at) from jobs"  # noqa: S608
        f" where queue = $1 and state = {state.value} group by minute order by minute desc"
    )
    return FinishedMinutes.of(await db.fetch(statement, queue))


async def heads(db: Connection, wanted: Sequence[int]) -> list[JobRecord]:
    """Read jobs without their payloads, in the order of the ids."""
    statement = f"select {rows.HEAD} from jobs j where j.id = any ($1::bigint[])"  # noqa: S608
    found = {job.id: job for job in rows.read_jobs(await db.fetch(statement, list(wanted)))}
    return [found[job_id] for job_id in wanted if job_id in found]


async def results(db: Connection, wanted: Sequence[int]) -> dict[int, bytes]:
    """Read the results of some jobs."""
    found: BoundedList[tuple[int, bytes]] = BoundedList("What workers answered to these jobs is", "Request fewer")
    statement = "select id, data from results where id = any ($1::bigint[])"
    async with db.transaction(readonly=True):
        async for job_id, data in db.cursor(statement, list(wanted), prefetch=100):
            found.add((job_id, data), len(data))
    return dict(found.items)


async def journal(db: Connection, seq: int, limit: int) -> list[JournalBlock]:
    """Read blocks of the journal, from the one that contains the given number on."""
    blocks = []
    for first, at, body in await db.fetch(_JOURNAL, seq, limit):
        queues, events = decode_body(body)
        blocks.append(JournalBlock(first, at, events, queues))
    return blocks


async def journal_page(db: Connection, seq: int, namespace: str, bytes_max: int) -> JournalPage:
    """Read a page of the journal for one namespace. The database sends no more than one page needs."""
    page = PageReader(seq, namespace, bytes_max)
    rows = await db.fetch(_JOURNAL_PAGE, seq, limits.replay_blocks, limits.replay_read_bytes)
    for first, count, at, body in rows:
        page.add(first, count, at, body)
        if page.is_full:
            break
        await yield_to_loop(1)
    return page.page()
