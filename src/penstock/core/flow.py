"""Jobs that wait for other jobs. What the end of one means for those that need it, as pure functions.

A dependency is one row: this job needs that one. It is open as long as it keeps its job from running. Failing is not the end of
it: a needed job that is brought back from the dead and then completes fulfils it after all.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.job import JobFlag

if TYPE_CHECKING:
    from penstock.core.job import Job


class Need(IntEnum):
    """Where a dependency stands. Numbers are stored; the open ones come first, up to FAILED."""

    PENDING = 0  #: the needed job has not ended
    FAILED = 1  #: it is dead or gone, and nothing else was agreed
    DONE = 2  #: it completed
    IGNORED = 3  #: it failed, which was agreed not to matter; the error is kept
    DROPPED = 4  #: it failed, and the dependency was agreed to be dropped

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


class Consequence(NamedTuple):
    """What the end of a needed job means: where the dependency stands now, and what becomes of the job that needed it."""

    state: Need
    buries: bool = False  #: the job that needed it is dead now
    frees: bool = False  #: it may run now, whatever else it needs


#: What a producer can agree on for the case that a job fails, first match wins.
POLICIES: Final[tuple[tuple[int, Consequence], ...]] = (
    (JobFlag.FAIL_PARENT, Consequence(Need.FAILED, buries=True)),
    (JobFlag.CONTINUE_PARENT, Consequence(Need.IGNORED, frees=True)),
    (JobFlag.IGNORE_FAILURE, Consequence(Need.IGNORED)),
    (JobFlag.DROP_DEPENDENCY, Consequence(Need.DROPPED)),
)


def after_failure(needed: Job) -> Consequence:
    """Decide what the failure of a needed job means for those that need it."""
    for flag, consequence in POLICIES:
        if needed.has(flag):
            return consequence
    return Consequence(Need.FAILED)
