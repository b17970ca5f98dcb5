"""The events of the journal: their kinds, and the fields of each kind.

An event is one flat tuple ``(kind, queue, job id, custom id, *fields)``; FIELDS names the fields. All events of one commit
have its time, so an event does not have a separate time. An event that ends an attempt contains all timestamps of the
attempt, so that readers of the history need no other data.
"""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord


class EventKind(IntEnum):
    """The kinds of events. Numbers are stored: never change one, only add."""

    JOB_PUSHED = 1
    JOB_ACTIVE = 2
    JOB_COMPLETED = 3
    JOB_FAILED = 4
    JOB_REMOVED = 5
    JOB_PROMOTED = 6
    JOB_PROGRESS = 7
    JOB_DELAYED = 8
    JOB_STALLED = 9
    JOB_RETRIED = 10
    JOB_DISCARDED = 11
    JOB_PRIORITY_CHANGED = 12
    JOB_DATA_UPDATED = 13
    JOB_DELAY_CHANGED = 14
    JOB_EXPIRED = 15
    JOB_WAITING = 16  # a delayed job became due
    JOB_RELEASED = 17  # a worker released it unchanged
    JOB_QUARANTINED = 18
    JOB_DUPLICATED = 19  # a push returned this job, because it has the push's unique key
    JOB_WAITING_CHILDREN = 20  # its worker parked it until the jobs that it needs have ended

    QUEUE_PAUSED = 30
    QUEUE_RESUMED = 31
    QUEUE_DRAINED = 32
    QUEUE_CLEANED = 33
    QUEUE_OBLITERATED = 34
    QUEUE_CREATED = 35
    QUEUE_REMOVED = 36
    QUEUE_COUNTS = 37
    QUEUE_IDLE = 38
    QUEUE_THRESHOLD = 39

    FLOW_COMPLETED = 40
    FLOW_FAILED = 41

    DLQ_ADDED = 50
    DLQ_RETRIED = 51
    DLQ_RETRY_ALL = 52
    DLQ_PURGED = 53

    RATELIMIT_SET = 60
    RATELIMIT_CLEARED = 61
    CONCURRENCY_SET = 62
    CONCURRENCY_CLEARED = 63
    RATELIMIT_HIT = 64

    CONFIG_STALL_CHANGED = 70
    CONFIG_DLQ_CHANGED = 71
    CONFIG_MODE_CHANGED = 72  # direct or buffered
    CONFIG_MESSAGES_CHANGED = 73  # rules of the messages door
    NAMESPACE_CREATED = 74
    NAMESPACE_DELETED = 75

    CRON_CREATED = 80
    CRON_DELETED = 81
    CRON_FIRED = 82
    CRON_UPDATED = 83
    CRON_MISSED = 84
    CRON_SKIPPED = 85

    WEBHOOK_ADDED = 90
    WEBHOOK_REMOVED = 91
    WEBHOOK_FIRED = 92
    WEBHOOK_FAILED = 93

    WORKER_CONNECTED = 100
    WORKER_DISCONNECTED = 101
    WORKER_HEARTBEAT = 102
    WORKER_OVERLOADED = 103
    WORKER_ERROR = 104

    STATS_SNAPSHOT = 110
    HEALTH_STATUS = 111
    STORAGE_STATUS = 112
    SERVER_STARTED = 113
    SERVER_SHUTDOWN = 114
    SERVER_MEMORY_WARNING = 115
    STORAGE_SIZE_WARNING = 116

    @property
    def wire_name(self) -> str:
        """The name that clients see: ``job:priority-changed``."""
        category, _, action = self.name.lower().partition("_")
        return f"{category}:{action.replace('_', '-')}"


_ATTEMPT: Final = ("attempts", "created_at", "run_at", "started_at", "size")

#: The fields of its job that an event contains. A "note" of the caller (an error text, a count) comes last.
JOB_FIELDS: Final[dict[EventKind, tuple[str, ...]]] = {
    EventKind.JOB_PUSHED: ("priority", "run_at", "size"),
    EventKind.JOB_ACTIVE: ("attempts", "run_at", "token"),
    EventKind.JOB_COMPLETED: _ATTEMPT,
    EventKind.JOB_FAILED: _ATTEMPT,
    EventKind.JOB_STALLED: _ATTEMPT,
    EventKind.JOB_RELEASED: _ATTEMPT,
    EventKind.JOB_DELAYED: ("run_at",),
    EventKind.JOB_RETRIED: ("run_at", "attempts"),  # no run_at: a completed job is run again
    EventKind.JOB_DELAY_CHANGED: ("run_at",),
    EventKind.JOB_PRIORITY_CHANGED: ("priority",),
    EventKind.JOB_DATA_UPDATED: ("size",),
    EventKind.JOB_PROGRESS: ("progress",),
    EventKind.JOB_EXPIRED: ("created_at", "expires_at"),
    EventKind.DLQ_ADDED: ("attempts",),
}

