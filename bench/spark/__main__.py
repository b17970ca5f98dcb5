"""``make bench-spark``: rows per second between Spark and a server, beside what a user would write instead, against goals.

What is compared is measured in turns, several rounds, and the medians of the ratios are said. A full run writes
bench/results/spark.json, from which docs/scale-spark.md is made.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.goals import Goal, say
from bench.spark import lake, parts, postgres
from bench.spark.figures import RESULTS, keep
from bench.spark.parts import Bench
from bench.spark.place import cores, start_spark

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS: dict[str, tuple[str, Callable[[Bench], None]]] = {
    "enqueue": ("Bulk enqueue", parts.enqueue),
    "snapshot": ("Snapshot of jobs", parts.snapshot),
    "journal": ("The journal", parts.journal),
    "lease": ("Consuming", parts.lease),
    "lake": ("The lake", lake.lake),
    "postgres": ("PostgreSQL", postgres.postgres),
    "disturb": ("The server while it is read", parts.disturb),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each measurement (3)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement of requests (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full sizes, such as 0.05 to try it out (1)")
    parser.add_argument("--json", type=Path, help=f"where figures go; bench/results/{RESULTS.name} for full sizes")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; all of it if nothing is named")
    options = parser.parse_args()
    kept = options.json or (RESULTS if options.scale == 1 else None)
    wanted = [name for name in PARTS if name in options.parts or not options.parts]
    say(f"Penstock and Spark on {platform.machine()}, {cores()} cores, Python {platform.python_version()}")
    spark = start_spark(postgres.find_jar() if "postgres" in wanted else "")
    goals: list[Goal] = []
    for name in wanted:
        title, measure = PARTS[name]
        say(f"\n{title}")
        bench = Bench(spark, options.scale, options.rounds, options.seconds)
        measure(bench)
        bench.figures.say()
        goals += bench.figures.goals
        if kept is not None:
            keep(kept, name, bench.figures)
    spark.stop()
    say("\nGoals" + ("" if options.scale == 1 else f" (they are meant for full sizes; this was {options.scale:g} of them)"))
    for goal in goals:
        say(f"  {'ok  ' if goal.met else 'MISS'}  {goal.what:<105} {goal.value:8.2f} {goal.unit:<3} (goal >= {goal.goal:g})")
    sys.exit(0 if all(goal.met for goal in goals) else 1)


if __name__ == "__main__":
    main()
