"""Events of jobs, prepared: values that several tables need, computed once, as numbers.

Names of queues and kinds are few: each is looked up once and replaced by a number. So is a minute of a queue (``cell``), by
which nearly everything is grouped.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.transform.event_kinds import JOB_KINDS, OTHER_KINDS, OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Clocks of several machines differ: an attempt may end up to this much before it began, in ms. Its time is then 0.
SKEW_MS: Final = 5_000
MINUTE_MS: Final = 60_000
#: How much of an error is read for its pattern, and kept as an example, in characters.
ERROR_CHARS: Final = 1_000
PATTERN_CHARS: Final = 300
#: How many hexadecimal digits of the hash of a pattern make its fingerprint.
FINGERPRINT_CHARS: Final = 16
#: The text for an error without a text.
NO_ERROR: Final = "no error was given"
_MILLIS: Final = pa.timestamp("ms", tz="UTC")
_FAILED: Final = ("job:failed", "job:stalled")

#: The parts that differ between errors of the same kind: quoted words, ids, numbers.
_MEANINGLESS: Final = (
    (re.compile(r"(?<![A-Za-z0-9])'[^'\n]{0,200}'(?![A-Za-z0-9])"), "<text>"),
    (re.compile(r'"[^"\n]{0,200}"'), "<text>"),
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<id>"),
    (re.compile(r"\b(?=[a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<id>"),
    (re.compile(r"[0-9]+(?:[.,:][0-9]+)*"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def pattern_of(error: str | None) -> str:
    """Return an error with placeholders for its variable parts."""
    found = (error or NO_ERROR)[:ERROR_CHARS]
    for pattern, mark in _MEANINGLESS:
        found = pattern.sub(mark, found)
    return found[:PATTERN_CHARS]


def millis(moments: Any) -> Any:
    """Return moments as whole milliseconds."""
    return pc.cast(pc.cast(moments, _MILLIS, safe=False), pa.int64())


def which(column: Any, values: Iterable[str]) -> Any:
    """Return for each row of a column with few distinct texts whether it is one of ``values``. Never null."""
    chosen = set(values)
    places = [place for place, text in enumerate(column.dictionary.to_pylist()) if text in chosen]
    return pc.fill_null(pc.is_in(column.indices, pa.array(places, column.indices.type)), fill_value=False)


def both(*conditions: Any) -> Any:
    """Return where all conditions are true."""
    found = conditions[0]
    for each in conditions[1:]:
        found = pc.and_(found, each)
    return found


def only(condition: Any, values: Any) -> Any:
    """Return values where a condition is true, and null elsewhere."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def one_or_none(condition: Any) -> Any:
    """Return 1 where a condition is true and 0 elsewhere, to be added up."""
    return pc.cast(condition, pa.int64())


