"""``penstock pipeline run``: keep a lake up to date with the journal of a server.

The lake itself has the position to continue from: the commit that adds events to bronze/events also records the next event
of each shard.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from deltalake.exceptions import CommitFailedError

from penstock.client._clock import fresh_name, now_ms, steady
from penstock.lake.maintenance import compact
from penstock.lake.tables import EVENTS, QUARANTINE, TABLES
from penstock.lake.transform import DERIVED
from penstock.lake.writer import BATCH_MARK, commit, mark_of, paths_of_batch, shard_mark
from penstock.spark.errors import is_passing, ours
from penstock.spark.http_client import BulkClient
from penstock.spark.journal import Positions, Range, fetch_range, ranges_of
from penstock.spark.pipeline.build import rebuild
from penstock.spark.pipeline.lake_info import LOCK, LakeInvalid, histories_of, note_format, note_histories, open_lake_info
from penstock.spark.pipeline.migrate import migrate
from penstock.spark.pipeline.tasks import fetch, remake
from penstock.spark.pipeline.worker_snapshot import look

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from penstock.lake.location import Lake
    from penstock.lake.tables import Table
    from penstock.lake.writer import DataFile
    from penstock.spark.journal import Places
    from penstock.spark.options import Options

T = TypeVar("T")

#: Events of one batch at most.
BATCH_EVENTS: Final = 2_000_000
#: After how many batches maintenance runs, and how many files a day must have for it.
UPKEEP_BATCHES: Final = 60
UPKEEP_FILES: Final = 16
#: The columns that distinguish an event from those of other servers.
IDENTITY: Final = ("seq", "at", "kind", "job_id")


@dataclass(slots=True)
class BatchResult:
    """The result of one batch. ``lag``: events of the server after its end, when it was planned."""

    number: int
    events: int
    aside: int
    seconds: float
    lag: int


class Builder:
    """Adds to one lake. ``fault``: called between two commits, for tests."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        options: Options,
        *,
        batch_events: int = BATCH_EVENTS,
        fault: Callable[[str], None] = lambda _moment: None,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._options = options
        self._most = batch_events
        self._fault = fault
        self._wire = BulkClient(options)
        self._histories: dict[str, str] | None = None  #: of the shards, as in the lake's ``lake.json``; None: not read yet

    def close(self) -> None:
        """Close connections."""
        self._wire.close()

    def open(self, tell: Callable[[str], None] = lambda _line: None) -> int:
        """Create missing tables, add columns to tables of an earlier version, finish an interrupted batch.

        Returns how many events of that batch were quarantined. Raises LakeInvalid.
        """
        lake = self._lake
        made_as = open_lake_info(lake, self._options.namespace)
        for table in TABLES.values():
            if not table.is_replaced:
                lake.ensure(table)
        found = lake.open(EVENTS)
        batch = mark_of(found)
        if found is None or batch is None:
            note_format(lake)
            return 0
        self._check_server(found, tell)
        migrate(self._spark, lake, made_as, tell)
        left, lacking = behind(lake, batch), behind(lake, batch - 1)
        if lacking:  # removed, or added by a newer version: building only the last batch would not be enough
            tell(f"built again from bronze, completely: {', '.join(table.path for table in lacking)}")
            rebuild(self._spark, lake, tables=lacking)
            left = [table for table in left if table not in lacking]
        paths = paths_of_batch(found, batch)
        if not left or not paths:
            return 0
        made = remake(self._spark, lake, paths, batch, [table.path for table in left], only_batch=True)
        return self._commit(made.files, batch)

    def end(self) -> Places:
        """Return the present ends of the journals. Raises PenstockError."""
        return Positions(self._wire, self._options).vouched

    def step(self, end: Mapping[str, int]) -> BatchResult | None:
        """Add the next events before ``end`` to the lake; None if there are none. Raises PenstockError."""
        began, lake = steady(), self._lake
        positions = Positions(self._wire, self._options)
        self._check_histories(positions)
        found = lake.open(EVENTS)
        start = self._start(positions, {shard: mark_of(found, shard_mark(shard)) for shard in positions.vouched})
        self._note_histories(positions)
        waiting = {shard: max(0, min(end.get(shard, 0), positions.vouched[shard]) - place) for shard, place in start.items()}
        total = sum(waiting.values())
        if total == 0:
            return None
        to = {shard: place + _share(waiting[shard], total, self._most) for shard, place in start.items()}
        number = -1 if (last := mark_of(found)) is None else last
        number += 1
        ranges = ranges_of(start, to, self._options.min_partitions, positions.histories)
        wanted = [EVENTS.path, *(table.path for table in DERIVED)]
        files = fetch(self._spark, self._options, lake, ranges, batch=number, wanted=wanted).files
        self._fault("fetched")
        parts = files.pop(EVENTS.path)
        marks = {BATCH_MARK: number} | {shard_mark(shard): place for shard, place in to.items()}
        try:
            commit(lake, EVENTS, parts, marks=marks, now_ms=now_ms())
            self._fault(EVENTS.path)
            aside = self._commit(files, number)
        except CommitFailedError as error:
            raise LakeInvalid(
                f"Another process adds to {lake.shown} at the same time ({error}). Run one pipeline for a lake."
            ) from error
        lag = sum(positions.vouched[shard] - place for shard, place in to.items())
        return BatchResult(number, sum(part.rows for part in parts), aside, steady() - began, lag)

    def look(self) -> int:
        """Record the workers that the server has now, and return their number."""
        return look(self._options, self._lake, mark_of(self._lake.open(EVENTS)) or 0)

    def _commit(self, files: Mapping[str, list[DataFile]], batch: int) -> int:
        """Commit files of tables that are built from bronze, and return how many events were quarantined."""
        for table in DERIVED:
            if table.path in files:
                commit(self._lake, table, files[table.path], marks={BATCH_MARK: batch}, now_ms=now_ms())
                self._fault(table.path)
        return sum(part.rows for part in files.get(QUARANTINE.path, []))

    def _check_server(self, found: DeltaTable, tell: Callable[[str], None]) -> None:
        """Compare the last event of each shard in the lake with the server's. Raises LakeInvalid."""
        positions = Positions(self._wire, self._options)
        self._check_histories(positions)
        for shard in sorted(positions.histories.keys() - histories_of(self._lake).keys()):
            if mark_of(found, shard_mark(shard)) is not None:
                tell(f"shard {shard}: an earlier version did not note whose journal this is; {positions.histories[shard]}")
        for shard, vouched in positions.vouched.items():
            following = mark_of(found, shard_mark(shard))
            if following is None or not positions.first[shard] < following <= vouched:
                continue  # there is nothing to compare; the start of the next batch reports what that means
            last = following - 1
            where = [("shard", "=", int(shard)), ("seq", "=", last)]
            here = self._lake.read(EVENTS, columns=IDENTITY, filters=where, folded=False).to_pylist()
            fetched = fetch_range(self._options, Range(int(shard), last, following))
            there = [row for batch in fetched for row in batch.select(IDENTITY).to_pylist()]
            if here and there and here != there:
                raise LakeInvalid(
                    f"Event {last} of shard {shard} is another one in {self._lake.shown} than in the journal of"
                    f" {self._options.url}: it is another server, or an older copy of it. Use another directory."
                )

    def _check_histories(self, positions: Positions) -> None:
        """Compare the histories of the server's shards with those in the lake. Raises LakeInvalid.

        Numbers of events are keys of the lake, so two histories of a shard cannot be in one.
        """
        if self._histories is None:
            self._histories = histories_of(self._lake)
        known = self._histories
        for shard, history in positions.histories.items():
            if known.get(shard, history) != history:
                why = positions.replaced(shard, 0, known[shard])
                raise LakeInvalid(
                    f"{self._lake.shown} has another history of shard {shard} than the journal of {self._options.url}:"
                    f" {why}. Use another directory."
                )

    def _note_histories(self, positions: Positions) -> None:
        """Record the histories of shards that are new to the lake, before their events are added."""
        known = self._histories or {}
        both = known | positions.histories
        if both != known:
            note_histories(self._lake, both)
            self._histories = both

    def _start(self, positions: Positions, marks: Mapping[str, int | None]) -> dict[str, int]:
        begin = positions.start()
        wanted = {shard: begin[shard] if place is None else place for shard, place in marks.items()}
        for shard, place in wanted.items():
            if place > positions.vouched[shard] and marks[shard] is not None:
                raise LakeInvalid(
                    f"The lake has events of shard {shard} up to {place - 1}, and the journal of {self._options.url} ends with"
                    f" {positions.vouched[shard] - 1}: it is another server, or an older copy of it. Use another directory."
                )
        return positions.kept(wanted)


