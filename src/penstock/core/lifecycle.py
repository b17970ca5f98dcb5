"""Every state of a job, every arrow between them, and what each arrow does.

This file alone defines the lifecycle: no other code changes a job's state. Stores only write the result of ``move``,
and guard the write with the state and the lease token that they read. The diagram and the table in ``docs/lifecycle.md`` are
generated from TRANSITIONS (``python -m penstock.core.lifecycle``). Tests take every arrow from every state, also the
forbidden ones.

Two operations of the stores are no arrows. The SQLite store moves a damaged row to quarantine: such a row cannot be read,
so its state is not known. A queue that moves to another shard takes its jobs along, in the states that they are in.

A job that does not exist yet, or no longer, is NOWHERE. That state is never stored: an arrow that leads there deletes.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.core.errors import WrongState
from penstock.core.events import DUE_KINDS
from penstock.core.events import EventKind as Kind
from penstock.core.job import JobFlag, JobRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class State(IntEnum):
    """The state of a job. Numbers are stored: never change one, only add."""

    NOWHERE = -1  #: not yet created, or removed
    WAITING = 0  #: ready for the next claim
    DELAYED = 1  #: ready at ``run_at``; the timer makes it waiting
    ACTIVE = 2  #: leased to a worker; left when the worker settles it, or when the lease ends
    COMPLETED = 3  #: acknowledged; kept for some time as history, then removed by retention
    DEAD = 4  #: all attempts failed (the jobs door spells it "failed"); kept until retried, purged or too old
    WAITING_CHILDREN = 5  #: needs other jobs; left when the last of them ends

    @property
    def label(self) -> str:
        """The name used in docs and errors."""
        return self.name.lower().replace("_", "-")


#: All states a stored job can be in, by their numbers.
STORED_STATES: Final = tuple(state for state in State if state is not State.NOWHERE)


class Arrow(StrEnum):
    """The cause of a transition."""

    # A producer pushes.
    ENQUEUE = "enqueue"
    ENQUEUE_FRONT = "enqueue-front"
    SCHEDULE = "schedule"
    AWAIT = "await"
    # Time passes.
    DUE = "due"
    EXPIRE = "expire"
    STALL = "stall"
    STALL_BACK = "stall-back"
    STALL_BURY = "stall-bury"
    STALL_REMOVE = "stall-remove"
    # Needed jobs end.
    UNBLOCK = "unblock"
    UNBLOCK_LATER = "unblock-later"
    CHILD_BURY = "child-bury"
    CHILD_REMOVE = "child-remove"
    # A worker works.
    CLAIM = "claim"
    PREFETCH = "prefetch"
    START = "start"
    HEARTBEAT = "heartbeat"
    RENEW = "renew"
    PROGRESS = "progress"
    RELEASE = "release"
    RETURN = "return"
    SEND_BACK = "send-back"
    SNOOZE = "snooze"
    POSTPONE = "postpone"
    PARK = "park"
    COMPLETE = "complete"
    COMPLETE_REMOVE = "complete-remove"
    RETRY = "retry"
    RETRY_NOW = "retry-now"
    BURY = "bury"
    BURY_REMOVE = "bury-remove"
    # A user changes the job.
    PROMOTE = "promote"
    RESCHEDULE = "reschedule"
    REPRIORITIZE = "reprioritize"
    EDIT = "edit"
    REPLACE = "replace"
    REPLACE_LATER = "replace-later"
    DISCARD = "discard"
    CANCEL = "cancel"
    INSPECT = "inspect"
    PUT_DOWN = "put-down"
    REVIVE = "revive"
    REPLAY = "replay"
    # Jobs are removed in bulk.
    DRAIN = "drain"
    CLEAN = "clean"
    PURGE = "purge"
    OBLITERATE = "obliterate"
    FORGET = "forget"


class Moment(Protocol):
    """The time of a transition, and a source of increasing numbers for positions in the queue and lease tokens."""

    @property
    def now_ms(self) -> int:
        """Wall clock."""

    @property
    def steady_ms(self) -> int:
        """Steady clock."""

    def serial(self) -> int:
        """Return a number greater than all earlier ones."""


if TYPE_CHECKING:
    #: An effect of an arrow on a job, besides the change of state. ``value`` is the number that the caller passed to
    #: ``move``.
    Effect = Callable[[JobRecord, Moment, int], None]


# Effects. Each has one task; an arrow lists the effects it needs.


def place_in_front(job: JobRecord, _moment: Moment, _value: int) -> None:
    """Move the job before all jobs of the same priority."""
    job.position = -job.position


def reposition(job: JobRecord, moment: Moment, _value: int) -> None:
    """Give the job a new position: at the back, or at the front if it is last-in-first-out."""
    place = moment.serial()
    job.position = -place if job.flags & JobFlag.LIFO else place


def return_to_front(job: JobRecord, moment: Moment, _value: int) -> None:
    """Move the job before all jobs of the same priority, also those that were moved to the front earlier."""
    job.position = -moment.serial()


def send_to_back(job: JobRecord, moment: Moment, _value: int) -> None:
    """Move the job behind all jobs of the same priority, last-in-first-out or not."""
    job.flags &= ~JobFlag.LIFO
    job.position = moment.serial()


def go_first_when_due(job: JobRecord, moment: Moment, _value: int) -> None:
    """When it is due, put the job before all jobs of the same priority; of several, the one postponed last is first."""
    job.flags |= JobFlag.LIFO
    job.position = moment.serial()


def ready_now(job: JobRecord, moment: Moment, _value: int) -> None:
    """Set the job ready at this moment."""
    job.run_at = moment.now_ms


def ready_at(job: JobRecord, _moment: Moment, value: int) -> None:
    """Set the job ready at the moment in the value (wall clock, ms)."""
    job.run_at = value


def start_lease(job: JobRecord, moment: Moment, value: int) -> None:
    """Lease the job to a worker for the number of ms in the value (0: until it is settled)."""
    job.token = moment.serial()
    job.started_at = moment.now_ms
    job.deadline = None if job.timeout is None else moment.steady_ms + job.timeout
    job.lease_ms = value
    extend_lease(job, moment, value)


def lock(job: JobRecord, moment: Moment, value: int) -> None:
    """Lock the job for one reader, for the number of ms in the value."""
    job.token = moment.serial()
    job.lease_ms = value
    job.lease_until = moment.steady_ms + value


def set_aside(job: JobRecord, moment: Moment, value: int) -> None:
    """Lease the job to the servers: no worker has started it, and its timeout does not run until one does."""
    job.started_at = None
    job.deadline = None
    extend_lease(job, moment, value)


def begin(job: JobRecord, moment: Moment, value: int) -> None:
    """Lease a set-aside job to a worker, for the number of ms in the value, with the token it was set aside with."""
    job.started_at = moment.now_ms
    job.deadline = None if job.timeout is None else moment.steady_ms + job.timeout
    job.lease_ms = value
    extend_lease(job, moment, value)


def extend_lease(job: JobRecord, moment: Moment, value: int) -> None:
    """Set the end of the lease to that many ms from now, but never after the job's own deadline."""
    until = moment.steady_ms + value if value > 0 else None
    if job.deadline is not None and (until is None or job.deadline < until):
        until = job.deadline
    job.lease_until = until


