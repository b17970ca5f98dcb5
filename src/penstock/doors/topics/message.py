"""Valid names of topics, and how a message becomes a job."""

from __future__ import annotations

import re
from typing import Final

from penstock.core import limits
from penstock.core.binary_payload import wrap, wrap_steps
from penstock.core.errors import BodyTooLarge, InvalidInput
from penstock.core.job import JobFlag, JobSpec
from penstock.core.time_slices import in_slices

#: An acknowledged message is removed. A lease expires only because a server died, so this counts no attempt.
_FLAGS: Final = JobFlag.REMOVE_ON_COMPLETE | JobFlag.UNCOUNTED
#: Control characters would break lines and logs, a slash separates path segments, and surrogates are not valid text. The
#: replacement character stands for invalid bytes, so different topics would get the same name.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\ud800-\udfff\ufffd]")


def check_topic(name: str) -> str:
    """Return the name of a topic unchanged. Raises InvalidInput."""
    if not name or len(name) > limits.name_chars_max or _FORBIDDEN.search(name):
        raise InvalidInput(
            f"invalid topic value: expected 1 to {limits.name_chars_max} characters of UTF-8, no slashes and control characters"
        )
    return name


def new_message(data: bytes) -> JobSpec:
    """Return the job of a small message. For large ones: ``new_large_message``."""
    stored, options = wrap(data)
    return JobSpec(stored, options, flags=_FLAGS)


async def new_large_message(data: bytes) -> JobSpec:
    """Return the job of a large message, built in slices. Raises BodyTooLarge."""
    if len(data) > limits.payload_bytes_max:
        raise BodyTooLarge(f"Message too large: {len(data)} bytes (max {limits.payload_bytes_max})")
    stored, options = await in_slices(wrap_steps(data))
    return JobSpec(stored, options, flags=_FLAGS)
