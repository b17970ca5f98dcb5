"""Queues as a stream that consumes: lease, process, acknowledge.

An offset is ``{"group": …, "epoch": n}``, with the histories of its shards. An epoch is a claim with a number, which the
server keeps: a request for it returns the same jobs again. It is acknowledged once Spark has logged its batch as completed.
Spark's own ``commit`` is called too late, and never for the last batch; but when Spark requests the offset after a given
one, everything up to that one is completed.

The group is the user's consumer group with a unique suffix, which is created when the stream begins and kept in its offsets.
So a query with a new checkpoint, or a second query, can never acknowledge the jobs of another.
"""

from __future__ import annotations

import json
import logging
import secrets
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client._clock import block
from penstock.client._request import path
from penstock.client.errors import ApiError, Conflict, NotFound, PenstockError
from penstock.spark import schemas
from penstock.spark.http_client import LONG_MS, BulkClient, acknowledge, queues_of
from penstock.spark.journal import HISTORY_REPLACED
from penstock.spark.options import TRIGGER_DELAY_MS
from penstock.spark.trigger_pacing import TriggerPacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

#: Jobs of one batch by default.
JOBS_PER_BATCH: Final = 100_000
#: The server's limit of jobs in one claim.
JOBS_PER_BATCH_MAX: Final = 500_000
#: Queues that are counted one by one for the progress of a query: one request each.
QUEUES_COUNTED: Final = 100
#: Names of queues that one claim may have.
QUEUES_PER_CLAIM: Final = 1_000
#: Jobs of one partition, unless more partitions are requested.
JOBS_PER_PARTITION: Final = 25_000
#: Group and epoch of the last claim, if there was none.
_NOTHING: Final[tuple[str, int]] = ("", 0)
#: The advice to users who continue.
_TWICE: Final = "If the sink has the batch already, it gets them a second time: same job_id, higher attempt."


class LeasesLost(PenstockError):
    """Leases of a batch ended before it was acknowledged, while the query was away. The jobs were ready again."""


class HistoryChanged(PenstockError):
    """The server is not the one of the previous batches: it is another one, or its store was emptied or restored."""


@dataclass
class Split(InputPartition):
    """A part of an epoch."""

    group: str
    epoch: int
    split: int
    splits: int
    rows: int  #: of the epoch

    @property
    def length(self) -> int:
        """Number of jobs in this part."""
        return self.rows * (self.split + 1) // self.splits - self.rows * self.split // self.splits


