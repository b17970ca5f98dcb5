"""The bodies and queries that the jobs door accepts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from penstock.core import limits
from penstock.doors.jobs.wire.fields import (
    Attempts,
    Backoff,
    Delay,
    Every,
    Ids,
    Key,
    Lease,
    Lines,
    LogText,
    Message,
    Name,
    Positive,
    Priority,
    ScheduleText,
    Text,
    Timeout,
    Wait,
    Zone,
)


class RequestModel(msgspec.Struct, rename="camel", gc=False):
    """Base of requests. Unknown fields are ignored."""


class RepeatBody(RequestModel):
    """How a job is repeated after it has ended: after ``every`` ms, or at the next tick of ``cron``."""

    every: Every | None = None
    cron: ScheduleText | None = None
    pattern: ScheduleText | None = None  #: another name for cron
    timezone: Zone | None = None
    tz: Zone | None = None  #: another name for timezone
    limit: Annotated[int, Meta(ge=1, le=limits.repeats_max)] | None = None
    count: Annotated[int, Meta(ge=0, le=limits.repeats_max)] = 0


class BackoffBody(RequestModel):
    """How long to wait before a retry: ``delay`` ms each time, or doubled each time up to ``maxDelay``."""

    type: Literal["exponential", "fixed"] = "exponential"
    delay: Backoff = 1_000
    max_delay: Backoff | None = None


class DedupBody(RequestModel):
    """Options of a unique key: see Dedup. ``ttl`` in ms; 0: no limit."""

    ttl: Annotated[int, Meta(ge=0, le=limits.ttl_ms_max)] | None = None
    extend: bool = False
    replace: bool = False


class PushBody(RequestModel):
    """A job to be pushed. Durations in milliseconds. The order of the fields is the order in which they are checked."""

    data: Raw
    priority: Priority = 0
    delay: Delay = 0
    timeout: Timeout | None = None
    max_attempts: Attempts | None = None
    attempts: Attempts | None = None  #: another name for maxAttempts
    backoff: Backoff | BackoffBody = 1_000
    ttl: Annotated[int, Meta(ge=0, le=limits.ttl_ms_max)] | None = None
    unique_key: Key | None = None
    job_id: Key | None = None
    custom_id: Key | None = None  #: another name for jobId
    tags: Annotated[list[Key], Meta(max_length=limits.tags_max)] | None = None
    group_id: Key | None = None
    lifo: bool = False
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    durable: bool = False
    depends_on: Annotated[list[Key], Meta(max_length=limits.needs_max)] | None = None
    parent_id: Key | None = None
    children_ids: Annotated[list[Key], Meta(max_length=limits.needs_max)] | None = None
    fail_parent_on_failure: bool = False
    continue_parent_on_failure: bool = False
    ignore_dependency_on_failure: bool = False
    remove_dependency_on_failure: bool = False
    repeat: RepeatBody | None = None
    dedup: DedupBody | None = None
    debounce_id: Key | None = None
    debounce_ttl: Annotated[int, Meta(ge=0, le=limits.ttl_ms_max)] | None = None
    stall_timeout: Timeout | None = None
    stack_trace_limit: Annotated[int, Meta(ge=0, le=limits.stack_lines_max)] | None = None
    keep_logs: Lines | None = None
    size_limit: Annotated[int, Meta(ge=1, le=limits.offset_max)] | None = None
    timestamp: Annotated[int, Meta(ge=0, le=limits.timestamp_ms_max)] | None = None
    name: Name | None = None


class BulkBody(RequestModel):
    """Jobs to be pushed together."""

    jobs: Annotated[list[PushBody], Meta(max_length=limits.bulk_jobs_max)]


class StrictRepeat(RepeatBody, forbid_unknown_fields=True):
    """RepeatBody without unknown fields: see FieldCheck."""


class StrictBackoff(BackoffBody, forbid_unknown_fields=True):
    """BackoffBody without unknown fields: see FieldCheck."""


class StrictDedup(DedupBody, forbid_unknown_fields=True):
    """DedupBody without unknown fields: see FieldCheck."""


class StrictPush(PushBody, forbid_unknown_fields=True):
    """PushBody without unknown fields, also within its objects: see FieldCheck."""

    backoff: Backoff | StrictBackoff = 1_000
    repeat: StrictRepeat | None = None
    dedup: StrictDedup | None = None


class StrictBulk(RequestModel, forbid_unknown_fields=True):
    """BulkBody without unknown fields: see FieldCheck."""

    jobs: Annotated[list[StrictPush], Meta(max_length=limits.bulk_jobs_max)]


class GroupRate(RequestModel):
    """How many jobs of each group may be claimed within a period, in ms."""

    max: Positive
    duration: Positive


class GroupOptions(RequestModel):
    """The limits that a worker requests for all groups of its queue.

    ``affinity``, of bunqueue's worker, is checked and not used.
    """

    concurrency: Positive | None = None
    limit: GroupRate | None = None
    affinity: str | None = None


class PullQuery(RequestModel):
    """How to pull one job."""

    timeout: Wait = 0
    owner: Key | None = None
    lock_ttl: Lease | None = None


class PullBatchBody(RequestModel):
    """How to pull several jobs."""

    count: Annotated[int, Meta(ge=1, le=limits.claim_jobs_max)]
    timeout: Wait = 0
    owner: Key | None = None
    lock_ttl: Lease | None = None


class HttpPullQuery(PullQuery):
    """How to pull one job over HTTP, where a pull is not tied to a connection that ends it."""

    wait_id: Key | None = None


class HttpPullBatchBody(PullBatchBody):
    """How to pull several jobs over HTTP, where a pull is not tied to a connection that ends it."""

    wait_id: Key | None = None


class StopWaitingBody(RequestModel):
    """Which pulls to end: the waiting ones with this id."""

    wait_id: Key


class AckBody(RequestModel):
    """Report that a job has completed."""

    result: Raw | None = None
    token: str | None = None
    remove_on_complete: bool = False  #: remove it, whatever its own options are


class AckBatchBody(RequestModel):
    """Report that several jobs have completed. Results and tokens are matched to the ids by position."""

    ids: Ids
    results: list[Raw] | None = None
    tokens: list[str | None] | None = None
    remove_on_completes: list[bool | None] | None = None  #: which jobs to remove, whatever their own options are


class FailBody(RequestModel):
    """Report that a job has failed."""

    error: Text | None = None
    token: str | None = None
    unrecoverable: bool = False  #: no retry: the job becomes a dead letter at once
    stack: Annotated[list[Text], Meta(max_length=limits.ids_max)] | None = None  #: where it failed, line by line
    delay: Delay | None = None  #: before the next attempt, instead of the backoff
    remove_on_fail: bool = False  #: remove it instead of making it a dead letter, whatever its own options are


class DataBody(RequestModel):
    """A new payload."""

    data: Raw


class PriorityBody(RequestModel):
    """A new priority."""

    priority: Priority


class DelayBody(RequestModel):
    """A new delay."""

    delay: Delay


class TokenBody(RequestModel):
    """``token``: the lease of the worker. A job that another worker holds by now is not changed."""

    token: str | None = None


class PostponeBody(DelayBody):
    """When an active job is ready again. ``token``: see TokenBody."""

    token: str | None = None


class WaitBody(RequestModel):
    """How long to wait for a job to end."""

    timeout: Annotated[int, Meta(ge=0, le=limits.completion_wait_ms_max)] = 30_000


class ProgressBody(RequestModel):
    """The progress of a job. Below 0 counts as 0, above 100 as 100."""

    progress: int
    message: Message | None = None
    token: str | None = None


class HeartbeatBody(RequestModel):
    """A heartbeat of a worker for one job."""

    token: str | None = None
    duration: Lease | None = None


class HeartbeatBatchBody(RequestModel):
    """A heartbeat of a worker for several jobs. Tokens are matched to the ids by position."""

    ids: Ids
    tokens: list[str | None] | None = None


class ReleaseBatchBody(RequestModel):
    """Release jobs that a worker has not begun. Tokens are matched to the ids by position."""

    ids: Ids
    tokens: list[str | None] | None = None
    delay: Delay = 0  #: before they are ready again


class HeldBatchBody(RequestModel):
    """Request the list of jobs that a worker still holds. Tokens are matched to the ids by position."""

    ids: Ids
    tokens: list[str | None] | None = None
    timeout: Wait = 0  #: how long to wait until a job is lost


class ExtendBody(RequestModel):
    """Extend a lease."""

    duration: Lease
    token: str | None = None


class ExtendBatchBody(RequestModel):
    """Extend several leases. Tokens and durations are matched to the ids by position."""

    ids: Ids
    tokens: list[str | None] | None = None
    durations: list[Lease] | None = None


class LogBody(RequestModel):
    """A line for a job's log."""

    message: LogText
    level: Literal["info", "warn", "error"] = "info"


