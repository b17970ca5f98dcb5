"""The SDK's own clock: the time, waiting, chance, and names that nobody else makes. Nothing else of the SDK asks for these."""

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
    """What the names of this process are made of."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Be another process than all others. A forked one has a copy of its parent's, and would make the same names."""
        self.process = secrets.token_hex(6)
        self.numbers = itertools.count()


_names = _Names()
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_names.begin)


def now_ms() -> int:
    """Return the wall clock in milliseconds since 1970 (UTC)."""
    return time.time_ns() // 1_000_000


def steady() -> float:
    """Return seconds that only ever grow."""
    return time.monotonic()


async def pause(seconds: float) -> None:
    """Wait, and let others work meanwhile."""
    await asyncio.sleep(seconds)


def block(seconds: float) -> None:
    """Wait, in this thread."""
    time.sleep(seconds)


async def within(seconds: float, answer: Awaitable[T]) -> T:
    """Await something for so long at most; then it is cancelled, and TimeoutError is raised."""
    return await asyncio.wait_for(answer, seconds)


def call_in(loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
    """Have a loop call something after so many seconds."""
    return loop.call_later(max(0.0, seconds), callback)


def jittered(seconds: float) -> float:
    """Return a duration between half of that and all of it, so that those who fail together do not come back together."""
    return seconds * random.uniform(0.5, 1)  # noqa: S311, it hides nothing


def fresh_name() -> str:
    """Return a name that no other process makes. Names of one process are made in ascending order, which an index likes."""
    return f"{now_ms():011x}-{_names.process}-{next(_names.numbers):x}"
