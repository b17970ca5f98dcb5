"""Renders journal entries for clients: the contract's 63 events with their payloads, and the older form of the job events.

An event is rendered when the first reader needs it in a form, and then once for all readers of that form.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core import ids
from penstock.core.events import FIELDS, PAYLOAD_KINDS
from penstock.core.events import EventKind as Kind
from penstock.doors.jobs.mapping import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.store.contract import JournalBlock

_encode = msgspec.json.Encoder().encode

_JOB = ("queue", "jobId")
_QUEUE = ("queue",)

#: The fields of each event. A name that ends in ``?`` may be missing.
PAYLOADS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.JOB_PUSHED: _JOB,
    Kind.JOB_ACTIVE: _JOB,
    Kind.JOB_COMPLETED: _JOB,
    Kind.JOB_FAILED: (*_JOB, "error"),
    Kind.JOB_REMOVED: _JOB,
    Kind.JOB_PROMOTED: ("jobId",),
    Kind.JOB_PROGRESS: (*_JOB, "progress"),
    Kind.JOB_DELAYED: (*_JOB, "delay"),
    Kind.JOB_STALLED: _JOB,
    Kind.JOB_RETRIED: _JOB,
    Kind.JOB_DISCARDED: ("jobId",),
    Kind.JOB_PRIORITY_CHANGED: ("jobId", "newPriority"),
    Kind.JOB_DATA_UPDATED: ("jobId",),
    Kind.JOB_DELAY_CHANGED: ("jobId", "newDelay"),
    Kind.JOB_EXPIRED: (*_JOB, "ttl", "age"),
    Kind.QUEUE_COUNTS: ("queue", "waiting", "active", "completed", "failed", "delayed"),
    Kind.QUEUE_PAUSED: _QUEUE,
    Kind.QUEUE_RESUMED: _QUEUE,
    Kind.QUEUE_DRAINED: ("queue", "count"),
    Kind.QUEUE_CLEANED: ("queue", "state", "count"),
    Kind.QUEUE_OBLITERATED: _QUEUE,
    Kind.QUEUE_CREATED: _QUEUE,
    Kind.QUEUE_REMOVED: _QUEUE,
    Kind.QUEUE_IDLE: ("queue", "idleSeconds"),
    Kind.QUEUE_THRESHOLD: ("queue", "size", "threshold"),
    Kind.FLOW_COMPLETED: ("parentJobId", "queue", "childrenCount"),
    Kind.FLOW_FAILED: ("parentJobId", "failedChildId", "queue", "error"),
    Kind.DLQ_ADDED: (*_JOB, "reason"),
    Kind.DLQ_RETRIED: _JOB,
    Kind.DLQ_RETRY_ALL: ("queue", "count"),
    Kind.DLQ_PURGED: ("queue", "count"),
    Kind.CRON_CREATED: ("name", "queue", "pattern?", "every?", "nextRun"),
    Kind.CRON_DELETED: ("name",),
    Kind.CRON_FIRED: ("name", "queue"),
    Kind.CRON_UPDATED: ("name", "queue", "nextRun"),
    Kind.CRON_MISSED: ("name", "queue", "error"),
    Kind.CRON_SKIPPED: ("name", "queue", "reason"),
    Kind.WORKER_CONNECTED: ("workerId", "name", "queues"),
    Kind.WORKER_DISCONNECTED: ("workerId",),
    Kind.WORKER_HEARTBEAT: ("workerId",),
    Kind.WORKER_OVERLOADED: ("workerId", "name", "activeJobs", "concurrency", "overloadedSeconds"),
    Kind.WORKER_ERROR: ("workerId", "name", "failedJobs", "processedJobs", "failureRate"),
    Kind.RATELIMIT_SET: ("queue", "max"),
    Kind.RATELIMIT_CLEARED: _QUEUE,
    Kind.RATELIMIT_HIT: _JOB,
    Kind.CONCURRENCY_SET: ("queue", "concurrency"),
    Kind.CONCURRENCY_CLEARED: _QUEUE,
    Kind.WEBHOOK_ADDED: ("id", "url", "events"),
    Kind.WEBHOOK_REMOVED: ("id",),
    Kind.WEBHOOK_FIRED: ("id", "event", "statusCode"),
    Kind.WEBHOOK_FAILED: ("id", "event", "error"),
    Kind.STATS_SNAPSHOT: (
        "waiting", "active", "completed", "dlq", "totalPushed", "totalCompleted", "totalFailed", "pushPerSec", "pullPerSec",
        "uptime", "queues", "workers", "cronJobs",
    ),
    Kind.HEALTH_STATUS: ("ok", "uptime", "memory", "connections"),
    Kind.STORAGE_STATUS: ("collections", "diskFull"),
    Kind.SERVER_STARTED: ("version", "startedAt"),
    Kind.SERVER_SHUTDOWN: ("reason",),
    Kind.SERVER_MEMORY_WARNING: ("heapUsedMB", "thresholdMB", "rssMB"),
    Kind.STORAGE_SIZE_WARNING: ("sizeMB", "thresholdMB"),
    Kind.CONFIG_STALL_CHANGED: ("queue", "config"),
    Kind.CONFIG_DLQ_CHANGED: ("queue", "config"),
}  # fmt: skip

#: The older form: its name for each event. It has the events of jobs, and three events of queues.
LEGACY: Final[dict[Kind, str]] = {
    kind: kind.wire_name.partition(":")[2] for kind in PAYLOADS if kind.wire_name.startswith("job:")
} | {
    Kind.JOB_ACTIVE: "pulled",
    Kind.JOB_WAITING: "waiting",
    Kind.JOB_RELEASED: "waiting",
    Kind.JOB_DUPLICATED: "duplicated",
    Kind.JOB_WAITING_CHILDREN: "waiting-children",
    Kind.QUEUE_DRAINED: "drained",
    Kind.QUEUE_PAUSED: "paused",
    Kind.QUEUE_RESUMED: "resumed",
}

#: The name of the event with which an event stream reports missing events.
GAP: Final = "events:missed"

ALL_KINDS: Final = frozenset(PAYLOADS)
LEGACY_KINDS: Final = frozenset(LEGACY)


def _patterns() -> dict[str, frozenset[Kind]]:
    found: dict[str, frozenset[Kind]] = {"*": ALL_KINDS}
    for kind in PAYLOADS:
        name = kind.wire_name
        wildcard = f"{name.partition(':')[0]}:*"
        found[wildcard] = found.get(wildcard, frozenset()) | {kind}
        found[name] = frozenset({kind})
    return found


#: Every name that clients can subscribe to, including wildcards, and the events it matches.
PATTERNS: Final = _patterns()

#: The position of each field in the events of a kind.
_PLACES: Final = {kind: {name: 4 + index for index, name in enumerate(fields)} for kind, fields in FIELDS.items()}


class OutgoingEvent:
    """One event to be sent to readers."""

    __slots__ = ("_around", "_event", "_forms", "at", "kind", "namespace", "prev", "queue", "seq", "shard")

    def __init__(self, block: JournalBlock, index: int) -> None:
        event = block.events[index]
        self.kind = Kind(event[0])
        self.at = block.at  #: wall clock, ms
        self.seq = block.seq + index if block.seq else 0  #: number in the journal; 0 = not part of it
        self.shard = block.shard
        self._around = block.around
        self._event: Sequence[Any] = event
        #: The previous state of a retried job. The event of the failure that leads to a retry comes directly before.
        self.prev = "" if self.kind is not Kind.JOB_RETRIED else _before(block.events[index - 1] if index else None, event)
        self._forms: dict[Callable[[OutgoingEvent], Any], Any] = {}
        #: The namespace and queue it is about: None and "" = all.
        about: tuple[str | None, str] = block.queues.get(event[1]) or (None, "")
        self.namespace, self.queue = about
        if not self.queue and self.kind in PAYLOAD_KINDS:
            self.namespace = self.namespace or event[3]
            self.queue = event[4].get("queue", "")

    def form(self, render: Callable[[OutgoingEvent], Any]) -> Any:
        """Return the event in a form, which is rendered at the first call."""
        if render not in self._forms:
            self._forms[render] = render(self)
        return self._forms[render]

    def field(self, name: str) -> Any:
        """Return a field of the event from the journal."""
        return self._event[_PLACES[self.kind][name]]

    @property
    def place(self) -> str:
        """The position of a reader that has seen this event: its number and those of the other shards; empty without one."""
        return f"{self._around[0]}{self.seq}{self._around[1]}" if self.seq else ""

    @property
    def job_id(self) -> str:
        """The id of the job, in the form that users see."""
        return self._event[3] or ids.to_uuid(self._event[2])

    @property
    def job(self) -> int:
        """The number of the job."""
        number: int = self._event[2]
        return number

    def payload(self) -> Mapping[str, Any]:
        """Return the payload of the event."""
        if self.kind in PAYLOAD_KINDS:
            payload: Mapping[str, Any] = self._event[4]
            return payload
        return {name: _VALUES[name](self) for name in PAYLOADS[self.kind]}


def _before(last: Sequence[Any] | None, event: Sequence[Any]) -> str:
    failed = last is not None and last[0] == Kind.JOB_FAILED and last[2] == event[2]
    return "failed" if failed else "completed"


def _wait_ms(outgoing: OutgoingEvent) -> int:
    run_at: int = outgoing.field("run_at")
    return max(0, run_at - outgoing.at)


def _cleaned(outgoing: OutgoingEvent) -> Mapping[str, Any]:
    note = outgoing.field("cleaned")
    return note if isinstance(note, dict) else {"states": [], "count": note}  # early versions kept the count only


_VALUES: Final[dict[str, Callable[[OutgoingEvent], Any]]] = {
    "queue": lambda outgoing: outgoing.queue,
    "jobId": lambda outgoing: outgoing.job_id,
    "error": lambda outgoing: outgoing.field("error"),
    "progress": lambda outgoing: outgoing.field("progress"),
    "delay": _wait_ms,
    "newDelay": _wait_ms,
    "newPriority": lambda outgoing: outgoing.field("priority"),
    "ttl": lambda outgoing: outgoing.field("expires_at") - outgoing.field("created_at"),
    "age": lambda outgoing: outgoing.at - outgoing.field("created_at"),
    "count": lambda outgoing: (
        _cleaned(outgoing)["count"] if outgoing.kind is Kind.QUEUE_CLEANED else outgoing.field("count")
    ),
    "state": lambda outgoing: ",".join(STATE_NAMES[state] for state in _cleaned(outgoing)["states"]),
    "reason": lambda outgoing: outgoing.field("reason"),
    "max": lambda outgoing: outgoing.field("max"),
    "concurrency": lambda outgoing: outgoing.field("concurrency"),
    "config": lambda outgoing: outgoing.field("config"),
}


def pubsub(outgoing: OutgoingEvent) -> str:
    """Render for clients that subscribed by name: ``{event, ts, data}``."""
    return _encode({"event": outgoing.kind.wire_name, "ts": outgoing.at, "data": outgoing.payload()}).decode()


def legacy_fields(outgoing: OutgoingEvent) -> dict[str, Any]:
    """Return the older form: ``{eventType, queue, jobId, timestamp, ...}``."""
    shown: dict[str, Any] = {"eventType": LEGACY[outgoing.kind], "queue": outgoing.queue}
    if outgoing.kind.name.startswith("JOB_"):
        shown["jobId"] = outgoing.job_id
    shown["timestamp"] = outgoing.at
    for name in PAYLOADS.get(outgoing.kind, ()):
        if name not in _JOB:
            shown[name] = _VALUES[name](outgoing)
    if outgoing.prev:
        shown["prev"] = outgoing.prev
    return shown


def legacy(outgoing: OutgoingEvent) -> str:
    """Render in the older form."""
    return _encode(legacy_fields(outgoing)).decode()


#: Events whose older form has more than the journal keeps: the result, or the payload.
WITH_DATA: Final = frozenset({Kind.JOB_COMPLETED, Kind.JOB_FAILED})


class Unfinished(str):
    """An event in the older form. ``data`` is added when the event is sent, and is not read before that."""

    __slots__ = ("outgoing",)

    outgoing: OutgoingEvent

    def finish(self, data: bytes | None) -> str:
        """Return the whole message, with the given JSON as ``data``, or without ``data`` for None."""
        return str(self) if data is None else f'{self[:-1]},"data":{data.decode()}}}'


def legacy_socket(outgoing: OutgoingEvent) -> str:
    """Render in the older form, for readers that may also get results and payloads."""
    text: str = outgoing.form(legacy)
    if outgoing.kind not in WITH_DATA:
        return text
    unfinished = Unfinished(text)
    unfinished.outgoing = outgoing
    return unfinished


def stream_legacy(outgoing: OutgoingEvent) -> bytes:
    """Render for an event stream, unnamed, in the older form."""
    return f"{_id(outgoing)}data: {outgoing.form(legacy)}\n\n".encode()


def stream_typed(outgoing: OutgoingEvent) -> bytes:
    """Render for an event stream, named, with the payload and its time."""
    data = _encode({**outgoing.payload(), "timestamp": outgoing.at}).decode()
    return f"{_id(outgoing)}event: {outgoing.kind.wire_name}\ndata: {data}\n\n".encode()


@lru_cache(maxsize=16)
def stream_form(*, typed: bool, marks: str) -> Callable[[OutgoingEvent], bytes]:
    """Return how events are rendered for an event stream. ``marks``: the suffix of numbers in ids, see ``History.mark``.

    Equal arguments return the same function, so that an event is rendered once for all readers with them.
    """
    render = stream_typed if typed else stream_legacy
    if not marks:
        return render

    def marked(outgoing: OutgoingEvent) -> bytes:
        place = _id(outgoing)
        plain: bytes = outgoing.form(render)
        return f"{place[:-1]}@{marks}\n".encode() + plain[len(place) :] if place else plain

    return marked


def stream_gap(last: int, first: int, shard: int | None, *, replaced: bool = False) -> bytes:
    """Render the event that reports a gap in an event stream: the events after one event are missing, up to another one.

    ``shard``: the shard of these numbers, if there are several. ``replaced``: the journal is not the one that the client has
    read. The event has a name, so that clients that wait for messages do not take it for one.
    """
    gap: dict[str, object] = {"lastEventId": last, "firstEventId": first}
    if shard is not None:
        gap["shard"] = shard
    if replaced:
        gap["reason"] = "history_replaced"
    data = _encode(gap).decode()
    return f"event: {GAP}\ndata: {data}\n\n".encode()


def _id(outgoing: OutgoingEvent) -> str:
    return f"id: {place}\n" if (place := outgoing.place) else ""


def outgoing_events(block: JournalBlock, kinds: Iterable[Kind], after: int = 0) -> Iterator[OutgoingEvent]:
    """Iterate over the events of a block that have certain kinds, and come after a number of the journal."""
    for index, event in enumerate(block.events):
        if event[0] in kinds and block.seq + index > after:
            yield OutgoingEvent(block, index)
