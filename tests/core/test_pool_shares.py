"""Pools are shared: whatever some hold, there is room for one that holds nothing."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.errors import NamespaceLimit, TooMany
from penstock.core.pool_shares import ALL, HALF, Pool, PoolPlace, Shares, Slots, has_room


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
async def test_a_holder_that_is_alone_has_another_share() -> None:
    percent = ALL
    slots = Slots(4, alone=lambda: percent)
    alone = [asyncio.ensure_future(slots.acquire("a")) for _ in range(8)]
    await yield_to_loop(3)
    assert slots.waiting_of("a") == slots.waiting == 4
    assert slots.waiting_of("b") == 0
    other = asyncio.ensure_future(slots.acquire("b"))
    await yield_to_loop(3)
    for _ in range(2):
        slots.release("a")
    await yield_to_loop(3)
    assert other.done()
    assert sum(task.done() for task in alone) == 4
    slots.release("b")  # the other slots are for "a" again, both at once
    await yield_to_loop(3)
    assert sum(task.done() for task in alone) == 6
    percent = HALF
    for _ in range(3):
        slots.release("a")
    await yield_to_loop(3)
    assert slots.waiting == 1


@pytest.mark.anyio
async def test_a_slot_that_another_holder_gave_up_waiting_for_is_handed_out() -> None:
    slots = Slots(2, alone=lambda: ALL)
    await slots.acquire("a")
    await slots.acquire("a")
    first, second = (asyncio.ensure_future(slots.acquire(holder)) for holder in "ba")
    await yield_to_loop(3)
    slots.release("a")
    await yield_to_loop(3)
    assert first.done()
    third = asyncio.ensure_future(slots.acquire("c"))
    await yield_to_loop(3)
    slots.release("b")
    await yield_to_loop(3)
    assert third.done()
    assert not second.done()
    slots.release("c")
    await yield_to_loop(3)
    assert second.done()


@pytest.mark.anyio
async def test_a_wait_for_a_slot_may_end_by_a_clock() -> None:
    slots, clock = Slots(1), ManualClock()
    await slots.acquire("a")
    first, second = (asyncio.ensure_future(slots.acquire("a", clock, wait_ms)) for wait_ms in (10, 20))
    await yield_to_loop(3)
    await clock.advance(10)
    with pytest.raises(TimeoutError):
        await first
    assert slots.waiting == 1
    slots.release("a")
    await second
    await clock.advance(10)
    third = asyncio.ensure_future(slots.acquire("a", clock, 10))
    await yield_to_loop(3)
    await clock.advance(9)
    alarm = asyncio.ensure_future(clock.advance(1))
    slots.release("a")  # in the same moment
    await alarm
    await third
    assert slots.waiting == 0


@pytest.mark.anyio
async def test_a_turn_ends_with_its_block() -> None:
    slots = Slots(1)
    with pytest.raises(KeyError):
        async with slots.turn("a"):
            raise KeyError
    async with slots.turn("b"):
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
