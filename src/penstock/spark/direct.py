"""Read PostgreSQL directly, by ADBC, where workers can reach it: the same columns and rows, without the server in between.

The addresses of the databases are secrets, read in the worker from ``directUrlEnv`` or ``directUrlFile``: one for each
shard, in the server's order. The server still decides which events are durable, and checks the caller's permission.

This is the only module of the Spark part that depends on the store's format. The same code as in the server's bulk process
converts the stored rows to columns.
"""

from __future__ import annotations

import os
import re
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from penstock.bulkwork.jobs import jobs_batch
from penstock.bulkwork.journal import EventColumns
from penstock.core.lifecycle import State
from penstock.spark import schemas
from penstock.spark.http_client import BulkClient, queues_of
from penstock.spark.journal import EventsLost, Range, lost
from penstock.spark.options import OptionInvalid, Options
from penstock.store.bulk_reader import Block
from penstock.store.postgres import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

INSTALL: Final = "pip install 'penstock-queue[spark-pg]'"
#: The names of the states of jobs for users, by their number in the store.
STATES: Final = {
    each.value: "failed" if each is State.DEAD else each.name.lower().replace("_", "-") for each in State if each.value >= 0
}
#: A database that does not answer is given up after so many seconds.
_CONNECT_S: Final = 20
_FAR: Final = 2**63 - 1


@dataclass
class IdRange(InputPartition):
    """Jobs of a shard with ids in a range; ``end`` is not included."""

    shard: int
    start: int
    end: int
    queues: tuple[str, ...]


def job_ranges(options: Options) -> Sequence[IdRange]:
    """Cut the jobs of every shard into ranges of ids. Raises OptionInvalid."""
    with BulkClient(options) as wire:  # also checks the permission of this token
        shards = [each["shard"] for each in wire.get("/bulk")["shards"]]
        queues = queues_of(wire, options)
    if not queues and options.queues_pattern is not None:
        return []
    urls = _urls(options, shards)
    found = []
    for shard, url in zip(shards, urls, strict=True):
        with closing(_connect(url, options)) as db:
            _check(db, shard, options)
            chosen = _chosen(_queues(db, options), queues)
            marks = _ask(db, columns.marks(_where(options, chosen), options.rows_per_partition))
        # Jobs that are created in between are in the first or the last range: ids are assigned in order, as a rule.
        starts = [0, *(row[0] for row in marks[1:])] if marks else []
        found += [IdRange(shard, start, end, queues) for start, end in pairwise([*starts, _FAR])]
    return found


def read_jobs(options: Options, schema: pa.Schema, part: IdRange) -> Iterator[pa.RecordBatch]:
    """Return the jobs of a range, all at the same moment."""
    payload = options.include_payload and bool({"value", "result", "headers"} & set(schema.names))
    with closing(_connect(_urls(options, None)[part.shard], options)) as db:
        with db.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read read only")
        known = _queues(db, options)
        with db.cursor() as cursor:
            cursor.execute(columns.jobs(_where(options, _chosen(known, part.queues)), part.start, part.end, payload=payload))
            for batch in cursor.fetch_record_batch():
                if batch.num_rows:
                    rows = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
                    yield from schemas.fitted([jobs_batch(rows, known, STATES, part.shard)], schema)


def read_events(options: Options, part: Range) -> Iterator[pa.RecordBatch]:
    """Return the events of a range, which the server has reported as durable. Raises EventsLost."""
    namespace = None if options.namespace == "*" else options.namespace or "default"
    start = part.start
    with closing(_connect(_urls(options, None)[part.shard], options)) as db:
        event_columns = EventColumns(part.shard, namespace, start, part.end)
        if part.history and _ask(db, columns.HISTORY) != [(part.history,)]:
            raise EventsLost(
                f"The database of {_told_by(options)} for shard {part.shard} has another history than the server's: it is"
                " another one, or an older copy of it."
            )
        with db.cursor() as cursor:
            cursor.execute(columns.journal(start, part.end))
            for batch in cursor.fetch_record_batch():
                for seq, at, body in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if seq > event_columns.next:
                        # It existed when the range was planned, and was deleted by retention since then.
                        if options.fail_on_data_loss or event_columns.next > start:
                            raise lost(part.shard, event_columns.next, seq)
                        event_columns.next = start = seq
                    event_columns.take(Block(seq, at, body))
                    if event_columns.is_full:
                        yield from _taken(event_columns)
        if event_columns.next < part.end:
            raise EventsLost(
                f"Event {event_columns.next} of shard {part.shard} is not in the database of {_told_by(options)}, though the"
                " server has it. Is that a replica which lags behind, or another database?"
            )
        yield from _taken(event_columns)


