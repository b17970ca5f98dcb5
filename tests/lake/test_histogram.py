"""Histograms with buckets of 2 %: right to 1 %, whatever is put in and however it is added up."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake import histogram

TIMES = st.integers(min_value=0, max_value=10**12)


@given(TIMES)
def test_the_value_of_a_bucket_is_within_one_percent_of_what_was_put_in(ms: int) -> None:
    value = histogram.value_of(histogram.bucket_of(ms))
    assert abs(value - ms) <= 0.01 * ms


@given(st.integers(min_value=0, max_value=49))
def test_short_times_are_exact(ms: int) -> None:
    assert histogram.value_of(histogram.bucket_of(ms)) == ms


@given(TIMES, TIMES)
def test_a_longer_time_is_never_in_an_earlier_bucket(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert histogram.bucket_of(shorter) <= histogram.bucket_of(longer)


@given(st.lists(TIMES, min_size=1, max_size=200), st.sampled_from([0, 0.5, 0.9, 0.95, 0.99, 0.999, 1]))
def test_a_percentile_is_within_one_percent_of_the_true_one(times: list[int], share: float) -> None:
    true = sorted(times)[max(1, math.ceil(share * len(times))) - 1]
    found = histogram.percentile(Counter(map(histogram.bucket_of, times)), share)
    assert found is not None
    assert abs(found - true) <= 0.01 * true


@given(st.lists(TIMES, max_size=100), st.lists(TIMES, max_size=100))
def test_histograms_of_parts_add_up_to_that_of_the_whole(one: list[int], other: list[int]) -> None:
    parts = [Counter(map(histogram.bucket_of, times)) for times in (one, other)]
    assert histogram.add(parts) == Counter(map(histogram.bucket_of, one + other))


def test_of_nothing_there_is_no_percentile() -> None:
    assert histogram.percentile({}, 0.5) is None


def test_a_percentile_is_asked_for_as_a_share() -> None:
    with pytest.raises(ValueError, match="from 0 to 1, not 95"):
        histogram.percentile({3: 1}, 95)
