"""The clock: two readings, alarms, and a manual one for tests."""

from __future__ import annotations

import asyncio

import pytest

from penstock.core.clock import ManualClock, SystemClock

pytestmark = pytest.mark.anyio


async def test_the_system_clocks_steady_reading_starts_at_the_wall_clock() -> None:
    clock = SystemClock()
    assert abs(clock.steady_ms() - clock.now_ms()) < 1_000
    assert clock.stopwatch() <= clock.stopwatch()


async def test_an_alarm_of_the_system_clock_rings_and_not_before_its_time() -> None:
    clock = SystemClock()
    rung = asyncio.Event()
    at = clock.steady_ms() + 20
    clock.call_at(at, rung.set)
    await rung.wait()
    assert clock.steady_ms() >= at - 1


async def test_the_manual_clock_rings_alarms_in_order_at_their_own_moments(clock: ManualClock) -> None:
    start, rung = clock.steady_ms(), []
    clock.call_at(start + 30, lambda: rung.append(("b", clock.steady_ms() - start)))
    clock.call_at(start + 10, lambda: rung.append(("a", clock.steady_ms() - start)))
    cancelled = clock.call_at(start + 20, lambda: rung.append(("never", 0)))
    cancelled.cancel()
    cancelled.cancel()
    await clock.advance(25)
    assert rung == [("a", 10)]
    await clock.advance(25)
    assert rung == [("a", 10), ("b", 30)]
    assert clock.steady_ms() == start + 50


async def test_a_jump_of_the_wall_clock_moves_nothing_else(clock: ManualClock) -> None:
    now, steady = clock.now_ms(), clock.steady_ms()
    clock.jump_wall(-3_600_000)
    assert (clock.now_ms(), clock.steady_ms()) == (now - 3_600_000, steady)