#: The value that the caller adds, for the kinds that have one.
NOTES: Final[dict[EventKind, str]] = {
    EventKind.JOB_FAILED: "error",
    EventKind.JOB_STALLED: "error",
    EventKind.JOB_REMOVED: "reason",
    EventKind.JOB_QUARANTINED: "reason",
    EventKind.JOB_PROGRESS: "message",
    EventKind.DLQ_ADDED: "reason",
    EventKind.DLQ_RETRY_ALL: "count",
    EventKind.DLQ_PURGED: "count",
    EventKind.QUEUE_DRAINED: "count",
    EventKind.QUEUE_CLEANED: "cleaned",  # the states, by number, and the number of jobs
    EventKind.RATELIMIT_SET: "max",
    EventKind.CONCURRENCY_SET: "concurrency",
    EventKind.CONFIG_STALL_CHANGED: "config",
    EventKind.CONFIG_DLQ_CHANGED: "config",
    EventKind.CONFIG_MODE_CHANGED: "mode",
}

#: When the attempt that ended was due. ``run_at`` of the same event is when the next attempt is due, if there is one. It is
#: not a field of a job: the caller reads ``run_at`` before the transition.
DUE_AT: Final = "due_at"

#: Fields that come after the note, because they were added later: the fields of stored events cannot move.
LATER: Final[dict[EventKind, tuple[str, ...]]] = {
    EventKind.JOB_REMOVED: ("finished_at",),  # no value: the job was not finished, so the field is missing
    EventKind.JOB_FAILED: (DUE_AT,),
    EventKind.JOB_STALLED: (DUE_AT,),
    EventKind.JOB_RELEASED: (DUE_AT,),
}
#: Kinds that need ``due_at`` from the caller. ``job:completed`` does not, because the ``run_at`` of a completed job does not
#: change.
DUE_KINDS: Final = frozenset(kind for kind, fields in LATER.items() if DUE_AT in fields)

#: Kinds without a job: their note is the whole payload that clients see, a mapping.
PAYLOAD_KINDS: Final = frozenset(kind for kind in EventKind if kind >= EventKind.CRON_CREATED) | {
    EventKind.QUEUE_COUNTS,
    EventKind.QUEUE_IDLE,
    EventKind.QUEUE_THRESHOLD,
    EventKind.RATELIMIT_HIT,
    EventKind.FLOW_COMPLETED,
    EventKind.FLOW_FAILED,
}
NOTES.update(dict.fromkeys(PAYLOAD_KINDS, "payload"))

#: Kinds whose note is an error text.
ERROR_KINDS: Final = frozenset(kind for kind, note in NOTES.items() if note == "error")

#: All field names of a kind, in the order in which they are stored.
FIELDS: Final[dict[EventKind, tuple[str, ...]]] = {
    kind: JOB_FIELDS.get(kind, ()) + ((NOTES[kind],) if kind in NOTES else ()) + LATER.get(kind, ()) for kind in EventKind
}


_WHO: Final = ("queue", "id", "custom_id")
#: Reads all fields of an event from a job in one call.
_read = {kind: attrgetter(*_WHO, *JOB_FIELDS.get(kind, ())) for kind in EventKind}
_number = {kind: kind.value for kind in EventKind}

#: One stored event.
Event = tuple[Any, ...]


def job_event(kind: EventKind, job: JobRecord, note: object = None, due_at: int | None = None) -> Event:
    """Return the event of a transition of a job. ``due_at``: its ``run_at`` before the transition, see DUE_KINDS."""
    event = (_number[kind], *_read[kind](job))
    if kind in NOTES:
        event = (*event, note)
    if kind in LATER:
        event = (*event, *[due_at if name == DUE_AT else getattr(job, name) for name in LATER[kind]])
    return event


def job_events(kind: EventKind, jobs: Sequence[JobRecord], due_at: Sequence[int] = ()) -> list[Event]:
    """Return the events of transitions of several jobs, for a kind without a note. ``due_at``: one per job, see DUE_KINDS."""
    number, read = _number[kind], _read[kind]
    if kind in DUE_KINDS:
        return [(number, *read(job), due) for job, due in zip(jobs, due_at, strict=True)]
    return [(number, *read(job)) for job in jobs]


def queue_event(kind: EventKind, queue: int, note: object = None, *, namespace: str | None = None) -> Event:
    """Return the event of a change of a queue or, with queue 0, of a namespace."""
    return (_number[kind], queue, 0, namespace, note) if kind in NOTES else (_number[kind], queue, 0, namespace)
