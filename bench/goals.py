"""What is said about what was measured: rates and latencies of several rounds, and goals that are met or missed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple


class Goal(NamedTuple):
    """A ratio, or a figure, and what it should be."""

    what: str
    value: float
    goal: float
    unit: str = "x"
    at_most: bool = False
    is_noisy: bool = False  #: what it is compared with was disturbed by other programs: no verdict

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        mark = "noisy" if self.is_noisy else "ok   " if self.met else "MISS "
        return f"  {mark} {self.what:<58} {self.value:8.2f} {self.unit:<3} (goal {sign} {self.goal:g} {self.unit})"


def say(text: str) -> None:
    print(text, flush=True)


class Rounds:
    """What was measured under each name, round by round."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.latencies: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, name: str, measured: dict[str, float]) -> None:
        self.rates[name].append(measured["rate"])
        self.latencies[name].append((measured["p50_ms"], measured["p99_ms"]))

    def say(self, title: str) -> None:
        """Print the medians as a table."""
        say("")
        say(f"  {title:<52} {'per second':>11} {'p50 ms':>8} {'p99 ms':>8}")
        for name, values in self.rates.items():
            p50, p99 = (statistics.median(each) for each in zip(*self.latencies[name], strict=True))
            say(f"  {name:<52} {statistics.median(values):>11,.0f} {p50:>8.2f} {p99:>8.2f}")
        say("")

    def ratio(self, one: str, other: str) -> float:
        """Return the median of the ratios, taken round by round.

        What was measured one after the other met the same neighbours on the machine.
        """
        return statistics.median(a / b for a, b in zip(self.rates[one], self.rates[other], strict=True))
