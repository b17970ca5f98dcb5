"""``spark.read``: a snapshot of jobs, or a range of the journal."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.errors import NotFound, PenstockError
from penstock.spark import schemas
from penstock.spark.http_client import LONG_MS, BulkClient, queues_of
from penstock.spark.journal import Positions, ranges_of, read_range
from penstock.spark.options import OptionInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.options import Options


log = logging.getLogger("penstock.spark")
#: The largest number of queue names in a request for a snapshot.
QUEUES_PER_SNAPSHOT: Final = 1_000


@dataclass
class SnapshotPart(InputPartition):
    """One part of a snapshot."""

    snapshot: str
    part: int


class JobsDamaged(PenstockError):
    """Jobs are damaged on the server's disk, so the snapshot does not contain them."""


class SnapshotGone(PenstockError):
    """The snapshot is no longer kept: the server removes it 10 minutes after its last use, and when it restarts. Load again."""


def reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return the reader for a table.

    No reader takes filters (``pushFilters``): Spark keeps those of one query with the DataFrame, and a later query on the
    same DataFrame would silently lack rows. See docs/adr/0016-filters.md.
    """
    return (JobsReader if options.table == "jobs" else JournalReader)(options, schema)


class JobsReader(DataSourceReader):
    """Jobs as they were at one moment, shard by shard: one partition for each part of a snapshot."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("jobs", schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Request the snapshot from the server, and return its parts."""
        options = self.options
        if options.is_direct:
            from penstock.spark import direct  # noqa: PLC0415, it imports much that others do not need

            return direct.job_ranges(options)
        payload = options.include_payload and bool({"value", "result", "headers"} & set(self.arrow.names))
        with BulkClient(options) as wire:
            queues = queues_of(wire, options)
            if not queues and options.queues_pattern is not None:
                return []
            if len(queues) > QUEUES_PER_SNAPSHOT and options.queues_pattern is not None:
                raise OptionInvalid(
                    f"Option queuesPattern matches {len(queues)} queues, and a snapshot has at most {QUEUES_PER_SNAPSHOT}"
                    " names. Leave it out, and filter by the column queue."
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
        if not isinstance(partition, SnapshotPart):  # there are no rows: Spark calls this anyway
            return
        with BulkClient(self.options) as wire:
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
        " meets it, and never delivers it. Check the server's disk, and restore a backup if you need these jobs"
        " (docs/semantics.md)."
    )
    if fail:
        raise JobsDamaged(f"{what} With failOnDataLoss=false the others are read.")
    log.warning("%s With failOnDataLoss=true, a read fails instead.", what)


class JournalReader(DataSourceReader):
    """Events of a range of the journal, shard by shard."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("journal", schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Find the first and last event of each shard, and cut the range into partitions."""
        options = self.options
        with BulkClient(options) as wire:
            positions = Positions(wire, options)
            start = positions.start()
            end = positions.end()
        return ranges_of(start, end, options.min_partitions, positions.histories)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the events of a partition."""
        return read_range(self.options, self.arrow, partition)
