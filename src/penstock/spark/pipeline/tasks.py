"""The work of Spark's executors: fetch events or read them from bronze, build all tables, write files. One pass, no shuffle.

A task is independent of others: its rows are partials, which are folded with those of all other tasks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.client._clock import fresh_name, steady
from penstock.lake.location import fitted
from penstock.lake.tables import EVENTS, TABLES
from penstock.lake.transform import make
from penstock.lake.writer import DataFile, PartWriter
from penstock.spark.journal import fetch_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from penstock.lake.location import Lake
    from penstock.spark.journal import Range
    from penstock.spark.options import Options

#: Events from which tables are built at once. A larger number makes fewer partials and needs more memory.
AT_ONCE: Final = 1_000_000
_KNOWN: Final = frozenset(EVENTS.schema.names) - {"extra", "date", "batch"}


class TaskOutput(NamedTuple):
    """The output of tasks for each table, by its path: the files, and the duration in seconds."""

    files: dict[str, list[DataFile]]
    took: dict[str, float]


def fetch(
    spark: SparkSession, options: Options, lake: Lake, ranges: Sequence[Range], *, batch: int, wanted: Iterable[str]
) -> TaskOutput:
    """Let tasks fetch events and build all tables, and return the files. Commits nothing. Raises PenstockError."""
    tables = frozenset(wanted)

    def task(some: Sequence[Range]) -> TaskOutput:
        rows = (stored(each, batch) for chosen in some for each in fetch_range(options, chosen))
        return _write(lake, rows, batch, tables)

    return _spread(spark, ranges, task, options.min_partitions)


def remake(
    spark: SparkSession, lake: Lake, paths: Sequence[str], batch: int, wanted: Iterable[str], *, only_batch: bool
) -> TaskOutput:
    """Let tasks build tables from files of bronze, and return the files. ``only_batch``: from the rows of that batch only."""
    tables = frozenset(wanted)

    def task(some: Sequence[str]) -> TaskOutput:
        return _write(
            lake, (rows for path in some for rows in _read(lake, path, batch if only_batch else None)), batch, tables
        )

    return _spread(spark, paths, task, None)


def _spread(spark: SparkSession, work: Sequence[Any], task: Any, least: int | None) -> TaskOutput:
    """Spread work over as many tasks as Spark can run at once, each with adjacent parts, so that there are few files."""
    context = spark.sparkContext
    count = min(len(work), max(context.defaultParallelism, least or 1))
    if count == 0:
        return TaskOutput({}, {})
    groups = [list(work[len(work) * each // count : len(work) * (each + 1) // count]) for each in range(count)]
    found = TaskOutput({}, {})
    for made in context.parallelize(groups, count).map(task).collect():
        for path, parts in made.files.items():
            found.files.setdefault(path, []).extend(parts)
            found.took[path] = found.took.get(path, 0.0) + made.took[path]
    return found


def _write(lake: Lake, rows: Iterator[pa.Table], batch: int, wanted: frozenset[str]) -> TaskOutput:
    """Write events, if ``wanted`` includes them, and the tables that are built from them."""
    pa.set_cpu_count(1)  # Spark runs one task per core
    name = fresh_name()
    writers = {path: PartWriter(lake, TABLES[path], name) for path in wanted}
    took = dict.fromkeys(wanted, 0.0)
    for some in _heaps(rows):
        since = steady()
        if EVENTS.path in writers:
            writers[EVENTS.path].write(some)
            took[EVENTS.path] += steady() - since
            since = steady()
        for table, made in make(some, batch, wanted):
            writers[table.path].write(made)
            took[table.path] += steady() - since
            since = steady()
    return TaskOutput({path: writer.close() for path, writer in writers.items()}, took)


def _heaps(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    count = 0
    for each in rows:
        held.append(each)
        count += each.num_rows
        if count >= AT_ONCE:
            yield pa.concat_tables(held).combine_chunks()
            held, count = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


def _read(lake: Lake, path: str, batch: int | None) -> Iterator[pa.Table]:
    """Read a file of bronze, in parts."""
    file = pq.ParquetFile(lake.files(EVENTS).open_input_file(unquote(path)))
    for group in range(file.num_row_groups):
        rows = fitted(file.read_row_group(group, use_threads=False), EVENTS.schema)
        yield rows if batch is None else rows.filter(pc.equal(rows.column("batch"), batch))


def stored(rows: pa.RecordBatch, batch: int) -> pa.Table:
    """Return events as they are stored: with the day and the batch, and with unknown fields of a newer server as JSON."""
    count = rows.num_rows
    columns: dict[str, Any] = {
        field.name: rows.column(field.name) if field.name in rows.schema.names else pa.nulls(count, field.type)
        for field in EVENTS.schema
        if field.name in _KNOWN
    }
    more = [name for name in rows.schema.names if name not in _KNOWN]
    columns["extra"] = pa.array(_spelled(rows.select(more)), pa.string()) if more else pa.nulls(count, pa.string())
    columns["date"] = pc.cast(columns["at"], pa.date32())
    columns["batch"] = pa.repeat(pa.scalar(batch, pa.int64()), count)
    return pa.table([columns[name] for name in EVENTS.schema.names], schema=EVENTS.schema)


def _spelled(rows: pa.RecordBatch) -> list[str | None]:
    kept: Iterable[Mapping[str, Any]] = (
        {name: value for name, value in each.items() if value is not None} for each in rows.to_pylist()
    )
    return [json.dumps(each, default=str, sort_keys=True) if each else None for each in kept]
