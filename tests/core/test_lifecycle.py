"""The lifecycle, arrow by arrow, from every state: the allowed ones do what the table says, the others do nothing."""

from __future__ import annotations

import msgspec
import pytest

from penstock.core import lifecycle
from penstock.core.errors import WrongState
from penstock.core.job import JobFlag, JobRecord
from penstock.core.lifecycle import TRANSITIONS, Arrow, State

NOW, STEADY = 1_800_000_000_000, 1_700_000_000_000


class Moment:
    now_ms, steady_ms = NOW, STEADY

    def __init__(self) -> None:
        self.numbers = iter(range(1_000, 2_000))

    def serial(self) -> int:
        return next(self.numbers)


def job_in(state: State, **changes: object) -> JobRecord:
    job = JobRecord(
        id=7, namespace=1, queue=1, created_at=NOW - 60_000, max_attempts=3, backoff=1_000, timeout=None, expires_at=None,
        flags=0, group_id=None, unique_key=None, custom_id=None, state=state.value, priority=5, position=7,
        run_at=NOW - 60_000, size=2,
    )  # fmt: skip
    if state is State.ACTIVE:
        job.token, job.lease_ms, job.lease_until, job.started_at = 99, 30_000, STEADY + 10_000, NOW - 20_000
    if state in (State.COMPLETED, State.DEAD):
        job.attempts, job.stalls, job.finished_at, job.started_at, job.progress = 2, 1, NOW - 1_000, NOW - 2_000, 80
    return msgspec.structs.replace(job, **changes)


