"""``make bench``: measures what Penstock promises, as ratios of things measured in the same run, and says which goals are met.

Machines differ and are noisy; so everything is measured in turns, several rounds, and the medians are compared.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from bench.fairness import fairness
from bench.goals import Goal, Rounds, say
from bench.loop import loop
from bench.processes import baseline, load, penstock
from bench.schedule import accuracy, schedule
from bench.topics import topics
from bench.worker import workers

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS = 32
MILLION = 1_000_000


def throughput(rounds: int, seconds: float) -> list[Goal]:
    """Measure pushes, bulk pushes, pull and ack, in turns with the empty handler."""
    measured = Rounds()
    names = ("interval", "always", "never")
    with (
        baseline() as empty_port,
        penstock("interval") as interval,
        penstock("always") as always,
        penstock("never") as never,
    ):
        servers = dict(zip(names, (interval, always, never), strict=True))

        for number in range(rounds):
            say(f"  round {number + 1} of {rounds}")
            empty = load(empty_port, "push", connections=CONNECTIONS, seconds=seconds, queue="", path="/empty")
            measured.add("empty handler", empty)
            for durability, server in servers.items():
                measured.add(f"push, {durability}", server.load("push", connections=CONNECTIONS, seconds=seconds, queue="q"))
                measured.add(
                    f"bulk of 100, {durability}", server.load("bulk", connections=CONNECTIONS, seconds=seconds, queue="b")
                )
                measured.add(
                    f"pull + ack, {durability}", server.load("pull_ack", connections=CONNECTIONS, seconds=seconds, queue="b")
                )
    measured.say("what (32 connections, HTTP/1.1, 200-byte payloads)")
    return [
        Goal("single push / empty handler of granian + falcon", measured.ratio("push, interval", "empty handler"), 0.55),
        Goal("bulk push / single push, in jobs", measured.ratio("bulk of 100, interval", "push, interval"), 8),
        Goal("pull + ack / half the single push", 2 * measured.ratio("pull + ack, interval", "push, interval"), 0.8),
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
    parts: dict[str, tuple[str, Callable[[int, float], list[Goal]]]] = {
        "throughput": ("Throughput", throughput),
        "topics": ("Topics", topics),
        "fairness": ("Beside a tenant that floods", fairness),
        "loop": ("How long one request holds the event loop", loop),
        "worker": ("The worker of the SDK", workers),
        "accuracy": ("Punctuality", accuracy),
        "schedule": ("Ten million scheduled messages", schedule),
        "flatness": ("Cost of a long queue", lambda rounds, _seconds: flatness(max(9, 2 * rounds))),
        "size": ("Size", lambda _rounds, _seconds: size()),
    }
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement (2)")
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="what to measure; all of it if nothing is named")
    options = parser.parse_args()
    say(f"Penstock benchmark on {platform.machine()}, Python {platform.python_version()}")
    goals: list[Goal] = []
    for name, (title, measure) in parts.items():
        if name in options.parts or not options.parts:
            say(f"\n{title}")
            goals += measure(options.rounds, options.seconds)
    say("\nGoals")
    for goal in goals:
        say(str(goal))
    sys.exit(0 if all(goal.met or goal.is_noisy for goal in goals) else 1)


if __name__ == "__main__":
    main()
