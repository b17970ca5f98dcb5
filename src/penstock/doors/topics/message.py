"""What a topic may be called, and what a message is to the engine."""

from __future__ import annotations

import re
from typing import Final

from penstock.core import limits
from penstock.core.binary_payload import wrap, wrap_steps
from penstock.core.errors import BodyTooLarge, InvalidInput
from penstock.core.job import JobFlag, NewJob
from penstock.core.time_slices import in_slices

#: A message is gone when it is acknowledged. A lease that runs out is the end of a server, not the fault of the message.
_FLAGS: Final = JobFlag.REMOVE_ON_COMPLETE | JobFlag.UNCOUNTED
#: Control characters would break lines and logs, a slash ends a part of a path, surrogates are no text. What stands for bytes
#: that are no text would make one topic of many.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\ud800-\udfff\ufffd]")


def check_topic(name: str) -> str:
    """Return the name of a topic as it is. Raises InvalidInput."""
    if not name or len(name) > limits.name_chars_max or _FORBIDDEN.search(name):
        raise InvalidInput(
            f"invalid topic value: expected 1 to {limits.name_chars_max} characters of UTF-8, no slashes and control characters"
        )
    return name


def new_message(data: bytes) -> NewJob:
    """Turn a few bytes into what the engine pushes. For many: ``new_large_message``."""
    stored, options = wrap(data)
    return NewJob(stored, options, flags=_FLAGS)


async def new_large_message(data: bytes) -> NewJob:
    """Turn bytes into what the engine pushes, in slices. Raises BodyTooLarge."""
    if len(data) > limits.payload_bytes_max:
        raise BodyTooLarge(f"Message too large: {len(data)} bytes (max {limits.payload_bytes_max})")
    stored, options = await in_slices(wrap_steps(data))
    return NewJob(stored, options, flags=_FLAGS)
