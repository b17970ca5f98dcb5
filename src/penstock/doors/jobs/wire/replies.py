"""The replies of the jobs door."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw

from penstock.core.queue import DlqConfig, StallConfig


class Out(msgspec.Struct, rename="camel", gc=False):
    """Base of replies and their parts."""


class Reply(Out, kw_only=True):
    """Base of all successful replies: ``ok`` comes first."""

    ok: bool = True


class Ok(Reply, kw_only=True):
    """Done."""


class IdReply(Reply, kw_only=True):
    """The id of a pushed job."""

    id: str


class IdsReply(Reply, kw_only=True):
    """The ids of pushed jobs, in the given order."""

    ids: list[str]


class BackoffView(Out, omit_defaults=True):
    """How long a job waits before a retry, if the push gave an object. Milliseconds."""

    type: str
    delay: int
    max_delay: int | None = None


class RepeatView(Out, omit_defaults=True):
    """How a job is repeated, and how often it has been."""

    count: int
    every: int | None = None
    pattern: str | None = None
    tz: str | None = None
    limit: int | None = None


class JobView(Out, omit_defaults=True):
    """A job as users see it. Times are milliseconds since 1970; ``attempts`` counts failed ones.

    Fields that few jobs have come last, and are left out of other jobs.
    """

    id: str
    queue: str
    data: Raw
    priority: int
    created_at: int
    run_at: int
    started_at: int | None
    completed_at: int | None
    attempts: int
    max_attempts: int
    backoff: int
    ttl: int | None
    timeout: int | None
    progress: int
    progress_message: str | None
    tags: list[str]
    lifo: bool
    remove_on_complete: bool
    remove_on_fail: bool
    unique_key: str | None
    custom_id: str | None
    group_id: str | None
    stall_count: int
    state: str
    error: str | None
    depends_on: list[str]
    parent_id: str | None
    children_ids: list[str]
    backoff_config: BackoffView | None = None
    repeat: RepeatView | None = None
    stacktrace: list[str] | None = None  #: where it failed last
    stall_timeout: int | None = None
    stack_trace_limit: int | None = None
    keep_logs: int | None = None
    size_limit: int | None = None
    deduplication_ttl: int | None = None
    deduplication_extend: bool = False
    deduplication_replace: bool = False
    debounce_id: str | None = None
    debounce_ttl: int | None = None
    fail_parent_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    deferred_since: int | None = None  #: when it was first released with a delay, since its last attempt
    name: str | msgspec.UnsetType = msgspec.UNSET  #: the name that its producer gave it


class DeadJobView(JobView, kw_only=True):
    """A dead job, with the reason and the time."""

    reason: str | None
    failed_at: int | None


class JobReply(Reply, kw_only=True):
    """A job."""

    job: JobView


class PulledReply(Reply, kw_only=True):
    """A pulled job with the token of its lease."""

    job: JobView
    token: str


class NothingReply(Reply, kw_only=True):
    """No job is ready."""

    job: None = None


class PulledBatchReply(Reply, kw_only=True):
    """Pulled jobs with the tokens of their leases, by position."""

    jobs: list[JobView]
    tokens: list[str]


class JobsReply(Reply, kw_only=True):
    """Jobs."""

    jobs: list[JobView]


class DeadJobsReply(Reply, kw_only=True):
    """Dead jobs."""

    jobs: list[DeadJobView]


class StateReply(Reply, kw_only=True):
    """The state of a job; ``unknown`` if there is no such job."""

    id: str
    state: str


class ResultReply(Reply, kw_only=True):
    """The result that the worker sent."""

    id: str
    result: Raw


class NoResultReply(Reply, kw_only=True):
    """The job has no result."""

    id: str


class ChildrenReply(Reply, kw_only=True):
    """The results of the jobs that a job depends on, by their ids."""

    values: dict[str, Raw]


class CountReply(Reply, kw_only=True):
    """How many."""

    count: int


class ItemError(Out):
    """Why one item of a batch was refused."""

    id: str
    error: str


class BatchReply(Reply, kw_only=True):
    """How many items of a batch were done, and why the others were not."""

    count: int
    errors: list[ItemError]


class CleanReply(Reply, kw_only=True):
    """What was removed."""

    count: int
    ids: list[str]


class WaitReply(Reply, kw_only=True):
    """The job has not completed within the time given."""

    completed: bool


class CompletedReply(Reply, kw_only=True):
    """The job has completed."""

    result: Raw
    completed: bool = True


class ProgressReply(Reply, kw_only=True):
    """The progress of a job."""

    progress: int
    message: str | None


class AliveData(Out):
    """The inner part of a heartbeat's reply."""

    ok: bool = True