class CronJobBody(RequestModel):
    """The fields of a cron's jobs: those of a push."""

    timeout: Timeout | None = None
    max_attempts: Attempts | None = None
    backoff: Backoff | BackoffBody = 1_000
    delay: Delay = 0
    stall_timeout: Timeout | None = None
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    ttl: Annotated[int, Meta(ge=0, le=limits.ttl_ms_max)] | None = None
    tags: Annotated[list[Key], Meta(max_length=limits.tags_max)] | None = None
    group_id: Key | None = None
    lifo: bool = False
    durable: bool = False
    stack_trace_limit: Annotated[int, Meta(ge=0, le=limits.stack_lines_max)] | None = None
    keep_logs: Lines | None = None
    size_limit: Annotated[int, Meta(ge=1, le=limits.offset_max)] | None = None


class CronBody(RequestModel):
    """A cron to be added, or replaced if there is one of that name. Either ``schedule`` or ``repeatEvery``, not both."""

    name: Name
    queue: str
    data: Raw
    schedule: ScheduleText | None = None
    repeat_every: Every | None = None
    timezone: Zone | None = None
    priority: Priority = 0
    max_limit: Annotated[int, Meta(ge=1, le=limits.repeats_max)] | None = None
    unique_key: Key | None = None
    immediately: bool = False
    prevent_overlap: bool = True
    skip_missed_on_restart: bool = True
    skip_if_no_worker: bool = False
    dedup: DedupBody | None = None
    job_options: CronJobBody | None = None
    job_name: Name | None = None  #: the name of its jobs


