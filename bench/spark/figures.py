"""What was measured, part by part: rates of several rounds in turns, memory, and goals; printed, and kept as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil  # type: ignore[import-untyped]

from bench.goals import Goal, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The last full run. docs/scale-spark.md is made from it, so it is kept with the code.
RESULTS: Final = Path(__file__).parents[1] / "results" / "spark.json"
_LOOK_S: Final = 1.0


def _busy_with_others() -> float:
    """Return how many cores others keep busy right now. The system's average would tell of the part before this one."""
    before, mine = sum(psutil.cpu_times()[:3]), _spent_by_us()
    time.sleep(_LOOK_S)
    others: float = sum(psutil.cpu_times()[:3]) - before - (_spent_by_us() - mine)
    return max(0.0, others / _LOOK_S)


def _spent_by_us() -> float:
    """Return the seconds of processors that this process and those that it started have had."""
    spent = 0.0
    us = psutil.Process()
    for each in (us, *us.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            spent += sum(each.cpu_times()[:2])
    return spent


class Figures:
    """The figures of one part."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.rows: dict[str, int] = {}
        self.processor: Callable[[], dict[str, float]] = dict  #: seconds of processors so far, by who had them
        self.spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))  #: for a row, in microseconds
        self.values: dict[str, float] = {}  #: what is no rate: bytes for an event, megabytes of memory
        self.goals: list[Goal] = []
        self.notes: list[str] = []
        self.load = _busy_with_others()
        self.began = time.perf_counter()

    @contextmanager
    def timed(self, name: str, rows: int) -> Iterator[None]:
        """Measure how long something takes that moves so many rows."""
        with self.counted(name) as done:
            began = time.perf_counter()
            yield
            done(rows, time.perf_counter() - began)

    @contextmanager
    def counted(self, name: str) -> Iterator[Callable[[int, float], None]]:
        """Measure something that says itself, by a call of the value, how many rows it had in how many seconds."""
        before = self.processor()

        def done(rows: int, seconds: float) -> None:
            for kind, spent in self.processor().items():
                self.spent[name][kind].append((spent - before.get(kind, 0.0)) / rows * 1e6)
            self.add(name, rows, seconds)

        yield done

    def add(self, name: str, rows: int, seconds: float) -> None:
        """Note a rate."""
        self.rates[name].append(rows / seconds)
        self.rows[name] = rows
        say(f"    {name:<66} {rows:>11,} in {seconds:7.2f} s: {rows / seconds:>11,.0f} a second")

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def medians_spent(self, name: str) -> dict[str, float]:
        """Return the processor time for a row, by who had it, in microseconds."""
        return {kind: statistics.median(each) for kind, each in sorted(self.spent[name].items())}

    def ratio(self, one: str, other: str) -> float:
        """Return the median of the ratios, taken round by round: both met the same neighbours on the machine."""
        return statistics.median(a / b for a, b in zip(self.rates[one], self.rates[other], strict=True))

    def goal(self, what: str, value: float, goal: float, unit: str = "x", *, at_most: bool = False) -> None:
        """Compare a figure with what it should be."""
        self.goals.append(Goal(what, value, goal, unit, at_most))

    def beats(self, one: str, other: str, goal: float = 5) -> None:
        """Have it be a goal that one is so much faster than the other."""
        self.goal(f"{one} / {other}", self.ratio(one, other), goal)

    def reaches(self, name: str, goal: float) -> None:
        """Have a rate be a goal, in thousands a second."""
        self.goal(name, self.median(name) / 1_000, goal / 1_000, "k/s")

    def say(self) -> None:
        """Print the medians as a table."""
        if self.rates:
            say(f"\n  {'':<66} {'rows':>11} {'a second':>11}  processor time for a row, in microseconds")
            for name, values in self.rates.items():
                spent = ", ".join(f"{kind} {each:.3g}" for kind, each in self.medians_spent(name).items() if each)
                say(f"  {name:<66} {self.rows[name]:>11,} {statistics.median(values):>11,.0f}  {spent}")
        for name, value in self.values.items():
            say(f"  {name:<66} {value:>23,.1f}")
        for note in self.notes:
            say(f"  {note}")

    def as_json(self) -> dict[str, Any]:
        """Return everything, for bench.billion."""
        return {
            "scale": self.scale,
            "busy_before": round(self.load, 2),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "measured_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "seconds": round(time.perf_counter() - self.began),
            "rates": {name: round(statistics.median(values)) for name, values in self.rates.items()},
            "rounds": {name: [round(each) for each in values] for name, values in self.rates.items()},
            "rows": self.rows,
            "processor_us": {
                name: {kind: round(each, 3) for kind, each in self.medians_spent(name).items()} for name in self.rates
            },
            "values": {name: round(value, 2) for name, value in self.values.items()},
            "goals": [
                {
                    "what": each.what,
                    "value": round(each.value, 3),
                    "goal": each.goal,
                    "unit": each.unit,
                    "at_most": each.at_most,
                    "met": each.met,
                }
                for each in self.goals
            ],
            "notes": self.notes,
        }


def keep(path: Path, part: str, figures: Figures) -> None:
    """Put the figures of a part into a file, beside those of the others."""
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept[part] = figures.as_json()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def in_turns(rounds: int, *steps: Callable[[int], None]) -> None:
    """Do the steps one after the other, and again, so that what is compared was measured close together."""
    for number in range(rounds):
        say(f"  round {number + 1} of {rounds}")
        for step in steps:
            step(number)
