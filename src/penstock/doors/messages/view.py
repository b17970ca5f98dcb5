"""A message as its consumers see it, however it gets to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.ids import to_ulid
from penstock.doors.messages import wire
from penstock.doors.messages.rendering import ReceiptHandle
from penstock.doors.opaque import unwrap

if TYPE_CHECKING:
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey


def view_of(key: QueueKey, delivery: Delivery, *, dead: bool = False) -> wire.MessageView:
    """Show a message that was just taken. ``dead``: from the dead letters."""
    job, payload = delivery
    data, metadata = unwrap(payload)
    receipt = ReceiptHandle(job.id, job.token, dead)
    return wire.MessageView(
        to_ulid(job.id), data, str(receipt), *key, 1 if dead else job.attempts + 1, job.created_at, metadata
    )
