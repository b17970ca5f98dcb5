"""``make bench-compare BASE=revision``: the rows of ``make bench`` on this tree and on an older one, in turns.

Both trees have their server at the same time, and each row is measured on one and then on the other, several rounds, so that
both meet the same neighbours on the machine. Two ratios are printed for each row, new / old: jobs per second, and jobs per
second of the server's processor time, which other programs on the machine disturb less. 1.00 means: as fast as before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.goals import say
from bench.processes import Penstock, running
from bench.topics import consumers, publishers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Measure = Callable[[], dict[str, float]]

OLD, NEW = "old", "new"
ROOT = Path(__file__).parent.parent
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """Check a revision out into a directory of its own, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-tree-") as directory:
        git = ["git", "-C", str(ROOT), "worktree"]
        tree = Path(directory) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def processor_s(server: Penstock) -> float:
    """Return the processor time that a server has taken so far, in seconds."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def rows_of(server: Penstock, durability: str, seconds: float) -> dict[str, Measure]:
    """Return what is measured on a server, by the name of its row. Rows that consume come behind those that fill."""
    if durability == "always":
        rows = publishers(server, seconds)
        rows["(fills the queue)"] = lambda: server.load("bulk", seconds=seconds, queue="c")
        return rows | consumers(server, seconds)
    return {
        f"push, {durability}": lambda: server.load("push", seconds=seconds, queue="q"),
        f"bulk of 100, {durability}": lambda: server.load("bulk", seconds=seconds, queue="b"),
        f"pull + ack, {durability}": lambda: server.load("pull_ack", seconds=seconds, queue="b"),
    }


class Comparison:
    """Rates and processor time of both trees, row by row and round by round."""

    def __init__(self) -> None:
        self.rates: dict[str, dict[str, list[float]]] = defaultdict(lambda: {OLD: [], NEW: []})
        self.efficiency: dict[str, dict[str, list[float]]] = defaultdict(lambda: {OLD: [], NEW: []})

    def measure(self, row: str, which: str, server: Penstock, measure: Measure, seconds: float) -> None:
        """Measure one row on one of the two servers."""
        before = processor_s(server)
        rate = measure()["rate"]
        spent = processor_s(server) - before
        self.rates[row][which].append(rate)
        self.efficiency[row][which].append(rate * seconds / spent)

    def ratios(self, values: dict[str, list[float]]) -> list[float]:
        return [new / old for new, old in zip(values[NEW], values[OLD], strict=True)]

    def say(self) -> None:
        """Print the medians of the ratios, with the smallest and the largest."""
        say(f"\n  {'row':<52} {'old/s':>9} {'new/s':>9} {'rate':>6} {'per processor second':>30}")
        for row, rates in self.rates.items():
            old, new = (statistics.median(rates[which]) for which in (OLD, NEW))
            rate, each = statistics.median(self.ratios(rates)), self.ratios(self.efficiency[row])
            spread = f"{statistics.median(each):.3f}  ({min(each):.2f} to {max(each):.2f})"
            say(f"  {row:<52} {old:>9,.0f} {new:>9,.0f} {rate:>6.3f} {spread:>30}")


def compare(trees: dict[str, Path], rounds: int, seconds: float) -> Comparison:
    """Measure all rows on both trees, in turns."""
    found = Comparison()
    for durability in ("interval", "always"):
        with ExitStack() as opened:
            servers = {}
            for which, tree in trees.items():
                data = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))) / "data"
                servers[which] = Penstock(data, durability, settings={"PYTHONPATH": str(tree / "src")})
                opened.enter_context(running(servers[which]))
            rows = {which: rows_of(server, durability, seconds) for which, server in servers.items()}
            for number in range(rounds):
                say(f"  {durability}: round {number + 1} of {rounds}")
                for row in rows[NEW]:
                    for which in (OLD, NEW) if number % 2 else (NEW, OLD):
                        found.measure(row, which, servers[which], rows[which][row], seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("base", help="the revision to compare with")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each measurement (6)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement (2)")
    options = parser.parse_args()
    with tree_of(options.base) as old:
        say(f"This tree compared with {options.base}, in turns")
        compare({OLD: old, NEW: ROOT}, options.rounds, options.seconds).say()
    sys.exit(0)


if __name__ == "__main__":
    main()
