"""The gold tables: counts and times by queue and minute.

One grouping by queue, minute and kind (``summary``) reduces millions of events to some thousand rows, from which most tables
are built. Histograms and failures use their own events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.histogram import BELOW, LOG_WIDTH
from penstock.lake.tables import BACKLOG, FAILURES, LATENCY, MINUTES, TENANTS, WORKERS
from penstock.lake.transform.rows import ERROR_CHARS, MINUTE_MS, both, only
from penstock.lake.transform.silver import fingerprint_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.lake.transform.rows import EventRows

#: The counts: the column of gold/minutes, and the kind of event. The number of each is its position here.
_COUNTED: Final = {
    "arrivals": "job:pushed", "completions": "job:completed", "failures": "job:failed", "retries": "job:retried",
    "stalls": "job:stalled", "releases": "job:released", "dead": "dlq:added", "revived": "dlq:retried", "replayed": None,
    "expired": "job:expired", "removed": None, "forgotten": None,
}  # fmt: skip
_NUMBER: Final = {name: number for number, name in enumerate(_COUNTED)}
_NOTHING: Final = len(_COUNTED)  #: for events that are not counted
_ROOM: Final = 16  #: for these numbers
#: An attempt that lasted longer is spread over its last minutes only: a day of them.
_SPREAD_MINUTES: Final = 1_440
#: Minutes that attempts are spread over at once: they are in memory.
_SPREAD_ROWS: Final = 4_000_000
_TIMES: Final = ("waits", "wait_ms", "runs", "run_ms")


def summary(rows: EventRows) -> pa.Table:
    """Return the sums by a queue's minute (``cell``) and kind (``what``): the number of events, and their times."""
    kinds = {kind: number for (name, kind), number in zip(_COUNTED.items(), range(_ROOM), strict=False) if kind}
    numbers = pa.array([kinds.get(each, _NOTHING) for each in rows.kind.dictionary.to_pylist()], pa.int64())
    what = numbers.take(rows.kind.indices)
    again = both(rows.is_kind("job:retried"), pc.fill_null(pc.equal(rows.column("attempt"), 0), fill_value=False))
    cases = (
        (again, "replayed"),
        (rows.is_kind("job:removed", "job:quarantined"), "forgotten"),
        (rows.is_unfinished, "removed"),
    )
    for condition, name in cases:
        what = pc.if_else(condition, _NUMBER[name], what)
    set_aside = pc.and_not(rows.is_kind("job:released"), rows.has_ended)
    what = pc.if_else(set_aside, _NOTHING, what)
    within = pc.fill_null(pc.greater_equal(rows.started_ms, pc.multiply(rows.minute, MINUTE_MS)), fill_value=False)
    table = pa.table(
        {
            "key": pc.add(pc.multiply(rows.cell, _ROOM), what),
            "size": rows.column("size"),
            "wait": only(pc.invert(rows.is_kind("job:released")), rows.wait_ms),
            "run": only(rows.is_kind("job:completed", "job:failed"), rows.run_ms),
            "busy": rows.run_ms,
            "within": only(within, rows.run_ms),
        }
    )
    asked: list[Any] = [
        ([], "count_all"), ("size", "sum"), ("wait", "count"), ("wait", "sum"), ("run", "count"), ("run", "sum"),
        ("busy", "count"), ("within", "sum"),
    ]  # fmt: skip
    found = table.group_by("key", use_threads=False).aggregate(asked)
    key = found.column("key").combine_chunks()
    sums = {
        "n": "count_all", "size": "size_sum", "waits": "wait_count", "wait_ms": "wait_sum", "runs": "run_count",
        "run_ms": "run_sum", "ended": "busy_count", "busy_ms": "within_sum",
    }  # fmt: skip
    cell = pc.divide(key, _ROOM)
    columns = {"cell": cell, "what": pc.subtract(key, pc.multiply(cell, _ROOM))}
    columns |= {name: pc.fill_null(found.column(source).combine_chunks(), 0) for name, source in sums.items()}
    return pa.table(columns)


def minutes(rows: EventRows, made: pa.Table) -> pa.Table:
    """Return gold/minutes from a summary."""
    what = made.column("what")
    given: dict[str, Any] = {name: _where(what, [name], made.column("n")) for name in _COUNTED}
    given["bytes_in"] = _where(what, ["arrivals"], made.column("size"))
    given["bytes_done"] = _where(what, ["completions"], made.column("size"))
    given |= {name: made.column(name) for name in _TIMES}
    return _by_cell(rows, MINUTES.schema, made.column("cell"), given)


def backlog(rows: EventRows, made: pa.Table) -> pa.Table:
    """Return gold/backlog from a summary."""
    what, count = made.column("what"), made.column("n")
    given = {
        "added": _where(what, ["arrivals", "revived", "replayed"], count),
        "taken": _where(what, ["completions", "dead", "expired", "removed"], count),
    }
    return _by_cell(rows, BACKLOG.schema, made.column("cell"), given)


