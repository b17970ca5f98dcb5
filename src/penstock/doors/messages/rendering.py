"""Receipt handles and views of messages. A receipt handle proves one delivery, and is valid for that delivery only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.binary_payload import unwrap
from penstock.core.errors import ReceiptUnknown
from penstock.core.ids import ID_MAX, from_crockford, to_crockford, to_ulid
from penstock.doors.messages import wire

if TYPE_CHECKING:
    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey


_BITS: Final = 63


_DEAD: Final = 1 << 2 * _BITS


class ReceiptHandle(NamedTuple):
    """A reference to one delivery of a message."""

    id: int
    token: int
    dead: bool = False  #: it was consumed from the dead letters

    def __str__(self) -> str:
        return to_crockford((_DEAD if self.dead else 0) | self.id << _BITS | self.token)


def receipt_in(text: str) -> ReceiptHandle:
    """Parse a receipt handle. Raises ReceiptUnknown."""
    number = from_crockford(text)
    if number is None:
        raise ReceiptUnknown(f"broker: unknown receipt handle: {text[:64]}")
    return ReceiptHandle(number >> _BITS & ID_MAX, number & ID_MAX, bool(number & _DEAD))


def view_of(key: QueueKey, delivery: Delivery, *, dead: bool = False) -> wire.MessageView:
    """Return the view of a message that was just claimed. ``dead``: from the dead letters."""
    job, payload = delivery
    data, metadata = unwrap(payload)
    receipt = ReceiptHandle(job.id, job.token, dead)
    return wire.MessageView(
        to_ulid(job.id), data, str(receipt), *key, 1 if dead else job.attempts + 1, job.created_at, metadata
    )
