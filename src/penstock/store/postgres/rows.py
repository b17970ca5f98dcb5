"""Conversion between jobs and rows: columns, and the statements for whole batches in one round trip.

A batch is sent as one array per column, and ``unnest`` makes rows of it: one statement for any number of jobs, which the
database has planned once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.dependencies import Dependency, JobEnd, Need
from penstock.core.job import FIRST_LIVE_FIELD, JobRecord, Payload
from penstock.store.postgres.schema import LOCK_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncpg import Record

FIELDS: Final = JobRecord.__struct_fields__
FIELD_COUNT: Final = len(FIELDS)
_SHORT: Final = {"state": "smallint", "details": "bytea"} | dict.fromkeys(("group_id", "unique_key", "custom_id"), "text")
_INTS: Final = ("namespace", "queue", "max_attempts", "priority", "attempts", "stalls", "progress", "size")


def _type_of(field: str) -> str:
    return _SHORT.get(field) or ("int" if field in _INTS else "bigint")


def _arrays(fields: Sequence[str], first: int = 1) -> str:
    """Return one array parameter per column."""
    return ", ".join(f"${number}::{_type_of(field)}[]" for number, field in enumerate(fields, first))


HEAD: Final = ", ".join(f"j.{name}" for name in FIELDS)
_LIVE: Final = FIELDS[FIRST_LIVE_FIELD:]
#: The id, namespace and queue of a job stay even in a rewrite.
_FIXED_PART: Final = slice(FIELDS.index("created_at"), FIRST_LIVE_FIELD)
FIXED: Final = FIELDS[_FIXED_PART]

INSERT_JOBS: Final = f"""
with bodies as (
  insert into payloads (id, options, data)
  select * from unnest($1::bigint[], ${FIELD_COUNT + 1}::bytea[], ${FIELD_COUNT + 2}::bytea[])
)
insert into jobs ({", ".join(FIELDS)}, blocked)
select {", ".join(f"u.{name}" for name in FIELDS)}, (u.group_id is not null)::int
from unnest({_arrays(FIELDS)}) as u ({", ".join(FIELDS)})
"""  # noqa: S608 - put together from names in this file
#: From this many jobs on, COPY is used: it takes two statements, which have to be parsed, and half the time for each job.
COPY_MIN: Final = 32
COPY_JOBS: Final = (*FIELDS, "blocked")
COPY_PAYLOADS: Final = ("id", "options", "data")
INSERT_NAMES: Final = (
    "insert into names (namespace, custom_id, job) select * from unnest($1::int[], $2::text[], $3::bigint[])"
)
# A grouped job that becomes waiting is blocked until put_right unblocks it.
UPDATE_JOBS: Final = f"""
update jobs j set {", ".join(f"{name} = u.{name}" for name in _LIVE)}, blocked = (j.group_id is not null)::int
from unnest($1::bigint[], $2::smallint[], $3::bigint[], {_arrays(_LIVE, 4)})
  as u (id, old_state, old_token, {", ".join(_LIVE)})
where j.id = u.id and j.state = u.old_state and j.token = u.old_token
"""  # noqa: S608
# Only the columns that a claim changes, for jobs with equal leases: arrays have the highest cost in an update. The old state
# is a parameter, because with a constant the planner could choose the index of waiting jobs, and read the whole queue.
LEASE_JOBS: Final = """
update jobs_live j set state = 2, token = u.token, lease_ms = $5, lease_until = $6, deadline = $7, started_at = $8,
  blocked = (j.group_id is not null)::int
from unnest($1::bigint[], $3::bigint[], $4::bigint[]) as u (id, old_token, token)
where j.id = u.id and j.state = $2 and j.token = u.old_token
"""
#: If there are more different leases than this, the jobs are written like any others.
LEASES_MAX: Final = 4
REWRITE_JOBS: Final = f"""
update jobs j set {", ".join(f"{name} = u.{name}" for name in FIXED)}, blocked = (u.group_id is not null)::int
from unnest($1::bigint[], $2::smallint[], $3::bigint[], {_arrays(FIXED, 4)})
  as u (id, old_state, old_token, {", ".join(FIXED)})
where j.id = u.id and j.state = u.old_state and j.token = u.old_token
"""  # noqa: S608
#: Jobs that were in one state, with all their data.
DELETE_JOBS: Final = """
with a as (delete from payloads where id = any ($1::bigint[])),
  b as (delete from results where id = any ($1::bigint[])),
  c as (delete from logs where job = any ($1::bigint[])),
  d as (delete from dependencies where job = any ($1::bigint[]))
