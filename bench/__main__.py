"""``make bench``: measures what Penstock promises, as ratios of things measured in the same run, and says which goals are met.

Machines differ and are noisy; so everything is measured in turns, several rounds, and the medians are compared.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections import defaultdict
from typing import NamedTuple

from bench.processes import baseline, load, penstock

CONNECTIONS = 32
MILLION = 1_000_000


class Goal(NamedTuple):
    """A ratio, or a figure, and what it should be."""

    what: str
    value: float
    goal: float
    unit: str = "x"
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        mark = "ok  " if self.met else "MISS"
        return f"  {mark}  {self.what:<58} {self.value:8.2f} {self.unit:<3} (goal {sign} {self.goal:g} {self.unit})"


def say(text: str) -> None:
    print(text, flush=True)


def throughput(rounds: int, seconds: float) -> list[Goal]:
    """Measure pushes, bulk pushes, pull and ack, in turns with the empty handler."""
    rates: dict[str, list[float]] = defaultdict(list)
    latency: dict[str, list[tuple[float, float]]] = defaultdict(list)
    names = ("interval", "always", "never")
    with (
        baseline() as empty_port,
        penstock("interval") as interval,
        penstock("always") as always,
        penstock("never") as never,
    ):
        servers = dict(zip(names, (interval, always, never), strict=True))

        def measure(name: str, measured: dict[str, float]) -> None:
            rates[name].append(measured["rate"])
            latency[name].append((measured["p50_ms"], measured["p99_ms"]))

        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            empty = load(empty_port, "push", connections=CONNECTIONS, seconds=seconds, queue="", path="/empty")
            measure("empty handler", empty)
            for durability, server in servers.items():
                measure(f"push, {durability}", server.load("push", connections=CONNECTIONS, seconds=seconds, queue="q"))
                measure(
                    f"bulk of 100, {durability}", server.load("bulk", connections=CONNECTIONS, seconds=seconds, queue="b")
                )
                measure(
                    f"pull + ack, {durability}", server.load("pull_ack", connections=CONNECTIONS, seconds=seconds, queue="b")
                )
    say("")
    say(f"  {'what (32 connections, HTTP/1.1, 200-byte payloads)':<52} {'per second':>11} {'p50 ms':>8} {'p99 ms':>8}")
    for name, values in rates.items():
        p50, p99 = (statistics.median(each) for each in zip(*latency[name], strict=True))
        say(f"  {name:<52} {statistics.median(values):>11,.0f} {p50:>8.2f} {p99:>8.2f}")
    say("")

    def ratio(one: str, other: str) -> float:
        # Round by round, because what was measured one after the other met the same neighbours on the machine.
        return statistics.median(a / b for a, b in zip(rates[one], rates[other], strict=True))

    return [
        Goal("single push / empty handler of granian + falcon", ratio("push, interval", "empty handler"), 0.55),
        Goal("bulk push / single push, in jobs", ratio("bulk of 100, interval", "push, interval"), 8),
        Goal("pull + ack / half the single push", 2 * ratio("pull + ack, interval", "push, interval"), 0.8),
    ]


def flatness(rounds: int) -> list[Goal]:
    """Measure pulls from a short and from a very long queue, in turns."""
    rates: dict[str, list[float]] = defaultdict(list)
    with penstock("interval") as server:
        say("  filling a queue with 1,000,000 jobs")
        server.load("bulk", connections=4, seconds=600, queue="long", size=5_000, jobs_max=MILLION // 5_000)
        for number in range(rounds):
            short = f"short{number}"
            server.load("bulk", connections=1, seconds=60, queue=short, size=1_000, jobs_max=1)
            rates["short"].append(server.load("pull", connections=8, seconds=60, queue=short)["rate"])
            rates["long"].append(server.load("pull", connections=8, seconds=60, queue="long", jobs_max=1_000)["rate"])
    short_rate, long_rate = (statistics.median(rates[name]) for name in ("short", "long"))
    say(f"  pulls per second: {short_rate:,.0f} with 1,000 waiting, {long_rate:,.0f} with 1,000,000 waiting")
    return [Goal("pull with 1,000,000 waiting / pull with 1,000 waiting", long_rate / short_rate, 0.7)]


def size() -> list[Goal]:
    """Measure memory with a million waiting and a million delayed jobs, and how long a restart with both takes."""
    with penstock("interval") as server:
        say("  pushing 1,000,000 jobs")
        server.load("bulk", connections=4, seconds=600, queue="many", size=5_000, jobs_max=MILLION // 5_000)
        waiting = server.rss_mb()
        say("  pushing 1,000,000 delayed jobs")
        server.load(
            "bulk", connections=4, seconds=600, queue="later", size=5_000, jobs_max=MILLION // 5_000, delay=86_400_000
        )
        both = server.rss_mb()
        counts = server.get("/health")["queues"]
        assert (counts["waiting"], counts["delayed"]) == (MILLION, MILLION), counts
        server.stop()
        ready = server.start()
        again = server.rss_mb()
    say(
        f"  memory: {waiting:.0f} MB, with delayed ones {both:.0f} MB, after a restart {again:.0f} MB; ready in {ready:.1f} s"
    )
    return [
        Goal("memory with 1,000,000 waiting jobs of 200 bytes", waiting, 200, "MB", at_most=True),
        Goal("memory with 1,000,000 delayed jobs beside them", both, 300, "MB", at_most=True),
        Goal("ready after a restart with both", ready, 5, "s", at_most=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement (2)")
    parser.add_argument("--only", choices=("throughput", "flatness", "size"), help="measure only this part")
    options = parser.parse_args()
    say(f"Penstock benchmark on {platform.machine()}, Python {platform.python_version()}")
    goals: list[Goal] = []
    if options.only in (None, "throughput"):
        say("\nThroughput")
        goals += throughput(options.rounds, options.seconds)
    if options.only in (None, "flatness"):
        say("\nCost of a long queue")
        goals += flatness(max(9, 2 * options.rounds))
    if options.only in (None, "size"):
        say("\nSize")
        goals += size()
    say("\nGoals")
    for goal in goals:
        say(str(goal))
    sys.exit(0 if all(goal.met for goal in goals) else 1)


if __name__ == "__main__":
    main()
