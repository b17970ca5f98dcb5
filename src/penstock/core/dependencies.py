"""Dependencies between jobs: what the end of a job means for the jobs that need it, as pure functions.

A dependency is one row: one job needs another. It is open while it keeps its job from running. A failure does not end a
dependency for ever: if the needed job is retried as a dead letter and completes, the dependency is fulfilled.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core import limits
from penstock.core.job import DeathReason, JobFlag, details_of
from penstock.core.lifecycle import COMPLETIONS, Arrow, State

if TYPE_CHECKING:
    from penstock.core.job import JobRecord


class Need(IntEnum):
    """The state of a dependency. Numbers are stored; the open states come first, up to FAILED."""

    PENDING = 0  #: the needed job has not ended
    FAILED = 1  #: it is dead or deleted, and no other policy was set
    DONE = 2  #: it completed
    IGNORED = 3  #: it failed, and the policy ignores that; the error is kept
    DROPPED = 4  #: it failed, and the policy drops the dependency
    CONTINUED = 5  #: it failed, and the policy lets the dependent job run at once; the error is kept

    @property
    def is_open(self) -> bool:
        """Whether it keeps its job from running."""
        return self <= Need.FAILED


class Dependency(NamedTuple):
    """One job needs another."""

    job: int
    needs: int
    state: Need
    name: str  #: id of the needed job, as clients use it
    result: bytes | None = None
    error: str | None = None


class NeedCount(NamedTuple):
    """Numbers of dependencies of a job."""

    open: int  #: those that keep it from running
    done: int  #: those whose needed job completed
    total: int


class JobEnd(NamedTuple):
    """The end of a job that others need, with all data that the dependent jobs receive.

    Dependent jobs that the transaction of the end does not update are updated later; the end is kept until then. They are
    updated in the order of their ids, so ``after`` is enough to record the progress.
    """

    serial: int  #: grows from end to end. Jobs with a higher id were pushed later and are not affected
    job: int
    state: Need  #: the new state of the dependencies on it
    buries: bool = False  #: see Consequence
    frees: bool = False  #: see Consequence
    inherited: bool = False  #: it failed because a job that it needed failed; the error names that job
    error: str | None = None  #: why it failed; None: it did not fail
    result: bytes | None = None
    after: int = 0  #: id of the last job that was updated

    @property
    def failed(self) -> bool:
        """Whether the job failed."""
        return self.error is not None

    @property
    def weight(self) -> int:
        """Return approximately how many bytes the update of one dependent job writes."""
        return len(self.result or b"") + 3 * len(self.error or "")  # with the dependency, the job and the journal


class RemoteJob(NamedTuple):
    """A needed job of another shard, in the state in which it was found there."""

    name: str  #: its id, as clients use it
    end: JobEnd  #: how it ended; PENDING if it has not ended


class Relay(NamedTuple):
    """An end that is to be delivered to another shard, where jobs need the job that ended."""

    shard: int  #: the shard that receives it
    end: JobEnd
    spared: int  #: id of the job there that no longer needs it, however it ended; 0: none
    asked_at: int  #: wall clock, ms: when that shard last requested the end
    deliveries: int  #: number of deliveries so far


class Consequence(NamedTuple):
    """The effect of a needed job's end: the new state of the dependency, and what happens to the dependent job."""

    state: Need
    buries: bool = False  #: the dependent job becomes dead
    frees: bool = False  #: the dependent job may run now, even if it needs other jobs


#: The failure policies that a producer can set; the first match applies.
POLICIES: Final[tuple[tuple[int, Consequence], ...]] = (
    (JobFlag.FAIL_PARENT, Consequence(Need.FAILED, buries=True)),
    (JobFlag.CONTINUE_PARENT, Consequence(Need.CONTINUED, frees=True)),
    (JobFlag.IGNORE_FAILURE, Consequence(Need.IGNORED)),
    (JobFlag.DROP_DEPENDENCY, Consequence(Need.DROPPED)),
)


_FAILURES = (Arrow.BURY, Arrow.BURY_REMOVE, Arrow.STALL_BURY, Arrow.STALL_REMOVE, Arrow.CHILD_BURY, Arrow.CHILD_REMOVE)


def state_of_needed(needed: JobRecord, result: bytes | None) -> JobEnd:
    """Return the state of a new dependency on a job: PENDING while the job is unfinished.

    ``result``: set if it has completed.
    """
    if needed.state == State.COMPLETED:
        return JobEnd(0, needed.id, Need.DONE, result=result)
    if needed.state != State.DEAD:
        return JobEnd(0, needed.id, Need.PENDING)
    state, buries, frees = consequence_of_failure(needed)
    inherited = details_of(needed).reason == DeathReason.CHILD_FAILED
    return JobEnd(0, needed.id, state, buries, frees, inherited, why_failed(needed))


def vanished(job_id: int) -> JobEnd:
    """Return the end of a needed job that was deleted without a recorded end."""
    return JobEnd(0, job_id, Need.FAILED, error="the job was gone before it completed")


def end_of(needed: JobRecord, arrow: Arrow, serial: int, result: bytes | None) -> JobEnd:
    """Return the end of a job, for the jobs that need it. ``result``: of its worker."""
    if arrow in COMPLETIONS:
        return JobEnd(serial, needed.id, Need.DONE, result=result)
    state, buries, frees = consequence_of_failure(needed)
    inherited = arrow in _FAILURES and details_of(needed).reason == DeathReason.CHILD_FAILED
    return JobEnd(serial, needed.id, state, buries, frees, inherited, why_failed(needed, arrow))


def why_failed(needed: JobRecord, arrow: Arrow | None = None) -> str:
    """Return in short why a job failed: a dead one, or one that took an arrow which does not complete it."""
    details = details_of(needed)
    if arrow is Arrow.DISCARD or (arrow is None and details.reason == DeathReason.DISCARDED):
        return "the job was discarded"
    if arrow is None or arrow in _FAILURES:
        return (details.error or "the job failed without an error text")[: limits.flow_error_chars_max]
    return f"the job was gone before it completed ({arrow})"


def blame(end: JobEnd, name: str) -> str:
    """Return the error of a job that is dead because of a needed job. In a chain, it always names the first job that failed."""
    return end.error or "" if end.inherited else f"Child job {name} failed: {end.error}"


def consequence_of_failure(needed: JobRecord) -> Consequence:
    """Return what the failure of a needed job means for the jobs that need it."""
    for flag, consequence in POLICIES:
        if needed.has(flag):
            return consequence
    return Consequence(Need.FAILED)
