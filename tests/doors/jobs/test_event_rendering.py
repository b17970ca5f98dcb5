"""Every event of the contract has a name, a payload and a form; the table is compared with the contract's own tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.core.events import FIELDS, PAYLOAD_KINDS, EventKind
from penstock.core.ids import to_uuid
from penstock.doors.jobs import event_rendering
from penstock.doors.jobs.event_filter import EventFilter
from penstock.doors.jobs.event_rendering import PATTERNS, PAYLOADS, OutgoingEvent
from penstock.store.contract import JournalBlock
from tests.doors.jobs import seed

each_kind = pytest.mark.parametrize("kind", PAYLOADS, ids=lambda kind: kind.wire_name)

AT = 1_800_000_000_000
#: What the journal keeps, by field.
KEPT: dict[str, Any] = {
    "priority": 7, "run_at": AT + 500, "size": 2, "attempts": 1, "token": 9, "created_at": AT - 2_000, "started_at": AT,
    "progress": 40, "expires_at": AT - 1_000, "error": "broken", "reason": "max_attempts_exceeded", "message": None,
    "count": 3, "cleaned": {"states": [0, 4], "count": 3}, "max": 5, "concurrency": 6, "config": {"enabled": True},
    "finished_at": None, "due_at": AT - 100,
}  # fmt: skip


def told(kind: EventKind, payload: dict[str, Any] | None = None) -> OutgoingEvent:
    fields = [payload] if kind in PAYLOAD_KINDS else [KEPT[name] for name in FIELDS[kind]]
    event = [kind.value, 0 if kind in PAYLOAD_KINDS else 4, 77, None, *fields]
    return OutgoingEvent(JournalBlock(10, AT, [event], {4: ("default", "mail")}), 0)


def test_the_table_is_the_contracts() -> None:
    assert {kind.wire_name: fields for kind, fields in PAYLOADS.items()} == seed.EVENTS


@each_kind
def test_an_event_carries_exactly_its_payload(kind: EventKind) -> None:
    names = [name.removesuffix("?") for name in PAYLOADS[kind]]
    shown = json.loads(event_rendering.pubsub(told(kind, dict.fromkeys(names, 1))))
    assert list(shown) == ["event", "ts", "data"]
    assert (shown["event"], shown["ts"], list(shown["data"])) == (kind.wire_name, AT, names)


def test_values_are_worked_out_from_what_the_journal_keeps() -> None:
    job = to_uuid(77)
    expected = {
        EventKind.JOB_EXPIRED: {"queue": "mail", "jobId": job, "ttl": 1_000, "age": 2_000},
        EventKind.JOB_DELAYED: {"queue": "mail", "jobId": job, "delay": 500},
        EventKind.JOB_DELAY_CHANGED: {"jobId": job, "newDelay": 500},
        EventKind.JOB_PRIORITY_CHANGED: {"jobId": job, "newPriority": 7},
        EventKind.JOB_FAILED: {"queue": "mail", "jobId": job, "error": "broken"},
        EventKind.QUEUE_CLEANED: {"queue": "mail", "state": "waiting,failed", "count": 3},
        EventKind.CONFIG_STALL_CHANGED: {"queue": "mail", "config": {"enabled": True}},
    }
    assert {kind: told(kind).payload() for kind in expected} == expected


@pytest.mark.parametrize("kind", event_rendering.LEGACY, ids=lambda kind: kind.name)
def test_the_older_form_names_queue_and_job(kind: EventKind) -> None:
    shown = json.loads(event_rendering.legacy(told(kind)))
    assert shown["eventType"] == event_rendering.LEGACY[kind]
    assert (shown["queue"], shown["timestamp"]) == ("mail", AT)
    assert ("jobId" in shown) == kind.name.startswith("JOB_")


def test_streams_carry_the_number_and_perhaps_the_name() -> None:
    told_ = told(EventKind.JOB_PUSHED)
    assert event_rendering.stream_legacy(told_).startswith(b'id: 10\ndata: {"eventType":"pushed","queue":"mail",')
    assert event_rendering.stream_typed(told_).startswith(b'id: 10\nevent: job:pushed\ndata: {"queue":"mail",')
    unnumbered = OutgoingEvent(JournalBlock(0, AT, [[EventKind.WORKER_HEARTBEAT, 0, 0, None, {"workerId": "w"}]], {}), 0)
    assert event_rendering.stream_typed(unnumbered).startswith(b"event: worker:heartbeat\n")


def test_an_event_is_rendered_once_for_all() -> None:
    told_ = told(EventKind.JOB_PUSHED)
    assert told_.form(event_rendering.pubsub) is told_.form(event_rendering.pubsub)


def test_wildcards_stand_for_their_category() -> None:
    for name, kinds in PATTERNS.items():
        if name == "*":
            assert kinds == set(PAYLOADS)
        elif name.endswith(":*"):
            assert {kind.wire_name for kind in kinds} == {each for each in seed.EVENTS if each.startswith(name[:-1])}
    assert len(PATTERNS["job:*"]) == 15


def test_a_single_event_can_be_left_out_of_a_wildcard() -> None:
    subscription = EventFilter()
    subscription.add(["job:*", "queue:counts"])
    subscription.remove(["job:progress"])
    assert subscription.kinds == PATTERNS["job:*"] - PATTERNS["job:progress"] | PATTERNS["queue:counts"]
    subscription.add(["job:progress"])
    assert subscription.kinds == PATTERNS["job:*"] | PATTERNS["queue:counts"]
    subscription.remove([])
    assert subscription.kinds == set()