#: The whole law once more, written down independently of the table: where each arrow may start, and where it leads.
EXPECTED: dict[Arrow, dict[State, State]] = {
    Arrow.ENQUEUE: {State.NOWHERE: State.WAITING},
    Arrow.ENQUEUE_FRONT: {State.NOWHERE: State.WAITING},
    Arrow.SCHEDULE: {State.NOWHERE: State.DELAYED},
    Arrow.AWAIT: {State.NOWHERE: State.WAITING_CHILDREN},
    Arrow.UNBLOCK: {State.WAITING_CHILDREN: State.WAITING},
    Arrow.UNBLOCK_LATER: {State.WAITING_CHILDREN: State.DELAYED},
    Arrow.CHILD_BURY: {State.WAITING_CHILDREN: State.DEAD},
    Arrow.CHILD_REMOVE: {State.WAITING_CHILDREN: State.NOWHERE},
    Arrow.DUE: {State.DELAYED: State.WAITING},
    Arrow.EXPIRE: dict.fromkeys((State.WAITING, State.DELAYED, State.WAITING_CHILDREN), State.NOWHERE),
    Arrow.STALL: {State.ACTIVE: State.WAITING},
    Arrow.STALL_BACK: {State.ACTIVE: State.WAITING},
    Arrow.STALL_BURY: {State.ACTIVE: State.DEAD},
    Arrow.STALL_REMOVE: {State.ACTIVE: State.NOWHERE},
    Arrow.CLAIM: {State.WAITING: State.ACTIVE},
    Arrow.PREFETCH: {State.WAITING: State.ACTIVE},
    Arrow.START: {State.ACTIVE: State.ACTIVE},
    Arrow.HEARTBEAT: {State.ACTIVE: State.ACTIVE},
    Arrow.RENEW: {State.ACTIVE: State.ACTIVE},
    Arrow.PROGRESS: {State.ACTIVE: State.ACTIVE},
    Arrow.RELEASE: {State.ACTIVE: State.WAITING},
    Arrow.RETURN: {State.ACTIVE: State.WAITING},
    Arrow.SEND_BACK: {State.ACTIVE: State.WAITING},
    Arrow.SNOOZE: {State.ACTIVE: State.DELAYED},
    Arrow.POSTPONE: {State.ACTIVE: State.DELAYED},
    Arrow.PARK: {State.ACTIVE: State.WAITING_CHILDREN},
    Arrow.COMPLETE: {State.ACTIVE: State.COMPLETED},
    Arrow.COMPLETE_REMOVE: {State.ACTIVE: State.NOWHERE},
    Arrow.RETRY: {State.ACTIVE: State.DELAYED},
    Arrow.RETRY_NOW: {State.ACTIVE: State.WAITING},
    Arrow.BURY: {State.ACTIVE: State.DEAD},
    Arrow.BURY_REMOVE: {State.ACTIVE: State.NOWHERE},
    Arrow.PROMOTE: {State.DELAYED: State.WAITING},
    Arrow.RESCHEDULE: {State.DELAYED: State.DELAYED},
    Arrow.REPRIORITIZE: {each: each for each in (State.WAITING, State.DELAYED, State.WAITING_CHILDREN)},
    Arrow.EDIT: {each: each for each in (State.WAITING, State.DELAYED, State.ACTIVE, State.WAITING_CHILDREN)},
    Arrow.REPLACE: dict.fromkeys((State.WAITING, State.DELAYED), State.WAITING),
    Arrow.REPLACE_LATER: dict.fromkeys((State.WAITING, State.DELAYED), State.DELAYED),
    Arrow.DISCARD: dict.fromkeys((State.WAITING, State.DELAYED, State.ACTIVE, State.WAITING_CHILDREN), State.DEAD),
    Arrow.CANCEL: dict.fromkeys((State.WAITING, State.DELAYED, State.ACTIVE, State.WAITING_CHILDREN), State.NOWHERE),
    Arrow.INSPECT: {State.DEAD: State.DEAD},
    Arrow.PUT_DOWN: {State.DEAD: State.DEAD},
    Arrow.REVIVE: {State.DEAD: State.WAITING},
    Arrow.REPLAY: {State.COMPLETED: State.WAITING},
    Arrow.DRAIN: {State.WAITING: State.NOWHERE, State.DELAYED: State.NOWHERE},
    Arrow.CLEAN: dict.fromkeys(
        (State.WAITING, State.DELAYED, State.COMPLETED, State.DEAD, State.WAITING_CHILDREN), State.NOWHERE
    ),
    Arrow.PURGE: {State.DEAD: State.NOWHERE},
    Arrow.OBLITERATE: dict.fromkeys([state for state in State if state is not State.NOWHERE], State.NOWHERE),
    Arrow.FORGET: {State.COMPLETED: State.NOWHERE, State.DEAD: State.NOWHERE},
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("arrow", Arrow)
def test_every_arrow_from_every_state(arrow: Arrow, state: State) -> None:
    job = job_in(state)
    before = msgspec.structs.replace(job)
    target = EXPECTED[arrow].get(state)
    if target is None:
        with pytest.raises(WrongState, match=f"Cannot {arrow} a job that is {state.label}"):
            lifecycle.move(job, arrow, Moment(), NOW + 5_000)
        assert job == before
    else:
        lifecycle.move(job, arrow, Moment(), 50)
        assert State(job.state) is target
        assert (job.id, job.created_at, job.max_attempts) == (before.id, before.created_at, before.max_attempts)


def test_whoever_leaves_a_worker_has_no_lease_but_keeps_its_token() -> None:
    for (source, arrow), transition in TRANSITIONS.items():
        if source == State.ACTIVE and transition.target not in (State.ACTIVE, State.NOWHERE):
            job = job_in(State.ACTIVE, deadline=STEADY + 1)
            lifecycle.move(job, arrow, Moment(), NOW)
            assert job.lease_until is None, arrow
            assert job.deadline is None, arrow
            assert job.token == 99, arrow


def test_a_claim_starts_a_lease_with_a_fresh_token() -> None:
    job = job_in(State.WAITING)
    lifecycle.move(job, Arrow.CLAIM, Moment(), 30_000)
    assert (job.token, job.lease_ms, job.lease_until, job.started_at) == (1_000, 30_000, STEADY + 30_000, NOW)


def test_what_is_set_aside_has_a_lease_and_is_not_started() -> None:
    job = job_in(State.WAITING, timeout=5_000)
    lifecycle.move(job, Arrow.PREFETCH, Moment(), 30_000)
    assert (job.token, job.lease_until, job.started_at, job.deadline) == (1_000, STEADY + 30_000, None, None)
    lifecycle.move(job, Arrow.START, Moment(), 2_000)
    assert (job.token, job.lease_ms, job.lease_until, job.started_at) == (1_000, 2_000, STEADY + 2_000, NOW)
    assert job.deadline == STEADY + 5_000


def test_a_dead_job_is_in_one_pair_of_hands_at_a_time() -> None:
    job, moment = job_in(State.DEAD), Moment()
    lifecycle.move(job, Arrow.INSPECT, moment, 30_000)
    assert (job.token, job.lease_until) == (1_000, STEADY + 30_000)
    lifecycle.move(job, Arrow.PUT_DOWN, moment)
    assert (job.token, job.lease_until) == (1_000, None)
    lifecycle.move(job, Arrow.INSPECT, moment, 30_000)
    lifecycle.move(job, Arrow.REVIVE, moment)
    assert (State(job.state), job.lease_until, job.attempts) == (State.WAITING, None, 0)


def test_a_message_whose_lease_ran_out_goes_to_the_back() -> None:
    job = job_in(State.ACTIVE, position=5)
    lifecycle.move(job, Arrow.STALL_BACK, Moment())
    assert (job.position, job.attempts, job.stalls) == (1_000, 1, 1)


def test_whoever_returns_stands_in_front_of_all_others() -> None:
    first, second = job_in(State.ACTIVE, position=5), job_in(State.ACTIVE, position=6)
    moment = Moment()
    lifecycle.move(first, Arrow.RETURN, moment)
    lifecycle.move(second, Arrow.RETURN, moment)
    assert second.position < first.position < 0
    assert first.attempts == 0


def test_whoever_is_sent_back_stands_behind_all_others_even_if_it_came_in_front() -> None:
    job = job_in(State.ACTIVE, position=-5, flags=JobFlag.LIFO)
    lifecycle.move(job, Arrow.SEND_BACK, Moment())
    assert job.position == 1_000
    assert not job.has(JobFlag.LIFO)


def test_whoever_snoozes_comes_back_in_front_the_one_put_off_last_first() -> None:
    first, second = job_in(State.ACTIVE), job_in(State.ACTIVE)
    moment = Moment()
    for job in (first, second):
        lifecycle.move(job, Arrow.SNOOZE, moment, NOW + 1_000)
        assert job.run_at == NOW + 1_000
    assert first.position < second.position, "which tells who was put off first"
    for job in (first, second):
        lifecycle.move(job, Arrow.DUE, moment)
    assert second.position < first.position < 0


def test_a_claim_without_a_length_does_not_run_out() -> None:
    job = job_in(State.WAITING)
    lifecycle.move(job, Arrow.CLAIM, Moment(), 0)
    assert job.lease_until is None


@pytest.mark.parametrize(("lease", "until"), [(10_000, STEADY + 5_000), (2_000, STEADY + 2_000), (0, STEADY + 5_000)])
def test_a_timeout_ends_the_lease_whatever_its_length(lease: int, until: int) -> None:
    job = job_in(State.WAITING, timeout=5_000)
    lifecycle.move(job, Arrow.CLAIM, Moment(), lease)
    assert job.lease_until == until
    lifecycle.move(job, Arrow.RENEW, Moment(), 60_000)
    assert job.lease_until == STEADY + 5_000


def test_a_failure_counts_an_attempt_and_a_lapse_counts_a_stall_too() -> None:
    failed = job_in(State.ACTIVE)
    lifecycle.move(failed, Arrow.RETRY, Moment(), NOW + 1_000)
    assert (failed.attempts, failed.stalls, failed.run_at) == (1, 0, NOW + 1_000)
    stalled = job_in(State.ACTIVE)
    lifecycle.move(stalled, Arrow.STALL, Moment())
    assert (stalled.attempts, stalled.stalls, stalled.position) == (1, 1, 7)


def test_a_release_costs_nothing_and_keeps_the_place_in_line() -> None:
    job = job_in(State.ACTIVE)
    lifecycle.move(job, Arrow.RELEASE, Moment())
    assert (job.attempts, job.stalls, job.position) == (0, 0, 7)


@pytest.mark.parametrize("arrow", [Arrow.REVIVE, Arrow.REPLAY])
def test_who_comes_back_to_life_starts_over_at_the_back(arrow: Arrow) -> None:
    job = job_in(lifecycle.sources(arrow)[0])
    lifecycle.move(job, arrow, Moment())
    assert (job.attempts, job.stalls, job.progress, job.started_at, job.finished_at) == (0, 0, 0, None, None)
    assert (job.position, job.run_at) == (1_000, NOW)


def test_last_in_first_out_enters_at_the_front_each_time() -> None:
    fresh = job_in(State.NOWHERE, flags=JobFlag.LIFO)
    lifecycle.move(fresh, Arrow.ENQUEUE_FRONT, Moment())
    assert fresh.position == -7
    due = job_in(State.DELAYED, flags=JobFlag.LIFO)
    lifecycle.move(due, Arrow.DUE, Moment())
    assert due.position == -1_000


def test_starting_many_is_moving_each() -> None:
    for arrow in (Arrow.ENQUEUE, Arrow.ENQUEUE_FRONT, Arrow.SCHEDULE):
        together = [job_in(State.NOWHERE, id=n, position=n) for n in range(1, 4)]
        apart = [msgspec.structs.replace(job) for job in together]
        lifecycle.start(together, arrow, Moment())
        for job in apart:
            lifecycle.move(job, arrow, Moment(), job.run_at)
        assert together == apart


def test_the_table_draws_itself() -> None:
    assert "[*] --> waiting: enqueue, enqueue-front" in lifecycle.diagram()
    assert lifecycle.table().count("\n") == len(Arrow) + 1
