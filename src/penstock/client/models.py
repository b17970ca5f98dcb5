"""The answers of the jobs door, as objects. Times are milliseconds since 1970 (UTC), durations milliseconds."""

from __future__ import annotations

from typing import Any

import msgspec


class Model(msgspec.Struct, rename="camel", kw_only=True):
    """Base of the server's answers. Unknown fields are ignored."""


class Job(Model):
    """A job. ``attempts`` counts failed ones; ``state`` is waiting, delayed, active, completed, failed or waiting-children.

    ``token`` is the proof of your lease, if you pulled the job; empty otherwise.
    """

    id: str
    queue: str
    data: Any = None
    priority: int = 0
    created_at: int = 0
    run_at: int = 0
    started_at: int | None = None
    completed_at: int | None = None
    attempts: int = 0
    max_attempts: int = 3
    backoff: int = 0
    ttl: int | None = None
    timeout: int | None = None
    progress: int = 0
    progress_message: str | None = None
    tags: list[str] = []
    lifo: bool = False
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    unique_key: str | None = None
    custom_id: str | None = None
    group_id: str | None = None
    stall_count: int = 0
    state: str = ""
    error: str | None = None
    depends_on: list[str] = []
    parent_id: str | None = None
    children_ids: list[str] = []
    stacktrace: list[str] | None = None
    stack_trace_limit: int | None = None
    deferred_since: int | None = None  #: when it was first deferred, since its last attempt
    repeat: dict[str, Any] | None = None
    reason: str | None = None  #: why it is dead, in a list of the dead letters
    failed_at: int | None = None  #: when it became a dead letter, in a list of the dead letters
    token: str = ""


class Counts(Model):
    """The number of jobs of a queue in each state."""

    waiting: int
    active: int
    delayed: int
    completed: int
    failed: int
    waiting_children: int = msgspec.field(name="waiting-children")
    prioritized: int = 0  #: waiting jobs with a priority above 0
    paused: int = 0  #: waiting jobs of a queue that is paused


class ItemFailure(Model):
    """Why one item of a batch was refused."""

    id: str
    error: str


class Batch(Model):
    """How many items of a batch were done, and why the others were not."""

    count: int
    errors: list[ItemFailure] = []


class Cleaned(Model):
    """What ``clean`` removed."""

    count: int
    ids: list[str] = []


class Progress(Model):
    """The progress of a job, from 0 to 100, with the message of its worker."""

    progress: int
    message: str | None = None


class LogLine(Model):
    """One line of a job's log. ``level`` is info, warn or error."""

    timestamp: int
    level: str
    message: str


class Waited(Model):
    """The result of waiting for a job: whether it has completed, and its result."""

    completed: bool
    result: Any = None


class Cron(Model):
    """A cron: its schedule, and how often it has run."""

    name: str
    queue: str
    next_run: int
    timezone: str = "UTC"
    schedule: str | None = None
    repeat_every: int | None = None
    executions: int = 0
    max_limit: int | None = None


class StallSettings(Model):
    """The settings that decide when a job without heartbeats counts as stalled."""

    enabled: bool
    stall_interval: int
    max_stalls: int
    grace_period: int


class DlqSettings(Model):
    """The settings for dead letters."""

    auto_retry: bool
    auto_retry_interval: int
    max_auto_retries: int
    max_age: int | None
    max_entries: int


class Webhook(Model):
    """A webhook of the jobs door, without its secret."""

    id: str
    url: str
    events: list[str]
    created_at: int
    queue: str | None = None
    last_triggered: int | None = None
    success_count: int = 0
    failure_count: int = 0
    enabled: bool = True


class WorkerInfo(Model):
    """A registered worker. ``status`` is active or disconnected."""

    id: str
    name: str
    queues: list[str]
    concurrency: int
    status: str
    last_seen: int
    active_jobs: int = 0
    processed_jobs: int = 0
    failed_jobs: int = 0
    hostname: str | None = None
    pid: int | None = None


class Event(Model):
    """An event. ``kind``: job:completed, queue:paused, …; ``id``: its number in the journal, if it has one."""

    kind: str
    data: dict[str, Any]
    id: str | None = None