def end_lease(job: JobRecord, _moment: Moment, _value: int) -> None:
    """End the lease. The token stays: later commands of that worker with it are stale."""
    job.lease_until = None
    job.deadline = None


def count_failure(job: JobRecord, _moment: Moment, _value: int) -> None:
    """Count one more failed delivery."""
    job.attempts += 1


def count_stall(job: JobRecord, _moment: Moment, _value: int) -> None:
    """Count one more lease that ended without an ack."""
    job.stalls += 1


def finish(job: JobRecord, moment: Moment, _value: int) -> None:
    """Record the end time."""
    job.finished_at = moment.now_ms


def start_over(job: JobRecord, _moment: Moment, _value: int) -> None:
    """Reset the job to the state of a new push, and remove its time-to-live, which could otherwise end at once."""
    job.expires_at = None
    job.attempts = 0
    job.stalls = 0
    job.started_at = None
    job.finished_at = None
    job.progress = 0


def set_priority(job: JobRecord, _moment: Moment, value: int) -> None:
    """Set the priority to the value."""
    job.priority = value


def set_progress(job: JobRecord, _moment: Moment, value: int) -> None:
    """Set the progress to the value (0 to 100)."""
    job.progress = value


def set_size(job: JobRecord, _moment: Moment, value: int) -> None:
    """Set the size of the new payload to the value (bytes)."""
    job.size = value


def renew_lease(job: JobRecord, moment: Moment, _value: int) -> None:
    """Renew the lease by its own length. It never ends earlier than before: a longer extension stays."""
    until = job.lease_until
    extend_lease(job, moment, job.lease_ms)
    if until is not None and job.lease_until is not None and until > job.lease_until:
        job.lease_until = until


