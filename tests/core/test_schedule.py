"""Schedules, against an oracle that walks through time step by step and knows nothing of how they are computed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from penstock.core.errors import InvalidInput
from penstock.core.schedule import parse

ZONES = {
    "UTC": (2024, 2025),
    "Europe/Berlin": (2024, 2026),
    "America/New_York": (2024, 2026),
    "Australia/Lord_Howe": (2024, 2026),  # its clocks change by 30 minutes
    "Asia/Kolkata": (2024, 2025),  # half an hour off, and never changes
    "America/Sao_Paulo": (2017, 2019),  # changed at midnight, and then no more
    "Pacific/Apia": (2011, 2012),  # a whole day was left out
    "Africa/Casablanca": (2025, 2026),  # two changes within a month
}
EXPRESSIONS = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "30 */2 * * *", "15 0 * * *", "30 2 * * *", "0,20,40 2 * * *", "0 0 * * *",
    "59 23 * * *", "0 1-3 * * *", "*/15 2 * * *", "5 * 1,29,30,31 * *", "*/10 2 26,27,30 3,10 *", "45 1 * * 0",
    "30 0 * 3-11 6,7",
)  # fmt: skip
DST_SECONDS = ("*/20 30 2 * * *", "0 30 2 * * *", "30 0 0 * * *", "*/25 * 2 * * *", "15 */30 * * * *")
RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def numbers(field: str, low: int, high: int) -> set[int]:
    """Read one field. Written again here, so that the oracle shares nothing with what it judges."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start, end = (low, high) if span == "*" else (int(first), int(last or first))
        found |= set(range(start, end + 1, int(step or 1)))
    return found


