"""``penstock serve`` with a ticker on its event loop, for ``python -m bench loop``.

The ticker is called about every millisecond. It writes how long the loop was held between two calls into the file that
PENSTOCK_BENCH_TICKS names: two floats of eight bytes, seconds by the clock and seconds of processor time of the loop's thread.
Each is the longest since the bench set it to 0.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    import asyncio

EVERY_S = 0.001
BYTES = 16
_make_loop = uvloop.new_event_loop


class Ticker:
    """Measures how long a loop is held."""

    def __init__(self, loop: asyncio.AbstractEventLoop, longest: memoryview[float]) -> None:
        self._loop = loop
        self._longest = longest
        loop.call_soon(self._wait)

    def _wait(self) -> None:
        self._clock, self._work = time.perf_counter(), time.thread_time()
        self._loop.call_later(EVERY_S, self._tick)

    def _tick(self) -> None:
        longest = self._longest
        longest[0] = max(longest[0], time.perf_counter() - self._clock - EVERY_S)
        longest[1] = max(longest[1], time.thread_time() - self._work)
        self._wait()


def ticks(path: Path) -> memoryview[float]:
    """Return the two numbers in a file, to be read and written."""
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), BYTES)).cast("d")


def ticked_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = _make_loop()
    Ticker(loop, ticks(Path(os.environ["PENSTOCK_BENCH_TICKS"])))
    return loop


if __name__ == "__main__":
    from penstock.cli import main

    uvloop.new_event_loop = ticked_loop  # type: ignore[assignment]
    main()
