"""The tables of attempts, jobs and quarantined events."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.tables import ATTEMPTS, JOBS, QUARANTINE
from penstock.lake.transform.event_kinds import OUTCOMES
from penstock.lake.transform.rows import FINGERPRINT_CHARS, one_or_none, only, reasons

if TYPE_CHECKING:
    from penstock.lake.transform.rows import EventRows

_MICROS: Final = pa.timestamp("us", tz="UTC")


def fingerprint_of(pattern: str) -> str:
    """Return the fingerprint of a pattern."""
    return hashlib.md5(pattern.encode(), usedforsecurity=False).hexdigest()[:FINGERPRINT_CHARS]


def quarantine(events: pa.Table, batch: int) -> pa.Table:
    """Return the events that cannot be interpreted, or only in part, and the reasons."""
    why = reasons(events)
    bad = pc.is_valid(why)
    chosen = events.filter(bad)
    columns = {name: chosen.column(name) for name in ("shard", "seq", "at", "kind")}
    columns["reason"] = why.filter(bad)
    columns["row"] = pa.array([json.dumps(each, default=str, sort_keys=True) for each in chosen.to_pylist()], pa.string())
    # The same in every run: an event without a time has no day.
    columns["date"] = pc.fill_null(pc.cast(chosen.column("at"), pa.date32()), pa.scalar(0, pa.int32()).cast(pa.date32()))
    return _table(QUARANTINE.schema, columns, batch)


def attempts(rows: EventRows) -> pa.Table:
    """Return one row for each attempt that ended."""
    ended = rows.has_ended
    chosen = rows.events.filter(ended)
    failed = rows.has_failed.filter(ended)
    names = (
        "namespace", "queue", "job_id", "custom_id", "shard", "seq", "created_at", "started_at", "size", "error",
    )  # fmt: skip
    columns: dict[str, Any] = {name: chosen.column(name) for name in names}
    counted = chosen.column("attempt").combine_chunks()
    # The count of failures includes this attempt, if it failed.
    columns["attempt"] = pc.if_else(failed, counted, pc.add(counted, pa.scalar(1, pa.int32())))
    kind = rows.kind.filter(ended)
    outcomes = pa.array([OUTCOMES.get(each) for each in kind.dictionary.to_pylist()], pa.string())
    columns["outcome"] = outcomes.take(kind.indices)
    columns["run_at"] = rows.due_at.filter(ended)
    columns["ended_at"] = chosen.column("at")
    columns["wait_ms"] = rows.wait_ms.filter(ended)
    columns["run_ms"] = rows.run_ms.filter(ended)
    columns["total_ms"] = rows.total_ms.filter(ended)
    numbers, patterns = rows.patterns
    prints = pa.array([fingerprint_of(each) for each in patterns], pa.string()).take(numbers)
    columns["fingerprint"] = pc.replace_with_mask(pa.nulls(chosen.num_rows, pa.string()), failed, prints)
    columns["date"] = pc.cast(chosen.column("at"), pa.date32())
    return _table(ATTEMPTS.schema, columns, rows.batch)


_STATES: Final = ("waiting", "delayed", "active", "completed", "dead", "expired", "removed")
#: The state of a job after an event; None: it depends on the due time.
_AFTER: Final[dict[str, int | None]] = {
    "job:pushed": None, "job:retried": None, "job:active": 2, "job:completed": 3, "job:waiting": 0, "job:released": 0,
    "job:stalled": 0, "job:delayed": 1, "job:promoted": 0, "dlq:added": 4, "dlq:retried": 0, "job:expired": 5,
    "job:waiting-children": 0,
}  # fmt: skip
_ENDED: Final = 3  #: the first final state
_REMOVED: Final = _STATES.index("removed")
#: The number of a state is below the number of its event: the last event has the greatest of both.
_ROOM: Final = 16


def _states(rows: EventRows) -> Any:
    """Return the number of the state after each event; null for events without one."""
    kinds = rows.kind.dictionary.to_pylist()
    found = pa.array([_AFTER.get(each) for each in kinds], pa.int64()).take(rows.kind.indices)
    later = pc.fill_null(pc.greater(rows.column("run_at"), rows.column("at")), fill_value=False)
    found = pc.if_else(rows.is_kind("job:pushed", "job:retried"), one_or_none(later), found)
    return pc.if_else(rows.is_unfinished, pa.scalar(_REMOVED, pa.int64()), found)


def jobs(rows: EventRows) -> pa.Table:
    """Return one row for each job in the events, and shard. Only numbers are aggregated, because that is fast."""
    state, at = _states(rows), pc.cast(rows.column("at"), pa.int64())
    ended = rows.has_ended
    attempted = pc.and_not(ended, rows.is_kind("job:released"))
    started = only(pc.is_valid(rows.started_ms), pc.cast(rows.column("started_at"), pa.int64()))
    pushed = pc.if_else(rows.is_kind("job:pushed"), at, pc.cast(rows.column("created_at"), pa.int64()))
    given = {
        "job_id": rows.column("job_id"),
        "shard": rows.column("shard"),
        "place": rows.place,
        "pushed": pushed,
        "started": started,
        "ended": only(pc.fill_null(pc.greater_equal(state, _ENDED), fill_value=False), at),
        "attempts": one_or_none(attempted),
        "failures": one_or_none(rows.has_failed),
        "run_ms": rows.run_ms,
        "size": rows.column("size"),
        "priority": rows.column("priority"),
        "last": only(pc.is_valid(state), at),
        "packed": pc.add(pc.multiply(rows.column("seq"), _ROOM), state),
    }
    asked = [
        ("place", "min"), ("pushed", "min"), ("started", "min"), ("started", "max"), ("ended", "max"), ("attempts", "sum"),
        ("failures", "sum"), ("run_ms", "sum"), ("size", "max"), ("priority", "max"), ("last", "max"), ("packed", "max"),
    ]  # fmt: skip
    custom = rows.column("custom_id")
    if custom.null_count < len(custom):
        given["custom_id"] = custom
        asked.append(("custom_id", "max"))
    several = pc.min(rows.column("shard")).as_py() != pc.max(rows.column("shard")).as_py()
    found = pa.table(given).group_by(["job_id", "shard"] if several else ["job_id"], use_threads=False).aggregate(asked)
    shard = found.column("shard") if several else pa.repeat(rows.column("shard")[0], found.num_rows)
    place, packed = found.column("place_min").combine_chunks(), found.column("packed_max").combine_chunks()
    columns: dict[str, Any] = {
        "namespace": pa.array([namespace for namespace, _ in rows.places], pa.string()).take(place),
        "queue": pa.array([queue for _, queue in rows.places], pa.string()).take(place),
        "job_id": found.column("job_id"),
        "pushed_at": pc.cast(found.column("pushed_min"), _MICROS),
        "first_started_at": pc.cast(found.column("started_min"), _MICROS),
        "last_started_at": pc.cast(found.column("started_max"), _MICROS),
        "ended_at": pc.cast(found.column("ended_max"), _MICROS),
        "attempts": found.column("attempts_sum"),
        "failures": found.column("failures_sum"),
        "run_ms": pc.fill_null(found.column("run_ms_sum"), 0),
        "size": found.column("size_max"),
        "priority": found.column("priority_max"),
        "state": pa.array(_STATES, pa.string()).take(pc.bit_wise_and(packed, _ROOM - 1)),
        "last_at": pc.cast(found.column("last_max"), _MICROS),
        "last_shard": only(pc.is_valid(packed), shard.combine_chunks() if isinstance(shard, pa.ChunkedArray) else shard),
        "last_seq": pc.divide(packed, _ROOM),
        "date": _made_on(found.column("job_id")),
    }
    if "custom_id" in given:
        columns["custom_id"] = found.column("custom_id_max")
    return _table(JOBS.schema, columns, rows.batch)


def _made_on(ids: Any) -> Any:
    """Return the days on which jobs were created. The first 48 bits of an id are milliseconds; few beginnings differ."""
    # The first 32 bits count 65 seconds: the same for many jobs, so each is converted once. Around midnight the rest is needed.
    heads = pc.dictionary_encode(pc.utf8_slice_codeunits(ids, 0, 8).combine_chunks())
    known = heads.dictionary.to_pylist()
    days = pa.array([_day(f"{head}0000") for head in known], pa.int32())
    found = days.take(heads.indices)
    doubtful = pa.array([_day(f"{head}0000") != _day(f"{head}ffff") for head in known], pa.bool_()).take(heads.indices)
    if pc.any(doubtful).as_py():
        rest = [_day(each[:13].replace("-", "")) for each in ids.filter(doubtful).to_pylist()]
        found = pc.replace_with_mask(found, doubtful, pa.array(rest, pa.int32()))
    return found.cast(pa.date32())


def _day(digits: str) -> int:
    try:
        return int(digits, 16) // 86_400_000
    except ValueError:
        return 0


def _table(schema: pa.Schema, columns: dict[str, Any], batch: int) -> pa.Table:
    count = len(columns["date"])
    columns["batch"] = pa.repeat(pa.scalar(batch, pa.int64()), count)
    return pa.table(
        [
            pc.cast(columns[field.name], field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ],
        schema=schema,
    )
