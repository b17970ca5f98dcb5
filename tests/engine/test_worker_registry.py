"""Workers introduce themselves, give signs of life, and are missed when they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.events import EventKind
from penstock.engine.worker_registry import WorkerRegistry

if TYPE_CHECKING:
    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio


@pytest.fixture
def heard(engine: Engine) -> list[tuple[EventKind, dict[str, Any]]]:
    found: list[tuple[EventKind, dict[str, Any]]] = []
    engine.feed.listen(lambda block: found.extend((EventKind(event[0]), event[4]) for event in block.events))
    return found


@pytest.fixture
def workers(engine: Engine, clock: ManualClock) -> WorkerRegistry:
    return WorkerRegistry(clock, engine.feed, timeout_ms=30_000, overload_ms=10_000)


async def test_a_silent_worker_is_disconnected_then_forgotten(
    workers: WorkerRegistry, clock: ManualClock, heard: list[Any]
) -> None:
    worker = workers.register("default", "w", ["mail"], worker_id="w-1")
    await clock.advance(20_000)
    assert workers.heartbeat("default", "w-1") is worker
    await clock.advance(29_999)
    assert workers.active == 1
    await clock.advance(1)
    assert (workers.active, len(workers)) == (0, 1)
    await clock.advance(60_000)
    assert len(workers) == 0
    assert heard == [
        (EventKind.WORKER_CONNECTED, {"workerId": "w-1", "name": "w", "queues": ["mail"]}),
        (EventKind.WORKER_HEARTBEAT, {"workerId": "w-1"}),
        (EventKind.WORKER_DISCONNECTED, {"workerId": "w-1"}),
    ]


async def test_a_silent_worker_that_speaks_again_is_connected_again(
    workers: WorkerRegistry, clock: ManualClock, heard: list[Any]
) -> None:
    workers.register("default", "w", [], worker_id="w-1")
    await clock.advance(40_000)
    workers.heartbeat("default", "w-1")
    assert workers.active == 1
    assert [kind for kind, _ in heard][-2:] == [EventKind.WORKER_CONNECTED, EventKind.WORKER_HEARTBEAT]
    assert workers.heartbeat("other", "w-1") is None


async def test_overload_and_failures_are_told(workers: WorkerRegistry, clock: ManualClock, heard: list[Any]) -> None:
    workers.register("default", "w", [], worker_id="w-1", concurrency=2)
    workers.heartbeat("default", "w-1", active_jobs=2, processed=15, failed=4)
    await clock.advance(10_000)
    workers.heartbeat("default", "w-1", active_jobs=2, failed=5)
    workers.heartbeat("default", "w-1", active_jobs=3, failed=6)
    told = [each for each in heard if each[0] in (EventKind.WORKER_OVERLOADED, EventKind.WORKER_ERROR)]
    assert told == [
        (
            EventKind.WORKER_ERROR,
            {"workerId": "w-1", "name": "w", "failedJobs": 5, "processedJobs": 15, "failureRate": 0.25},
        ),
        (
            EventKind.WORKER_OVERLOADED,
            {"workerId": "w-1", "name": "w", "activeJobs": 2, "concurrency": 2, "overloadedSeconds": 10},
        ),
    ]
    assert (workers.processed, workers.failed) == (15, 6)


async def test_there_is_a_limit(workers: WorkerRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "workers_max", 2)
    for worker_id in ("a", "b", "b"):
        workers.register("default", "w", [], worker_id=worker_id)
    with pytest.raises(TooMany):
        workers.register("default", "w", [])
    assert workers.unregister("default", "a")
    assert not workers.unregister("default", "a")
    workers.register("default", "w", [])
