"""The journal as a stream: offsets per shard. It can be read again at any time; reading removes nothing.

An offset of a stream is ``{"to": {"0": 1200}, "histories": {"0": "…:0"}}``: the first event of each shard that is not read
yet, and the history to which its number belongs (``penstock.core.history``). Spark does not log where a stream began, so the
first offset that it logs contains that, too (``from``), and so does an offset with a new shard, or with a shard that is read
from its beginning again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.client._clock import block
from penstock.client.errors import ApiError, PenstockError
from penstock.spark import schemas
from penstock.spark.http_client import BulkClient, wrong_shard
from penstock.spark.options import TRIGGER_DELAY_MS, OptionInvalid
from penstock.spark.trigger_pacing import TriggerPacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from penstock.spark.options import Options

log = logging.getLogger("penstock.spark")

#: Events of one partition at most, unless more partitions are requested: one request each.
EVENTS_PER_PARTITION: Final = 250_000
#: The pause of an idle stream before Spark's next request, in seconds: by default, Spark sends one every 10 ms.
IDLE_PAUSE_S: Final = 0.1
#: The code of the error for a position in another history.
HISTORY_REPLACED: Final = "history_replaced"
#: For each shard, by its number as text (JSON has no other keys), a position in its journal.
Places: TypeAlias = dict[str, int]


class EventsLost(PenstockError):
    """Events that were to be read are not in the journal any more."""


class JournalReplaced(EventsLost):
    """The journal is not the one that was read before: it is of another server, or of a store that was emptied or restored."""


@dataclass
class Range(InputPartition):
    """Events of a shard between two positions; the end is not included."""

    shard: int
    start: int
    end: int
    history: str = ""  #: of these numbers; empty if an earlier server did not send it


class Positions:
    """The first and last positions of the journals of a server, requested once."""

    def __init__(self, wire: BulkClient, options: Options) -> None:
        self._wire = wire
        self._options = options
        shards = wire.get("/bulk")["shards"]
        self.first: Places = {str(each["shard"]): each["journal_first"] for each in shards}
        #: The first event that is not on disk yet, and so might still change.
        self.vouched: Places = {str(each["shard"]): each["vouched"] for each in shards}
        #: The history of the numbers; empty for a server of an earlier version, which does not send it.
        self.histories: dict[str, str] = {str(each["shard"]): each["history"] for each in shards if each.get("history")}

    def start(self) -> Places:
        """Return the start position of the options. Raises EventsLost, OptionInvalid."""
        options = self._options
        if options.starting_timestamp is not None:
            return self._at(options.starting_timestamp)
        if isinstance(options.starting_offsets, dict):
            wanted = self.first | self._known("startingOffsets", options.starting_offsets)
            for shard, place in wanted.items():
                if place > self.vouched[shard]:
                    raise OptionInvalid(
                        f"Option startingOffsets: the journal of shard {shard} ends before {self.vouched[shard]}, and"
                        f" {place} is beyond it. It is another server's, or its store was emptied or restored."
                    )
            return self.kept(wanted)
        return dict(self.first if options.starting_offsets == "earliest" else self.vouched)

    def end(self) -> Places:
        """Return the end position of the options. Raises OptionInvalid."""
        options = self._options
        if options.ending_timestamp is not None:
            return self._at(options.ending_timestamp)
        if isinstance(options.ending_offsets, dict):
            wanted = self._known("endingOffsets", options.ending_offsets)
            return {shard: min(wanted.get(shard, place), place) for shard, place in self.vouched.items()}
        return dict(self.first if options.ending_offsets == "earliest" else self.vouched)

    def kept(self, places: Mapping[str, int]) -> Places:
        """Return positions that can be read. Raises EventsLost if one cannot, unless the options allow data loss."""
        moved = {shard: max(place, self.first.get(shard, place)) for shard, place in places.items()}
        for shard, place in places.items():
            if moved[shard] > place and self._options.fail_on_data_loss:
                raise lost(shard, place, moved[shard])
        return moved

    def replaced(self, shard: str, place: int, history: str) -> str:
        """Return why a position does not belong to this journal; empty if it may.

        ``history``: of the position; empty if it is not known. Then only a position beyond the end is detected.
        """
        known = self.histories.get(shard, "")
        if history and known and history != known:
            same = history.partition(":")[0] == known.partition(":")[0]
            return (
                "its store was restored, or has lost events" if same else "another server answers, or its store was emptied"
            )
        if place > self.vouched.get(shard, place):
            return f"it ends before {self.vouched[shard]}, so another server answers, or its store was emptied or restored"
        return ""

    def refuse(self, shard: str, place: int, why: str) -> None:
        """Report a position that is not of this journal. Raises JournalReplaced, unless the options allow data loss."""
        what = (
            f"Shard {shard} was read up to {place - 1}, and the journal of {self._options.url} is not the one that was read:"
            f" {why}."
        )
        if self._options.fail_on_data_loss:
            raise JournalReplaced(
                f"{what} With failOnDataLoss=false all that this journal keeps is read; or begin with a new checkpoint."
            )
        log.warning("%s The existing events are read, from %s on.", what, self.first[shard])

    def _known(self, option: str, places: Places) -> Places:
        for shard in places:
            if shard not in self.vouched:
                raise wrong_shard(f"Option {option} names a shard {shard}", self.vouched)
        return places

    def _at(self, moment_ms: int) -> Places:
        found = {
            shard: int(self._wire.get("/bulk/journal/at", shard=shard, timestamp=moment_ms)["seq"]) for shard in self.vouched
        }
        return {shard: min(place, self.vouched[shard]) for shard, place in found.items()}


def lost(shard: str | int, wanted: int, first: int) -> EventsLost:
    """Return the error for events that are not kept any more, with the remedy."""
    return EventsLost(
        f"Shard {shard} no longer keeps the events from {wanted} on: its journal begins with {first}. With failOnDataLoss=false"
        " the rest is read; keep more (journal_age_ms, journal_bytes_max) if readers must be able to stop for longer."
    )


def ranges_of(
    start: Mapping[str, int],
    end: Mapping[str, int],
    min_partitions: int | None,
    histories: Mapping[str, str] = MappingProxyType({}),
) -> list[Range]:
    """Cut the events between two positions into partitions, each short enough for one request."""
    counts = {shard: max(0, place - start.get(shard, place)) for shard, place in end.items()}
    total = sum(counts.values())
    length = EVENTS_PER_PARTITION
    if min_partitions is not None and total:
        length = max(1, min(length, total // min_partitions))
    found = []
    for shard, count in sorted(counts.items()):
        pieces = -(-count // length)
        first = start.get(shard, end[shard])
        found += [
            Range(
                int(shard),
                first + count * piece // pieces,
                first + count * (piece + 1) // pieces,
                histories.get(shard, ""),
            )
            for piece in range(pieces)
        ]
    return found


def read_range(options: Options, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Return the events of a partition, in the columns that Spark expects. Raises EventsLost."""
    if not isinstance(partition, Range):  # there are no events: Spark calls this anyway
        return
    yield from schemas.fitted(fetch_range(options, partition), schema)