def _taken(event_columns: EventColumns) -> Iterator[pa.RecordBatch]:
    batch = event_columns.batch()
    if batch is not None:
        yield batch


def _urls(options: Options, shards: Sequence[int] | None) -> list[str]:
    """Read the addresses, in the process that needs them. Raises OptionInvalid, whose text never contains an address."""
    file, name = options.direct_url_file, options.direct_url_env
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise OptionInvalid(
                f"Option directUrlFile: {file} cannot be read here ({error.strerror}). Every worker needs it."
            ) from None
    else:
        text = os.environ.get(name or "", "")
        if not text:
            raise OptionInvalid(
                f"Option directUrlEnv: {name} is not set in this process. Every worker needs it, in a cluster by"
                f" spark.executorEnv.{name}, or use directUrlFile."
            )
    urls = [each for each in re.split(r"[\s,]+", text) if each]
    if not all(each.startswith(("postgresql://", "postgres://")) for each in urls):
        raise OptionInvalid(f"Option {_told_by(options)}: an address in it does not begin with postgresql://.")
    if shards is not None and len(urls) != len(shards):
        raise OptionInvalid(
            f"Option {_told_by(options)} has {len(urls)} addresses, and the server has {len(shards)} shards: one for each, in"
            " the server's order, with commas in between."
        )
    return urls


def _told_by(options: Options) -> str:
    return "directUrlFile" if options.direct_url_file is not None else "directUrlEnv"


def _connect(url: str, options: Options) -> Any:
    try:
        from adbc_driver_postgresql import dbapi  # noqa: PLC0415, an extra
    except ImportError:
        raise OptionInvalid(f"Option {_told_by(options)} needs a driver on every worker: {INSTALL}.") from None
    separator = "&" if "?" in url else "?"
    try:
        return dbapi.connect(f"{url}{separator}connect_timeout={_CONNECT_S}")
    except dbapi.Error as error:
        # The driver's text may contain the address, and with it a password.
        raise OptionInvalid(
            f"Option {_told_by(options)}: the database cannot be reached from this worker ({type(error).__name__})."
        ) from None


def _check(db: Any, shard: int, options: Options) -> None:
    """Check that this is the database of the shard. Raises OptionInvalid."""
    try:
        found = _ask(db, columns.SHARD)
    except Exception as error:
        raise OptionInvalid(
            f"Option {_told_by(options)}: address {shard + 1} is not a database of Penstock, or its user may not read it."
        ) from error
    if found != [(shard,)]:
        raise OptionInvalid(
            f"Option {_told_by(options)}: address {shard + 1} is that of shard {found[0][0]}, not of shard {shard}. Give them"
            " in the server's order."
        )


def _queues(db: Any, options: Options) -> dict[int, tuple[str, str]]:
    """Return the queues of the namespace by their numbers, as namespace and name."""
    rows = _ask(db, columns.QUEUES)
    wanted = options.namespace or "default"
    return {number: (namespace, name) for number, namespace, name in rows if wanted in ("*", namespace)}


def _chosen(known: dict[int, tuple[str, str]], queues: Sequence[str]) -> list[int]:
    return [number for number, (_, name) in known.items() if not queues or name in queues]


def _where(options: Options, queues: Sequence[int]) -> str:
    states = [number for number, name in STATES.items() if not options.states or name in options.states]
    return columns.chosen(queues, states, options.created_from, options.created_to)


def _ask(db: Any, sql: str) -> list[tuple[Any, ...]]:
    with db.cursor() as cursor:
        cursor.execute(sql)
        return [tuple(row) for row in cursor.fetchall()]
