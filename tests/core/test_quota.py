"""What was given in the last minute, counted by the second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.quota import Windows

if TYPE_CHECKING:
    import pytest


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "quota_namespaces_max", 10)
    windows = Windows()
    for number in range(100):
        windows.take(str(number), 1, 10, 0)
    assert len(windows._taken) == 10
    for number in range(2_000):
        windows.take("busy", 1, 10**9, 97 * number)
    assert len(windows._taken["busy"]) <= 61


def test_what_was_counted_is_summed_up() -> None:
    windows = Windows()
    windows.take("a", 2, 5, 0)
    windows.take("b", 1, 5, 30_000)
    windows.take("b", 7, None, 59_999)
    assert windows.counts(59_999) == {"a": 2, "b": 8}
    assert windows.counts(60_000) == {"b": 8}
    windows.refund("b", 10)
    assert windows.counts(60_000) == {}