def workers(rows: EventRows, made: pa.Table) -> pa.Table:
    """Return gold/workers from a summary, and from attempts that did not end in the minute in which they began."""
    cell, busy = _busy(rows, made)
    attempts = pa.concat_arrays([made.column("ended").combine_chunks(), _zeros(len(cell) - made.num_rows)])
    return _by_cell(rows, WORKERS.schema, cell, {"busy_ms": busy, "attempts": attempts})


def tenants(rows: EventRows, made: pa.Table) -> pa.Table:
    """Return gold/tenants: the same by namespace."""
    cell, busy = _busy(rows, made)
    more = _zeros(len(cell) - made.num_rows)
    what, count = made.column("what"), made.column("n")
    given = {
        "arrivals": _where(what, ["arrivals"], count),
        "completions": _where(what, ["completions"], count),
        "waits": made.column("waits").combine_chunks(),
        "wait_ms": made.column("wait_ms").combine_chunks(),
    }
    columns = {name: pa.concat_arrays([_whole(each), more]) for name, each in given.items()} | {"busy_ms": busy}
    return _by_cell(rows, TENANTS.schema, cell, columns, of_namespace=True)


def _busy(rows: EventRows, made: pa.Table) -> tuple[Any, Any]:
    """Return the busy time of workers by queue and minute: of the summary, then of the attempts that are spread."""
    cells, times = [made.column("cell").combine_chunks()], [made.column("busy_ms").combine_chunks()]
    for cell, busy in _spread(rows):
        cells.append(cell)
        times.append(busy)
    return pa.concat_arrays(cells), pa.concat_arrays(times)


def _spread(rows: EventRows) -> Iterator[tuple[Any, Any]]:
    """Spread attempts over the minutes that they lasted, some at a time."""
    long = pc.fill_null(pc.less(rows.started_ms, pc.multiply(rows.minute, MINUTE_MS)), fill_value=False)
    if not pc.any(long).as_py():
        return
    last_ms, place = rows.at_ms.filter(long), rows.place.filter(long)
    last = pc.divide(last_ms, MINUTE_MS)
    first_ms = pc.max_element_wise(rows.started_ms.filter(long), pc.multiply(pc.subtract(last, _SPREAD_MINUTES), MINUTE_MS))
    first = pc.divide(first_ms, MINUTE_MS)
    count = pc.add(pc.subtract(last, first), 1)
    step = max(1, _SPREAD_ROWS // pc.max(count).as_py())
    for start in range(0, len(place), step):
        counts = count.slice(start, step)
        ends = pc.cumulative_sum(counts)
        total = ends[-1].as_py()
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
        parent = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, pa.nulls(total, pa.int8())))
        nth = pc.subtract(pa.array(range(total), pa.int64()), offsets.slice(0, len(counts)).take(parent))
        minute = pc.add(first.slice(start, step).take(parent), nth)
        begin = pc.multiply(minute, MINUTE_MS)
        until = pc.min_element_wise(last_ms.slice(start, step).take(parent), pc.add(begin, MINUTE_MS))
        since = pc.max_element_wise(first_ms.slice(start, step).take(parent), begin)
        yield pc.add(pc.multiply(minute, len(rows.places)), place.slice(start, step).take(parent)), pc.subtract(until, since)


_KINDS: Final = ("wait", "run", "total")
_KIND_ROOM: Final = 4
_BUCKETS: Final = 4_096  #: more than exist: the last would be times of 10^34 ms


def latency(rows: EventRows) -> pa.Table:
    """Return gold/latency."""
    ended = rows.is_kind("job:completed", "job:failed", "job:stalled")
    cell = rows.cell.filter(ended)
    run = rows.is_kind("job:completed", "job:failed").filter(ended)
    completed = rows.is_kind("job:completed").filter(ended)
    times = (rows.wait_ms.filter(ended), only(run, rows.run_ms.filter(ended)), only(completed, rows.total_ms.filter(ended)))
    keys, sums = [], []
    for kind, given in enumerate(times):
        known = pc.is_valid(given)
        ms = given.filter(known)
        # A time of 0 counts as a millisecond, because 0 has no logarithm.
        logs = pc.divide(pc.ln(pc.cast(pc.max_element_wise(ms, 1), pa.float64())), LOG_WIDTH)
        bucket = pc.if_else(pc.less(ms, 1), BELOW, pc.cast(pc.floor(logs), pa.int64()))
        key = pc.add(pc.multiply(cell.filter(known), _KIND_ROOM), kind)
        keys.append(pc.add(pc.multiply(key, _BUCKETS), pc.subtract(bucket, BELOW)))
        sums.append(ms)
    table = pa.table({"key": pa.concat_arrays(keys), "ms": pa.concat_arrays(sums)})
    found = table.group_by("key", use_threads=False).aggregate([([], "count_all"), ("ms", "sum")])
    key = found.column("key").combine_chunks()
    rest = pc.divide(key, _BUCKETS)
    cells = pc.divide(rest, _KIND_ROOM)
    columns = {
        "kind": pa.array(_KINDS, pa.string()).take(pc.subtract(rest, pc.multiply(cells, _KIND_ROOM))),
        "bucket": pc.add(pc.subtract(key, pc.multiply(rest, _BUCKETS)), BELOW),
        "n": found.column("count_all"),
        "sum_ms": found.column("ms_sum"),
    }
    return _table(rows, LATENCY.schema, cells, columns)


