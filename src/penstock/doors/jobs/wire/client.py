"""What only bunqueue's own client sends and receives: jobs with all fields, dead-letter entries, limits.

It is not in the HTTP API.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from penstock.core import limits
from penstock.doors.jobs.wire import replies, requests

Offset = Annotated[int, Meta(ge=0, le=limits.offset_max)]
Moment = Annotated[int, Meta(ge=0, le=limits.timestamp_ms_max)]


# Requests.


class JobsQuery(requests.RequestModel):
    """Which part of a listing. ``state``: one, several in an array or separated by commas, or none for all."""

    state: str | list[str] | None = None
    limit: Annotated[int, Meta(ge=0, le=limits.list_jobs_max)] = limits.list_jobs_max
    offset: Offset = 0
    asc: bool = True  #: false: the newest first


class DeadFilter(requests.RequestModel):
    """Which dead jobs, oldest first. Times are milliseconds since 1970."""

    reason: str | None = None
    older_than: Moment | None = None
    newer_than: Moment | None = None
    retriable: bool = False  #: only those that the dead-letter rule retries now
    expired: bool = False  #: only those that the dead-letter rule deletes now
    limit: Offset | None = None
    offset: Offset = 0


class DeadQuery(requests.RequestModel):
    """How many dead jobs to list; none means all, up to the length of a page."""

    count: Offset | None = None
    filter: DeadFilter | None = None


class RetryDeadBody(requests.DlqRetryBody):
    """Which dead jobs to retry: one, the oldest, those that match a filter, or all."""

    filter: DeadFilter | None = None


class LimitsQuery(requests.RequestModel):
    """``maxJobs``: the rate limit counts as free until this many of its jobs were claimed."""

    max_jobs: Offset | None = None


# Replies.


class Step(replies.Out, omit_defaults=True):
    """A state that a job has reached. ``attempt``: which one failed."""

    state: str
    timestamp: int
    error: str | None = None
    attempt: int | None = None


class FullJobView(replies.JobView, kw_only=True, omit_defaults=False):
    """A job with all its fields, including those that few jobs have."""

    durable: bool
    timeline: list[Step]  #: its known steps: when it was created, last started, and ended or last failed
    returnvalue: Raw | msgspec.UnsetType = msgspec.UNSET
    failed_reason: str | msgspec.UnsetType = msgspec.UNSET


class FullDeadJobView(FullJobView, kw_only=True, omit_defaults=False):
    """A dead job, with the reason and the time."""

    reason: str | None
    failed_at: int | None


class AttemptView(replies.Out):
    """A failed attempt. ``duration`` in ms."""

    attempt: int
    started_at: int
    failed_at: int
    reason: str
    error: str | None
    duration: int


class DeadEntry(replies.Out):
    """An entry of the dead letters: the job, and what the dead-letter rule will do to it. ``attempts``: the last one."""

    job: FullDeadJobView
    entered_at: int
    reason: str
    error: str | None
    attempts: list[AttemptView]
    retry_count: int
    last_retry_at: int | None
    next_retry_at: int | None
    expires_at: int | None


class FullJobReply(replies.Reply, kw_only=True):
    """A job."""

    job: FullJobView


class FullJobsReply(replies.Reply, kw_only=True):
    """Jobs."""

    jobs: list[FullJobView]


class DeadEntriesReply(replies.Reply, kw_only=True):
    """Dead jobs and their dead-letter entries."""

    jobs: list[FullDeadJobView]
    entries: list[DeadEntry]


class DeadStats(replies.Out):
    """The dead jobs of a queue in numbers."""

    total: int
    by_reason: dict[str, int]
    by_queue: dict[str, int]
    pending_retry: int
    expired: int
    oldest_entry: int | None
    newest_entry: int | None


class DeadStatsReply(replies.Reply, kw_only=True):
    """The dead jobs of a queue in numbers, in the reply's envelope."""

    stats: DeadStats