delete from jobs j using unnest($1::bigint[], $3::bigint[]) as u (id, old_token)
where j.id = u.id and j.state = $2 and j.token = u.old_token
"""
#: The same, for jobs that are on another shard now.
CLEAR_JOBS: Final = """
with a as (delete from payloads where id = any ($1::bigint[])),
  b as (delete from results where id = any ($1::bigint[])),
  c as (delete from logs where job = any ($1::bigint[])),
  d as (delete from dependencies where job = any ($1::bigint[])),
  e as (delete from names where job = any ($1::bigint[]))
delete from jobs where id = any ($1::bigint[])
"""
FORGET_NAMES: Final = (
    "delete from names n using unnest($1::int[], $2::text[]) as u (namespace, custom_id)"
    " where n.namespace = u.namespace and n.custom_id = u.custom_id"
)

# In order of id, so that two servers that lock the same jobs wait for each other instead of blocking each other.
LOAD: Final = f"select {HEAD} from jobs j where j.id = any ($1::bigint[]) order by j.id for update"  # noqa: S608
# The newest bytes of a claim are left to the next one: the sum is over the earlier jobs. Jobs of a group that another
# transaction has locked are left out, too: waiting for it could end in a deadlock.
_READY_LINE = """
  select * from jobs where queue = $1 and blocked = 0 and state = 0 order by priority desc, position limit $2
  for update skip locked
"""
# The same, along stretches of the queue, in order, until there are enough. One priority and several are two queries, because
# only for one priority the index leads directly to a position.
_READY_STRETCHES = """
  select j.* from unnest($4::int[], $5::int[], $6::bigint[], $7::bigint[]) as r (low, high, first, last) cross join lateral (
    select * from (
      select * from jobs where r.low = r.high and queue = $1 and blocked = 0 and state = 0 and priority = r.low
        and position between r.first and r.last order by position limit $2 for update skip locked) as one
    union all
    select * from (
      select * from jobs where r.low < r.high and queue = $1 and blocked = 0 and state = 0
        and priority between r.low and r.high order by priority desc, position limit $2 for update skip locked) as several
  ) as j limit $2
"""


def _ready(line: str, *, bodies: bool = True) -> str:
    body, join = ("p.options, p.data", "join payloads p on p.id = j.id") if bodies else ("null::bytea, 'null'::bytea", "")
    return f"""