def fetch_range(options: Options, partition: Range) -> Iterator[pa.RecordBatch]:
    """Return the events of a partition, in the server's columns. Raises EventsLost."""
    if options.is_direct:
        from penstock.spark import direct  # noqa: PLC0415, it imports this, and much that others do not need

        yield from direct.read_events(options, partition)
        return
    start = partition.start
    with BulkClient(options) as wire:
        while start < partition.end:
            wanted: dict[str, object] = {"from": start, "to": partition.end, "history": partition.history or None}
            try:
                yield from wire.rows("/bulk/journal", shard=partition.shard, **wanted)
                return
            except ApiError as error:
                if error.code == HISTORY_REPLACED:
                    Positions(wire, options).refuse(str(partition.shard), start, error.message.rstrip("."))
                    return
                if error.status != 410:
                    raise
                # It existed when the partition was planned, and was deleted by retention since then.
                shards = wire.get("/bulk")["shards"]
                first = next(each["journal_first"] for each in shards if each["shard"] == partition.shard)
                if options.fail_on_data_loss or first <= start:
                    raise lost(partition.shard, start, first) from error
                start = first


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Every event, once, in order within a shard. Only Spark's checkpoint stores which events were read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.arrow = schemas.arrow_schema("journal", schema)
        self._wire: BulkClient | None = None
        self._target: Places | None = None  # of a run with availableNow
        self._pace = TriggerPacing(options.min_offsets_per_trigger, options.max_trigger_delay or TRIGGER_DELAY_MS)
        self._read: Places = {}
        #: For positions without a history, from offsets of an earlier version: the first history that was found for them.
        self._histories: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_wire": None}  # connections are not pickled

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Return the start position, from the options: Spark calls this several times, and must get the same value."""
        options = self.options
        return {"start": options.starting_offsets if options.starting_timestamp is None else options.starting_timestamp}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802, Spark's name
        """Return the limit of a batch."""
        most = self.options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802, Spark's name
        """Record the present end of the journal: the run ends there."""
        self._target = self._positions().vouched

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Return the end of the next batch."""
        positions = self._positions()
        known: Places = start.get("to") or positions.start()
        # Shards that were added since then are read from their beginning.
        known = known | {shard: place for shard, place in positions.first.items() if shard not in known}
        histories = self._seen(positions, start)
        anew = self._anew(positions, known, histories)
        known, histories = known | anew, histories | positions.histories
        head = positions.vouched if self._target is None else self._target
        waiting = {shard: max(0, head.get(shard, place) - place) for shard, place in known.items()}
        if self._target is None and self._pace.holds(sum(waiting.values())):
            block(IDLE_PAUSE_S)
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Shards without new events keep their position: it must not decrease if a server does not list the shard for a while.
        to = {shard: place + _share(waiting, shard, most) for shard, place in known.items()}
        self._read = to
        fresh = {shard: place for shard, place in known.items() if shard not in start.get("to", {}) or shard in anew}
        if not fresh and to == start["to"]:
            if self._target is None:
                block(IDLE_PAUSE_S)
            return start
        self._pace.went()
        return {"to": to} | ({"from": fresh} if fresh else {}) | ({"histories": histories} if histories else {})

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802, Spark's name
        """Return the end of the journal, and the number of events after this batch, for the query's progress."""
        head = self._positions().vouched
        lag = sum(max(0, place - self._read.get(shard, place)) for shard, place in head.items())
        return {"to": head, "lag": lag}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut a batch into partitions. After a restart Spark calls this first, for the uncompleted batch. Raises EventsLost."""
        if start == end:
            return []
        to, positions, histories = dict(end["to"]), self._positions(), dict(end.get("histories", {}))
        for shard, place in end["to"].items():
            why = positions.replaced(shard, place, histories.get(shard, ""))
            if why:
                positions.refuse(shard, place, why)
                del to[shard]  # the next offset contains these
        begin: Places = dict(start.get("to", {})) | dict(end.get("from", {}))
        kept = positions.kept({shard: place for shard, place in begin.items() if place < to.get(shard, place)})
        return ranges_of(begin | kept, to, self.options.min_partitions, histories)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the events of a partition."""
        return read_range(self.options, self.arrow, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint has the position."""

    def stop(self) -> None:
        """Close the connection."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _seen(self, positions: Positions, start: dict[str, Any]) -> dict[str, str]:
        """Return the histories of an offset. For one of an earlier version, these are the present histories."""
        given: dict[str, str] = start.get("histories", {})
        bare = {shard for shard in start.get("to", {}) if shard not in given and shard not in self._histories}
        found = {shard: history for shard, history in positions.histories.items() if shard in bare}
        if found:
            log.warning(
                "The checkpoint was written by an earlier version and has no record of its journal. The one of %s is"
                " taken for it from now on: %s.",
                self.options.url,
                ", ".join(f"shard {shard} {history}" for shard, history in sorted(found.items())),
            )
            self._histories |= found
        return self._histories | given

    @staticmethod
    def _anew(positions: Positions, known: Places, histories: Mapping[str, str]) -> Places:
        """Return the start positions in journals that differ from those that were read. Raises JournalReplaced."""
        found: Places = {}
        for shard, place in known.items():
            why = positions.replaced(shard, place, histories.get(shard, ""))
            if why:
                positions.refuse(shard, place, why)
                found[shard] = positions.first[shard]
        return found

    def _positions(self) -> Positions:
        if self._wire is None:
            self._wire = BulkClient(self.options)
        return Positions(self._wire, self.options)


def _share(waiting: Mapping[str, int], shard: str, most: int | None) -> int:
    """Return how many events of a shard a batch has: in proportion to those that wait; at least one, so that all advance."""
    total = sum(waiting.values())
    if most is None or total <= most:
        return waiting[shard]
    return min(waiting[shard], max(1, waiting[shard] * most // total))
