"""Turns at the journal, which are slots without shares: few at a time, and the lines of namespaces are served in rotation."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import yield_to_loop
from penstock.core.pool_shares import ALL, Slots

pytestmark = pytest.mark.anyio


class Line:
    """Callers that note when they have their turn, and keep it until they are told to go."""

    def __init__(self, places: int) -> None:
        self.turns = Slots(places, ALL)
        self.had: list[str] = []
        self.go = asyncio.Semaphore(0)

    def join(self, namespace: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._take(namespace))

    async def _take(self, namespace: str) -> None:
        async with self.turns.turn(namespace):
            self.had.append(namespace)
            await self.go.acquire()

    async def let_go(self, count: int = 1) -> None:
        for _ in range(count):
            self.go.release()
            await yield_to_loop()


async def test_the_lines_of_namespaces_are_served_in_rotation() -> None:
    line = Line(1)
    tasks = [line.join(namespace) for namespace in "aaaabbc"]
    await yield_to_loop()
    assert (line.had, line.turns.waiting) == (["a"], 6)
    await line.let_go(7)
    assert "".join(line.had) == "aabcaba"
    await asyncio.gather(*tasks)
    assert line.turns.waiting == 0


async def test_no_more_are_under_way_than_there_are_places() -> None:
    line = Line(2)
    tasks = [line.join("a") for _ in range(5)]
    await yield_to_loop()
    assert len(line.had) == 2
    await line.let_go()
    assert len(line.had) == 3
    await line.let_go(4)
    await asyncio.gather(*tasks)


async def test_who_gives_up_loses_no_turn_of_others() -> None:
    line = Line(1)
    first, second, third, fourth = (line.join("a") for _ in range(4))
    await yield_to_loop()
    second.cancel()  # while it waits
    await yield_to_loop()
    line.go.release()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    third.cancel()  # about when it gets its turn
    await yield_to_loop()
    await line.let_go(2)
    await asyncio.gather(first, second, third, fourth, return_exceptions=True)
    async with asyncio.timeout(10), line.turns.turn("b"):
        pass
