"""``spark.read``: a snapshot of jobs, or a stretch of the journal."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from penstock.client.errors import NotFound, PenstockError
from penstock.spark import schemas
from penstock.spark.journal import Positions, ranges_of, read_range
from penstock.spark.options import OptionInvalid
from penstock.spark.wire import LONG_MS, Wire, queues_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from penstock.spark.options import Options


log = logging.getLogger("penstock.spark")
#: Names of queues that a snapshot may be asked for.
QUEUES_PER_SNAPSHOT: Final = 1_000


@dataclass
class SnapshotPart(InputPartition):
    """One part of a snapshot."""

    snapshot: str
    part: int


class JobsDamaged(PenstockError):
    """Jobs are damaged on the server's disk, so a snapshot has to do without them."""


class SnapshotGone(PenstockError):
    """The snapshot is no longer kept: the server forgets it 10 minutes after its last use, and when it restarts. Load again."""


def reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return the reader for a table. One that is told of filters only if that was asked for: Spark may refuse it otherwise."""
    if options.table == "jobs":
        return (PushingJobsReader if options.push_down else JobsReader)(options, schema)
    return (PushingJournalReader if options.push_down else JournalReader)(options, schema)


class JobsReader(DataSourceReader):
    """Jobs as they were at one moment, shard by shard: one partition for each part of a snapshot."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("jobs", schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Have the server take the snapshot."""
        options = self.options
        if options.is_direct:
            from penstock.spark import direct  # noqa: PLC0415, it imports much that others do not need

            return direct.job_ranges(options)
        payload = options.include_payload and bool({"value", "result", "headers"} & set(self.arrow.names))
        with Wire(options) as wire:
            queues = queues_of(wire, options)
            if not queues and options.queues_pattern is not None:
                return []
            if len(queues) > QUEUES_PER_SNAPSHOT and options.queues_pattern is not None:
                raise OptionInvalid(
                    f"Option queuesPattern fits {len(queues)} queues, and a snapshot takes {QUEUES_PER_SNAPSHOT} names at most."
                    " Leave it out, and filter by the column queue."
                )
            made = wire.post(
                "/bulk/snapshots",
                {
                    "table": "jobs",
                    "queues": queues or None,
                    "states": options.states or None,
                    "created_from": options.created_from,
                    "created_to": options.created_to,
                    "include_payload": payload,
                    "rows_per_part": options.rows_per_partition,
                },
                wait_ms=LONG_MS,
            )
        _tell_of_damage(made.get("damaged", 0), fail=options.fail_on_data_loss)
        return [SnapshotPart(made["id"], each["part"]) for each in made["parts"] if each["rows"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a part."""
        if self.options.is_direct:
            from penstock.spark import direct  # noqa: PLC0415

            if isinstance(partition, direct.IdRange):
                yield from direct.read_jobs(self.options, self.arrow, partition)
            return
        if not isinstance(partition, SnapshotPart):  # there is no row anywhere: Spark asks all the same, for nothing
            return
        with Wire(self.options) as wire:
            try:
                yield from schemas.fitted(
                    wire.rows(f"/bulk/snapshots/{partition.snapshot}/parts/{partition.part}"), self.arrow
                )
            except NotFound as error:
                raise SnapshotGone(SnapshotGone.__doc__) from error


def _tell_of_damage(jobs: int, *, fail: bool) -> None:
    if not jobs:
        return
    what = (
        f"{jobs} jobs are damaged on the server's disk and left out of this snapshot. The queue puts such a job aside when it"
        " meets it, and never delivers it. Look at the server's disk, and restore a backup if these jobs matter"
        " (docs/semantics.md)."
    )
    if fail:
        raise JobsDamaged(f"{what} With failOnDataLoss=false the others are read.")
    log.warning("%s With failOnDataLoss=true, a read fails instead.", what)


class PushingJobsReader(JobsReader):
    """The same, with filters that the server can use. All are given back, so that Spark checks what it gets."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Narrow the snapshot down by queue, state and the time jobs were made."""
        before = self.options
        for each in filters:
            self.options = _narrowed(self.options, each)
        _warn_kept(before, self.options)
        return filters


def _warn_kept(before: Options, after: Options) -> None:
    """Spark keeps what was pushed down with the DataFrame, and asks nobody again: a later query would silently lack rows."""
    if after != before:
        log.warning(
            "Filters were pushed down (pushDown=true). Spark keeps them with this DataFrame: for another query, load() it anew."
        )


def _narrowed(options: Options, wanted: Filter) -> Options:
    match wanted:
        case EqualTo(attribute=("queue",), value=str(name)):
            return replace(options, queues=_both(options.queues, (name,)))
        case In(attribute=("queue",), value=names) if names:
            return replace(options, queues=_both(options.queues, names))
        case EqualTo(attribute=("state",), value=str(name)):
            return replace(options, states=_both(options.states, (name,)))
        case In(attribute=("state",), value=names) if names:
            return replace(options, states=_both(options.states, names))
        case GreaterThan(attribute=("created_at",), value=at) | GreaterThanOrEqual(attribute=("created_at",), value=at):
            start = _ms(at)
            return replace(options, created_from=start if options.created_from is None else max(start, options.created_from))
        case LessThan(attribute=("created_at",), value=at) | LessThanOrEqual(attribute=("created_at",), value=at):
            end = _ms(at) + 1  # a moment within this millisecond, and Spark checks again
            return replace(options, created_to=end if options.created_to is None else min(end, options.created_to))
        case _:
            return options


def _both(known: tuple[str, ...], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are in both. If none is, one of them: no name would mean everything, and Spark checks again."""
    names = tuple(wanted)
    return tuple(name for name in names if not known or name in known) or names[:1]


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)


class JournalReader(DataSourceReader):
    """Events of a stretch of the journal, each shard by itself."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("journal", schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Find out where it begins and ends, and cut it into pieces."""
        options = self.options
        with Wire(options) as wire:
            positions = Positions(wire, options)
            start = positions.start()
            end = positions.end()
        return ranges_of(start, end, options.min_partitions, positions.histories)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the events of a piece."""
        return read_range(self.options, self.arrow, partition)


class PushingJournalReader(JournalReader):
    """The same, narrowed down by the time of events. All filters are given back, so that Spark checks what it gets."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Begin and end where the filters on ``at`` say, if nothing else was said."""
        before = self.options
        for each in filters:
            match each:
                case GreaterThan(attribute=("at",), value=at) | GreaterThanOrEqual(attribute=("at",), value=at):
                    if self.options.starting_timestamp is None and self.options.starting_offsets == "earliest":
                        self.options = replace(self.options, starting_timestamp=_ms(at))
                case LessThan(attribute=("at",), value=at) | LessThanOrEqual(attribute=("at",), value=at):
                    if self.options.ending_timestamp is None and self.options.ending_offsets == "latest":
                        self.options = replace(self.options, ending_timestamp=_ms(at) + 1)
                case _:
                    pass
        _warn_kept(before, self.options)
        return filters
