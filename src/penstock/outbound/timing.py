"""Waiting, by the injected clock: a pause, and a deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penstock.core.clock import Clock

T = TypeVar("T")


async def pause(clock: Clock, ms: int) -> None:
    """Return after ``ms``."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    alarm = clock.call_at(clock.steady_ms() + ms, lambda: None if over.done() else over.set_result(None))
    try:
        await over
    finally:
        alarm.cancel()


async def within(clock: Clock, ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns, or end it after ``ms`` and raise TimeoutError."""
    task = asyncio.ensure_future(work)
    late = False

    def ring() -> None:
        nonlocal late
        late = not task.done()
        task.cancel()

    alarm = clock.call_at(clock.steady_ms() + ms, ring)
    try:
        await asyncio.wait({task})
    finally:  # also if whoever waits here is told to stop
        alarm.cancel()
        task.cancel()
    if late and task.cancelled():
        raise TimeoutError
    return task.result()