class Transition(NamedTuple):
    """A row of the table. The target is a plain number (of a State), because that number is stored."""

    target: int
    effects: tuple[Effect, ...] = ()
    events: tuple[Kind, ...] = ()


def _rows(
    arrow: Arrow, sources: Iterable[State], target: State | None, *effects: Effect, events: Iterable[Kind] = ()
) -> dict[tuple[int, Arrow], Transition]:
    """Return rows for one arrow from several states; without a target, the state stays the same."""
    return {
        (source.value, arrow): Transition((source if target is None else target).value, effects, tuple(events))
        for source in sources
    }


_NOWHERE, _WAITING, _DELAYED = State.NOWHERE, State.WAITING, State.DELAYED
_ACTIVE, _COMPLETED, _DEAD = State.ACTIVE, State.COMPLETED, State.DEAD
_CHILDREN = State.WAITING_CHILDREN
_STORED = STORED_STATES

# fmt: off
TRANSITIONS: Final[dict[tuple[int, Arrow], Transition]] = {
    # arrow                     from                          to           its effects, and its event
    **_rows(Arrow.ENQUEUE,      (_NOWHERE,),                  _WAITING,
            events=(Kind.JOB_PUSHED,)),
    **_rows(Arrow.ENQUEUE_FRONT, (_NOWHERE,),                 _WAITING,    place_in_front,
            events=(Kind.JOB_PUSHED,)),
    **_rows(Arrow.SCHEDULE,     (_NOWHERE,),                  _DELAYED,    ready_at,
            events=(Kind.JOB_PUSHED,)),

    **_rows(Arrow.AWAIT,        (_NOWHERE,),                  _CHILDREN,
            events=(Kind.JOB_PUSHED,)),

    **_rows(Arrow.UNBLOCK,      (_CHILDREN,),                 _WAITING,    reposition, ready_now,
            events=(Kind.JOB_WAITING,)),
    **_rows(Arrow.UNBLOCK_LATER, (_CHILDREN,),                _DELAYED,    ready_at,
            events=(Kind.JOB_DELAYED,)),
    **_rows(Arrow.CHILD_BURY,   (_CHILDREN,),                 _DEAD,       finish,
            events=(Kind.JOB_FAILED, Kind.DLQ_ADDED)),
    **_rows(Arrow.CHILD_REMOVE, (_CHILDREN,),                 _NOWHERE,
            events=(Kind.JOB_FAILED, Kind.JOB_REMOVED)),

    **_rows(Arrow.DUE,          (_DELAYED,),                  _WAITING,    reposition,
            events=(Kind.JOB_WAITING,)),
    **_rows(Arrow.EXPIRE,       (_WAITING, _DELAYED, _CHILDREN), _NOWHERE,
            events=(Kind.JOB_EXPIRED,)),
    **_rows(Arrow.STALL,        (_ACTIVE,),                   _WAITING,    count_failure, count_stall, end_lease, ready_now,
            events=(Kind.JOB_STALLED,)),
    **_rows(Arrow.STALL_BACK,   (_ACTIVE,),                   _WAITING,    count_failure, count_stall, end_lease, reposition,
            ready_now, events=(Kind.JOB_STALLED,)),
    **_rows(Arrow.STALL_BURY,   (_ACTIVE,),                   _DEAD,       count_failure, count_stall, end_lease, finish,
            events=(Kind.JOB_STALLED, Kind.DLQ_ADDED)),
    **_rows(Arrow.STALL_REMOVE, (_ACTIVE,),                   _NOWHERE,    count_failure, count_stall,
            events=(Kind.JOB_STALLED, Kind.JOB_REMOVED)),

    **_rows(Arrow.CLAIM,        (_WAITING,),                  _ACTIVE,     start_lease,
            events=(Kind.JOB_ACTIVE,)),
    **_rows(Arrow.PREFETCH,     (_WAITING,),                  _ACTIVE,     start_lease, set_aside,
            events=(Kind.JOB_ACTIVE,)),
    **_rows(Arrow.START,        (_ACTIVE,),                   None,        begin),
    **_rows(Arrow.HEARTBEAT,    (_ACTIVE,),                   None,        renew_lease),
    **_rows(Arrow.RENEW,        (_ACTIVE,),                   None,        extend_lease),
    **_rows(Arrow.PROGRESS,     (_ACTIVE,),                   None,        set_progress, renew_lease,
            events=(Kind.JOB_PROGRESS,)),
    **_rows(Arrow.RELEASE,      (_ACTIVE,),                   _WAITING,    end_lease,
            events=(Kind.JOB_RELEASED,)),
    **_rows(Arrow.RETURN,       (_ACTIVE,),                   _WAITING,    end_lease, return_to_front, ready_now,
            events=(Kind.JOB_RELEASED,)),
    **_rows(Arrow.SEND_BACK,    (_ACTIVE,),                   _WAITING,    end_lease, send_to_back, ready_now,
            events=(Kind.JOB_RELEASED,)),
    **_rows(Arrow.SNOOZE,       (_ACTIVE,),                   _DELAYED,    end_lease, go_first_when_due, ready_at,
            events=(Kind.JOB_DELAYED,)),
    **_rows(Arrow.POSTPONE,     (_ACTIVE,),                   _DELAYED,    ready_at, end_lease,
            events=(Kind.JOB_DELAYED,)),
    **_rows(Arrow.PARK,         (_ACTIVE,),                   _CHILDREN,   end_lease,
            events=(Kind.JOB_WAITING_CHILDREN,)),
    **_rows(Arrow.COMPLETE,     (_ACTIVE,),                   _COMPLETED,  end_lease, finish,
            events=(Kind.JOB_COMPLETED,)),
    **_rows(Arrow.COMPLETE_REMOVE, (_ACTIVE,),                _NOWHERE,
            events=(Kind.JOB_COMPLETED,)),
    **_rows(Arrow.RETRY,        (_ACTIVE,),                   _DELAYED,    count_failure, end_lease, ready_at,
            events=(Kind.JOB_FAILED, Kind.JOB_RETRIED)),
    **_rows(Arrow.RETRY_NOW,    (_ACTIVE,),                   _WAITING,    count_failure, end_lease, reposition, ready_now,
            events=(Kind.JOB_FAILED, Kind.JOB_RETRIED)),
    **_rows(Arrow.BURY,         (_ACTIVE,),                   _DEAD,       count_failure, end_lease, finish,
            events=(Kind.JOB_FAILED, Kind.DLQ_ADDED)),
    **_rows(Arrow.BURY_REMOVE,  (_ACTIVE,),                   _NOWHERE,    count_failure,
            events=(Kind.JOB_FAILED, Kind.JOB_REMOVED)),

    **_rows(Arrow.PROMOTE,      (_DELAYED,),                  _WAITING,    reposition, ready_now,
            events=(Kind.JOB_PROMOTED,)),
    **_rows(Arrow.RESCHEDULE,   (_DELAYED,),                  None,        ready_at,
            events=(Kind.JOB_DELAY_CHANGED,)),
    **_rows(Arrow.REPRIORITIZE, (_WAITING, _DELAYED, _CHILDREN), None,     set_priority,
            events=(Kind.JOB_PRIORITY_CHANGED,)),
    **_rows(Arrow.EDIT,         (_WAITING, _DELAYED, _ACTIVE, _CHILDREN), None, set_size,
            events=(Kind.JOB_DATA_UPDATED,)),
    **_rows(Arrow.REPLACE,      (_WAITING, _DELAYED),         _WAITING,    start_over, reposition, ready_now,
            events=(Kind.JOB_WAITING,)),
    **_rows(Arrow.REPLACE_LATER, (_WAITING, _DELAYED),        _DELAYED,    start_over, ready_at,
            events=(Kind.JOB_DELAYED,)),
    **_rows(Arrow.DISCARD,      (_WAITING, _DELAYED, _ACTIVE, _CHILDREN), _DEAD, end_lease, finish,
            events=(Kind.JOB_DISCARDED, Kind.DLQ_ADDED)),
    **_rows(Arrow.CANCEL,       (_WAITING, _DELAYED, _ACTIVE, _CHILDREN), _NOWHERE,
            events=(Kind.JOB_REMOVED,)),
    **_rows(Arrow.INSPECT,      (_DEAD,),                     None,        lock),
    **_rows(Arrow.PUT_DOWN,     (_DEAD,),                     None,        end_lease),
    **_rows(Arrow.REVIVE,       (_DEAD,),                     _WAITING,    start_over, end_lease, reposition, ready_now,
            events=(Kind.DLQ_RETRIED,)),
    **_rows(Arrow.REPLAY,       (_COMPLETED,),                _WAITING,    start_over, reposition, ready_now,
            events=(Kind.JOB_RETRIED,)),

    **_rows(Arrow.DRAIN,        (_WAITING, _DELAYED),         _NOWHERE,    events=(Kind.JOB_REMOVED,)),
    **_rows(Arrow.CLEAN,        (_WAITING, _DELAYED, _COMPLETED, _DEAD, _CHILDREN), _NOWHERE, events=(Kind.JOB_REMOVED,)),
    **_rows(Arrow.PURGE,        (_DEAD,),                     _NOWHERE,    events=(Kind.JOB_REMOVED,)),
    **_rows(Arrow.OBLITERATE,   _STORED,                      _NOWHERE,    events=(Kind.JOB_REMOVED,)),
    **_rows(Arrow.FORGET,       (_COMPLETED, _DEAD),          _NOWHERE),
}
# fmt: on

