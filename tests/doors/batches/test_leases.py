"""Leases of messages that were dequeued together: when a word about one renews the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.queue import QueueKey
from penstock.doors.batches.leases import Leases

if TYPE_CHECKING:
    from penstock.engine.jobs.settle_by_id import ClaimedJob

TOPIC = QueueKey("default", "leads")
LEASE_MS = 30_000


def ids(receipts: list[ClaimedJob]) -> list[int]:
    return [each.id for each in receipts]


@pytest.fixture
def leases() -> Leases:
    held = Leases()
    held.take(TOPIC, [1, 2, 3], LEASE_MS, 0)
    return held


def test_a_quick_consumer_causes_no_renewals(leases: Leases) -> None:
    assert leases.settled([1], LEASE_MS // 3 - 1) == []
    assert len(leases) == 2


def test_a_word_about_one_renews_the_others(leases: Leases) -> None:
    renewed = leases.settled([1], 10_000)
    assert ids(renewed) == [2, 3]
    assert {each.queue for each in renewed} == {TOPIC}
    assert leases.settled([2], 19_999) == [], "a third of the lease, counted from the renewal"
    assert leases.renewed([3], 30_000) == [], "it is the only one that is left"


def test_a_heartbeat_renews_the_others_and_settles_nothing(leases: Leases) -> None:
    assert ids(leases.renewed([2], 10_000)) == [1, 3]
    assert len(leases) == 3


def test_what_has_run_out_is_not_renewed(leases: Leases) -> None:
    assert leases.settled([1], LEASE_MS) == []
    leases.take(TOPIC, [4, 5], LEASE_MS, LEASE_MS)
    assert len(leases) == 2, "and forgotten with the next ones"


def test_single_messages_are_not_kept() -> None:
    leases = Leases()
    leases.take(TOPIC, [1], LEASE_MS, 0)
    assert len(leases) == 0
    assert leases.settled([1], 10_000) == []


def test_a_message_that_comes_again_belongs_to_its_latest_group(leases: Leases) -> None:
    leases.take(TOPIC, [1, 9], LEASE_MS, 5_000)
    assert ids(leases.settled([1], 15_000)) == [9]


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "batch_leases_max", 4)
    leases = Leases()
    for start in range(0, 100, 2):
        leases.take(TOPIC, [start, start + 1], LEASE_MS, 0)
    assert len(leases) == 4
