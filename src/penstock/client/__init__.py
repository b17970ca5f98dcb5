"""The Python SDK of Penstock: ``Client``, ``AsyncClient``, ``Worker``, ``@task``. It imports nothing of the server."""

from __future__ import annotations

from penstock.client._async.client import AsyncClient
from penstock.client._durations import Duration, Moment
from penstock.client._settings import Settings
from penstock.client._sync.client import Client
from penstock.client.context import JobCancelled, JobContext, current_job
from penstock.client.errors import (
    ApiError,
    Conflict,
    ConnectionFailed,
    Fail,
    JobFailed,
    JobGone,
    LeaseLost,
    NotFound,
    PenstockError,
    ResultMissing,
    ResultTimeout,
    Retry,
    UnexpectedReply,
)
from penstock.client.handle import Handle
from penstock.client.messages import Health, Message, Namespace, QueueStats, Stats, Subscription, Summary
from penstock.client.models import Batch, Counts, Cron, Event, Job, LogLine, Progress, Waited, Webhook, WorkerInfo
from penstock.client.options import Backoff, JobOptions, NewJob, Repeat
from penstock.client.tasks import Task, Tasks, task
from penstock.client.worker import Worker

__all__ = [
    "ApiError",
    "AsyncClient",
    "Backoff",
    "Batch",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Counts",
    "Cron",
    "Duration",
    "Event",
    "Fail",
    "Handle",
    "Health",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobGone",
    "JobOptions",
    "LeaseLost",
    "LogLine",
    "Message",
    "Moment",
    "Namespace",
    "NewJob",
    "NotFound",
    "PenstockError",
    "Progress",
    "QueueStats",
    "Repeat",
    "ResultMissing",
    "ResultTimeout",
    "Retry",
    "Settings",
    "Stats",
    "Subscription",
    "Summary",
    "Task",
    "Tasks",
    "UnexpectedReply",
    "Waited",
    "Webhook",
    "Worker",
    "WorkerInfo",
    "current_job",
    "task",
]
