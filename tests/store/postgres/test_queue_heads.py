"""Claims that begin where the line was last seen to begin hand out what claims along the whole line would."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from penstock.core.job import JobFlag
from penstock.core.lifecycle import Arrow
from penstock.store.postgres import queue_heads
from penstock.store.postgres.queue_heads import QueueHead, Stretch
from tests.support.engines import ack, claim, claim_all, fail, move, push, push_many

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio

LOW, HIGH = -(2**63 - 1), 2**63 - 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at a whole line counts as slow, and nobody looks at one again for long."""
    monkeypatch.setattr(queue_heads, "SLOW_MS", -1.0)
    monkeypatch.setattr(queue_heads, "WHOLE_EVERY_MS", 3_600_000)


def test_stretches_are_the_line_without_what_is_known_to_be_empty() -> None:
    front = QueueHead(0, {5: 100, 3: None})
    assert front.stretches() == [
        Stretch(6, 2**31 - 1, LOW, HIGH),
        Stretch(5, 5, LOW, -1),
        Stretch(5, 5, 100, HIGH),
        Stretch(4, 4, LOW, HIGH),
        Stretch(3, 3, LOW, HIGH),
        Stretch(-(2**31), 2, LOW, HIGH),
    ]


@pytest.mark.usefixtures("slow")
async def test_jobs_come_in_order_whatever_their_priority_and_place(pair: Pair) -> None:
    chance = random.Random(7)
    waiting: list[tuple[int, int, int]] = []  # by priority, then place: what a queue promises
    got: list[int] = []
    expected: list[int] = []
    for _ in range(300):
        engine = pair[chance.randrange(2)]
        if chance.random() < 0.6:
            priority, lifo = chance.randrange(-2, 3), chance.random() < 0.2
            job = await push(engine, priority=priority, flags=JobFlag.LIFO if lifo else 0)
            waiting.append((-priority, job.position, job.id))
        else:
            claimed = await claim_all(engine, chance.randrange(1, 4))
            waiting.sort()
            expected += [job_id for _, _, job_id in waiting[: len(claimed)]]
            del waiting[: len(claimed)]
            got += [job.id for job in claimed]
    assert got == expected
    assert {job.id for job in await claim_all(pair[0])} == {job_id for _, _, job_id in waiting}


@pytest.mark.usefixtures("slow")
async def test_a_job_that_has_its_old_place_back_is_found_at_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_heads, "YOUNG_MS", 0)
    a, b = pair
    first, *others = await push_many(a, 10)
    claimed = await claim_all(a, 5)
    await move(a, claimed[0], Arrow.RELEASE)
    assert [job.id for job in await claim_all(a, 2)] == [first.id, others[4].id]
    await fail(a, claimed[1])
    await move(b, others[5], Arrow.REPRIORITIZE, 9)
    assert (await claim(b)).job.id == others[5].id  # type: ignore[union-attr]


@pytest.mark.usefixtures("slow")
async def test_what_the_other_server_puts_at_an_old_place_is_found_when_it_has_told_so(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_heads, "YOUNG_MS", 0)
    a, b = pair
    await push_many(a, 5)
    (first,) = await claim_all(a, 1)
    assert len(await claim_all(b, 10)) == 4
    assert await claim(b) is None
    waiting = asyncio.create_task(claim(b, wait_ms=10_000))
    await move(a, first, Arrow.RELEASE)
    delivery = await waiting
    assert delivery is not None
    assert delivery.job.id == first.id


@pytest.mark.usefixtures("slow")
async def test_groups_go_on(pair: Pair) -> None:
    for group in ("x", "y"):
        await push_many(pair[0], 10, group_id=group)
    done = 0
    async with asyncio.timeout(60):
        while done < 20:
            for engine in pair:
                for job in await claim_all(engine, 5):
                    assert await ack(engine, job) is None
                    done += 1