#: Arrows that complete a job.
COMPLETIONS: Final = (Arrow.COMPLETE, Arrow.COMPLETE_REMOVE)
#: Arrows that end an attempt and may change the due time of the job: their events contain when the attempt was due.
DUE_ARROWS: Final = frozenset(arrow for (_, arrow), row in TRANSITIONS.items() if not DUE_KINDS.isdisjoint(row.events))


def move(job: JobRecord, arrow: Arrow, moment: Moment, value: int = 0) -> Transition:
    """Take a job along an arrow and return the row that describes the change.

    ``value`` is the one number some arrows need: a due time (schedule, postpone, snooze, reschedule, retry, replace-later), the
    length of a lease (claim, prefetch, start, renew, inspect), a priority, a progress, a size. Raises WrongState, and changes
    nothing, where the table has no such arrow.
    """
    transition = TRANSITIONS.get((job.state, arrow))
    if transition is None:
        state = State(job.state).label
        raise WrongState(state, f"Cannot {arrow} a job that is {state}.")
    for effect in transition.effects:
        effect(job, moment, value)
    job.state = transition.target
    return transition


def move_all(jobs: Sequence[JobRecord], arrow: Arrow, moment: Moment, value: int = 0) -> Transition:
    """``move`` for several jobs that are in the same state."""
    transition = TRANSITIONS.get((jobs[0].state, arrow))
    if transition is None:
        state = State(jobs[0].state).label
        raise WrongState(state, f"Cannot {arrow} a job that is {state}.")
    target, effects, _ = transition
    for job in jobs:
        for effect in effects:
            effect(job, moment, value)
        job.state = target
    return transition


