"""Durations and moments in Python's types, and as the protocol has them: in milliseconds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TypeAlias

#: A duration: seconds, as an int or a float, or a ``timedelta``.
Duration: TypeAlias = float | timedelta
#: A moment: a ``datetime`` with a time zone, or milliseconds since 1970 (UTC) as an int.
Moment: TypeAlias = datetime | int


def duration_ms(duration: Duration, name: str) -> int:
    """Return a duration in milliseconds. Raises TypeError or ValueError, with the argument's name, if it is invalid.

    >>> duration_ms(1.5, "delay"), duration_ms(timedelta(minutes=1), "delay")
    (1500, 60000)
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise TypeError(f"{name} must be seconds or a timedelta, not {type(duration).__name__}")
    else:
        seconds = duration
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{name} must be a duration of 0 or more, not {duration!r}")
    return round(seconds * 1000)


def duration_s(duration: Duration, name: str) -> float:
    """Return a duration in seconds. Raises like ``duration_ms``."""
    return duration_ms(duration, name) / 1000


def moment_ms(moment: Moment, name: str) -> int:
    """Return a moment in milliseconds since 1970. Raises TypeError or ValueError, with the argument's name, if it is invalid.

    A ``datetime`` without a time zone is refused, because it would mean a different moment on another machine.
    """
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise ValueError(f"{name} needs a time zone, for example datetime(…, tzinfo=UTC), or milliseconds since 1970")
        return round(moment.timestamp() * 1000)
    if isinstance(moment, bool) or not isinstance(moment, int):
        raise TypeError(f"{name} must be a datetime with a time zone, or milliseconds since 1970 as an int")
    return moment


def text_moment_ms(text: str, name: str) -> int:
    """Return a moment given as text, in milliseconds since 1970: a number of milliseconds, or ISO 8601 with a time zone.

    >>> text_moment_ms("1970-01-01T00:00:01Z", "since"), text_moment_ms("1000", "since")
    (1000, 1000)
    """
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{name} must be milliseconds since 1970, or like 2026-01-31T12:00:00Z, not {text!r}") from None
    return moment_ms(moment, name)
