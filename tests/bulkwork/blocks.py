"""Blocks of the journal as the stores write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


def body_of(queues: dict[int, tuple[str, str]], events: Sequence[Sequence[Any]]) -> bytes:
    return msgspec.msgpack.encode((queues, events))
