"""How many jobs namespaces were given in the last minute: the same answers, whoever counts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock.store.contract import QuotaCount

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def take(bench: Workbench, jobs: int, quota: int | None = 5, namespace: str = "a") -> int:
    (wait_ms,) = await bench.store.quota_take([QuotaCount(namespace, jobs, quota)])
    return wait_ms


async def test_so_many_pass_in_any_minute(bench: Workbench) -> None:
    assert await take(bench, 2) == 0
    await bench.clock.advance(10_000)
    assert await take(bench, 3) == 0
    assert await take(bench, 1) == 50_000
    assert await take(bench, 3) == 60_000
    assert await take(bench, 6) == 60_000
    assert await take(bench, 1, namespace="b") == 0, "another namespace has its own"
    await bench.clock.advance(49_999)
    assert await take(bench, 1) == 1
    await bench.clock.advance(1)
    assert await take(bench, 3) == 10_000
    assert await take(bench, 2) == 0


async def test_takes_of_one_question_are_done_in_order_and_each_as_a_whole(bench: Workbench) -> None:
    takes = [
        QuotaCount("a", 3, 5),
        QuotaCount("b", 1, 1),
        QuotaCount("a", 4, 5),
        QuotaCount("a", 2, 5),
        QuotaCount("b", 1, 1),
        QuotaCount("a", 1, 5),
    ]
    assert await bench.store.quota_take(takes) == [0, 0, 60_000, 0, 60_000, 60_000]
    assert await bench.store.quota_take([]) == []


async def test_what_is_given_back_can_be_taken_again(bench: Workbench) -> None:
    assert await take(bench, 2) == 0
    await bench.clock.advance(10_000)
    assert await take(bench, 3) == 0
    assert await take(bench, -2) == 0
    assert await take(bench, 3) == 50_000, "the latest was given back"
    assert await take(bench, 2) == 0
    assert await bench.store.quota_take([QuotaCount("a", -4, None), QuotaCount("a", 5, 5), QuotaCount("a", 4, 5)]) == [
        0,
        50_000,
        0,
    ]
    assert await take(bench, -100) == 0
    assert await take(bench, 5) == 0, "nobody gets more than there is"
    assert await take(bench, 1) == 60_000


async def test_without_a_quota_everything_passes_and_is_counted(bench: Workbench) -> None:
    assert await take(bench, 7, None) == 0
    assert await take(bench, 1) == 60_000
    assert await take(bench, 1, 8) == 0
    assert await take(bench, 1, 0) == 60_000


@pytest.mark.parametrize("seed", range(5))
async def test_no_minute_ever_holds_more_and_waiting_as_told_always_helps(bench: Workbench, seed: int) -> None:
    chance = random.Random(seed)
    passed: list[tuple[int, int]] = []
    for _ in range(60):
        await bench.clock.advance(chance.randrange(20_000))
        count = chance.randrange(1, 5)
        wait_ms = await take(bench, count)
        if wait_ms:
            await bench.clock.advance(wait_ms - 1)
            assert await take(bench, count) == 1
            await bench.clock.advance(1)
            assert await take(bench, count) == 0
        passed.append((bench.steady_ms, count))
    for moment, _ in passed:
        assert sum(count for other, count in passed if moment <= other < moment + 60_000) <= 5
