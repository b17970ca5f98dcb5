"""Jobs that wait for other jobs. What the end of one means for those that need it, as pure functions.

A dependency is one row: this job needs that one. It is open as long as it keeps its job from running. Failing is not the end of
it: a needed job that is brought back from the dead and then completes fulfils it after all.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core import limits
from penstock.core.job import DeathReason, JobFlag, details_of
from penstock.core.lifecycle import Arrow, State

if TYPE_CHECKING:
    from penstock.core.job import Job


class Need(IntEnum):
    """Where a dependency stands. Numbers are stored; the open ones come first, up to FAILED."""

    PENDING = 0  #: the needed job has not ended
    FAILED = 1  #: it is dead or gone, and nothing else was agreed
    DONE = 2  #: it completed
    IGNORED = 3  #: it failed, which was agreed not to matter; the error is kept
    DROPPED = 4  #: it failed, and the dependency was agreed to be dropped
    CONTINUED = 5  #: it failed, and the job that needs it was agreed to run at once; the error is kept

    @property
    def is_open(self) -> bool:
        """Tell whether it keeps its job from running."""
        return self <= Need.FAILED


class Dependency(NamedTuple):
    """One job needs another."""

    job: int
    needs: int
    state: Need
    name: str  #: how users know the needed job
    result: bytes | None = None
    error: str | None = None


class NeedCount(NamedTuple):
    """How many dependencies a job has."""

    open: int  #: keep it from running
    done: int  #: those whose needed job completed
    total: int


class JobEnd(NamedTuple):
    """How a job ended that others need, with all that has to be told to them.

    Those that cannot be told in the transaction of the end are told later: until then it is kept. They are told in the order
    of their ids, so ``after`` is all that has to be remembered of what was done.
    """

    serial: int  #: grows from end to end. Jobs with a higher id were pushed later and are not concerned
    job: int
    state: Need  #: where the dependencies on it stand now
    buries: bool = False  #: see Consequence
    frees: bool = False  #: see Consequence
    inherited: bool = False  #: it failed because a job failed that it needed itself, which is what the error speaks of
    error: str | None = None  #: why it failed; None: it did not
    result: bytes | None = None
    after: int = 0  #: id of the last job that was told

    @property
    def failed(self) -> bool:
        """Tell whether it failed."""
        return self.error is not None

    @property
    def weight(self) -> int:
        """Return about how many bytes telling one job writes."""
        return len(self.result or b"") + 3 * len(self.error or "")  # with the dependency, the job and the journal


class Afar(NamedTuple):
    """A job of another shard that is needed, as it was found there."""

    name: str  #: how users know it
    end: JobEnd  #: how it has ended; PENDING if it has not


class Relay(NamedTuple):
    """An end that is to be told to another shard, where jobs need the one that has ended."""

    shard: int  #: to be told
    end: JobEnd
    spared: int  #: id of the job there that does not need it any more, however it ended; 0: there is none
    asked_at: int  #: wall clock, ms: when that shard last asked to be told
    told: int  #: how often it was told already


class Consequence(NamedTuple):
    """What the end of a needed job means: where the dependency stands now, and what becomes of the job that needed it."""

    state: Need
    buries: bool = False  #: the job that needed it is dead now
    frees: bool = False  #: it may run now, whatever else it needs


#: What a producer can agree on for the case that a job fails, first match wins.
POLICIES: Final[tuple[tuple[int, Consequence], ...]] = (
    (JobFlag.FAIL_PARENT, Consequence(Need.FAILED, buries=True)),
    (JobFlag.CONTINUE_PARENT, Consequence(Need.CONTINUED, frees=True)),
    (JobFlag.IGNORE_FAILURE, Consequence(Need.IGNORED)),
    (JobFlag.DROP_DEPENDENCY, Consequence(Need.DROPPED)),
)


_COMPLETIONS = (Arrow.COMPLETE, Arrow.COMPLETE_REMOVE)
_FAILURES = (Arrow.BURY, Arrow.BURY_REMOVE, Arrow.STALL_BURY, Arrow.STALL_REMOVE, Arrow.CHILD_BURY, Arrow.CHILD_REMOVE)


def standing(needed: Job, result: bytes | None) -> JobEnd:
    """Say how a job stands that somebody begins to need: PENDING as long as it lives; ``result``: if it has completed."""
    if needed.state == State.COMPLETED:
        return JobEnd(0, needed.id, Need.DONE, result=result)
    if needed.state != State.DEAD:
        return JobEnd(0, needed.id, Need.PENDING)
    state, buries, frees = after_failure(needed)
    inherited = details_of(needed).reason == DeathReason.CHILD_FAILED
    return JobEnd(0, needed.id, state, buries, frees, inherited, why_failed(needed))


def vanished(job_id: int) -> JobEnd:
    """Say what it means that a needed job is gone and nobody has told how it ended."""
    return JobEnd(0, job_id, Need.FAILED, error="the job was gone before it completed")


def end_of(needed: Job, arrow: Arrow, serial: int, result: bytes | None) -> JobEnd:
    """Say what the end of a needed job means for those that need it; ``result`` is what its worker answered."""
    if arrow in _COMPLETIONS:
        return JobEnd(serial, needed.id, Need.DONE, result=result)
    state, buries, frees = after_failure(needed)
    inherited = arrow in _FAILURES and details_of(needed).reason == DeathReason.CHILD_FAILED
    return JobEnd(serial, needed.id, state, buries, frees, inherited, why_failed(needed, arrow))


def why_failed(needed: Job, arrow: Arrow | None = None) -> str:
    """Say in short why a job failed: one that is dead, or has gone along an arrow without having completed."""
    details = details_of(needed)
    if arrow is Arrow.DISCARD or (arrow is None and details.reason == DeathReason.DISCARDED):
        return "the job was discarded"
    if arrow is None or arrow in _FAILURES:
        return (details.error or "the job failed, and nobody said why")[: limits.flow_error_chars_max]
    return f"the job was gone before it completed ({arrow})"


def blame(end: JobEnd, name: str) -> str:
    """Say why a job is dead because of one that it needed. Along a chain it is always the first that failed who is named."""
    return end.error or "" if end.inherited else f"Child job {name} failed: {end.error}"


def after_failure(needed: Job) -> Consequence:
    """Decide what the failure of a needed job means for those that need it."""
    for flag, consequence in POLICIES:
        if needed.has(flag):
            return consequence
    return Consequence(Need.FAILED)
