"""Conversion of moments to and from RFC 3339. Only computes with dates; does not read the current time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=None)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SHAPE: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]([01]\d|2[0-3])(:[0-5]\d:)([0-5]\d|60)(?:\.(\d+))?([Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
)


def from_rfc3339(text: str) -> int | None:
    """Return the wall-clock milliseconds of a moment, rounded up, or None if it is not spelled as RFC 3339 requires.

    A leap second counts as the second after it.

    >>> from_rfc3339("2025-12-25T10:00:00Z")
    1766656800000
    >>> from_rfc3339("2025-12-25T12:00:00.0001+02:00")
    1766656800001
    >>> from_rfc3339("2025-12-25 10:00") is None
    True
    """
    match = _SHAPE.fullmatch(text)
    if match is None or not text.isascii():
        return None
    date, hour, minute, second, fraction, zone = match.groups()
    leap = second == "60"
    try:
        moment = datetime.fromisoformat(
            f"{date}T{hour}{minute}{'59' if leap else second}{zone.upper().replace('Z', '+00:00')}"
        )
    except ValueError:  # the 30th of February
        return None
    digits = (fraction or "").ljust(3, "0")
    beyond = 1 if digits[3:].strip("0") else 0
    return (moment - _EPOCH) // _MILLISECOND + leap * 1_000 + int(digits[:3]) + beyond


@lru_cache(maxsize=1_024)  # messages that were pushed at the same time have the same text
def to_rfc3339(ms: int) -> str:
    """Return wall-clock milliseconds as an RFC 3339 text, in UTC.

    >>> to_rfc3339(1766656800001)
    '2025-12-25T10:00:00.001Z'
    """
    return f"{(_EPOCH_UTC + timedelta(milliseconds=ms)).isoformat(timespec='milliseconds')}Z"


def to_moment(ms: int) -> datetime:
    """Return wall-clock milliseconds as a datetime in UTC, as other libraries need it."""
    return _EPOCH + timedelta(milliseconds=ms)


def from_moment(moment: datetime) -> int:
    """Return the wall-clock milliseconds of a datetime that has a time zone.

    >>> from_moment(to_moment(1766656800001))
    1766656800001
    """
    return (moment - _EPOCH) // _MILLISECOND
