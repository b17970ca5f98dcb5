"""Answers that wait, and clients that take little: neither keeps the answers of other clients from being sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import TooMany
from penstock.doors.net.unread_answers import UnreadAnswers

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.doors.net.connections import ConnectionTable

pytestmark = pytest.mark.anyio
MB = limits.MEBIBYTE


class Known:
    """A connection whose client has acknowledged some bytes."""

    def __init__(self) -> None:
        self.acked = self.received = 0

    def update(self, _now: int) -> bool:
        return True


class Table:
    """Every connection that is asked for."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}

    def find(self, ends: str) -> Known:
        return self.known.setdefault(ends, Known())


async def test_one_client_has_half_of_the_answers_that_wait(clock: ManualClock) -> None:
    answers = UnreadAnswers(clock, cast("ConnectionTable", Table()), lambda _ends: None)
    for number in range(4):
        await answers.reserve(f"evil {number}", f"evil {number % 2}", 24 * MB)  # nothing more fits
    waiting = [asyncio.ensure_future(answers.reserve("evil 0", "evil 0", MB)) for _ in range(200)]
    await yield_to_loop(2)
    assert answers.waiting == limits.answers_bytes_max // MB // 2
    another = asyncio.ensure_future(answers.reserve("good", "good", MB))
    await yield_to_loop(2)
    assert not another.done()
    for each in (*waiting, another):
        each.cancel()
    results = await asyncio.gather(*waiting, another, return_exceptions=True)
    assert sum(isinstance(each, TooMany) for each in results) == 200 - limits.answers_bytes_max // MB // 2
    assert not answers.waiting


@pytest.mark.parametrize("taken", [100, 2 * MB])
async def test_a_client_that_takes_little_is_cut_off_while_it_is_crowded(clock: ManualClock, taken: int) -> None:
    """``taken``: bytes of 60 MB that are taken in 4 s."""
    cut: list[str] = []
    table = Table()
    answers = UnreadAnswers(clock, cast("ConnectionTable", table), cut.append)
    await answers.reserve("slow", "slow", 60 * MB)
    for step in range(200):
        if step % 40 == 39:
            table.known["slow"].acked += taken
        await clock.advance(limits.answer_look_ms)
        await yield_to_loop(3)
    assert cut == (["slow"] if taken == 100 else [])