def failures(rows: EventRows) -> pa.Table:
    """Return gold/failures."""
    failed = rows.has_failed
    chosen = rows.events.filter(failed)
    numbers, patterns = rows.patterns
    table = pa.table(
        {
            "at": chosen.column("at"),
            "shard": chosen.column("shard"),
            "seq": chosen.column("seq"),
            "place": rows.place.filter(failed),
            "date": pc.cast(chosen.column("at"), pa.date32()),
            "pattern": numbers,
            "error": pc.utf8_slice_codeunits(chosen.column("error"), 0, ERROR_CHARS),
            "job_id": chosen.column("job_id"),
        }
    ).sort_by([("at", "ascending"), ("shard", "ascending"), ("seq", "ascending")])
    keeping = pc.ScalarAggregateOptions(skip_nulls=False)
    first: list[Any] = [(name, "first", keeping) for name in ("at", "shard", "seq", "error", "job_id")]
    found = table.group_by(["place", "date", "pattern"], use_threads=False).aggregate(
        [*first, ("at", "max"), ([], "count_all")]
    )
    place, pattern = found.column("place").combine_chunks(), found.column("pattern").combine_chunks()
    return _made(
        FAILURES.schema,
        {
            "namespace": pa.array([namespace for namespace, _ in rows.places], pa.string()).take(place),
            "queue": pa.array([queue for _, queue in rows.places], pa.string()).take(place),
            "fingerprint": pa.array([fingerprint_of(each) for each in patterns], pa.string()).take(pattern),
            "pattern": pa.array(patterns, pa.string()).take(pattern),
            "first_seen": found.column("at_first"),
            "last_seen": found.column("at_max"),
            "n": found.column("count_all"),
            "example": found.column("error_first"),
            "example_job": found.column("job_id_first"),
            "example_shard": found.column("shard_first"),
            "example_seq": found.column("seq_first"),
            "date": found.column("date"),
        },
        rows.batch,
    )


def _where(what: Any, names: Sequence[str], values: Any) -> Any:
    chosen = pc.is_in(what, pa.array([_NUMBER[name] for name in names], pa.int64()))
    return pc.if_else(chosen, values, 0)


def _zeros(count: int) -> Any:
    return pa.repeat(pa.scalar(0, pa.int64()), count)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _by_cell(
    rows: EventRows, schema: pa.Schema, cell: Any, given: dict[str, Any], *, of_namespace: bool = False
) -> pa.Table:
    """Add up by queue and minute, or namespace and minute; rows with only zeros are left out."""
    if of_namespace:
        cell = _of_namespace(rows, _whole(cell))
    found = (
        pa.table({"cell": cell, **given}).group_by("cell", use_threads=False).aggregate([(name, "sum") for name in given])
    )
    found = found.rename_columns([name.removesuffix("_sum") for name in found.column_names])
    something = pc.not_equal(found.column(next(iter(given))), 0)
    for name in given:
        something = pc.or_(something, pc.not_equal(found.column(name), 0))
    found = found.filter(something)
    return _table(rows, schema, _whole(found.column("cell")), {name: found.column(name) for name in given})


def _of_namespace(rows: EventRows, cell: Any) -> Any:
    """Replace the queues of each namespace by one of them."""
    first: dict[str, int] = {}
    for number, (namespace, _) in enumerate(rows.places):
        first.setdefault(namespace, number)
    stands = pa.array([first[namespace] for namespace, _ in rows.places], pa.int64())
    minute = pc.divide(cell, len(rows.places))
    place = pc.subtract(cell, pc.multiply(minute, len(rows.places)))
    return pc.add(pc.multiply(minute, len(rows.places)), stands.take(place))


def _table(rows: EventRows, schema: pa.Schema, cell: Any, columns: dict[str, Any]) -> pa.Table:
    """Add the names and times of queues' minutes to rows."""
    minute = pc.divide(cell, len(rows.places))
    place = pc.subtract(cell, pc.multiply(minute, len(rows.places)))
    moment = pc.cast(pc.multiply(minute, MINUTE_MS), pa.timestamp("ms", tz="UTC"))
    columns |= {
        "namespace": pa.array([namespace for namespace, _ in rows.places], pa.string()).take(place),
        "queue": pa.array([queue for _, queue in rows.places], pa.string()).take(place),
        "minute": moment,
        "date": pc.cast(moment, pa.date32()),
    }
    return _made(schema, columns, rows.batch)


def _made(schema: pa.Schema, columns: dict[str, Any], batch: int) -> pa.Table:
    columns["batch"] = pa.repeat(pa.scalar(batch, pa.int64()), len(columns["date"]))
    return pa.table([pc.cast(columns[field.name], field.type) for field in schema], schema=schema)
