"""What stays open on the strength of a token ends with it, whatever happens to the wall clock meanwhile."""

from __future__ import annotations

import pytest

from penstock.access.expiry import Expiry
from penstock.access.identity import UNRESTRICTED, Identity
from penstock.core import limits
from penstock.core.clock import ManualClock

pytestmark = pytest.mark.anyio


async def test_it_ends_at_its_time_and_not_before() -> None:
    clock, ended = ManualClock(), list[str]()
    Expiry(Identity("a", {}, clock.now_ms() + 3 * limits.DAY_MS), clock, lambda: ended.append("now"))
    await clock.advance(3 * limits.DAY_MS - 1)
    assert ended == []
    await clock.advance(1)
    assert ended == ["now"]


async def test_a_clock_that_was_set_back_gives_it_more_time() -> None:
    clock, ended = ManualClock(), list[str]()
    Expiry(Identity("a", {}, clock.now_ms() + 1_000), clock, lambda: ended.append("now"))
    clock.jump_wall(-5_000)
    await clock.advance(5_999)
    assert ended == []
    await clock.advance(1)
    assert ended == ["now"]


async def test_what_is_over_ends_at_once_and_what_never_ends_does_not() -> None:
    clock, ended = ManualClock(), list[str]()
    Expiry(Identity("a", {}, clock.now_ms()), clock, lambda: ended.append("now"))
    assert ended == ["now"]
    Expiry(UNRESTRICTED, clock, lambda: ended.append("never"))
    Expiry(Identity("a", {}, clock.now_ms() + 1), clock, lambda: ended.append("unheard")).cancel()
    await clock.advance(2 * limits.DAY_MS)
    assert ended == ["now"]


async def test_what_is_ended_before_its_time_is_told_once_to_all_who_still_listen() -> None:
    clock, ended = ManualClock(), list[str]()
    somebody = Identity("a", {}, clock.now_ms() + 1_000)
    Expiry(somebody, clock, lambda: ended.append("one"))
    Expiry(somebody, clock, lambda: ended.append("two"))
    Expiry(somebody, clock, lambda: ended.append("unheard")).cancel()
    somebody.end()
    await clock.advance(2_000)
    assert sorted(ended) == ["one", "two"]
