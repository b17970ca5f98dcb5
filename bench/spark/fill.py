"""``python -m bench.spark.fill DIRECTORY EVENTS``: writes a day of a busy server into a data directory, through the engine.

40 queues in 4 namespaces, over a day of a clock of its own: jobs are pushed, taken some seconds later and completed; a few
fail and come again. Everything is removed when it is done, so that the journal is what is left.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.goals import say
from penstock.core.clock import ManualClock
from penstock.core.durability import Durability
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.core.retention import Retention
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Nack
from penstock.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.core.job import Delivery

DAY_MS: Final = 86_400_000
NAMESPACES: Final = 4
QUEUES: Final = 40
#: What a job leaves in the journal: it was pushed, taken, and completed.
EVENTS_PER_JOB: Final = 3
#: A small past is a shorter one: minutes have at least so many events.
EVENTS_PER_MINUTE: Final = 2_000
#: Of a hundred jobs, so many fail at their first attempt.
FAILURES: Final = 4
#: Jobs that are taken at once.
CLAIMED: Final = 1_000
#: As much of the past as anybody may want to read.
KEPT: Final = 1 << 40
TEXTS: Final = [b'{"to":"user@example.com","text":"' + b"x" * size + b'"}' for size in range(20, 300, 7)]
ERRORS: Final = (
    "HTTP 503 from shipping-{}.internal after {} ms",
    "order {} not found: tried {} times",
    "timeout: no answer within {} ms from host {}",
    "ValueError: invalid literal for int() with base 10: 'x{}y{}'",
)


def queue_of(number: int) -> QueueKey:
    """Return one of the queues."""
    return QueueKey(f"tenant{number % NAMESPACES}", f"queue{number:02}")


class Day:
    """Does a day's work, minute by minute. Every queue has its own load, and all have less of it at night."""

    def __init__(self, engine: Engine, clock: ManualClock, events: int) -> None:
        self.engine = engine
        self.clock = clock
        self.random = random.Random(7)
        loads = [1 / (1 + number % 10) for number in range(QUEUES)]
        self.minutes = min(1440, max(10, events // EVENTS_PER_MINUTE))
        self.per_queue = [events / EVENTS_PER_JOB / self.minutes * load / sum(loads) for load in loads]
        self.left = [0.0] * QUEUES

    async def minute(self, number: int) -> None:
        """Push what comes in a minute, and do it, in three steps between which seconds go by."""
        hour = number / self.minutes * 24
        swing = 1 + 0.5 * ((hour - 12) / 12 if hour < 12 else (12 - hour) / 12)  # around 0.75 on average
        counts = []
        for queue, rate in enumerate(self.per_queue):
            wanted = rate * swing / 0.75 + self.left[queue]
            counts.append(int(wanted))
            self.left[queue] = wanted - int(wanted)
        jobs = [JobSpec(text, None, flags=JobFlag.REMOVE_ON_COMPLETE, backoff=10_000) for text in TEXTS]
        pushes = [
            self.engine.run(Push(queue_of(queue), self.random.choices(jobs, k=min(5_000, count - begin))))
            for queue, count in enumerate(counts)
            for begin in range(0, count, 5_000)
        ]
        await asyncio.gather(*pushes)
        await self.clock.advance(self.random.randrange(200, 8_000))
        busy = [queue for queue, count in enumerate(counts) if count]
        while taken := {key: jobs for key, jobs in zip(busy, await self.take(busy), strict=True) if jobs}:
            await self.clock.advance(self.random.randrange(20, 4_000))
            await asyncio.gather(*(wait for queue, jobs in taken.items() for wait in self.settle(queue_of(queue), jobs)))
            busy = [queue for queue, jobs in taken.items() if len(jobs) == CLAIMED]

    async def take(self, queues: list[int]) -> list[list[Delivery]]:
        """Take what is due, of each queue no more than can be had at once."""
        return await asyncio.gather(*(self.engine.run(Claim(queue_of(each), CLAIMED, lease_ms=DAY_MS)) for each in queues))

    def settle(self, key: QueueKey, taken: list[Delivery]) -> list[Awaitable[Any]]:
        """Complete jobs, or have them fail."""
        failed = [each for each in taken if each.job.attempts == 0 and self.random.randrange(100) < FAILURES]
        bad = {each.job.id for each in failed}
        good = [each for each in taken if each.job.id not in bad]
        waits: list[Awaitable[Any]] = [self.engine.run(Ack(key.namespace, holds(good), [None] * len(good)))]
        for each in failed:
            error = self.random.choice(ERRORS).format(self.random.randrange(10_000), self.random.randrange(10_000))
            waits.append(self.engine.run(Nack(key.namespace, holds([each]), error)))
        return waits


def holds(deliveries: list[Delivery]) -> list[LeaseRef]:
    return [LeaseRef(each.job.id, each.job.token) for each in deliveries]


async def fill(directory: Path, events: int) -> None:
    """Write a day, which was over a moment ago, into a data directory."""
    clock = ManualClock(int(time.time() * 1000) - DAY_MS)
    store = await SqliteStore.open(directory, clock)
    engine = Engine(
        store, clock, durability=Durability.NEVER, retention=Retention(journal_bytes_max=KEPT, journal_age_ms=10 * DAY_MS)
    )
    engine.start()
    day = Day(engine, clock, events)
    began, minute = clock.now_ms(), 0
    while minute < day.minutes:
        await day.minute(minute)
        minute += 1
        await clock.advance(max(0, began + minute * 60_000 - clock.now_ms()))
        if minute * 10 % day.minutes < 10:
            say(f"    {store.journal_next:,} events")
    await engine.close()
    await store.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
