"""How each kind of answer is read. One line per kind: the structure, and the part that the caller needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.client import messages as m
from penstock.client import models
from penstock.client._request import one_field, reading


class _Pulled(msgspec.Struct):
    jobs: list[models.Job]
    tokens: list[str] = []


class _Logs(msgspec.Struct):
    logs: list[models.LogLine]


class _Alive(msgspec.Struct):
    data: models.Batch


class _Result(msgspec.Struct):
    result: Any = None


class _Webhooks(msgspec.Struct):
    webhooks: list[models.Webhook]


class _Workers(msgspec.Struct):
    workers: list[models.WorkerInfo]


class _WebhookId(msgspec.Struct, rename="camel"):
    webhook_id: str


class _WorkerId(msgspec.Struct, rename="camel"):
    worker_id: str


class _Heartbeat(msgspec.Struct):
    ok: bool


def _with_tokens(pulled: _Pulled) -> list[models.Job]:
    for each, token in zip(pulled.jobs, pulled.tokens, strict=True):
        each.token = token
    return pulled.jobs


def _with_uptime(health: m.Health) -> m.Health:
    known = health.uptime_ms is not None or not isinstance(health.uptime, int)
    return health if known else msgspec.structs.replace(health, uptime_ms=int(health.uptime or 0) * 1_000)


Text = Callable[[bytes], str]
Texts = Callable[[bytes], list[str]]
Number = Callable[[bytes], int]

ID: Text = one_field("id", str)
IDS: Texts = one_field("ids", list[str])
COUNT: Number = one_field("count", int)
LIMIT: Callable[[bytes], int | None] = one_field("limit", int | None)
STATE: Text = one_field("state", str)
MODE: Text = one_field("mode", str)
PAUSED: Callable[[bytes], bool] = one_field("paused", bool)
QUEUES: Texts = one_field("queues", list[str])
CHILDREN: Callable[[bytes], dict[str, Any]] = one_field("values", dict[str, Any])
JOB: Callable[[bytes], models.Job] = one_field("job", models.Job)
JOBS: Callable[[bytes], list[models.Job]] = one_field("jobs", list[models.Job])
COUNTS: Callable[[bytes], models.Counts] = one_field("counts", models.Counts)
PRIORITY_COUNTS: Callable[[bytes], dict[int, int]] = one_field("counts", dict[int, int])
STALL: Callable[[bytes], models.StallSettings] = one_field("config", models.StallSettings)
DLQ: Callable[[bytes], models.DlqSettings] = one_field("config", models.DlqSettings)
CRON: Callable[[bytes], models.Cron] = one_field("cron", models.Cron)
CRONS: Callable[[bytes], list[models.Cron]] = one_field("crons", list[models.Cron])
PULLED = reading(_Pulled, _with_tokens)
BATCH = reading(models.Batch, lambda batch: batch)
CLEANED = reading(models.Cleaned, lambda cleaned: cleaned)
PROGRESS = reading(models.Progress, lambda progress: progress)
WAITED = reading(models.Waited, lambda waited: waited)
RESULT = reading(_Result, lambda reply: reply.result)
ALIVE = reading(_Alive, lambda reply: reply.data)
HEARTBEAT = reading(_Heartbeat, lambda reply: reply.ok)


class _LogsReply(msgspec.Struct):
    data: _Logs


class _WebhooksReply(msgspec.Struct):
    data: _Webhooks


class _WorkersReply(msgspec.Struct):
    data: _Workers


class _WebhookIdReply(msgspec.Struct):
    data: _WebhookId


class _WorkerIdReply(msgspec.Struct):
    data: _WorkerId


LOGS = reading(_LogsReply, lambda reply: reply.data.logs)
WEBHOOKS = reading(_WebhooksReply, lambda reply: reply.data.webhooks)
WORKERS = reading(_WorkersReply, lambda reply: reply.data.workers)
WEBHOOK_ID = reading(_WebhookIdReply, lambda reply: reply.data.webhook_id)
WORKER_ID = reading(_WorkerIdReply, lambda reply: reply.data.worker_id)

# The messages door.

MESSAGES: Callable[[bytes], list[m.Message]] = one_field("messages", list[m.Message])
NAMESPACES: Callable[[bytes], list[m.Namespace]] = one_field("namespaces", list[m.Namespace])
SUBSCRIPTIONS: Callable[[bytes], list[m.Subscription]] = one_field("subscriptions", list[m.Subscription])
PURGED: Number = one_field("purged", int)
REPLAYED: Number = one_field("replayed", int)
STATS = reading(m.Stats, lambda stats: stats)
SUMMARY = reading(m.Summary, lambda summary: summary)
HEALTH = reading(m.Health, _with_uptime)