with line as materialized ({line}), cut as (
  select line.*, sum(size) over (order by priority desc, position) - size as ahead from line
)
select {HEAD}, {body} from cut j {join}
where j.ahead < $3 and (j.group_id is null or pg_try_advisory_xact_lock({LOCK_GROUP}, hashtext(j.queue || '/' || j.group_id)))
order by j.priority desc, j.position
"""  # noqa: S608


READY: Final = _ready(_READY_LINE)
READY_STRETCHES: Final = _ready(_READY_STRETCHES)
READY_HEADS: Final = _ready(_READY_LINE, bodies=False)
READY_HEADS_STRETCHES: Final = _ready(_READY_STRETCHES, bodies=False)
_FIND = f"select {HEAD} from jobs j"  # noqa: S608
FIND_IDS: Final = (
    "select n.job from unnest($1::int[], $2::text[]) as u (namespace, custom_id) join names n using (namespace, custom_id)"
)
FIND_CUSTOM: Final = f"{_FIND} where j.id = any (array({FIND_IDS})) order by j.id for update"
FIND_UNIQUE: Final = (
    f"{_FIND} join unnest($1::int[], $2::text[]) as u (queue, unique_key) on j.queue = u.queue and j.unique_key = u.unique_key"
    " where j.state in (0, 1, 2, 5) and j.unique_key is not null order by j.id for update of j"
)
DUE: Final = f"{_FIND} where j.state = 1 and j.run_at <= $1 order by j.run_at, j.id limit $2 for update skip locked"
LAPSED: Final = f"{_FIND} where j.state = 2 and j.lease_until <= $1 order by j.lease_until limit $2 for update skip locked"
# Of an earlier generation of ready lists, once all servers have recorded their deliveries, or had time to.
SET_ASIDE: Final = (
    f"{_FIND}, catalog c where j.state = 2 and j.started_at is null and j.lease_until is not null"  # noqa: S608
    " and j.queue in (select queue from lost)"
    " and (c.fenced_at + $2 <= $1 or not exists (select from nodes where until > $1 and generation < c.generation))"
    " order by j.lease_until limit $3 for update of j skip locked"
)
EXPIRED: Final = (
    f"{_FIND} where j.expires_at is not null and j.state in (0, 1, 5) and j.expires_at <= $1 order by j.expires_at limit $2"
    " for update skip locked"
)
NEXT_DUE: Final = "select min(run_at) from jobs where state = 1 and run_at > $1"
NEXT_LAPSE: Final = "select min(lease_until) from jobs where state = 2 and lease_until > $1"
NEXT_EXPIRY: Final = (
    "select min(expires_at) from jobs where expires_at is not null and state in (0, 1, 5) and expires_at > $1"
)

_as_tuple = msgspec.structs.astuple

Changed = tuple[JobRecord, int, int]
"""A job with the state and the token it was read with."""


def insert_arrays(jobs: Sequence[tuple[JobRecord, Payload]]) -> list[Any]:
    """Return the parameters of INSERT_JOBS."""
    columns: list[Any] = list(zip(*[_as_tuple(job) for job, _ in jobs], strict=True))
    return [*columns, [payload.options for _, payload in jobs], [payload.data for _, payload in jobs]]


def copied_jobs(jobs: Sequence[tuple[JobRecord, Payload]]) -> list[tuple[Any, ...]]:
    """Return the rows of COPY_JOBS."""
    return [(*_as_tuple(job), int(job.group_id is not None)) for job, _ in jobs]


def copied_payloads(jobs: Sequence[tuple[JobRecord, Payload]]) -> list[tuple[int, bytes | None, bytes]]:
    """Return the rows of COPY_PAYLOADS."""
    return [(job.id, payload.options, payload.data) for job, payload in jobs]


Lease = tuple[int, int | None, int | None, int | None]
"""The length of a lease, its end, the deadline of its job, and its start, if it was started."""


def by_lease(jobs: Sequence[Changed]) -> dict[Lease, list[Changed]]:
    """Group claimed jobs by lease: each group is written by one LEASE_JOBS."""
    groups: dict[Lease, list[Changed]] = {}
    for each in jobs:
        job = each[0]
        groups.setdefault((job.lease_ms, job.lease_until, job.deadline, job.started_at), []).append(each)
    return groups


def by_state(jobs: Sequence[Changed]) -> dict[int, list[Changed]]:
    """Group jobs by the state they were read in."""
    groups: dict[int, list[Changed]] = {}
    for each in jobs:
        groups.setdefault(each[1], []).append(each)
    return groups


def update_arrays(jobs: Sequence[Changed]) -> list[Any]:
    """Return the parameters of UPDATE_JOBS, guarded by the values that were read."""
    live = list(zip(*[_as_tuple(job)[FIRST_LIVE_FIELD:] for job, _, _ in jobs], strict=True))
    return [*guard_arrays(jobs), *live]


def rewrite_arrays(jobs: Sequence[JobRecord]) -> list[Any]:
    """Return the parameters of REWRITE_JOBS, guarded by the current values of the jobs."""
    fixed = list(zip(*[_as_tuple(job)[_FIXED_PART] for job in jobs], strict=True))
    return [*guard_arrays([(job, job.state, job.token) for job in jobs]), *fixed]


def guard_arrays(jobs: Sequence[Changed]) -> list[Any]:
    """Return the ids of jobs with the states and tokens they were read with."""
    return [[job.id for job, _, _ in jobs], [state for _, state, _ in jobs], [token for _, _, token in jobs]]


def read_job(row: Record) -> JobRecord:
    """Make a job from the columns HEAD."""
    return JobRecord(*row[:FIELD_COUNT])


def read_jobs(rows: Iterable[Record]) -> list[JobRecord]:
    """Make jobs from rows of the columns HEAD."""
    return [JobRecord(*row) for row in rows]


def read_job_body(row: Record) -> tuple[JobRecord, Payload]:
    """Make a job and its payload from the columns HEAD, options, data."""
    return JobRecord(*row[:FIELD_COUNT]), Payload(row[FIELD_COUNT + 1], row[FIELD_COUNT])


def read_dependency(row: Record) -> Dependency:
    """Make a dependency from its columns."""
    job, needs, state, name, result, error = row
    return Dependency(job, needs, Need(state), name, result, None if error is None else error.decode())


def read_end(row: Record) -> JobEnd:
    """Make an end from its columns."""
    serial, job, state, buries, frees, inherited, error, result, after = row
    return JobEnd(
        serial, job, Need(state), buries, frees, inherited, None if error is None else error.decode(), result, after
    )
