"""The SDK's clock: the time, waiting, randomness, and unique names. No other module of the SDK uses these directly."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class _Names:
    """The parts from which the names of this process are made."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Choose a new prefix. A forked process has a copy of its parent's, and would create the same names."""
        self.process = secrets.token_hex(6)
        self.numbers = itertools.count()


_names = _Names()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_names.begin)


def now_ms() -> int:
    """Return the wall clock in milliseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000_000


def steady() -> float:
    """Return seconds of a clock that never goes back."""
    return time.monotonic()


async def pause(seconds: float) -> None:
    """Wait, while other tasks run."""
    await asyncio.sleep(seconds)


def block(seconds: float) -> None:
    """Wait, and block this thread."""
    time.sleep(seconds)


async def within(seconds: float, answer: Awaitable[T]) -> T:
    """Await an answer for so many seconds at most; then it is cancelled, and TimeoutError is raised."""
    return await asyncio.wait_for(answer, seconds)


def call_in(loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Schedule a callback in a loop after so many seconds."""
    return loop.call_later(max(0.0, seconds), callback)


def jittered(seconds: float) -> float:
    """Return a random duration between half of the given one and all of it, so that clients do not retry at the same moment."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311, it hides nothing


def fresh_name() -> str:
    """Return a name that no other process creates. Names of one process are in ascending order, which suits an index."""
    return f"{now_ms():011x}-{_names.process}-{next(_names.numbers):x}"