class ListQuery(RequestModel):
    """Which part of a listing."""

    state: str | None = None
    limit: Annotated[int, Meta(ge=0, le=limits.list_jobs_max)] = limits.list_jobs_max
    offset: Annotated[int, Meta(ge=0, le=limits.offset_max)] = 0


class EventsQuery(RequestModel):
    """The form of events, and after which one to begin. ``format``: ``typed`` for all of them, each with its name."""

    format: Literal["legacy", "typed"] = "legacy"
    last_event_id: str = ""  #: for clients that cannot send the header Last-Event-ID
    ids: Literal["plain", "marked"] = "plain"  #: ``marked``: ids also identify the journal of their numbers


class CleanBody(RequestModel):
    """Which jobs to remove."""

    grace: Annotated[int, Meta(ge=0, le=limits.grace_ms_max)] = 0
    state: str | None = None
    limit: Annotated[int, Meta(ge=1, le=limits.clean_jobs_max)] = 1_000


class CountBody(RequestModel):
    """How many jobs, at most."""

    count: Annotated[int, Meta(ge=1, le=limits.offset_max)] | None = None


class RetryCompletedBody(RequestModel):
    """Which completed job to run again; none means all, or at most ``count``, oldest first.

    ``timestamp``: only those that completed by this moment, ms since 1970.
    """

    id: str | None = None
    count: Annotated[int, Meta(ge=1, le=limits.offset_max)] | None = None
    timestamp: Annotated[int, Meta(ge=0, le=limits.timestamp_ms_max)] | None = None


class DlqQuery(RequestModel):
    """How many dead jobs to list."""

    count: Annotated[int, Meta(ge=0, le=limits.list_jobs_max)] = 100


class DlqRetryBody(RequestModel):
    """Which dead job to retry; none means all, or at most ``count``, oldest first."""

    job_id: str | None = None
    count: Annotated[int, Meta(ge=1, le=limits.offset_max)] | None = None


class LimitBody(RequestModel):
    """A limit."""

    limit: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class RateLimitBody(LimitBody):
    """A limit of jobs per ``duration`` ms (0: a second). ``ttl``: ms after which it ends (0: never)."""

    duration: Annotated[int, Meta(ge=0, le=limits.YEAR_MS)] = limits.SECOND_MS
    ttl: Annotated[int, Meta(ge=0, le=limits.YEAR_MS)] = 0


class StallPatch(RequestModel):
    """Changes to the stall rule. Missing fields stay unchanged."""

    enabled: bool | None = None
    stall_interval: Annotated[int, Meta(ge=1, le=limits.lease_ms_max)] | None = None
    max_stalls: Annotated[int, Meta(ge=1, le=limits.attempts_max)] | None = None
    grace_period: Annotated[int, Meta(ge=0, le=limits.lease_ms_max)] | None = None


class StallBody(StallPatch):
    """Changes to the stall rule, wrapped in ``config`` or not."""

    config: StallPatch | None = None


class ModeBody(RequestModel):
    """When a push is answered: once it is in the database (``direct``), or in the server's own log (``buffered``)."""

    mode: Literal["direct", "buffered"]


class DlqPatch(RequestModel):
    """Changes to the dead-letter rule. Missing fields stay unchanged.

    ``maxAge: null`` keeps dead jobs without a time limit.
    """

    auto_retry: bool | None = None
    auto_retry_interval: Annotated[int, Meta(ge=1, le=limits.YEAR_MS)] | None = None
    max_auto_retries: Annotated[int, Meta(ge=0, le=limits.attempts_max)] | None = None
    max_age: Annotated[int, Meta(ge=1, le=10 * limits.YEAR_MS)] | msgspec.UnsetType | None = msgspec.UNSET
    max_entries: Annotated[int, Meta(ge=0, le=10_000_000)] | None = None


class DlqBody(DlqPatch):
    """Changes to the dead-letter rule, wrapped in ``config`` or not."""

    config: DlqPatch | None = None
