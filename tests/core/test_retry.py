"""When a failed job is tried again, and when it is given up."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import limits, retry
from penstock.core.job import DeathReason, JobFlag
from penstock.core.lifecycle import Arrow, State
from tests.core.test_lifecycle import NOW, STEADY, job_in


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(retry).failed == 0


@given(st.integers(0, limits.backoff_ms_max), st.integers(0, 2_000))
def test_the_delay_is_the_formula_of_the_contract(backoff: int, failures: int) -> None:
    assert retry.retry_delay_ms(backoff, failures) == min(backoff * 2**failures, limits.DAY_MS)


def test_three_attempts_mean_three_deliveries() -> None:
    first = retry.after_failure(job_in(State.ACTIVE, attempts=0), NOW)
    second = retry.after_failure(job_in(State.ACTIVE, attempts=1), NOW)
    third = retry.after_failure(job_in(State.ACTIVE, attempts=2), NOW)
    assert first == (Arrow.RETRY, NOW + 1_000)
    assert second == (Arrow.RETRY, NOW + 2_000)
    assert third[0] is Arrow.BURY


def test_a_final_failure_leaves_no_attempts() -> None:
    assert retry.after_failure(job_in(State.ACTIVE, attempts=0), NOW, final=True)[0] is Arrow.BURY
    removed = job_in(State.ACTIVE, attempts=0, flags=JobFlag.REMOVE_ON_FAIL)
    assert retry.after_failure(removed, NOW, final=True)[0] is Arrow.BURY_REMOVE


def test_without_backoff_the_retry_is_at_once() -> None:
    assert retry.after_failure(job_in(State.ACTIVE, backoff=0), NOW) == (Arrow.RETRY_NOW, NOW)


def test_remove_on_fail_deletes_instead_of_burying() -> None:
    last = job_in(State.ACTIVE, attempts=2, flags=JobFlag.REMOVE_ON_FAIL)
    assert retry.after_failure(last, NOW)[0] is Arrow.BURY_REMOVE
    assert retry.after_lease_expiry(last, 3, STEADY)[0] is Arrow.STALL_REMOVE


@pytest.mark.parametrize(
    ("attempts", "stalls", "max_stalls", "arrow"),
    [
        (0, 0, 3, Arrow.STALL),
        (1, 1, 3, Arrow.STALL),
        (2, 2, 3, Arrow.STALL_BURY),
        (0, 0, 1, Arrow.STALL_BURY),
        (2, 0, 9, Arrow.STALL_BURY),
    ],
)
def test_a_lapse_is_final_after_enough_stalls_or_attempts(attempts: int, stalls: int, max_stalls: int, arrow: Arrow) -> None:
    job = job_in(State.ACTIVE, attempts=attempts, stalls=stalls)
    assert retry.after_lease_expiry(job, max_stalls, STEADY)[0] is arrow


def test_a_lapse_says_whether_it_was_silence_or_the_timeout() -> None:
    assert retry.after_lease_expiry(job_in(State.ACTIVE), 3, STEADY)[1:] == ("Job stalled 1 times", DeathReason.STALLED)
    late = job_in(State.ACTIVE, deadline=STEADY)
    assert retry.after_lease_expiry(late, 3, STEADY)[1:] == ("Job timeout exceeded", DeathReason.TIMEOUT)


def test_a_message_stalls_as_often_as_it_has_attempts_and_goes_to_the_back() -> None:
    message = job_in(State.ACTIVE, attempts=0, stalls=7, flags=JobFlag.MESSAGE)
    assert retry.after_lease_expiry(message, 3, STEADY)[0] is Arrow.STALL_BACK
    last = job_in(State.ACTIVE, attempts=2, flags=JobFlag.MESSAGE)
    assert retry.after_lease_expiry(last, 9, STEADY)[0] is Arrow.STALL_BURY


def test_a_plan_goes_before_what_the_job_says() -> None:
    plan = (1_000, 5_000)
    for attempts, delay in enumerate(plan):
        job = job_in(State.ACTIVE, attempts=attempts, max_attempts=1, backoff=77)
        assert retry.after_failure(job, NOW, plan_ms=plan) == (Arrow.RETRY, NOW + delay)
        assert retry.after_failure(job, NOW, plan_ms=plan, final=True)[0] is Arrow.BURY
    assert retry.after_failure(job_in(State.ACTIVE, attempts=2, max_attempts=9), NOW, plan_ms=plan)[0] is Arrow.BURY
    assert retry.after_failure(job_in(State.ACTIVE), NOW, plan_ms=())[0] is Arrow.BURY
    assert retry.after_failure(job_in(State.ACTIVE), NOW, plan_ms=(0,)) == (Arrow.RETRY_NOW, NOW)