def coded(column: Any) -> Any:
    """Return a column with few distinct texts in dictionary encoding."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pc.dictionary_encode(whole)


def understood(events: pa.Table) -> Any:
    """Return for each event whether it is about a job and can be interpreted."""
    present = [pc.is_valid(events.column(name)) for name in ("at", "job_id", "namespace", "queue")]
    return both(which(coded(events.column("kind")), JOB_KINDS), *(_array(each) for each in present))


def reasons(events: pa.Table) -> Any:
    """Return for each event the reason for its quarantine; null for valid events."""
    kind = coded(events.column("kind"))
    is_job = which(kind, JOB_KINDS)
    columns = {name: _array(events.column(name)) for name in ("at", "job_id", "namespace", "queue", "started_at")}
    early = pc.less(millis(columns["at"]), pc.subtract(millis(columns["started_at"]), SKEW_MS))
    nowhere = pc.or_(pc.is_null(columns["namespace"]), pc.is_null(columns["queue"]))
    cases = (
        (pc.invert(which(kind, JOB_KINDS + OTHER_KINDS)), "unknown kind"),
        (pc.is_null(columns["at"]), "no time"),
        (both(is_job, pc.is_null(columns["job_id"])), "no job"),
        (both(is_job, nowhere), "no queue"),
        (pc.fill_null(early, fill_value=False), "ended before it started"),
    )
    found = pa.nulls(events.num_rows, pa.string())
    for condition, reason in reversed(cases):
        found = pc.if_else(condition, reason, found)
    return found


def _array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class EventRows:
    """Events of jobs that can be interpreted, and computed values."""

    def __init__(self, events: pa.Table, batch: int) -> None:
        good = understood(events)
        self.events = events.combine_chunks() if pc.all(good).as_py() else events.filter(good).combine_chunks()
        self.batch = batch
        self.count = self.events.num_rows

    def column(self, name: str) -> Any:
        """Return a column as one array."""
        return _array(self.events.column(name))

    @cached_property
    def kind(self) -> Any:
        """The kinds, dictionary-encoded."""
        return coded(self.column("kind"))

    def is_kind(self, *kinds: str) -> Any:
        """Return for each event whether it is of one of those kinds."""
        return which(self.kind, kinds)

    @cached_property
    def at_ms(self) -> Any:
        """The times of the events, in whole milliseconds."""
        return millis(self.column("at"))

    @cached_property
    def minute(self) -> Any:
        """The number of the minute since 1970."""
        return pc.divide(self.at_ms, MINUTE_MS)

    @cached_property
    def _places(self) -> tuple[Any, list[tuple[str, str]]]:
        namespace, queue = coded(self.column("namespace")), coded(self.column("queue"))
        names, queues = namespace.dictionary.to_pylist(), queue.dictionary.to_pylist()
        pairs = pc.add(pc.multiply(pc.cast(namespace.indices, pa.int64()), len(queues)), pc.cast(queue.indices, pa.int64()))
        found = pc.dictionary_encode(pairs)
        known = [(names[pair // len(queues)], queues[pair % len(queues)]) for pair in found.dictionary.to_pylist()]
        return pc.cast(found.indices, pa.int64()), known

    @property
    def place(self) -> Any:
        """The number of the queue in ``places``."""
        return self._places[0]

    @property
    def places(self) -> list[tuple[str, str]]:
        """The namespaces and queues, by their numbers."""
        return self._places[1]

    @cached_property
    def cell(self) -> Any:
        """The number of a queue's minute."""
        return pc.add(pc.multiply(self.minute, len(self.places)), self.place)

    @cached_property
    def has_ended(self) -> Any:
        """Whether the event ends an attempt. A job that was reserved for a worker and never delivered has no attempt."""
        aside = both(self.is_kind("job:released"), pc.is_null(self.column("started_at")))
        return pc.and_not(self.is_kind(*OUTCOMES), aside)

    @cached_property
    def has_failed(self) -> Any:
        """Whether the event ends an attempt without success."""
        return self.is_kind(*_FAILED)

    @cached_property
    def is_unfinished(self) -> Any:
        """Whether a removal ends an unfinished job."""
        # Earlier servers do not record that. Only dead letters are purged.
        removed = self.is_kind("job:removed", "job:quarantined")
        told = pc.match_substring_regex(self.column("payload"), r'"finished_at": *[0-9]')
        finished = pc.or_(
            pc.fill_null(told, fill_value=False), pc.fill_null(pc.equal(self.column("error"), "purge"), fill_value=False)
        )
        return pc.and_not(removed, finished)

    @cached_property
    def started_ms(self) -> Any:
        """When the ended attempt began; null if no attempt ended, or if the time is impossible."""
        started = millis(self.column("started_at"))
        sane = pc.greater_equal(self.at_ms, pc.subtract(started, SKEW_MS))
        return only(both(self.has_ended, pc.fill_null(sane, fill_value=False)), started)

    @cached_property
    def created_ms(self) -> Any:
        """When the job was pushed, if the event contains it."""
        return millis(self.column("created_at"))

    @cached_property
    def due_at(self) -> Any:
        """When the ended attempt was due; null if that is unknown."""
        # Servers before ``due_at`` recorded with a failed attempt when the next one is due, which is after this one began. A
        # job is never delivered before it is due: a time that is not after the beginning is the attempt's own.
        told, run_at = self.column("due_at"), self.column("run_at")
        own = pc.fill_null(pc.less_equal(run_at, self.column("started_at")), fill_value=False)
        return only(self.has_ended, pc.coalesce(told, only(pc.or_(own, self.is_kind("job:completed")), run_at)))

    @cached_property
    def wait_ms(self) -> Any:
        """From the due time until a worker claimed the job; null if unknown."""
        due_ms = millis(self.due_at)
        due = only(pc.is_valid(due_ms), pc.max_element_wise(self.created_ms, due_ms))
        return pc.max_element_wise(pc.subtract(self.started_ms, due), 0, skip_nulls=False)

    @cached_property
    def run_ms(self) -> Any:
        """From the claim until the end of the attempt; null if unknown."""
        return pc.max_element_wise(pc.subtract(self.at_ms, self.started_ms), 0, skip_nulls=False)

    @cached_property
    def total_ms(self) -> Any:
        """From the push until the end of the attempt; null if unknown."""
        return only(self.has_ended, pc.max_element_wise(pc.subtract(self.at_ms, self.created_ms), 0, skip_nulls=False))

    @cached_property
    def patterns(self) -> tuple[Any, list[str]]:
        """The number of each failure's pattern, and the patterns. Errors repeat, so each is processed once."""
        failed = self.events.filter(self.has_failed)
        errors = coded(pc.fill_null(_array(failed.column("error")), NO_ERROR))
        found = [pattern_of(error) for error in errors.dictionary.to_pylist()]
        known = list(dict.fromkeys(found))
        numbers = {pattern: number for number, pattern in enumerate(known)}
        lookup = pa.array([numbers[pattern] for pattern in found], pa.int64())
        return lookup.take(errors.indices), known
