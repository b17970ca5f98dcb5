"""Pools are shared: whatever some hold, there is room for one that holds nothing."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import yield_to_loop
from penstock.core.errors import NamespaceLimit, TooMany
from penstock.core.pool_shares import Pool, PoolPlace, Shares, Slots, has_room


def fill(pool: Pool, namespace: str) -> int:
    """Take what a namespace can get."""
    count = 0
    while count <= pool.most:
        try:
            pool.enter(namespace)
        except TooMany:
            return count
        count += 1
    raise AssertionError("the pool has no end")


def test_each_gets_as_much_as_it_leaves() -> None:
    pool = Pool("things", 120, Shares(lambda: True))
    assert [fill(pool, name) for name in "abcd"] == [60, 30, 15, 8]


@pytest.mark.parametrize(("percent", "alone"), [(1, 1), (25, 25), (50, 50), (75, 75), (100, 100)])
def test_one_that_is_alone_gets_its_percentage(percent: int, alone: int) -> None:
    pool = Pool("things", 100, Shares(lambda: True, percent=percent))
    assert fill(pool, "a") == alone


def test_without_tenants_one_gets_everything() -> None:
    pool = Pool("things", 100, Shares(lambda: False))
    assert fill(pool, "a") == 100
    with pytest.raises(TooMany, match="Too many things"):
        pool.enter("b")


def test_a_refusal_names_the_limit_and_the_remedy() -> None:
    pool = Pool("things", 4, Shares(lambda: True))
    fill(pool, "a")
    with pytest.raises(NamespaceLimit, match=r"Namespace a has 2 of the 4 things of this server.* namespace_share\.$"):
        pool.enter("a")
    pool.leave("a")
    pool.enter("a")


def test_a_place_is_in_one_namespace_at_a_time() -> None:
    pool = Pool("things", 4, Shares(lambda: True))
    place, other = PoolPlace(pool), PoolPlace(pool)
    place.take("a")
    place.take("a")
    other.take("b")
    assert len(pool) == 2
    fill(pool, "b")
    with pytest.raises(NamespaceLimit):
        place.take("b")
    assert len(pool) == 3
    place.give_up()
    place.give_up()
    assert len(pool) == 2


def test_the_last_one_is_for_somebody_who_has_none() -> None:
    assert has_room(10, 9, 0)
    assert not has_room(10, 9, 1)
    assert not has_room(10, 10, 0)


@pytest.mark.anyio
async def test_slots_go_round() -> None:
    slots = Slots(4)
    got: list[str] = []

    async def take(holder: str) -> None:
        await slots.acquire(holder)
        got.append(holder)

    waiting = [asyncio.ensure_future(take(holder)) for holder in "aaaaabbb"]
    await yield_to_loop(3)
    assert got == ["a", "a", "b"]
    assert slots.waiting == 5
    slots.release("a")
    await yield_to_loop(3)
    assert got == ["a", "a", "b", "a"]
    slots.release("b")
    await yield_to_loop(3)
    assert got == ["a", "a", "b", "a", "b"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert slots.waiting == 0


@pytest.mark.anyio
async def test_a_slot_is_not_lost_with_a_waiter_that_is_cancelled() -> None:
    slots = Slots(2)
    await slots.acquire("a")
    first, second = (asyncio.ensure_future(slots.acquire("a")) for _ in range(2))
    await yield_to_loop(2)
    first.cancel()  # in the same moment in which the slot becomes free
    slots.release("a")
    await yield_to_loop(3)
    assert second.done()
    third = asyncio.ensure_future(slots.acquire("a"))
    await yield_to_loop(2)
    slots.release("a")  # the turn has come, and the waiter does not know it yet
    third.cancel()
    await yield_to_loop(3)
    await asyncio.wait_for(slots.acquire("a"), 5)
