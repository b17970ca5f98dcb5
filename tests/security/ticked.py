"""A server whose event loop has a ticker (``bench.ticked_server``): how long one step holds the loop, in processor time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.ticked_server import BYTES, ticks

from tests.security.measure import cpu_s, settled
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TickedServer(ServerProcess):
    """A server that measures how long its event loop is held."""

    def __init__(self, directory: Path) -> None:
        path = directory / "ticks"
        path.write_bytes(bytes(BYTES))
        self.longest = ticks(path)
        launcher = ("-m", "bench.ticked_server")
        super().__init__(directory / "data", env={"PENSTOCK_BENCH_TICKS": str(path)}, launcher=launcher)

    def longest_part(self, work: Callable[[], object]) -> float:
        """Return the part of the processor time of some work that its longest step had."""
        settled(self)
        self.longest[1] = 0.0
        before = cpu_s(self.pid)
        work()
        settled(self)
        return self.longest[1] / (cpu_s(self.pid) - before)
