"""Requests of webhooks: one event of the journal as a body, and its headers."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.core import ids, limits
from penstock.core.errors import JobQuarantined
from penstock.core.events import FIELDS, EventKind
from penstock.core.webhook import EVENT_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import JournalBlock, Store
    from penstock.store.sharded import ShardedStore

#: Position of the first field of an event.
_FIRST_FIELD = 4


class EventBody(msgspec.Struct, rename="camel"):
    """The body of a delivery. Fields that an event does not have, or that are no longer stored, are left out."""

    event: str
    timestamp: int
    job_id: str
    queue: str
    data: Raw | UnsetType = UNSET
    error: str | UnsetType = UNSET
    progress: int | UnsetType = UNSET


class WebhookRequest(NamedTuple):
    """A request, the same in every attempt."""

    event: str
    headers: dict[str, str]
    body: bytes


async def write(store: Store, webhook: WebhookRecord, block: JournalBlock, number: int) -> WebhookRequest:
    """Build the request for one event."""
    event: Sequence[Any] = block.events[number - block.seq]
    kind, queue, job_id, custom_id = event[:_FIRST_FIELD]
    namespace, queue_name = block.queues[queue]
    fields = dict(zip(FIELDS[EventKind(kind)], event[_FIRST_FIELD:], strict=False))
    name = EVENT_NAMES[kind]
    data = await data_of(store, kind, namespace, job_id)
    error, progress = fields.get("error"), fields.get("progress")
    content = EventBody(
        name,
        block.at,
        custom_id or ids.to_uuid(job_id),
        queue_name,
        data=UNSET if data is None else Raw(data),
        error=UNSET if error is None else error,
        progress=UNSET if progress is None else progress,
    )
    body = msgspec.json.encode(content)
    headers = {
        "Content-Type": "application/json",
        "X-Webhook-Event": name,
        "X-Webhook-Timestamp": str(block.at),
        "X-Webhook-Delivery": f"{ids.to_uuid(webhook.id)}-{number}" + (f"-{store.shard}" if store.shard else ""),
    }
    if webhook.secret is not None:
        headers["X-Webhook-Signature"] = sign(webhook.secret, body)
    return WebhookRequest(name, headers, body)


def sign(secret: str, body: bytes) -> str:
    """Return the signature of a body: HMAC-SHA256, lower-case hexadecimal."""
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


async def data_of(store: Store | ShardedStore, kind: int, namespace: str, job_id: int) -> bytes | None:
    """Return the result of a completed job, or the payload of a pushed or failed one, as JSON; None if removed or too large."""
    found: bytes | None = None
    try:
        if kind == EventKind.JOB_COMPLETED:
            found = await store.result_get(job_id, namespace=namespace)
        elif kind in (EventKind.JOB_PUSHED, EventKind.JOB_FAILED):
            stored = await store.job_get(namespace, job_id)
            found = None if stored is None else stored[1].data
    except JobQuarantined:  # the event is sent without data
        return None
    return None if found is None or len(found) > limits.event_data_bytes_max else found
