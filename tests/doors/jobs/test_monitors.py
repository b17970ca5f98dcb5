"""What nobody causes is told at its pace, once, and computed only while somebody wants it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow
from penstock.doors.jobs import event_rendering
from penstock.doors.jobs.event_hub import EventHub, EventReader
from penstock.doors.jobs.event_rendering import PATTERNS, PAYLOADS
from penstock.doors.jobs.monitors import Monitors, Thresholds
from penstock.doors.ops.health import Uptime
from penstock.engine.worker_registry import WorkerRegistry
from tests.support.engines import ack, claim_job, move, push, push_many

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.doors.jobs.event_rendering import OutgoingEvent
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

Heard = list[dict[str, Any]]


class Desk:
    """A hub with a watch, and one reader."""

    def __init__(self, engine: Engine, clock: ManualClock, thresholds: Thresholds) -> None:
        self.hub = EventHub(engine.feed, engine.clock)
        workers = WorkerRegistry(clock, engine.feed)
        Monitors(engine, self.hub, Uptime(clock), workers, thresholds)
        self.heard: Heard = []
        self.room = True
        self.reader = EventReader(event_rendering.pubsub, self.take)

    def take(self, message: str, _told: OutgoingEvent) -> bool:
        if self.room:
            self.heard.append(json.loads(message))
        return self.room

    def want(self, *names: str) -> None:
        self.hub.want(self.reader, frozenset().union(*(PATTERNS[name] for name in names)))

    def of(self, name: str) -> Heard:
        return [each["data"] for each in self.heard if each["event"] == name]


@pytest.fixture
def desk(engine: Engine, clock: ManualClock) -> Desk:
    return Desk(engine, clock, Thresholds(queue_size=2, memory_mb=1, storage_mb=0))


async def test_the_feed_is_heard_only_while_there_are_readers(engine: Engine, desk: Desk) -> None:
    heard = [engine.feed.has_listeners]
    desk.want("job:*")
    heard.append(engine.feed.has_listeners)
    await push(engine)
    desk.want()
    heard.append(engine.feed.has_listeners)
    assert heard == [False, True, False]
    assert [each["event"] for each in desk.heard] == ["job:pushed"]


async def test_counts_are_told_once_for_many_changes(engine: Engine, clock: ManualClock, desk: Desk) -> None:
    desk.want("queue:counts")
    for _ in range(20):
        await push(engine)
    await clock.advance(100)
    shown = {"queue": "mail", "waiting": 20, "active": 0, "completed": 0, "failed": 0, "delayed": 0}
    assert desk.of("queue:counts") == [shown]
    await clock.advance(1_000)
    assert len(desk.heard) == 1
    job = await claim_job(engine)
    await clock.advance(100)
    await ack(engine, job)
    await clock.advance(100)
    assert [(each["active"], each["completed"]) for each in desk.of("queue:counts")] == [(0, 0), (1, 0), (0, 1)]


async def test_a_queue_is_idle_once(engine: Engine, clock: ManualClock, desk: Desk) -> None:
    desk.want("queue:idle")
    job = await push(engine)
    await clock.advance(60_000)
    assert desk.heard == [], "it has a job"
    await move(engine, job, Arrow.CANCEL)
    await clock.advance(29_000)
    assert desk.heard == []
    await clock.advance(90_000)
    assert desk.of("queue:idle") == [{"queue": "mail", "idleSeconds": 30}]


async def test_a_size_is_told_when_it_is_passed_and_again_after_it_was_not(
    engine: Engine, clock: ManualClock, desk: Desk
) -> None:
    desk.want("queue:threshold")
    jobs = await push_many(engine, 3)
    await clock.advance(100)
    await push(engine)
    await clock.advance(100)
    assert desk.of("queue:threshold") == [{"queue": "mail", "size": 3, "threshold": 2}]
    for job in jobs:
        await move(engine, job, Arrow.CANCEL)
    await clock.advance(100)
    await push_many(engine, 3)
    await clock.advance(100)
    assert len(desk.heard) == 2


async def test_figures_come_at_their_pace(engine: Engine, clock: ManualClock, desk: Desk) -> None:
    await clock.advance(60_000)
    desk.want("stats:*", "health:*", "storage:*", "server:*")
    await push_many(engine, 10)
    await clock.advance(30_000)
    told = [each["event"] for each in desk.heard]
    assert [told.count(name) for name in ("stats:snapshot", "health:status", "storage:status")] == [6, 3, 1]
    for each in desk.heard:
        kind = next(kind for kind in PAYLOADS if kind.wire_name == each["event"])
        assert tuple(each["data"]) == PAYLOADS[kind]
    assert desk.of("stats:snapshot")[0]["waiting"] == 10
    assert desk.of("health:status")[0]["memory"].keys() == {"rss", "heapUsed"}
    assert told.count("server:memory-warning") == 1
    desk.want()
    await clock.advance(60_000)
    assert len(desk.heard) == len(told)


async def test_figures_of_all_namespaces_are_for_who_may_look_at_all(engine: Engine, clock: ManualClock, desk: Desk) -> None:
    desk.reader.everywhere = False
    desk.want("*")
    desk.hub.start({"version": "1", "startedAt": 5})
    await push_many(engine, 1)
    await clock.advance(30_000)
    assert {each["event"] for each in desk.heard} == {"server:started", "queue:created", "job:pushed", "queue:counts"}


async def test_a_large_store_is_told(engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(engine, clock, Thresholds(storage_mb=5))
    monkeypatch.setattr(type(engine.store), "size_bytes", lambda _: 7 << 20)
    desk.want("storage:size-warning")
    await clock.advance(20_000)
    assert desk.of("storage:size-warning") == [{"sizeMB": 7, "thresholdMB": 5}]


async def test_what_a_reader_has_no_room_for_is_counted(engine: Engine, desk: Desk) -> None:
    desk.want("job:*")
    desk.room = False
    await push(engine)
    assert (desk.reader.missed, desk.hub.missed) == (1, 1)


async def test_events_of_the_server_itself_reach_everybody(engine: Engine, desk: Desk) -> None:
    desk.want("server:*")
    engine.feed.publish_transient(EventKind.SERVER_STARTED, {"version": "1", "startedAt": 5}, 5)
    engine.feed.publish_transient(EventKind.SERVER_SHUTDOWN, {"reason": "x"}, 6, namespace="elsewhere")
    assert desk.heard == [{"event": "server:started", "ts": 5, "data": {"version": "1", "startedAt": 5}}]
