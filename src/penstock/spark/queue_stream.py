"""Queues as a stream that consumes: lease, process, acknowledge.

An offset is ``{"group": …, "epoch": n}``, with the histories of the shards it is of. An epoch is a claim with a number, which
the server keeps: whoever asks for it again gets the same jobs. It is acknowledged once Spark has logged its batch as done.
Spark's own ``commit`` comes too late, and never for the last batch; but when Spark asks what comes after an offset, everything
up to it is done.

The group is the user's consumer group with a name of its own behind it, made when the stream begins and kept in its offsets. So
a query with a new checkpoint, or a second one, can never acknowledge the jobs of another.
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

#: Jobs of one batch, unless the user says otherwise.
JOBS_PER_BATCH: Final = 100_000
#: More than this no server gives at once.
JOBS_PER_BATCH_MAX: Final = 500_000
#: Queues that are counted one by one for the progress of a query: a request each.
QUEUES_COUNTED: Final = 100
#: Names of queues that one claim may have.
QUEUES_PER_CLAIM: Final = 1_000
#: Jobs of one partition, unless more partitions are asked for.
JOBS_PER_PARTITION: Final = 25_000
#: Group and epoch of what was claimed, if nothing was.
_NOTHING: Final[tuple[str, int]] = ("", 0)
#: What a user has to know who goes on.
_TWICE: Final = "If the sink has the batch already, it gets them a second time: same job_id, higher attempt."


class LeasesLost(PenstockError):
    """Jobs of a batch went back to their queues before they were acknowledged: their leases ended while the query was away."""


class HistoryChanged(PenstockError):
    """The server is not the one of the batches before: another one, or its store was emptied or restored."""


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
        """How many jobs this part has."""
        return self.rows * (self.split + 1) // self.splits - self.rows * self.split // self.splits


def _what(error: ApiError) -> str:
    """Return what the server says has happened, without its advice, which is for those who ask it themselves."""
    return error.message.partition(". ")[0].rstrip(".") + "."


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Jobs of some queues, each claimed for this query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("queues", schema)
        self._wire: BulkClient | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._fresh = f"{options.consumer_group}-{secrets.token_hex(5)}"
        self._ends = False  # a run with availableNow
        self._left: int | None = None  # jobs that it still takes
        self._claimed = _NOTHING
        self._acked = 0
        self._histories: dict[str, str] = {}  # of the server's shards, as the last claim had them
        self._turn = -1  # which heap of queues was asked for first
        self._pace = TriggerPacing(options.min_offsets_per_trigger, options.max_trigger_delay or TRIGGER_DELAY_MS)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_wire": None, "_keeper": None}  # connections and processes stay where they are

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Return the offset before everything: Spark asks several times, and must get the same."""
        return {"epoch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, Spark's name
        """Return how many jobs a batch may have."""
        return ReadMaxRows(self.options.max_offsets_per_trigger or JOBS_PER_BATCH)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, Spark's name
        """Have the run end: it takes no more than what waits when it makes its first claim, even if more keeps coming."""
        self._ends = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Acknowledge all up to ``start``, which is logged as done, and claim what comes next."""
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
            # A batch of the group is in the checkpoint: if this run ends, its keeper must not release the next one's jobs.
            self._say({"planned": True})
        self._histories = self._histories | start.get("histories", {})
        rows = self._claim(group, epoch, most, wait_ms)
        if rows and "group" in start and self._claimed == _NOTHING and self._has_lost(group):
            # The run before had claimed it, died before Spark wrote it down, and was away for too long. Nobody has read it.
            self._server().post(path("/bulk/groups/{}/release", group), {}, wait_ms=LONG_MS)
            rows = self._claim(group, epoch, most, wait_ms)
        if rows == 0:
            return start
        self._pace.went()
        if self._left is not None:
            self._left = max(0, self._left - rows)
        elif self._ends:
            # After the first claim: it may have found an epoch that the run before had claimed, whose jobs do not wait.
            self._left = self._all_waiting()
        self._claimed = (group, epoch)
        more = {"histories": self._histories} if self._histories else {}
        return {"group": group, "epoch": epoch, "rows": rows} | more

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802, Spark's name
        """Return how many jobs wait, for the query's progress; of many queues, in those that were last claimed from."""
        try:
            queues = self._queues()
            if len(queues) <= QUEUES_COUNTED:
                return {"lag": sum(self._waiting(queue) for queue in queues)}
            groups = self._server().get("/bulk/groups")
            return {"lag": sum(each["lag"] for each in groups if each["group"] == self._claimed[0])}
        except PenstockError:  # a figure to look at, and no reason to fail
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into pieces. After a restart this comes first, for the batch that was not done."""
        if end["epoch"] == start["epoch"]:  # Spark has a first batch even if nothing waits
            return []
        group = end["group"]
        self._keep(group)
        self._say({"planned": True})
        epoch, rows = end["epoch"], int(end["rows"])
        self._histories = self._histories | end.get("histories", {})
        assert epoch == start["epoch"] + 1, "a batch is an epoch"
        if epoch == 1 and self._claimed != (group, epoch):
            # The keeper of a query that ended before it read anything gives its jobs back (see there).
            # If it did not, this changes nothing.
            rows = self._claim(group, epoch, rows, 0)
        splits = max(self.options.min_partitions or 1, -(-rows // JOBS_PER_PARTITION))
        return [Split(group, epoch, split, splits, rows) for split in range(splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the jobs of a piece. Raises LeasesLost."""
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
                    f" batch goes on without them; whoever claims them gets them, this query too. {_TWICE}"
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
        """Acknowledge, if that was not done already."""
        self._acknowledge(end.get("group", self._fresh), end["epoch"])

    def stop(self) -> None:
        """Have the keeper look a last time and end; close the connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.close()
            self._keeper = None

    def _claim(self, group: str, epoch: int, most: int, wait_ms: int) -> int:
        """Claim an epoch, or find the one that was claimed already. Return how many jobs it has."""
        queues = self._queues()
        if not queues:  # none whose name fits, so far
            block(wait_ms / 1000)
            return 0
        # More names than one claim may have are asked for in turn: of a claim that finds nothing, nothing is kept.
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
        """Claim from the server whose epochs came before. Raises HistoryChanged if it is another one now."""
        where = path("/bulk/groups/{}/claim", group)
        known = {"histories": self._histories} if self._histories else {}
        try:
            claimed = self._server().post(where, wanted | known, wait_ms=wait_ms + LONG_MS)
        except Conflict as error:
            if error.code != HISTORY_REPLACED:
                raise
            if self.options.on_lease_lost != "skip":
                raise HistoryChanged(
                    f"{_what(error)} What was acknowledged may wait in its queues again, or may be gone. With"
                    " onLeaseLost=skip the query goes on with what is there now; or begin with a new checkpoint."
                ) from error
            log.warning("%s The query goes on with the jobs that are there now. %s", _what(error), _TWICE)
            self._histories = {}
            claimed = self._server().post(where, wanted, wait_ms=wait_ms + LONG_MS)
        self._histories = self._histories | claimed.get("histories", {})
        return claimed

    def _acknowledge(self, group: str, epoch: int) -> None:
        """Acknowledge everything up to an epoch. Raises LeasesLost: then nothing is, and the next run is told the same."""
        if epoch <= self._acked:
            return
        try:
            lost = acknowledge(self._server(), self.options, group, epoch)
        except Conflict as error:
            raise LeasesLost(
                f"{_what(error)} Their batch is done, but was not acknowledged within leaseTimeout"
                f" ({self.options.lease_timeout} ms), so these jobs went back to their queues. With onLeaseLost=skip the query"
                f" goes on, and whoever claims them gets them, this query too. {_TWICE}"
            ) from error
        if lost:
            log.warning(
                "%s jobs of %s were processed and are not its own any more: if they went back to their queues because leases"
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
            return sys.maxsize  # this key may take, and not count: the run ends when the queues are empty

    def _waiting(self, queue: str) -> int:
        return int(self._server().get(path("/queues/{}/counts", queue))["counts"]["waiting"])

    def _queues(self) -> tuple[str, ...]:
        return queues_of(self._server(), self.options)

    def _server(self) -> BulkClient:
        if self._wire is None:
            self._wire = BulkClient(self.options)
        return self._wire

    def _keep(self, group: str) -> None:
        """See to it that a keeper runs (penstock.spark.lease_keeper)."""
        if self._keeper is None or self._keeper.poll() is not None:
            command = [sys.executable, "-m", "penstock.spark.lease_keeper"]
            # In a session of its own, so that it outlives the signal that ends Spark's processes by a moment.
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
            self._keeper = None  # it died; the next call starts another
