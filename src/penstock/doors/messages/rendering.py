"""Receipt handles: what a consumer shows to say what became of one delivery. Each is good for that delivery alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.errors import ReceiptUnknown
from penstock.core.ids import ID_MAX, from_crockford, to_crockford

_BITS: Final = 63
_DEAD: Final = 1 << 2 * _BITS


class ReceiptHandle(NamedTuple):
    """Which delivery of which message."""

    id: int
    token: int
    dead: bool = False  #: it was taken from the dead letters

    def __str__(self) -> str:
        return to_crockford((_DEAD if self.dead else 0) | self.id << _BITS | self.token)


def receipt_in(text: str) -> ReceiptHandle:
    """Read a receipt handle. Raises ReceiptUnknown."""
    number = from_crockford(text)
    if number is None:
        raise ReceiptUnknown(f"broker: unknown receipt handle: {text[:64]}")
    return ReceiptHandle(number >> _BITS & ID_MAX, number & ID_MAX, bool(number & _DEAD))
