"""Writing rows as jobs: each task stages its rows, and one small commit publishes them together.

Each task stages under a random name, so a task that is repeated, or run twice at once, adds nothing: the commit contains
only the names of the tasks that succeeded, which the driver has. The commit has a key. For a stream it is derived from the
query and the batch, so the server recognizes a batch that is repeated after a crash.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client._request import path
from penstock.client.errors import PenstockError
from penstock.spark import schemas
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.http_client import LONG_MS, BulkClient

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.types import StructType

    from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

#: A part of a stage is sent when it has so many rows, or so many bytes.
PART_ROWS: Final = 50_000
PART_BYTES: Final = 8 << 20
#: How long the commit of a batch waits until its jobs are stored by default, in ms.
PUBLISH_WAIT_MS: Final = 60_000


@dataclass
class Staged(WriterCommitMessage):
    """The staged rows of a task."""

    txn: str
    rows: int


class _Writer:
    """Base of both writers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.columns = schemas.check_sink(schema, options)

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Staged:
        """Send the rows of a task, in parts."""
        txn = secrets.token_hex(16)
        rows = part = 0
        waiting: list[pa.RecordBatch] = []
        with BulkClient(self.options) as wire:
            for batch in _pieces(each.select(self.columns) for each in batches):
                waiting.append(batch)
                if sum(each.num_rows for each in waiting) >= PART_ROWS or sum(each.nbytes for each in waiting) >= PART_BYTES:
                    rows += self._send(wire, txn, part, waiting)
                    part += 1
                    waiting = []
            rows += self._send(wire, txn, part, waiting)
        return Staged(txn, rows)

    def _send(self, wire: BulkClient, txn: str, part: int, batches: list[pa.RecordBatch]) -> int:
        count: int = sum(each.num_rows for each in batches)
        if count == 0:
            return 0
        buffer = pa.BufferOutputStream()
        with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
            for each in batches:
                stream.write_batch(each)
        params = self.options.constants() | {"part": str(part)}
        said = wire.put_rows(path("/bulk/stages/{}", txn), buffer.getvalue().to_pybytes(), params)
        if said["rows"] != count:
            raise PenstockError(
                f"The server took {said['rows']} of {count} rows of a part. This is an error of Penstock; please report it."
            )
        return count

    def publish(self, messages: Sequence[WriterCommitMessage | None], key: str, wait_ms: int) -> dict[str, Any]:
        """Publish all staged rows, once."""
        txns = sorted(each.txn for each in messages if isinstance(each, Staged) and each.rows)
        if not txns:
            return {}
        with BulkClient(self.options) as wire:
            said: dict[str, Any] = wire.post(
                "/bulk/commits", {"key": key, "txns": txns, "wait_ms": wait_ms or None}, wait_ms=wait_ms + LONG_MS
            )
        if said.get("known"):
            log.warning(
                "%s of %s rows of the commit %s made no new jobs: their key or unique_key is another job's. A key is used for"
                " one job in the namespace; leave it out, or make another.",
                said["known"],
                said["rows"],
                key,
            )
        if said.get("duplicate"):
            log.info("The commit %s had been made already.", key)
            self.forget(messages)
        return said

    def forget(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete staged rows. The server keeps those that a commit has named, so this undoes nothing; others expire."""
        with BulkClient(self.options) as wire:
            for each in messages:
                if isinstance(each, Staged) and each.rows:
                    try:
                        wire.post(path("/bulk/stages/{}/abort", each.txn), {})
                    except PenstockError as error:
                        log.warning("A stage could not be dropped, and will expire: %s", error)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches until each has at most the bytes of a part, or one row: Spark limits rows, and the server bytes."""
    left = deque[pa.RecordBatch]()
    for batch in batches:
        left.append(batch)
        while left:
            piece = left.popleft()
            if piece.nbytes <= PART_BYTES or piece.num_rows <= 1:
                yield piece
            else:
                half = piece.num_rows // 2
                left.extendleft((piece.slice(half), piece.slice(0, half)))


class BatchWriter(DataSourceArrowWriter):
    """``df.write``: publishes all rows, or none."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._writer = _Writer(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._writer.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows that all tasks have staged."""
        options = self._writer.options
        names = ",".join(sorted(each.txn for each in messages if isinstance(each, Staged)))
        key = options.idempotency_key or f"spark-batch:{hashlib.sha256(names.encode()).hexdigest()}"
        self._writer.publish(messages, key, PUBLISH_WAIT_MS if options.publish_wait is None else options.publish_wait)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the rows that tasks have staged."""
        self._writer.forget(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``: publishes every batch exactly once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._writer = _Writer(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._writer.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, Spark's name
        """Publish a batch, under a key that is the same if the batch is repeated."""
        options = self._writer.options
        writer = options.writer_id
        if writer is None:
            # Not the location: a new checkpoint in the same place begins with batch 0 again, and is another query.
            writer = Checkpoint(options.checkpoint_location or "").query_id()
        self._writer.publish(messages, f"spark:{writer}:{batchId}", options.publish_wait or 0)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002, Spark's
        """Delete the rows that tasks have staged. Spark also calls this if the answer to a commit was lost: see ``forget``."""
        self._writer.forget(messages)