def _what(error: ApiError) -> str:
    """Return the server's description of an error, without its advice, which is for direct clients."""
    return error.message.partition(". ")[0].rstrip(".") + "."


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Jobs of some queues, claimed for this query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("queues", schema)
        self._wire: BulkClient | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._fresh = f"{options.consumer_group}-{secrets.token_hex(5)}"
        self._ends = False  # a run with availableNow
        self._left: int | None = None  # jobs that it may still claim
        self._claimed = _NOTHING
        self._acked = 0
        self._histories: dict[str, str] = {}  # of the server's shards, at the last claim
        self._turn = -1  # which part of the queues was claimed from first
        self._pace = TriggerPacing(options.min_offsets_per_trigger, options.max_trigger_delay or TRIGGER_DELAY_MS)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_wire": None, "_keeper": None}  # connections and processes are not pickled

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Return the offset before all others: Spark calls this several times, and must get the same value."""
        return {"epoch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, Spark's name
        """Return the limit of jobs in a batch."""
        return ReadMaxRows(self.options.max_offsets_per_trigger or JOBS_PER_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, Spark's name
        """Let the run end: it claims no more jobs than wait at its first claim, even if more arrive."""
        self._ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Acknowledge everything up to ``start``, which is logged as completed, and claim the next epoch."""
        group = start.get("group", self._fresh)
        self._acknowledge(group, start["epoch"])
        epoch = start["epoch"] + 1
        most = min(limit.max_rows, JOBS_PER_BATCH_MAX) if isinstance(limit, ReadMaxRows) else JOBS_PER_BATCH
        wait_ms = 0 if self._ends else self.options.poll_timeout
        if self._left is not None:
            most = min(most, self._left)
            if most == 0:
                return start
        if not self._ends and self._pace.asks and self._pace.holds(self._all_waiting()):
            block(self.options.poll_timeout / 1000)
            return start
        self._keep(group)
        if "group" in start:
            # A batch of the group is in the checkpoint: if this run ends, its keeper must not release the jobs of the next
            # batch.
            self._say({"planned": True})
        self._histories = self._histories | start.get("histories", {})
        rows = self._claim(group, epoch, most, wait_ms)
        if rows and "group" in start and self._claimed == _NOTHING and self._has_lost(group):
            # The previous run had claimed it, ended before Spark logged it, and was away for too long. The jobs were not read.
            self._server().post(path("/bulk/groups/{}/release", group), {}, wait_ms=LONG_MS)
            rows = self._claim(group, epoch, most, wait_ms)
        if rows == 0:
            return start
        self._pace.went()
        if self._left is not None:
            self._left = max(0, self._left - rows)
        elif self._ends:
            # After the first claim: it may have found an epoch that the previous run had claimed, whose jobs do not wait.
            self._left = self._all_waiting()
        self._claimed = (group, epoch)
        more = {"histories": self._histories} if self._histories else {}
        return {"group": group, "epoch": epoch, "rows": rows} | more

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802, Spark's name
        """Return how many jobs wait, for the query's progress; with many queues, in those of the last claim."""
        try:
            queues = self._queues()
            if len(queues) <= QUEUES_COUNTED:
                return {"lag": sum(self._waiting(queue) for queue in queues)}
            groups = self._server().get("/bulk/groups")
            return {"lag": sum(each["lag"] for each in groups if each["group"] == self._claimed[0])}
        except PenstockError:  # only a figure for people, and no reason to fail
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into partitions. After a restart Spark calls this first, for the uncompleted batch."""
        if end["epoch"] == start["epoch"]:  # Spark has a first batch even if no job waits
            return []
        group = end["group"]
        self._keep(group)
        self._say({"planned": True})
        epoch, rows = end["epoch"], int(end["rows"])
        self._histories = self._histories | end.get("histories", {})
        assert epoch == start["epoch"] + 1, "a batch is an epoch"
        if epoch == 1 and self._claimed != (group, epoch):
            # The keeper of a query that ended before it read any job has released its jobs (see there). If not, this changes
            # nothing.
            rows = self._claim(group, epoch, rows, 0)
        splits = max(self.options.min_partitions or 1, -(-rows // JOBS_PER_PARTITION))
        return [Split(group, epoch, split, splits, rows) for split in range(splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the jobs of a partition. Raises LeasesLost."""
        if not isinstance(partition, Split):
            return
        where = path("/bulk/groups/{}/read", partition.group)
        wanted: dict[str, object] = {"epoch": partition.epoch, "split": partition.split, "splits": partition.splits}
        if self.options.on_lease_lost == "skip":
            wanted["lost"] = "skip"
        with BulkClient(self.options) as wire:
            try:
                given = 0
                for batch in schemas.fitted(wire.rows(where, **wanted), self.arrow):
                    given += batch.num_rows
                    yield batch
                self._tell_of_lost(partition, given)
            except (Conflict, NotFound) as error:
                if self.options.on_lease_lost == "skip":
                    self._tell_of_lost(partition, 0)
                    return
                raise LeasesLost(
                    f"{_what(error)} If leases ran out, the query was away for longer than leaseTimeout"
                    f" ({self.options.lease_timeout} ms), and these jobs went back to their queues. With onLeaseLost=skip this"
                    f" batch continues without them; the next claim gets them, also one of this query. {_TWICE}"
                ) from error

    @staticmethod
    def _tell_of_lost(part: Split, given: int) -> None:
        if given < part.length:
            log.warning(
                "%s jobs of %s are left out of epoch %s: their leases ended and they went back to their queues, or they are"
                " damaged and were put aside (job:quarantined in the journal), or were removed.",
                part.length - given,
                part.group,
                part.epoch,
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge, if that was not done before."""
        self._acknowledge(end.get("group", self._fresh), end["epoch"])

    def stop(self) -> None:
        """Let the keeper read the checkpoint a last time and end; close the connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper = None

    def _claim(self, group: str, epoch: int, most: int, wait_ms: int) -> int:
        """Claim an epoch, or find the one that was claimed before. Return its number of jobs."""
        queues = self._queues()
        if not queues:  # no queue matches yet
            block(wait_ms / 1000)
            return 0
        # If there are more names than one claim may have, the stream takes parts of them in turn: an empty claim is not stored.
        heaps = [queues[at : at + QUEUES_PER_CLAIM] for at in range(0, len(queues), QUEUES_PER_CLAIM)]
        self._turn = (self._turn + 1) % len(heaps)
        for number in range(len(heaps)):
            wait = wait_ms if number == len(heaps) - 1 else 0
            wanted = {
                "epoch": epoch,
                "queues": heaps[(self._turn + number) % len(heaps)],
                "max": most,
                "lease_ms": self.options.lease_timeout,
                "wait_ms": wait,
            }
            claimed = self._claim_once(group, wanted, wait)
            if claimed["rows"]:
                return int(claimed["rows"])
        return 0

    def _claim_once(self, group: str, wanted: dict[str, Any], wait_ms: int) -> Any:
        """Claim from the server of the previous epochs. Raises HistoryChanged if it is another one now."""
        where = path("/bulk/groups/{}/claim", group)
        known = {"histories": self._histories} if self._histories else {}
        try:
            claimed = self._server().post(where, wanted | known, wait_ms=wait_ms + LONG_MS)
        except Conflict as error:
            if error.code != HISTORY_REPLACED:
                raise
            if self.options.on_lease_lost != "skip":
                raise HistoryChanged(
                    f"{_what(error)} Acknowledged jobs may be in their queues again, or may be missing. With"
                    " onLeaseLost=skip the query continues with the jobs that are in the store now. Or start with a"
                    " new checkpoint."
                ) from error
            log.warning("%s The query continues with the jobs that are in the store now. %s", _what(error), _TWICE)
            self._histories = {}
            claimed = self._server().post(where, wanted, wait_ms=wait_ms + LONG_MS)
        self._histories = self._histories | claimed.get("histories", {})
        return claimed

    def _acknowledge(self, group: str, epoch: int) -> None:
        """Acknowledge everything up to an epoch. Raises LeasesLost: then nothing is, and the next run fails, too."""
        if epoch <= self._acked:
            return
        try:
            lost = acknowledge(self._server(), self.options, group, epoch)
        except Conflict as error:
            raise LeasesLost(
                f"{_what(error)} Their batch is done, but was not acknowledged within leaseTimeout"
                f" ({self.options.lease_timeout} ms), so these jobs went back to their queues. With onLeaseLost=skip the query"
                f" continues, and the next claim gets them, also one of this query. {_TWICE}"
            ) from error
        if lost:
            log.warning(
                "%s jobs of %s were processed, and are no longer leased to it: if they went back to their queues because leases"
                " ended, they will be processed again, with the same job_id.",
                lost,
                group,
            )
        self._acked = epoch

    def _has_lost(self, group: str) -> bool:
        said = self._server().post(path("/bulk/groups/{}/heartbeat", group), {"lease_ms": self.options.lease_timeout})
        return bool(said.get("lost"))

    def _all_waiting(self) -> int:
        try:
            return sum(self._waiting(queue) for queue in self._queues())
        except ApiError as error:
            if not error.is_unauthorized:
                raise
            return sys.maxsize  # this key may claim, and not count: the run ends when the queues are empty

    def _waiting(self, queue: str) -> int:
        return int(self._server().get(path("/queues/{}/counts", queue))["counts"]["waiting"])

    def _queues(self) -> tuple[str, ...]:
        return queues_of(self._server(), self.options)

    def _server(self) -> BulkClient:
        if self._wire is None:
            self._wire = BulkClient(self.options)
        return self._wire

    def _keep(self, group: str) -> None:
        """Start a keeper if none runs (penstock.spark.lease_keeper)."""
        if self._keeper is None or self._keeper.poll() is not None:
            command = [sys.executable, "-m", "penstock.spark.lease_keeper"]
            # In a separate session, so that the signal that ends Spark's processes does not end it at once.
            self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603, no shell
            self._say(asdict(self.options))
            self._say({"group": group})

    def _say(self, what: dict[str, Any]) -> None:
        if self._keeper is None or self._keeper.stdin is None:
            return
        try:
            self._keeper.stdin.write(json.dumps(what).encode() + b"\n")
            self._keeper.stdin.flush()
        except BrokenPipeError:
            self._keeper = None  # it has ended; the next call starts another