class Oracle:
    """Says of a local time whether it fits, and of a walk through time where the ticks are."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        fields = ["0", *fields] if len(fields) == 5 else fields
        self.sets = [numbers(field, *span) for field, span in zip(fields, RANGES, strict=True)]
        self.either_day = fields[3] != "*" and fields[5] != "*"
        self.fixed = "*" not in fields[1] + fields[2]

    def fits(self, local: datetime) -> bool:
        seconds, minutes, hours, days, months, weekdays = self.sets
        if local.hour not in hours or local.minute not in minutes or local.second not in seconds:
            return False
        day, weekday = local.day in days, bool({local.isoweekday(), local.isoweekday() % 7} & weekdays)
        return local.month in months and (day or weekday if self.either_day else day and weekday)

    def ticks(self, walk: list[tuple[int, datetime]], step: timedelta) -> list[int]:
        if not self.fixed:
            return [ms for ms, local in walk[1:] if self.fits(local)]
        # The clock as a high-water mark: what it passes over, seen or not, counts when it is passed for the first time.
        found = []
        high = walk[0][1]
        for ms, local in walk[1:]:
            passed = False
            while high < local:
                high += step
                passed = passed or self.fits(high)
            if passed:
                found.append(ms)
        return found


def walk(zone: str, start: datetime, end: datetime, step: timedelta) -> list[tuple[int, datetime]]:
    info, found = ZoneInfo(zone), []
    while start < end:
        found.append((int(start.timestamp()) * 1_000, start.astimezone(info).replace(tzinfo=None)))
        start += step
    return found


@cache
def changes(zone: str) -> list[datetime]:
    """Find the hours in which the clocks of a zone change."""
    first, last = ZONES[zone]
    info, hour = ZoneInfo(zone), timedelta(hours=1)
    at, found = datetime(first, 1, 1, tzinfo=UTC), []
    while at.year < last:
        if at.astimezone(info).utcoffset() != (at + hour).astimezone(info).utcoffset():
            found.append(at)
        at += hour
    return found


def computed(expression: str, zone: str, start: int, end: int) -> list[int]:
    schedule, found = parse(expression, timezone=zone), []
    at = schedule.next_after(start)
    while at is not None and at <= end:
        found.append(at)
        at = schedule.next_after(at)
    return found


@pytest.mark.parametrize("zone", ZONES)
def test_ticks_around_every_change_of_the_clocks_are_those_of_the_oracle(zone: str) -> None:
    minute = timedelta(minutes=1)
    for change in changes(zone) or [datetime(2024, 2, 29, tzinfo=UTC)]:
        moments = walk(zone, change - timedelta(hours=25), change + timedelta(hours=26), minute)
        for expression in EXPRESSIONS:
            expected = Oracle(expression).ticks(moments, minute)
            assert computed(expression, zone, moments[0][0], moments[-1][0]) == expected, (expression, change)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo"])
def test_ticks_with_seconds_around_a_change_are_those_of_the_oracle(zone: str) -> None:
    second = timedelta(seconds=1)
    for change in changes(zone)[:2]:
        moments = walk(zone, change - timedelta(hours=2), change + timedelta(hours=4), second)
        for expression in DST_SECONDS:
            expected = Oracle(expression).ticks(moments, second)
            assert computed(expression, zone, moments[0][0], moments[-1][0]) == expected, (expression, change)


@pytest.mark.parametrize("zone", ZONES)
def test_ticks_over_years_are_those_of_the_oracle(zone: str) -> None:
    step = timedelta(minutes=30)
    first, last = ZONES[zone]
    moments = walk(zone, datetime(first, 1, 1, tzinfo=UTC), datetime(last, 1, 1, tzinfo=UTC), step)
    for expression in ("30 2 * * *", "0 0 1 * *", "30 */6 29,30,31 * *", "0 12 * * 1-5", "30 23 31 12 *"):
        expected = Oracle(expression).ticks(moments, step)
        assert computed(expression, zone, moments[0][0], moments[-1][0]) == expected, expression


def local_ticks(expression: str, zone: str, start: datetime, count: int) -> list[str]:
    at: int | None = int(start.timestamp()) * 1_000
    found = []
    for _ in range(count):
        assert at is not None
        at = parse(expression, timezone=zone).next_after(at)
        assert at is not None
        found.append(datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)).isoformat())
    return found


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_in_a_gap_comes_right_after_it_and_in_a_repeated_hour_once(expression: str) -> None:
    spring = datetime(2025, 3, 29, 12, tzinfo=UTC)
    assert local_ticks(expression, "Europe/Berlin", spring, 2) == ["2025-03-30T03:00:00+02:00", "2025-03-31T02:30:00+02:00"]
    autumn = datetime(2025, 10, 25, 12, tzinfo=UTC)
    assert local_ticks(expression, "Europe/Berlin", autumn, 2) == ["2025-10-26T02:30:00+02:00", "2025-10-27T02:30:00+01:00"]


def test_every_hour_is_every_hour_through_both_changes() -> None:
    for start in (datetime(2025, 3, 29, 22, tzinfo=UTC), datetime(2025, 10, 25, 22, tzinfo=UTC)):
        ms = int(start.timestamp()) * 1_000
        assert computed("0 * * * *", "Europe/Berlin", ms, ms + 6 * 3_600_000) == [ms + n * 3_600_000 for n in range(1, 7)]


@pytest.mark.parametrize(
    ("alias", "expression"),
    [
        ("@yearly", "0 0 1 1 *"), ("@annually", "0 0 1 1 *"), ("@monthly", "0 0 1 * *"), ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"), ("@midnight", "0 0 * * *"), ("@hourly", "0 * * * *"), ("  @Daily ", "0 0 * * *"),
        ("0 0 * * SUN", "0 0 * * 7"), ("0 0 1 jan *", "0 0 1 1 *"), ("0 0 0 * * *", "0 0 * * *"),
    ],
)  # fmt: skip
def test_names_stand_for_numbers(alias: str, expression: str) -> None:
    start = 1_800_000_000_000
    year = 400 * 86_400_000
    assert computed(alias, "Asia/Kolkata", start, start + year) == computed(expression, "Asia/Kolkata", start, start + year)


def test_a_tick_is_after_the_moment_never_at_it() -> None:
    schedule = parse("* * * * * *")
    assert schedule.next_after(1_000_000) == 1_001_000
    assert schedule.next_after(1_000_999) == 1_001_000


def test_an_interval_counts_from_its_anchor() -> None:
    schedule = parse(None, 250)
    assert schedule.next_after(1_000) == 1_250
    assert schedule.next_after(1_300, anchor_ms=1_250) == 1_500
    assert schedule.next_after(9_999, anchor_ms=1_250) == 10_000
    assert schedule.next_after(1_500, anchor_ms=1_250) == 1_750


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("", "Wrong number of fields"), ("* * * *", "Wrong number of fields"), ("* * * * * * *", "Wrong number of fields"),
        ("60 * * * *", "Bad minute"), ("* 24 * * *", "Bad hour"), ("* * 0 * *", "Bad day-of-month"),
        ("* * * 13 *", "Bad month"), ("* * * * 8", "Bad day-of-week"), ("61 * * * * *", "Bad second"),
        ("*/0 * * * *", "Bad minute"), ("5-1 * * * *", "Bad minute"), ("0 0 30 2 *", "Bad day-of-month"),
        ("hello", "Wrong number of fields"), ("x * * * *", "Bad minute"), ("-1 * * * *", "Bad minute"),
        ("* " * 200, "longer than 256 characters"), ("9" * 200 + " * * * *", "Bad minute"),
        ("@reboot", "@reboot is not one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
        ("0 0 1 2 MON#6", "Bad day-of-week"), ("0 0 31 4,6 *", "Bad day-of-month"), ("0 0 * * ²L", "Bad day-of-week"),
    ],
)  # fmt: skip
def test_what_is_not_an_expression_is_refused_in_words(expression: str, error: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse(expression)
    assert str(refused.value) == f"Invalid cron expression: {error}"


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "../etc/passwd", "/etc/passwd", "a\x00b", "Ü", " "])
def test_what_is_not_a_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="Invalid timezone"):
        parse("* * * * *", timezone=zone)


def test_neither_an_expression_nor_an_interval_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Cron job must have either schedule or repeatEvery"):
        parse(None)


def test_the_end_of_the_calendar_is_the_end() -> None:
    assert parse("0 0 1 1 *", timezone="Europe/Berlin").next_after(253_402_300_799_000 - 1_000) is None
