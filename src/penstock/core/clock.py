"""The one source of time. No other module reads the time from the operating system.

Two readings, never mixed in one comparison:

* ``now_ms``    the wall clock. All times that users can see or set: creation, due times, time-to-live, history.
* ``steady_ms`` never jumps, and cannot be set. All times that measure silence or duration: leases, timeouts, rate limits.
    A store continues from the reading it had before a restart: see ``Continued``, ADR 14.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Alarm(Protocol):
    """A call that is scheduled for later. Cancelling twice, or after the call, is allowed."""

    def cancel(self) -> None:
        """Cancel the call."""


class Boot(NamedTuple):
    """A start of the machine."""

    identity: str  #: differs from other starts and other machines; empty where the system has no such identity
    age_ms: int  #: time since the start, including sleep


class Clock(Protocol):
    """The times that the engine may read."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (UTC). May jump."""

    def steady_ms(self) -> int:
        """Return milliseconds that only grow, at the pace of real time, while this process runs."""

    def boot(self) -> Boot:
        """Return the current start of the machine. Its age grows with ``steady_ms``, and continues in other processes."""

    def stopwatch(self) -> float:
        """Return seconds with the finest available resolution, to measure durations."""

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Call a function once when ``steady_ms()`` has reached the given moment; at once if it already has."""


#: Counts the time since the machine was started, including sleep where the system counts it.
_AGE_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _age_ns() -> int:
    """Return the time since the start of the machine."""
    return time.clock_gettime_ns(_AGE_CLOCK)


def _boot_identity() -> str:
    """Return the identity of the machine's start.

    A container may have its own clock, so the container is part of the identity.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        count = Path("/proc/self/ns/time")
        return f"{boot_id} {count.readlink()}" if count.is_symlink() else boot_id
    except OSError:
        return ""


class SystemClock:
    """The real clock of this machine. Create it inside the running event loop."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - _age_ns()
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def steady_ms(self) -> int:
        """Return the time since the machine was started, shifted once to the wall clock's reading at the start."""
        return (_age_ns() + self._offset_ns) // 1_000_000

    def boot(self) -> Boot:
        """Return the current start of the machine."""
        return Boot(_boot_identity(), _age_ns() // 1_000_000)

    #: Return seconds of the performance counter. This is the function itself, because every RESP command calls it.
    stopwatch = staticmethod(time.perf_counter)

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Schedule a call on the event loop."""
        return self._loop.call_later(max(0, steady_ms - self.steady_ms()) / 1000, callback)


class ManualClock:
    """A clock that only moves when a method moves it: for tests and simulations.

    ``advance`` moves both readings together and makes each scheduled call at its own moment. ``jump_wall`` moves only the
    wall clock, like a correction by the system administrator. ``identity``: of the start of its machine.
    """

    def __init__(self, now_ms: int = 1_800_000_000_000, *, identity: str = "manual") -> None:
        self._now = now_ms
        self._steady = now_ms
        self._identity = identity
        self._order = itertools.count()
        self._alarms: list[tuple[int, int, _ManualAlarm]] = []

    def now_ms(self) -> int:
        """Return the wall clock as set."""
        return self._now

    def steady_ms(self) -> int:
        """Return the steady clock as moved."""
        return self._steady

    def boot(self) -> Boot:
        """Return a machine that was started when the steady clock was 0."""
        return Boot(self._identity, self._steady)

    def stopwatch(self) -> float:
        """Return the steady clock in seconds."""
        return self._steady / 1000

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Schedule a call, which ``advance`` makes."""
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (max(steady_ms, self._steady), next(self._order), alarm))
        return alarm

    def jump_wall(self, ms: int) -> None:
        """Move the wall clock forwards or backwards; no real time passes."""
        self._now += ms

    async def advance(self, ms: int) -> None:
        """Let ``ms`` of real time pass. Scheduled calls are made in order, and the event loop runs after each of them."""
        target = self._steady + ms
        await yield_to_loop()
        while self._alarms and self._alarms[0][0] <= target:
            at, _, alarm = heapq.heappop(self._alarms)
            self._move_to(at)
            if alarm.callback is not None:
                alarm.callback()
                await yield_to_loop()
        self._move_to(target)
        await yield_to_loop()

    def _move_to(self, steady_ms: int) -> None:
        self._now += steady_ms - self._steady
        self._steady = steady_ms


class _ManualAlarm:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Continued:
    """A clock whose steady reading continues from the one in a store: it is ``ahead_ms`` ahead of the local one."""

    def __init__(self, local: Clock, ahead_ms: int) -> None:
        self._local = local
        self._ahead_ms = ahead_ms
        self.now_ms = local.now_ms
        self.stopwatch = local.stopwatch
        self.boot = local.boot

    def steady_ms(self) -> int:
        """Return the steady clock of the store."""
        return self._local.steady_ms() + self._ahead_ms

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Schedule a call by the local clock."""
        return self._local.call_at(steady_ms - self._ahead_ms, callback)


def work_s() -> float:
    """Return seconds of the performance counter.

    The duration of work depends on the machine, even if a test uses another clock.
    """
    return time.perf_counter()


def call_after_work(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    """Call a function after some seconds of the performance counter, even if a test uses another clock."""
    return asyncio.get_running_loop().call_later(seconds, call)


def rest_in_thread() -> None:
    """Release the interpreter's lock for the event loop. For threads, which otherwise hold it for up to 5 ms at a time."""
    time.sleep(limits.share_read_pause_ms / 1_000)


async def pause(clock: Clock, ms: int) -> None:
    """Wait for some time by a clock. Cancelling works as with any other awaitable."""
    rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_alarm() -> None:
        if not rung.done():
            rung.set_result(None)

    alarm = clock.call_at(clock.steady_ms() + ms, on_alarm)
    try:
        await rung
    finally:
        alarm.cancel()


async def within(clock: Clock, ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``; after ``ms``, cancel it and raise TimeoutError."""
    task = asyncio.ensure_future(work)
    late = False

    def on_alarm() -> None:
        nonlocal late
        late = not task.done()
        task.cancel()

    alarm = clock.call_at(clock.steady_ms() + ms, on_alarm)
    try:
        await asyncio.wait({task})
    finally:  # also if the caller is cancelled
        alarm.cancel()
        task.cancel()
    if late and task.cancelled():
        raise TimeoutError
    return task.result()


async def yield_to_loop(rounds: int = 25) -> None:
    """Yield to the event loop several times, so that tasks that are ready can run. No time passes."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class TimeSlice:
    """A limit for the time that one loop occupies the event loop.

    Check ``is_over`` after each step, and call ``yield_if_over`` when it is true.
    """

    __slots__ = ("_clock", "_ends_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Start a new slice."""
        self._ends_at = self._clock.stopwatch() + limits.slice_ms / 1_000

    @property
    def is_over(self) -> bool:
        """Return whether the slice has lasted ``limits.slice_ms``."""
        return self._clock.stopwatch() >= self._ends_at

    async def yield_if_over(self) -> None:
        """If the slice is over, yield to other tasks and start a new slice."""
        if self.is_over:
            await yield_to_loop(1)
            self.begin()
