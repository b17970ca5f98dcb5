"""Quotas: how many jobs a namespace may be given in a minute."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.quotas import MemoryCounter, Quotas
from penstock.core import limits
from penstock.core.clock import ManualClock
from penstock.core.errors import InvalidInput, QuotaExceeded

pytestmark = pytest.mark.anyio


async def test_so_many_pass_in_a_minute_and_the_next_waits(clock: ManualClock) -> None:
    quotas = Quotas({"acme": 3}, MemoryCounter(clock))
    await quotas.admit({"acme": 2})
    await clock.advance(10_000)
    await quotas.admit({"acme": 1})
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 1})
    assert str(caught.value) == "namespace acme exceeded quota of 3 enqueues/minute. Retry in 50 s."
    assert caught.value.retry_after_ms == 50_000
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 3})
    assert caught.value.retry_after_ms == 60_000
    await clock.advance(49_999)
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"acme": 1})
    await clock.advance(1)
    await quotas.admit({"acme": 2})


async def test_what_is_refused_for_one_namespace_is_not_counted_for_the_others(clock: ManualClock) -> None:
    quotas = Quotas({"acme": 5, "small": 1}, MemoryCounter(clock))
    await quotas.admit({"small": 1, "acme": 1})
    await clock.advance(1_000)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match="namespace small"):
            await quotas.admit({"acme": 3, "small": 1, "free": 100})
    with pytest.raises(InvalidInput, match="namespace small"):
        await quotas.admit({"acme": 3, "small": 2})
    await quotas.admit({"acme": 4})
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 1})
    assert caught.value.retry_after_ms == 59_000, "what was counted before is still counted as of then"


async def test_a_batch_passes_as_a_whole_or_not_at_all(clock: ManualClock) -> None:
    quotas = Quotas({"acme": 10}, MemoryCounter(clock))
    await quotas.admit({"acme": 8})
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"acme": 3})
    await quotas.admit({"acme": 2})
    with pytest.raises(InvalidInput, match="send fewer than 11"):  # waiting would not help
        await quotas.admit({"acme": 11})


async def test_who_has_no_quota_has_no_limit_unless_there_is_one_for_everybody(clock: ManualClock) -> None:
    quotas = Quotas({"acme": 1}, MemoryCounter(clock))
    assert quotas.of("other") is None
    for _ in range(10):
        await quotas.admit({"other": 1_000})
    quotas = Quotas({"acme": 5, "*": 1, "closed": 0}, MemoryCounter(clock))
    assert (quotas.of("acme"), quotas.of("other")) == (5, 1)
    for namespace in ("a", "b"):
        await quotas.admit({namespace: 1})
        with pytest.raises(QuotaExceeded):
            await quotas.admit({namespace: 1})
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"closed": 1})


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 4)), max_size=80))
def test_no_minute_ever_holds_more_and_waiting_as_told_always_helps(steps: list[tuple[int, int]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        counter = MemoryCounter(clock)
        passed: list[tuple[int, int]] = []
        for pause, count in steps:
            await clock.advance(pause)
            wait_ms = await counter.take("a", count, 5)
            if wait_ms:
                await clock.advance(wait_ms)
                assert await counter.take("a", count, 5) == 0
            passed.append((clock.steady_ms(), count))
        for moment, _ in passed:
            assert sum(count for other, count in passed if moment <= other < moment + 60_000) <= 5

    asyncio.run(run())


async def test_what_is_remembered_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "quota_namespaces_max", 10)
    counter = MemoryCounter(clock)
    for number in range(100):
        await counter.take(str(number), 1, 10)
    assert len(counter._taken) == 10
    for _ in range(2_000):
        await clock.advance(97)
        await counter.take("busy", 1, 10**9)
    assert len(counter._taken["busy"]) <= 61
