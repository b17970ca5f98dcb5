"""The one source of time. No other module asks the operating system what time it is.

Two readings, never mixed in one comparison:

* ``now_ms``    the wall clock. Everything a user can see or set: creation, due times, time-to-live, history.
* ``steady_ms`` never jumps, and no one can set it. Everything that measures how long somebody has been silent: leases,
  timeouts, rate limits. A store goes on with the reading it had before a restart: see ``Continued``, ADR 14.
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
    """A call booked for later; cancelling twice, or after it rang, is fine."""

    def cancel(self) -> None:
        """Forget the booking."""


class Boot(NamedTuple):
    """A start of the machine."""

    identity: str  #: tells it from other starts, and other machines; empty where the system does not tell
    age_ms: int  #: how long ago it was, time asleep included


class Clock(Protocol):
    """What the engine may know about time."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970 (UTC). May jump."""

    def steady_ms(self) -> int:
        """Return milliseconds that only ever grow at the pace of real time while this process lives."""

    def boot(self) -> Boot:
        """Return which start of the machine this is. Its age grows with ``steady_ms``, and on through other processes."""

    def stopwatch(self) -> float:
        """Return seconds with the finest resolution there is, for measuring how long something took."""

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Call back once when ``steady_ms()`` has reached the given moment, at once if it already has."""


#: Counts the time since the machine was started, that asleep included where the system counts it.
_AGE_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _age_ns() -> int:
    """Return the time since the machine was started."""
    return time.clock_gettime_ns(_AGE_CLOCK)


def _boot_identity() -> str:
    """A container may have a count of its own: it is named, too."""
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
        """Return which start of the machine this is."""
        return Boot(_boot_identity(), _age_ns() // 1_000_000)

    #: Return seconds of the performance counter. The function itself, because it is asked before each command over RESP.
    stopwatch = staticmethod(time.perf_counter)

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Book a call on the event loop."""
        return self._loop.call_later(max(0, steady_ms - self.steady_ms()) / 1000, callback)


class ManualClock:
    """A clock that stands still until it is told to move: for tests and simulations.

    ``advance`` moves both readings together and rings every alarm on the way at its own moment; ``jump_wall`` moves only
    the wall clock, as a correction by the system administrator would. ``identity``: of the start of its machine.
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
        """Return a machine that was started when the steady clock was at 0."""
        return Boot(self._identity, self._steady)

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


class Continued:
    """A clock whose steady reading goes on from where a store has left it: it is ``ahead_ms`` ahead of the local one."""

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
        """Book a call by the local clock."""
        return self._local.call_at(steady_ms - self._ahead_ms, callback)


def work_s() -> float:
    """Return seconds of the performance counter: how long work takes depends on the machine, whatever clock a test has."""
    return time.perf_counter()


def call_after_work(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    """Call something after so many seconds of the performance counter, whatever clock a test has."""
    return asyncio.get_running_loop().call_later(seconds, call)


def rest_in_thread() -> None:
    """Give the interpreter's lock to the event loop. For threads, which otherwise keep it for up to 5 ms at a time."""
    time.sleep(limits.share_read_pause_ms / 1_000)


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


async def settle(rounds: int = 25) -> None:
    """Give the event loop a few turns, so that what is already under way can happen. No time passes."""
    for _ in range(rounds):
        await asyncio.sleep(0)


class TimeSlice:
    """Bounds how long one loop holds the event loop: ask ``is_over`` after each step, and ``rest`` when it is."""

    __slots__ = ("_clock", "_ends_at")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Begin anew."""
        self._ends_at = self._clock.stopwatch() + limits.slice_ms / 1_000

    @property
    def is_over(self) -> bool:
        """Tell whether it has lasted ``limits.slice_ms``."""
        return self._clock.stopwatch() >= self._ends_at

    async def rest(self) -> None:
        """Let others go on, if it is over, and begin anew."""
        if self.is_over:
            await settle(1)
            self.begin()
