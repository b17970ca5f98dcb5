"""Connections to Redis: commands wait until one is free."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.clock import SystemClock
from penstock.core.errors import FastPathFailed
from penstock.store.redis import RedisLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.redis import OwnRedis

pytestmark = pytest.mark.anyio

COMMANDS = 10 * limits.redis_connections_max


@pytest.fixture
async def link(redis: OwnRedis) -> AsyncIterator[RedisLink]:
    opened = RedisLink(redis.url, SystemClock())
    yield opened
    await opened.close()


async def test_many_commands_at_once_wait_for_a_connection(redis: OwnRedis, link: RedisLink) -> None:
    run_ids = await asyncio.gather(*(link.check() for _ in range(COMMANDS)))
    assert len(set(run_ids)) == 1
    assert not link.breaker.is_open
    connected = redis.client().client_list()
    assert sum(each["name"] == "penstock" for each in connected) <= limits.redis_connections_max


async def test_commands_that_wait_are_refused_when_redis_fails(link: RedisLink) -> None:
    await link.check()
    sent = 0

    def ask() -> asyncio.Future[None]:
        nonlocal sent
        sent += 1
        failing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failing.set_exception(ConnectionError("lost"))
        return failing

    answers = await asyncio.gather(*(link.run(ask) for _ in range(COMMANDS)), return_exceptions=True)
    assert all(isinstance(answer, FastPathFailed) for answer in answers)
    assert sent <= limits.redis_connections_max
    assert link.master is None
