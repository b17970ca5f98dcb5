"""Moments as RFC 3339 spells them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.timestamps import from_rfc3339, to_rfc3339


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T01:00:00.5+01:00", 500),
        ("1970-01-01T00:00:00.0001Z", 1),
        ("1970-01-01T00:00:00.123456789Z", 124),
        ("1970-01-01T00:00:59.999000Z", 59_999),
        ("1970-01-01T00:00:60Z", 60_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
    ],
)
def test_what_is_read(text: str, ms: int) -> None:
    assert from_rfc3339(text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "1970-01-01", "1970-01-01T00:00:00", "1970-01-01T00:00Z", "1970-02-30T00:00:00Z", "1970-01-01T24:00:00Z",
        "1970-01-01T00:61:00Z", "0000-01-01T00:00:00Z", "1970-01-01T00:00:00.Z", "1970-01-01T00:00:00+1:00",
        "1970-01-01T00:00:00Z ",
        "１970-01-01T00:00:00Z", "19700101T000000Z",
    ],
)  # fmt: skip
def test_what_is_not(text: str) -> None:
    assert from_rfc3339(text) is None


@settings(deadline=None, database=None)
@given(st.integers(min_value=0, max_value=250_000_000_000_000))
def test_what_is_written_is_read_back(ms: int) -> None:
    assert from_rfc3339(to_rfc3339(ms)) == ms
