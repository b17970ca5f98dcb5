"""Conversion between jobs and rows: columns, checksums, and statements.

Every row of ``jobs`` has a checksum of its head, every row of ``payloads`` one of its bytes. They are computed when a row is
written and compared whenever it is read, because SQLite does not detect a flipped bit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from xxhash import xxh3_64_intdigest as digest

from penstock.core.dependencies import Dependency, JobEnd, Need
from penstock.core.job import FIRST_LIVE_FIELD, JobRecord, Payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import apsw

FIELDS: Final = JobRecord.__struct_fields__
FIELD_COUNT: Final = len(FIELDS)
_LIVE: Final = FIELDS[FIRST_LIVE_FIELD:]
_FIXED: Final = slice(FIELDS.index("created_at"), FIRST_LIVE_FIELD)

HEAD: Final = ", ".join(f"j.{name}" for name in FIELDS) + ", j.checksum"
BODY: Final = "p.checksum, p.options, p.data"

#: One statement inserts up to this many rows. Each statement releases Python's lock once and must acquire it again, so under
#: load a few large ones are much cheaper than many small ones.
ROWS_PER_INSERT: Final = 50
# A grouped job that becomes waiting is blocked until job_groups.py unblocks it.
UPDATE_JOB: Final = (
    f"update jobs set {', '.join(f'{name} = ?' for name in _LIVE)}, checksum = ?, blocked = group_id is not null"  # noqa: S608
    " where id = ? and state = ? and token = ?"
)
#: Only the columns that a claim changes.
LEASE_JOB: Final = (
    "update jobs set state = ?, token = ?, lease_ms = ?, lease_until = ?, deadline = ?, started_at = ?, checksum = ?,"
    " blocked = group_id is not null where id = ? and state = ? and token = ?"
)
REWRITE_JOB: Final = (
    f"update jobs set {', '.join(f'{name} = ?' for name in FIELDS[_FIXED])}, checksum = ?, blocked = ?"  # noqa: S608
    " where id = ? and state = ? and token = ?"
)
DELETE_JOB: Final = "delete from jobs where id = ? and state = ? and token = ?"
SELECT_JOB: Final = f"select {HEAD} from jobs j where j.id = ?"  # noqa: S608
SELECT_JOBS: Final = f"select {HEAD} from jobs j where j.id in carray(?)"  # noqa: S608
SELECT_JOB_BODY: Final = f"select {HEAD}, {BODY} from jobs j left join payloads p on p.id = j.id where j.id = ?"  # noqa: S608

_encode = msgspec.msgpack.Encoder().encode
_as_tuple = msgspec.structs.astuple

Row = tuple[Any, ...]


class DamagedRow(Exception):
    """A row whose checksum does not match."""

    def __init__(self, reason: str, row: Row) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row


def head_checksum(job: JobRecord) -> int:
    """Return the checksum of a head: all of its fields, in order."""
    return digest(_encode(job)) >> 1  # SQLite's integers are signed


def payload_checksum(job_id: int, payload: Payload) -> int:
    """Return the checksum of a payload; it includes the job, so that swapped payloads are detected too."""
    seed = job_id if payload.options is None else digest(payload.options, job_id)
    return digest(payload.data, seed) >> 1


@cache
def insert_jobs(count: int) -> str:
    """Return the statement that inserts this many heads."""
    row = f"({', '.join('?' * (FIELD_COUNT + 2))})"
    return f"insert into jobs ({', '.join(FIELDS)}, checksum, blocked) values {', '.join([row] * count)}"  # noqa: S608


@cache
def insert_payloads(count: int) -> str:
    """Return the statement that inserts this many payloads."""
    return f"insert into payloads (id, checksum, options, data) values {', '.join(['(?, ?, ?, ?)'] * count)}"  # noqa: S608


def insert_parameters(jobs: Sequence[tuple[JobRecord, Payload]]) -> tuple[list[Any], list[Any]]:
    """Return the parameters of ``insert_jobs`` and ``insert_payloads``."""
    heads: list[Any] = []
    bodies: list[Any] = []
    as_tuple, encode = _as_tuple, _encode  # this is the innermost loop of a push
    for job, payload in jobs:
        heads += as_tuple(job)
        heads += (digest(encode(job)) >> 1, 0 if job.group_id is None else 1)
        job_id, data, options = job.id, payload.data, payload.options
        checksum = digest(data, job_id) >> 1 if options is None else payload_checksum(job_id, payload)
        bodies += (job_id, checksum, options, data)
    return heads, bodies


def update_rows(jobs: Iterable[tuple[JobRecord, int, int]]) -> list[Row]:
    """Return the parameters of UPDATE_JOB, guarded by what was read: the state and the token that come with each job."""
    as_tuple, encode, first = _as_tuple, _encode, FIRST_LIVE_FIELD  # this is the innermost loop of an acknowledgement
    return [
        (*as_tuple(job)[first:], digest(encode(job)) >> 1, job.id, old_state, old_token)
        for job, old_state, old_token in jobs
    ]


def lease_rows(jobs: Iterable[tuple[JobRecord, int, int]]) -> list[Row]:
    """Return the parameters of LEASE_JOB, guarded likewise."""
    encode = _encode
    return [
        (
            job.state, job.token, job.lease_ms, job.lease_until, job.deadline, job.started_at, digest(encode(job)) >> 1,
            job.id, old_state, old_token,
        )
        for job, old_state, old_token in jobs
    ]  # fmt: skip


def rewrite_row(job: JobRecord) -> Row:
    """Return the parameters of REWRITE_JOB. The id, namespace and queue of a job stay."""
    fixed = _as_tuple(job)[_FIXED]
    return (*fixed, head_checksum(job), 0 if job.group_id is None else 1, job.id, job.state, job.token)


def read_job(row: Row) -> JobRecord:
    """Make a job from the columns HEAD. Raises DamagedRow."""
    job = JobRecord(*row[:FIELD_COUNT])
    if digest(_encode(job)) >> 1 != row[FIELD_COUNT]:
        raise DamagedRow("the job's row does not match its checksum", row)
    return job


def read_jobs(rows: Sequence[Row]) -> list[JobRecord] | None:
    """``read_job`` for many rows; None if one of them is damaged."""
    encode, count = _encode, FIELD_COUNT
    jobs = [JobRecord(*row[:count]) for row in rows]
    return jobs if [digest(encode(job)) >> 1 for job in jobs] == [row[count] for row in rows] else None


def read_job_body(row: Row) -> tuple[JobRecord, Payload]:
    """Make a job and its payload from the columns HEAD, BODY. Raises DamagedRow."""
    job = read_job(row)
    checksum, options, data = row[FIELD_COUNT + 1 :]
    if data is None:
        raise DamagedRow("the job's payload is missing", row)
    payload = Payload(data, options)
    if payload_checksum(job.id, payload) != checksum:
        raise DamagedRow("the job's payload does not match its checksum", row)
    return job, payload


def is_sound(row: Row) -> bool:
    """Return whether the columns HEAD, BODY match their checksums, without creating a job."""
    if digest(_encode(row[:FIELD_COUNT])) >> 1 != row[FIELD_COUNT]:
        return False
    checksum, options, data = row[FIELD_COUNT + 1 :]
    if type(data) is not bytes:
        return False
    return bool(digest(data, row[0] if options is None else digest(options, row[0])) >> 1 == checksum)


def sound_bodies(rows: Sequence[Row], options: int, data: int) -> list[Row]:
    """Return the rows whose payloads match their checksums, which are the last columns; ``options``, ``data``.

    Their indexes.
    """
    return [
        row
        for row in rows
        if type(row[data]) is bytes
        and digest(row[data], row[0] if row[options] is None else digest(row[options], row[0])) >> 1 == row[-1]
    ]


def read_result(db: apsw.Connection, job_id: int) -> bytes | None:
    """Read the result of a job."""
    for (data,) in db.execute("select data from results where id = ?", (job_id,)):
        return bytes(data)
    return None


def read_dependency(row: Row) -> Dependency:
    """Make a dependency from its columns."""
    return Dependency(*row)._replace(state=Need(row[2]))


def read_end(row: Row) -> JobEnd:
    """Make an end from its columns."""
    serial, job, state, buries, frees, inherited, error, result, after = row
    return JobEnd(serial, job, Need(state), bool(buries), bool(frees), bool(inherited), error, result, after)


def encode_damaged(row: Row) -> bytes:
    """Encode a damaged row for later inspection."""
    return msgspec.msgpack.encode([value if not isinstance(value, memoryview) else bytes(value) for value in row])
