"""A tenant that floods waits for itself: what another one asks for is in the next batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import SystemClock
from penstock.core.job import NewJob
from penstock.core.queue import QueueKey
from penstock.engine.claim import Claim
from penstock.engine.engine import Engine
from penstock.engine.produce import Push
from penstock.engine.settle import Hold, Renew
from penstock.store.postgres import PostgresStore
from tests.support import postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.engine.command import AnyCommand
    from penstock.engine.work import Work

pytestmark = pytest.mark.anyio
FLOOD, QUIET = QueueKey("flood", "q"), QueueKey("quiet", "q")


class Batches:
    """The commands that were answered by each transaction."""

    def __init__(self, engine: Engine) -> None:
        self.done: list[list[AnyCommand]] = []
        engine._batcher.after_commit.append(self._note)

    def _note(self, work: Work) -> None:
        self.done.append([command for command, _ in work.answers])

    def of(self, command: AnyCommand) -> int:
        """Return the number of the batch that had a command, from 0."""
        return next(number for number, batch in enumerate(self.done) if command in batch)

    def before(self, command: AnyCommand) -> int:
        """Return how many commands of the flood were done before a command, or with it."""
        batches = self.done[: self.of(command) + 1]
        return sum(each.tenant() == "flood" for batch in batches for each in batch)


def some(count: int, data: bytes = b"{}") -> list[NewJob]:
    return [NewJob(data)] * count


async def test_a_push_is_in_the_next_batch_although_ten_thousand_wait(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(1))) for _ in range(10_000)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.of(quiet) == 0
    await asyncio.gather(*flood)


async def test_pushes_of_many_jobs_do_not_make_one_long_transaction(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(500))) for _ in range(20)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_large_payloads_do_not_make_one_long_transaction(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(1, b'"' + b"x" * 1_000_000 + b'"'))) for _ in range(20)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_a_claim_does_not_wait_for_claims_of_many_jobs(engine: Engine) -> None:
    await engine.run(Push(FLOOD, some(10_000)))
    await engine.run(Push(QUIET, some(1)))
    batches = Batches(engine)
    flood = [engine.run(Claim(FLOOD, 500)) for _ in range(20)]
    quiet = Claim(QUIET)
    deliveries = await engine.run(quiet)
    assert len(deliveries) == 1
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_a_heartbeat_is_heard_before_leases_are_judged_whatever_waits(engine: Engine) -> None:
    await engine.run(Push(QUIET, some(1)))
    ((job, _),) = await engine.run(Claim(QUIET, lease_ms=1_000))
    batches = Batches(engine)
    flood = [engine.run(Push(QUIET, some(500))) for _ in range(20)]
    word = Renew("quiet", [Hold(job.id, job.token)], [60_000])
    assert await engine.run(word) == [None]
    assert batches.of(word) == 0
    await asyncio.gather(*flood)


async def test_one_namespace_alone_is_done_in_the_order_it_came(engine: Engine) -> None:
    pushes = [Push(FLOOD, some(300)) for _ in range(40)]
    batches = Batches(engine)
    await asyncio.gather(*(engine.run(push) for push in pushes))
    assert [command for batch in batches.done for command in batch] == pushes
    assert len(batches.done) <= 5  # as few transactions as a bound on their length allows


@pytest.fixture
async def lanes() -> AsyncIterator[Engine]:
    """An engine on PostgreSQL, where pushes have a lane of their own while the server is busy."""
    url = await postgres.make_database()
    store = await PostgresStore.open(url, SystemClock())
    running = Engine(store, store.clock)
    running.start()
    yield running
    await running.close()
    await store.close()
    await postgres.drop_database(url)


async def test_lanes_on_postgres_have_shares_too(lanes: Engine) -> None:
    await lanes.run(Push(FLOOD, some(1)))
    batches = Batches(lanes)
    flood = [lanes.run(Push(FLOOD, some(500))) for _ in range(30)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    done = sum(map(len, batches.done))
    quiet = Push(QUIET, some(1))
    await lanes.run(quiet)
    # A batch of the flood may have been under way; then each namespace has its share.
    assert batches.before(quiet) - done <= 10
    await asyncio.gather(*flood)
