"""Runs many broken inputs through something, and counts what came of them."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.fuzz.mutate import Mutator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Campaign(NamedTuple):
    """``judge`` is given each input, and says in a word what came of it, and how many commands it held.

    Whatever it raises ends the campaign.
    """

    corpus: Sequence[bytes]
    words: Sequence[bytes]
    judge: Callable[[bytes, Mutator], tuple[str, int]]

    def run(self, inputs: int, seed: int, *, say: bool = False) -> Counter[str]:
        """Try so many inputs; return how often each outcome came."""
        mutator = Mutator(seed, self.corpus, self.words)
        met: Counter[str] = Counter()
        began = time.monotonic()
        for number, data in enumerate(mutator.inputs(inputs), 1):
            what, commands = self.judge(data, mutator)
            met[what] += 1
            met["commands"] += commands
            if say and number % 100_000 == 0:
                print(f"{number:>10,} inputs, {number / (time.monotonic() - began):,.0f} a second", flush=True)
        return met

    def main(self, program: str, description: str | None) -> None:
        """Do what a command line says."""
        parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
        parser.add_argument("--inputs", type=int, default=1_000_000, help="how many (1000000)")
        parser.add_argument("--seed", type=int, default=1, help="the same seed makes the same inputs (1)")
        options = parser.parse_args()
        for what, count in self.run(options.inputs, options.seed, say=True).most_common():
            print(f"{count:>10,}  {what}")
        print("nothing but declared refusals")
