"""Notable facts, in plain words. All texts here are plain text: a page must escape them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.queries.window import DAY_MS, HOUR_MS, MINUTE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.lake.report.data import ReportData, Row

#: The share and the number of failed attempts from which on a queue is notable.
FAILING: Final = 0.05
FAILED_MIN: Final = 10
#: The growth of waits from which on it is notable.
SLOWER: Final = 2.0
#: The utilisation above which workers are full, and below which they are idle.
FULL: Final = 0.9
IDLE: Final = 0.05
UNEVEN: Final = 0.6


class Highlight(NamedTuple):
    """A notable fact. ``weight``: ``bad``, ``warn``, ``good`` or ``info``."""

    weight: str
    text: str


def notes(facts: ReportData) -> list[Highlight]:
    """Return the notable facts, the worst first."""
    found = [
        *_objectives(facts), *_backlog(facts), *_failures(facts), *_waits(facts), *_workers(facts), *_tenants(facts)
    ]  # fmt: skip
    if not any(note.weight in ("bad", "warn") for note in found):
        found.append(Highlight("good", "Nothing needs attention: objectives are met, nothing piles up, and little fails."))
    order = ("bad", "warn", "good", "info")
    return sorted(found, key=lambda note: order.index(note.weight))


def _objectives(facts: ReportData) -> Iterator[Highlight]:
    for row in facts.slo:
        where, name = place_of(row), row["objective"]
        if row["alarm"]:
            rate, hours = (row["burn_1h"], "hour") if row["burn_1h"] is not None else (row["burn_6h"], "6 hours")
            text = f"{where}: “{name}” uses up its room for errors {figure(rate)} times as fast as it may "
            text += f"(over the last {hours})"
            if row["alarm"] == "page":
                yield Highlight("bad", f"{text}. Check it at once.")
            else:
                yield Highlight("warn", f"{text}. That is worth a ticket.")
        elif row["attained"] is not None and row["attained"] < row["target"]:
            yield Highlight(
                "warn",
                f"{where}: “{name}” was met by {percent(row['attained'])} of jobs; {percent(row['target'])} are promised.",
            )


def _backlog(facts: ReportData) -> Iterator[Highlight]:
    for row in facts.forecasts[:3]:
        if row["depth"] < 1:
            continue
        text = f"{place_of(row)}: {count(row['depth'])} jobs are not finished."
        growth = row["net_per_minute"]
        if row["drained_at"] is not None:
            text += f" At this pace they are done in about {span(row['drained_at'] - row['made_at'])}."
            yield Highlight("info", text)
        elif growth >= 1:
            yield Highlight("warn", f"{text} It grew by {figure(growth)} a minute in the last quarter of an hour.")
        elif growth <= -1:
            left = round(row["depth"] / -growth) * MINUTE_MS
            yield Highlight("info", f"{text} It shrinks by {figure(-growth)} a minute; at that rate, it takes {span(left)}.")
        elif row["note"]:
            yield Highlight("info", f"{text} There is no forecast yet: {row['note']}.")
        else:
            yield Highlight("info", text)


def _failures(facts: ReportData) -> Iterator[Highlight]:
    for row in facts.queues:
        bad = row["failures"] + row["stalls"]
        if row["failure_rate"] is not None and row["failure_rate"] >= FAILING and bad >= FAILED_MIN:
            yield Highlight("warn", f"{place_of(row)}: {percent(row['failure_rate'])} of attempts failed ({count(bad)}).")
    window = facts.window
    fresh = [row for row in facts.failures if row["first_seen"] >= window.end - (window.end - window.start) // 4]
    for row in fresh[:3]:
        since = f"since {moment(row['first_seen'])}, {count(row['n'])} times"
        yield Highlight("warn", f"{place_of(row)}: a new kind of failure {since}: {kind_of(row)}")
    if facts.failures and not fresh:
        row = facts.failures[0]
        yield Highlight(
            "info",
            f"The most frequent failure, {percent(row['share'])} of all, is in {place_of(row)}: {kind_of(row)}",
        )


def _waits(facts: ReportData) -> Iterator[Highlight]:
    told = [row["p95"] for row in facts.waits if row.get("p95") is not None]
    if len(told) < 8:
        return
    cut = len(told) * 3 // 4
    before, after = median(told[:cut]), median(told[cut:])
    if after >= SLOWER * before and after >= 1_000:
        yield Highlight(
            "warn",
            f"Waits have become longer: 95 % of jobs started within {span(before)} before, and {span(after)} of late.",
        )
    elif before >= SLOWER * after and before >= 1_000:
        yield Highlight(
            "good", f"Waits have become shorter: 95 % of jobs start within {span(after)} of late, {span(before)} before."
        )


def _workers(facts: ReportData) -> Iterator[Highlight]:
    known = [row["utilisation"] for row in facts.workers if row["utilisation"] is not None]
    if not known:
        return
    late = median(known[-max(1, len(known) // 4) :])
    if late >= FULL:
        yield Highlight(
            "warn", f"Workers are full: {percent(late)} of their places were in use of late. More of them would help."
        )
    elif median(known) <= IDLE and len(known) >= 8:
        yield Highlight("info", f"Workers have little to do: {percent(median(known))} of their places were in use.")


def _tenants(facts: ReportData) -> Iterator[Highlight]:
    index = facts.jain.get("busy_ms")
    if len(facts.tenants) > 1 and index is not None and index < UNEVEN:
        first = facts.tenants[0]
        yield Highlight(
            "info", f"{first['namespace']} got {percent(first['share_busy_ms'])} of all work (Jain's index {index:.2f})."
        )


# Formatting.


def place_of(row: Row) -> str:
    """Return the name of a row's queue or namespace."""
    return short(f"{row['namespace']}/{row['queue']}", 120)


def short(text: str, most: int) -> str:
    """Return a text of users in one line: without unprintable characters, and cut."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def kind_of(row: Row) -> str:
    """Return the name of a kind of failure."""
    return short(row["pattern"] or row["fingerprint"], 160)


def count(number: float) -> str:
    """Format a count: 12 345."""
    return f"{round(number):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def figure(number: float | None) -> str:
    """Format a number with its significant digits."""
    if number is None:
        return "–"
    return count(number) if abs(number) >= 100 else f"{number:.3g}"


def percent(share: float | None) -> str:
    """Format a share; a share below 1 is not rounded to 100 %."""
    if share is None:
        return "–"
    shown = share * 100
    text = f"{shown:.{2 if abs(shown) < 1 or 99 < shown < 100 else 1}f}".rstrip("0").rstrip(".")
    return f"{'>' if shown < 100 and float(text) == 100 else ''}{text}\N{NARROW NO-BREAK SPACE}%"


def span(ms: float | None) -> str:
    """Format a duration."""
    if ms is None:
        return "–"
    for unit, length in (("d", DAY_MS), ("h", HOUR_MS), ("min", MINUTE_MS), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.3g}\N{NARROW NO-BREAK SPACE}{unit}"
    return f"{ms:.3g}\N{NARROW NO-BREAK SPACE}ms"


def moment(ms: int, spelling: str = "%Y-%m-%d %H:%M") -> str:
    """Format a moment (UTC)."""
    text: str = pc.strftime(pa.scalar(ms, pa.timestamp("ms")), spelling).as_py()
    return text


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return sorted(values)[len(values) // 2]
