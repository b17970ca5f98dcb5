"""The next tick of a schedule: cron expressions in time zones, and plain intervals. Pure: the caller passes the time.

An expression describes local times. Cronsim finds the next one on a calendar without time zones. This module converts it to a
moment, because schedulers often make mistakes where clocks change:

* A fixed time (no star in the minute and hour fields) that falls into a gap comes once, right after the gap. In an hour that
  happens twice it comes once, the first time.
* A wildcard (a star in one of these fields) follows the local clock: each moment whose local time matches counts, so "every
    minute" means every minute through both changes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_TIMEZONE: Final = "UTC"
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
#: No zone changes its clocks twice within this time.
_STEP: Final = timedelta(days=1)
#: No clock was ever changed by more than this.
_NEAR: Final = timedelta(days=2)


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schedule: an expression in a time zone, or an interval. Create one with ``parse``."""

    expression: str | None = None  #: as the client sent it
    every_ms: int | None = None
    timezone: str = DEFAULT_TIMEZONE

    def next_after(self, ms: int, anchor_ms: int | None = None) -> int | None:
        """Return the first tick after a moment; None if there is none in the next 50 years. Wall clock, ms.

        ``anchor_ms``: a tick of an interval, from which the others are counted, so that delays do not add up. Default: the
        moment itself. Raises InvalidInput for values that this machine does not support (any more), for example a time zone.
        """
        if self.every_ms is not None:
            anchor = ms if anchor_ms is None else anchor_ms
            return anchor + ((ms - anchor) // self.every_ms + 1) * self.every_ms
        try:
            zone = _zone(self.timezone)
            moment = _EPOCH + timedelta(seconds=ms // 1_000)
            fields = _fields(self.expression or "")
            found = _next_fixed(fields, zone, moment) if _is_fixed(fields) else _next_wildcard(fields, zone, moment)
        except OverflowError:  # the calendar ends with the year 9999
            return None
        return None if found is None else (found - _EPOCH) // _SECOND * 1_000


def parse(expression: str | None, every_ms: int | None = None, timezone: str | None = None) -> Schedule:
    """Check a schedule and return it.

    Raises InvalidInput with the contract's texts. An expression takes precedence over an interval.
    """
    zone = timezone or DEFAULT_TIMEZONE
    _zone(zone)
    if expression is None:
        if every_ms is None or every_ms <= 0:
            raise InvalidInput("Cron job must have either schedule or repeatEvery")
        return Schedule(every_ms=every_ms, timezone=zone)
    if len(expression) > limits.schedule_chars_max:
        raise InvalidInput(f"Invalid cron expression: longer than {limits.schedule_chars_max} characters")
    schedule = Schedule(expression, timezone=zone)
    try:
        next(_local_times(_fields(expression), datetime(2000, 1, 1)))  # noqa: DTZ001 - a calendar without a zone
    except StopIteration:
        raise InvalidInput("Invalid cron expression: the day never occurs") from None
    return schedule


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidInput(f"Invalid timezone: {name[: limits.name_chars_max]}") from None


def _fields(expression: str) -> list[str]:
    """Split an expression into its six fields, seconds first; cronsim refuses any other number of fields."""
    text = expression.strip()
    if text.startswith("@"):
        text = ALIASES.get(text.lower(), "")
        if not text:
            raise InvalidInput(f"Invalid cron expression: {expression.strip()} is not one of {', '.join(ALIASES)}")
    fields = text.split()
    return ["0", *fields] if len(fields) == 5 else fields


def _is_fixed(fields: list[str]) -> bool:
    return "*" not in fields[1] and "*" not in fields[2]


def _local_times(fields: list[str], after: datetime) -> Iterator[datetime]:
    """Return the matching times, on a calendar without time zones. Raises InvalidInput with the contract's texts."""
    try:
        return CronSim(" ".join(fields), after)
    except CronSimError as error:
        raise InvalidInput(f"Invalid cron expression: {error}") from None
    except (ValueError, AssertionError, TypeError):  # exceptions that cronsim does not handle
        raise InvalidInput("Invalid cron expression: not understood") from None


def _next_fixed(fields: list[str], zone: ZoneInfo, moment: datetime) -> datetime | None:
    # A later local time never means an earlier moment, so the first matching time that is late enough is the next one.
    for local in _local_times(fields, _local(moment, zone)):
        at = _moment_of(local, zone)
        if at > moment:
            return at
    return None


def _moment_of(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment of a local time: the first one if there are two; the end of the gap if there is none."""
    at = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _local(at, zone) == local:
        return at
    # It is in a gap. Read with the rule before the gap it is a moment after it, and the other way round.
    return _change_between(local.replace(tzinfo=zone, fold=1).astimezone(UTC), at, zone)


def _next_wildcard(fields: list[str], zone: ZoneInfo, moment: datetime) -> datetime | None:
    """Search from one clock change to the next; in between, local times are moments."""
    while True:
        offset = _offset(moment, zone)
        local = next(_local_times(fields, (moment + offset).replace(tzinfo=None)), None)
        if local is None:
            return None
        at = local.replace(tzinfo=UTC) - offset
        change = _first_change(moment, min(at, moment + _NEAR), zone)
        if change is not None:
            if _fits(fields, _local(change, zone)):
                return change
            moment = change
        elif at <= moment + _NEAR:
            return at
        else:  # no local time in between matches, with any clock change
            moment = max(moment + _NEAR, at - _NEAR)


def _fits(fields: list[str], local: datetime) -> bool:
    return next(_local_times(fields, local - _SECOND), None) == local


def _first_change(start: datetime, end: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the first moment after ``start``, up to ``end``, from which local times have another offset."""
    offset = _offset(start, zone)
    while start < end:
        step = min(start + _STEP, end)
        if _offset(step, zone) != offset:
            return _change_between(start, step, zone)
        start = step
    return None


def _change_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment of the one clock change between two moments."""
    offset = _offset(before, zone)
    seconds = (after - before) // _SECOND
    low, high = 0, seconds
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(before + middle * _SECOND, zone) == offset:
            low = middle
        else:
            high = middle
    return before + high * _SECOND


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the local time of a moment, without a zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)