class AliveReply(Reply, kw_only=True):
    """The heartbeat was accepted."""

    data: AliveData


class AliveBatchData(Out):
    """The inner part of a heartbeat batch's reply. ``errors``, if there are any: the jobs that the worker does not hold."""

    count: int
    ok: bool = True
    errors: list[ItemError] | msgspec.UnsetType = msgspec.UNSET


class AliveBatchReply(Reply, kw_only=True):
    """The number of accepted heartbeats."""

    data: AliveBatchData


class LogEntryReply(Out):
    """One line of a job's log."""

    timestamp: int
    level: str
    message: str


class LogData(Out):
    """The inner part of a log's reply."""

    logs: list[LogEntryReply]
    count: int  #: how many lines the log has in total


class LogsReply(Reply, kw_only=True):
    """The log of a job."""

    data: LogData


class AddedData(Out):
    """The inner part of an added line's reply."""

    added: bool = True


class AddedReply(Reply, kw_only=True):
    """The line was added."""

    data: AddedData


class QueuesReply(Reply, kw_only=True):
    """The names of all queues."""

    queues: list[str]
    partial: list[str] | msgspec.UnsetType = msgspec.UNSET  #: the shards that are down, so that the list may be incomplete


class QueueCounts(Out):
    """How many jobs are in each of the states of a summary."""

    waiting: int
    active: int
    delayed: int
    completed: int
    failed: int


class CountsView(Out):
    """How many jobs are in each state."""

    waiting: int
    active: int
    delayed: int
    completed: int
    failed: int
    waiting_children: int = msgspec.field(name="waiting-children")
    prioritized: int  #: waiting jobs with a priority above 0
    paused: int  #: waiting jobs of a paused queue


class QueueSummary(Out):
    """A queue, whether it is paused, and how many jobs it has in each state."""

    name: str
    paused: bool
    counts: QueueCounts


class CountsReply(Reply, kw_only=True):
    """How many jobs are in each state."""

    counts: CountsView


class PriorityCountsReply(Reply, kw_only=True):
    """How many waiting and delayed jobs there are per priority."""

    queue: str
    counts: dict[int, int]


class PausedReply(Reply, kw_only=True):
    """Whether a queue is paused."""

    paused: bool


class LimitReply(Reply, kw_only=True):
    """A limit of a queue; null if it has none."""

    limit: int | None


class StallReply(Reply, kw_only=True):
    """The stall rule of a queue."""

    config: StallConfig


class ModeReply(Reply, kw_only=True):
    """When pushes to a queue are answered."""

    mode: Literal["direct", "buffered"]


class DlqReply(Reply, kw_only=True):
    """The dead-letter rule of a queue."""

    config: DlqConfig


class CronView(Out):
    """When a cron runs. ``nextRun`` is milliseconds since 1970."""

    name: str
    queue: str
    schedule: str | None
    repeat_every: int | None
    next_run: int
    timezone: str
    job_name: str | msgspec.UnsetType = msgspec.UNSET  #: the name of its jobs


class CountedCronView(CronView, kw_only=True):
    """When a cron runs, and how often it has run."""

    executions: int
    max_limit: int | None


class SavedCronReply(Reply, kw_only=True):
    """A cron that was just added or replaced."""

    cron: CronView


class CronReply(Reply, kw_only=True):
    """A cron."""

    cron: CountedCronView


class CronsReply(Reply, kw_only=True):
    """All crons of a namespace, by name."""

    crons: list[CountedCronView]
    partial: list[str] | msgspec.UnsetType = msgspec.UNSET  #: the shards that are down, so that the list may be incomplete
