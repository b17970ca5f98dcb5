"""Tokens, client addresses, sliding windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.rate_limit import ClientAddress, SlidingWindow
from penstock.access.tokens import StaticTokens
from penstock.core import limits
from penstock.core.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterable


class SetClock(ManualClock):
    """A clock that is set without an event loop."""

    now = 1_800_000_000_000

    def steady_ms(self) -> int:
        return self.now


def window(clock: ManualClock, requests_max: int = 5, window_ms: int = 1_000) -> SlidingWindow:
    return SlidingWindow(clock, window_ms=window_ms, requests_max=requests_max, cleanup_ms=60_000)


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StaticTokens(["good", ""])


@given(st.text())
def test_without_tokens_everybody_is_let_in_and_with_one_nobody_by_chance(header: str) -> None:
    assert StaticTokens([]).admits(header)
    assert not StaticTokens(["s3cret-that-nobody-guesses"]).admits(header)


async def advance(clock: ManualClock, ms: int) -> None:
    await clock.advance(ms)


@pytest.mark.anyio
async def test_so_many_requests_pass_in_a_window_and_the_next_waits(clock: ManualClock) -> None:
    limit = window(clock)
    assert [limit.count("a") for _ in range(5)] == [0] * 5
    assert limit.count("a") == 1_000
    assert limit.count("b") == 0
    await clock.advance(999)
    assert limit.count("a") == 1
    await clock.advance(1)
    assert [limit.count("a") for _ in range(6)] == [0] * 5 + [1_000]


@pytest.mark.anyio
async def test_bursts_that_keep_the_limit_all_pass(clock: ManualClock) -> None:
    limit = window(clock, window_ms=3_000)
    for _ in range(50):
        assert [limit.count("a") for _ in range(5)] == [0] * 5
        await clock.advance(3_300)


@pytest.mark.anyio
async def test_a_request_passes_at_the_moment_that_was_told(clock: ManualClock) -> None:
    limit = window(clock, window_ms=60_000)
    for _ in range(5):
        assert limit.count("a") == 0
        await clock.advance(7_000)
    for _ in range(12):
        wait_ms = limit.count("a")
        assert wait_ms > 0
        await clock.advance(wait_ms - 1)
        assert limit.count("a") == 1
        await clock.advance(1)
        assert limit.count("a") == 0


@given(st.lists(st.integers(0, 700), max_size=200), st.integers(1, 7))
def test_a_request_passes_if_and_only_if_fewer_than_the_limit_passed_in_the_window(steps: list[int], most: int) -> None:
    clock = SetClock()
    limit = window(clock, requests_max=most)
    passed: list[int] = []
    for step in steps:
        clock.now += step
        recent = [moment for moment in passed if moment > clock.now - 1_000]
        wait_ms = limit.count("a")
        assert wait_ms == (0 if len(recent) < most else recent[-most] + 1_000 - clock.now)
        if not wait_ms:
            passed.append(clock.now)


@given(st.lists(st.integers(0, 9), max_size=300))
def test_a_very_high_limit_is_counted_in_parts_of_the_window_and_keeps_nobody_back_who_keeps_it(steps: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "rate_limit_exact_max", 20)
        clock = SetClock()
        limit = window(clock, requests_max=40, window_ms=400)
        passed: list[int] = []
        for step in steps:
            clock.now += step
            in_window = sum(moment > clock.now - 400 for moment in passed)
            in_less = sum(moment > clock.now - 380 for moment in passed)
            wait_ms = limit.count("a")
            if wait_ms:
                assert in_window >= 40
                clock.now += wait_ms
                assert limit.count("a") == 0
            else:
                assert in_less < 40
            passed.append(clock.now)
            assert len(limit._clients["a"]) <= 2 * 21


def test_the_number_of_remembered_requests_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "rate_limit_marks_max", 10)
    limit = window(clock)
    for number in range(100):
        limit.count(str(number))
    assert sum(map(len, limit._clients.values())) == 10
    assert limit._marks == 10


def test_the_number_of_remembered_clients_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "rate_limit_clients_max", 10)
    limit = window(clock)
    for number in range(100):
        limit.count(str(number))
    assert len(limit._clients) == 10


@pytest.mark.anyio
async def test_clients_not_seen_for_long_are_forgotten(clock: ManualClock) -> None:
    limit = window(clock)
    limit.count("a")
    await clock.advance(61_000)
    limit.count("b")
    assert set(limit._clients) == {"b"}


@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {"x-forwarded-for": "1.1.1.1"}, "1.1.1.1"),
        ("10.0.0.1", {"x-forwarded-for": "6.6.6.6, 1.1.1.1"}, "1.1.1.1"),
        ("10.0.0.1", {"x-forwarded-for": "6.6.6.6, 1.1.1.1, 10.0.0.2"}, "1.1.1.1"),
        ("10.0.0.1", {"x-forwarded-for": "10.0.0.3, 10.0.0.2"}, "10.0.0.3"),
        ("10.0.0.1", {"x-real-ip": "2.2.2.2"}, "2.2.2.2"),
        ("10.0.0.1", {"x-forwarded-for": " , ", "x-real-ip": "2.2.2.2"}, "2.2.2.2"),
        ("8.8.8.8", {"x-forwarded-for": "1.1.1.1", "x-real-ip": "2.2.2.2"}, "8.8.8.8"),
        ("10.0.0.1", {"x-forwarded-for": "x" * 500}, "x" * 64),
        ("unknown", {"x-forwarded-for": "1.1.1.1"}, "unknown"),
        # A proxy may add a line of its own behind what the client sent.
        ("10.0.0.1", {"x-forwarded-for": "6.6.6.6\n1.1.1.1"}, "1.1.1.1"),
        ("::ffff:10.0.0.1", {"x-forwarded-for": "1.1.1.1"}, "1.1.1.1"),
        ("fd00::1", {"x-forwarded-for": "2001:db8::7"}, "2001:db8::7"),
    ],
)
def test_only_trusted_proxies_are_believed(peer: str, headers: dict[str, str], client: str) -> None:
    trusted: Iterable[str] = ["10.0.0.0/8", "fd00::/8"]
    assert ClientAddress(trusted).of(peer, Lines(headers)) == client


class Lines:
    """Headers as the HTTP server hands them over: several lines may have one name."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers

    def get(self, name: str, default: str) -> str:
        return self.headers.get(name, default)

    def get_all(self, name: str) -> list[str]:
        return self.headers[name].split("\n") if name in self.headers else []
