"""What a cron is: a name, a schedule, and the job it pushes at each tick."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core.job import Dedup
from penstock.core.schedule import Schedule

#: A cron the store has not numbered yet.
UNNUMBERED: Final = 0


class CronKey(NamedTuple):
    """How a cron is called from outside."""

    namespace: str
    name: str


class CronJobTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the jobs of a cron are like: see NewJob, whose defaults these are."""

    max_attempts: int = 3
    backoff: int = 1_000
    timeout: int | None = None
    delay: int = 0
    flags: int = 0
    details: bytes | None = None
    ttl: int | None = None
    group_id: str | None = None
    tags: tuple[str, ...] = ()
    name: str | None = None


class CronPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody asked for. What its jobs carry is kept apart: it may be large, and only a tick needs it."""

    queue: str  #: of the cron's own namespace
    schedule: Schedule
    priority: int = 0
    max_limit: int | None = None  #: jobs to push in all; then the cron is gone
    unique_key: str | None = None  #: of its jobs; None: one of its own, unless it may overlap
    prevent_overlap: bool = True  #: no new job while the previous one is waiting, delayed or active
    skip_missed: bool = True  #: a tick nobody was there for is left out; otherwise it is made up for, once
    skip_if_no_worker: bool = False  #: a tick for which no worker of its queue is there is left out
    dedup: Dedup | None = None  #: of its jobs' unique key
    job: CronJobTemplate = CronJobTemplate()


class CronRecord(msgspec.Struct):
    """A cron as the store knows it. ``plan`` is replaced as a whole, never changed in place."""

    number: int  #: given by the store
    key: CronKey
    plan: CronPlan
    next_run: int  #: the next tick, wall clock, ms; whoever moves it must have read it, so that a tick counts once
    executions: int = 0  #: jobs pushed so far

    @property
    def job_key(self) -> str | None:
        """The unique key of its jobs, if there may be one at a time only."""
        if self.plan.unique_key is not None:
            return self.plan.unique_key
        return f"cron:{self.key.name}" if self.plan.prevent_overlap else None

    @property
    def is_used_up(self) -> bool:
        """Tell whether it has pushed all the jobs it may."""
        return self.plan.max_limit is not None and self.executions >= self.plan.max_limit
