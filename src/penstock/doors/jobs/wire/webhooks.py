"""The requests and replies of the jobs door about webhooks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.core import limits
from penstock.doors.jobs.wire.fields import Key
from penstock.doors.jobs.wire.replies import Out, Reply
from penstock.doors.jobs.wire.requests import RequestModel


class WebhookBody(RequestModel):
    """A webhook to be registered. The contract fixes the error texts for a missing or invalid URL or events."""

    url: str = ""
    events: Annotated[list[str], Meta(max_length=limits.ids_max)] | None = None
    queue: str | None = None
    secret: Key | None = None


class EnabledBody(RequestModel):
    """Whether a webhook is enabled."""

    enabled: bool


class RegisteredData(Out):
    """A webhook that was just registered."""

    webhook_id: str
    url: str
    events: list[str]
    queue: str | None  #: null: all queues
    created_at: int


class RegisteredReply(Reply, kw_only=True):
    """The webhook is registered."""

    data: RegisteredData


class WebhookView(Out):
    """A webhook as users see it, without its secret. Times are milliseconds since 1970."""

    id: str
    url: str
    events: list[str]
    queue: str | None
    created_at: int
    last_triggered: int | None
    success_count: int
    failure_count: int
    enabled: bool


class WebhookStats(Out):
    """How many webhooks there are."""

    total: int
    enabled: int


class WebhooksData(Out):
    """All webhooks of a namespace."""

    webhooks: list[WebhookView]
    stats: WebhookStats


class WebhooksReply(Reply, kw_only=True):
    """All webhooks of a namespace."""

    data: WebhooksData


class RemovedData(Out):
    """The inner part of a removal's reply."""

    removed: bool = True


class RemovedReply(Reply, kw_only=True):
    """The webhook was removed."""

    data: RemovedData
