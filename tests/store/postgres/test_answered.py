"""A question to the database: who stands still does not take the answer that came meanwhile for none."""

from __future__ import annotations

import asyncio

import pytest

from penstock.store.postgres import connect

pytestmark = pytest.mark.anyio


#: Whenever the clock is looked at, all the time there was is over.
STOOD_STILL = 0


async def test_an_answer_that_is_there_when_the_server_wakes_up_is_heard() -> None:
    async def question() -> str:
        for _ in range(connect.ANSWER_LOOKS // 2):
            await asyncio.sleep(0)
        return "yes"

    assert await connect.answered(question(), STOOD_STILL) == "yes"


async def test_a_database_that_says_nothing_is_given_up() -> None:
    told: list[str] = []

    async def question() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("given up")

    with pytest.raises(TimeoutError):
        await connect.answered(question(), STOOD_STILL)
    await asyncio.sleep(0)
    assert told == ["given up"]
