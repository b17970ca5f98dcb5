"""The one source of time. No other module asks the operating system what time it is.

Two readings, never mixed in one comparison:

* ``now_ms``    the wall clock. Everything a user can see or set: creation, due times, time-to-live, history.
* ``steady_ms`` never jumps. Everything that measures how long somebody has been silent: leases, timeouts, rate limits.
  It starts at the wall clock's reading, so that a stored lease still means something after a restart.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarm(Protocol):
    """A call booked for later; cancelling twice, or after it rang, is fine."""

    def cancel(self) -> None:
        """Forget the booking."""


class Clock(Protocol):
    """What the engine may know about time."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (UTC). May jump."""

    def steady_ms(self) -> int:
        """Return milliseconds that only ever grow at the pace of real time while this process lives."""

    def stopwatch(self) -> float:
        """Return seconds with the finest resolution there is, for measuring how long something took."""

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Call back once when ``steady_ms()`` has reached the given moment, at once if it already has."""


class SystemClock:
    """The real clock of this machine. Create it inside the running event loop."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return the monotonic clock, shifted once to the wall clock's reading at the start."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def stopwatch(self) -> float:
        """Return seconds of the performance counter."""
        return time.perf_counter()

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Book a call on the event loop."""
        return self._loop.call_later(max(0, steady_ms - self.steady_ms()) / 1000, callback)


class ManualClock:
    """A clock that stands still until it is told to move: for tests and simulations.

    ``advance`` moves both readings together and rings every alarm on the way at its own moment; ``jump_wall`` moves only
    the wall clock, as a correction by the system administrator would.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now = now_ms
        self._steady = now_ms
        self._order = itertools.count()
        self._alarms: list[tuple[int, int, _ManualAlarm]] = []

    def now_ms(self) -> int:
        """Return the wall clock as set."""
        return self._now

    def steady_ms(self) -> int:
        """Return the steady clock as moved."""
        return self._steady

    def stopwatch(self) -> float:
        """Return the steady clock in seconds."""
        return self._steady / 1000

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Book a call; it rings during ``advance``."""
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (max(steady_ms, self._steady), next(self._order), alarm))
        return alarm

    def jump_wall(self, ms: int) -> None:
        """Step the wall clock forwards or backwards without any real time passing."""
        self._now += ms

    async def advance(self, ms: int) -> None:
        """Let ``ms`` of real time pass, ringing alarms in order and letting the loop react to each."""
        target = self._steady + ms
        await settle()
        while self._alarms and self._alarms[0][0] <= target:
            at, _, alarm = heapq.heappop(self._alarms)
            self._move_to(at)
            if alarm.callback is not None:
                alarm.callback()
                await settle()
        self._move_to(target)
        await settle()

    def _move_to(self, steady_ms: int) -> None:
        self._now += steady_ms - self._steady
        self._steady = steady_ms


class _ManualAlarm:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


async def pause(clock: Clock, ms: int) -> None:
    """Wait for a while by a clock; given up like anything else that is awaited."""
    rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ring() -> None:
        if not rung.done():
            rung.set_result(None)

    alarm = clock.call_at(clock.steady_ms() + ms, ring)
    try:
        await rung
    finally:
        alarm.cancel()


async def settle(rounds: int = 25) -> None:
    """Give the event loop a few turns, so that what is already under way can happen. No time passes."""
    for _ in range(rounds):
        await asyncio.sleep(0)
