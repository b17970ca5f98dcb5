"""``python -m bench.fill DIRECTORY COUNT``: puts scheduled messages into a data directory, through the engine and its store."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import uvloop

from bench.goals import say
from penstock.core.binary_payload import wrap
from penstock.core.clock import SystemClock
from penstock.core.durability import Durability
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push
from penstock.store.sqlite.store import SqliteStore

BATCH: Final = 5_000
#: They are due within this time, but none while somebody measures.
FROM_MS: Final = 86_400_000
SPAN_MS: Final = 30 * 86_400_000


async def fill(directory: Path, count: int) -> None:
    """Put scheduled messages into a data directory, through the store and nothing above it but the engine."""
    clock = SystemClock()
    store = await SqliteStore.open(directory, clock)
    engine = Engine(store, clock, durability=Durability.NEVER)
    engine.start()
    data, options = wrap(b"x" * 200, None)
    flags, step = JobFlag.MESSAGE | JobFlag.REMOVE_ON_COMPLETE, SPAN_MS / count
    for begin in range(0, count, BATCH):
        delays = (FROM_MS + int(number * step) for number in range(begin, begin + BATCH))
        jobs = [JobSpec(data, options, delay=delay, backoff=0, flags=flags) for delay in delays]
        await engine.run(Push(QueueKey("bench", f"later{begin // BATCH % 10}"), jobs))
        if begin % (count // 10) == 0:
            say(f"    {begin:,}")
    await engine.close()
    await store.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