_NOWHERE_NUMBER: Final = State.NOWHERE.value  # reading the value of an enum member costs more than the rest of ``start``


def start(jobs: list[JobRecord], arrow: Arrow, moment: Moment) -> Transition:
    """Take new jobs along one arrow: ``move`` for many. Each job already has its position in the queue and its due time."""
    transition = TRANSITIONS[_NOWHERE_NUMBER, arrow]
    target, effects, _ = transition
    for effect in effects:
        for job in jobs:
            effect(job, moment, job.run_at)
    for job in jobs:
        job.state = target
    return transition


def sources(arrow: Arrow) -> tuple[State, ...]:
    """Return the states from which an arrow starts."""
    return tuple(State(source) for source, each in TRANSITIONS if each == arrow)


def diagram() -> str:
    """Return the table as a Mermaid state diagram. Arrows between the same two states share a line."""
    labels: dict[tuple[State, State], list[str]] = {}
    for (source, arrow), transition in TRANSITIONS.items():
        labels.setdefault((State(source), State(transition.target)), []).append(arrow.value)
    lines = ["stateDiagram-v2"]
    for (source, target), arrows in labels.items():
        names = ["[*]" if state == State.NOWHERE else state.label for state in (source, target)]
        lines.append(f"    {names[0]} --> {names[1]}: {', '.join(arrows)}")
    return "\n".join(lines)


def table() -> str:
    """Return the table as Markdown, one row per arrow."""
    lines = ["| arrow | from | to | effects | events |", "|---|---|---|---|---|"]
    for arrow in Arrow:
        rows = {State(source): row for (source, each), row in TRANSITIONS.items() if each == arrow}
        some = next(iter(rows.values()))
        stays = all(row.target == source for source, row in rows.items())
        origin = ", ".join("–" if source == State.NOWHERE else source.label for source in rows)
        target = "stays" if stays else "removed" if some.target == State.NOWHERE else State(some.target).label
        effects = ", ".join(effect.__name__.replace("_", " ") for effect in some.effects) or "–"
        events = ", ".join(f"`{kind.wire_name}`" for kind in some.events) or "–"
        lines.append(f"| {arrow} | {origin} | {target} | {effects} | {events} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(f"```mermaid\n{diagram()}\n```\n\n{table()}")  # noqa: T201 - this is the generator of docs/lifecycle.md
