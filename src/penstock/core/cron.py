"""Crons: a cron has a name, a schedule, and the job that it pushes at each tick."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core.job import Dedup
from penstock.core.schedule import Schedule

#: The number of a cron that the store has not numbered yet.
UNNUMBERED: Final = 0


class CronKey(NamedTuple):
    """The name of a cron, as clients use it."""

    namespace: str
    name: str


class CronJobTemplate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The properties of a cron's jobs: see ``JobSpec``, which defines the same defaults."""

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
    """The requested cron. The data of its jobs is stored separately, because it may be large and only a tick needs it."""

    queue: str  #: in the cron's own namespace
    schedule: Schedule
    priority: int = 0
    max_limit: int | None = None  #: total number of jobs to push; then the cron is deleted
    unique_key: str | None = None  #: of its jobs; None: the cron's own key, unless its jobs may overlap
    prevent_overlap: bool = True  #: no new job while the previous one is waiting, delayed or active
    skip_missed: bool = True  #: leave out ticks that were missed; otherwise one job is pushed for all missed ticks
    skip_if_no_worker: bool = False  #: leave out a tick if its queue has no worker then
    dedup: Dedup | None = None  #: of the unique key of its jobs
    job: CronJobTemplate = CronJobTemplate()


class CronRecord(msgspec.Struct):
    """A stored cron. ``plan`` is replaced as a whole, never changed in place."""

    number: int  #: assigned by the store
    key: CronKey
    plan: CronPlan
    next_run: int  #: the next tick, wall clock, ms; a change is guarded by the old value, so that a tick counts once
    executions: int = 0  #: number of jobs pushed so far

    @property
    def job_key(self) -> str | None:
        """The unique key of its jobs, if only one at a time is allowed."""
        if self.plan.unique_key is not None:
            return self.plan.unique_key
        return f"cron:{self.key.name}" if self.plan.prevent_overlap else None

    @property
    def is_used_up(self) -> bool:
        """Whether it has pushed its maximum number of jobs."""
        return self.plan.max_limit is not None and self.executions >= self.plan.max_limit