def behind(lake: Lake, batch: int) -> list[Table]:
    """Return the tables that lack a batch, for example because the process was interrupted before their commits."""
    return [table for table in DERIVED if _batch_number(mark_of(lake.open(table))) < batch]


def check_complete(lake: Lake) -> None:
    """Raise LakeInvalid if silver and gold lack a batch that bronze has."""
    batch = mark_of(lake.open(EVENTS))
    if batch is not None and behind(lake, batch):
        raise LakeInvalid(
            f"The last batch of {lake.shown} is not finished. Run penstock pipeline run first: it finishes the batch."
        )


def _share(waiting: int, total: int, most: int) -> int:
    """Return how many events of a shard a batch has: in proportion to those that wait; at least one, so that all advance."""
    return waiting if total <= most else min(waiting, max(1, waiting * most // total)) if waiting else 0


def _batch_number(mark: int | None) -> int:
    """Return the number of a batch, or the number before the first if there was none."""
    return -1 if mark is None else mark


@contextmanager
def locked(lake: Lake) -> Iterator[None]:
    """Lock a lake against other writers. Raises LakeInvalid.

    Object stores have no locks: there, Delta lets one of two commits fail.
    """
    if not lake.is_local or os.name != "posix":
        yield
        return
    import fcntl  # noqa: PLC0415, not on all systems

    directory = Path(lake.address)
    if directory.exists() and not directory.is_dir():
        raise LakeInvalid(f"{directory} is a file, and a lake is a directory. Choose another place.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise LakeInvalid(f"{directory} cannot be written to: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise LakeInvalid(
                f"Another pipeline ({file.read().strip() or 'unknown process'}) is working on {directory}."
                " Run only one pipeline for a lake."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield


@dataclass(slots=True)
class RunSummary:
    """The result of a run."""

    batches: int = 0
    events: int = 0
    aside: int = 0
    seconds: float = 0.0


def run(
    builder: Builder,
    lake: Lake,
    *,
    every_ms: int | None,
    stop: threading.Event,
    tell: Callable[[str], None],
    upkeep_batches: int = UPKEEP_BATCHES,
    clock: Callable[[], float] = steady,
) -> RunSummary:
    """Add all events that the server has now to a lake; with ``every_ms``, again in each period, until ``stop``.

    Events that arrive during a round are left to the next one. So a round ends, however many arrive, and a period has one
    batch, or as many as ``batch_events`` makes of the gathered events. With ``every_ms``, a server that does not answer is
    tried again in the next period. ``clock``: in seconds. Raises PenstockError.
    """
    done = RunSummary()
    began = clock()
    done.aside += builder.open(tell)
    while not stop.is_set():
        due = clock() + (every_ms or 0) / 1000
        ask = _impatient if every_ms is None else partial(_patient, tell)
        news = False
        end = ask(builder.end)
        while not stop.is_set() and end is not None and (batch := ask(partial(builder.step, end))) is not None:
            news = True
            done.batches += 1
            done.events += batch.events
            done.aside += batch.aside
            tell(_line(batch))
            # By the number of the batch, not of this run: many short runs create as many files as a long one.
            if upkeep_batches and (batch.number + 1) % upkeep_batches == 0:
                keep_up(lake, tell)
        if news:
            ask(builder.look)
            tell_derived(lake, tell)
        if every_ms is None:
            break
        stop.wait(max(0.0, due - clock()))
    done.seconds = clock() - began
    return done


def _impatient(ask: Callable[[], T]) -> T:
    return ask()


def _patient(tell: Callable[[str], None], ask: Callable[[], T]) -> T | None:
    """Call a server that may be unavailable for a while. None: it did not answer."""
    try:
        return ask()
    except Exception as error:
        if not is_passing(error):
            raise
        tell(f"warning: {ours(error) or error}. The next look tries again.")
        return None


def keep_up(lake: Lake, tell: Callable[[str], None], **more: Any) -> None:
    """Compact the lake, and report the results."""
    for kept in compact(lake, name=fresh_name(), now_ms=now_ms(), **({"least_files": UPKEEP_FILES} | more)):
        if kept.files_after != kept.files_before or kept.removed or kept.busy:
            rows = f", {kept.rows_before:,} rows are {kept.rows_after:,} now" if kept.rows_before else ""
            gone = f", {kept.removed} old files removed" if kept.removed else ""
            busy = ", skipped: another process folds it" if kept.busy else ""
            tell(f"{kept.table.path}: {kept.files_before} files are {kept.files_after} now{rows}{gone}{busy}")


def tell_derived(lake: Lake, tell: Callable[[str], None]) -> None:
    """Write the tables that are computed from gold. Its failure does not make the run fail."""
    from penstock.lake.queries.derived import write_derived  # noqa: PLC0415, only those who run need it

    try:
        write_derived(lake)
    except ValueError as error:
        tell(f"warning: {error}")


def _line(batch: BatchResult) -> str:
    rate = batch.events / batch.seconds if batch.seconds else 0.0
    aside = f", {batch.aside:,} put aside" if batch.aside else ""
    behind = f", {batch.lag:,} behind" if batch.lag else ", up to date"
    return f"batch {batch.number}: {batch.events:,} events in {batch.seconds:.1f} s ({rate:,.0f}/s){aside}{behind}"
