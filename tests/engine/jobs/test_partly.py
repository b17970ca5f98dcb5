"""Pushes to queues on several shards when one of them is lost: all or none, and if that cannot be, which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import OutcomeUnknown, PartlyPushed, StorageFailed
from penstock.core.job import IDEMPOTENCY_PREFIX, JobSpec
from penstock.core.queue import QueueKey
from penstock.core.sharding import shard_for
from penstock.doors.batches.handlers import told_apart
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import PushAcross
from tests.support.fleets import fleet_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.sharding.engine import ShardedEngine

pytestmark = pytest.mark.anyio

QUEUES = [next(key for n in range(99) if shard_for(key := QueueKey("default", f"q{n}"), 2) == shard) for shard in range(2)]


def parts(*jobs: JobSpec) -> list[tuple[QueueKey, list[JobSpec]]]:
    return [(queue, list(jobs)) for queue in QUEUES]


def lose(fleet: ShardedEngine, shard: int, error: Exception, before: Callable[[], Any] | None = None) -> None:
    """Have a shard fail at the next push, after it was asked whether it takes writes."""
    engine = fleet.engines[shard]
    run = engine.run

    async def fail() -> Any:
        if before is not None:
            await before()
        raise error

    def failing(command: Any) -> Any:
        return fail() if isinstance(command, PushAcross) else run(command)

    engine.run = failing


def waiting(fleet: ShardedEngine) -> list[int]:
    found = [fleet.store.queue_find(queue) for queue in QUEUES]
    return [0 if queue is None else fleet.store.counts(queue).waiting for queue in found]


@pytest.mark.parametrize("down", [0, 1])
async def test_a_shard_that_is_known_to_be_down_refuses_all(tmp_path: Path, clock: ManualClock, down: int) -> None:
    async with fleet_on(tmp_path, clock, 2) as fleet:
        store: Any = fleet.engines[down].store
        store._stop_writes("pulled out")
        with pytest.raises(StorageFailed, match=rf"Shard {down} is down.*nothing was stored"):
            await fleet.run(PushAcross(parts(JobSpec(b"1")), clock.now_ms()))
        assert waiting(fleet) == [0, 0]


async def test_what_was_stored_is_taken_back(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock, 2) as fleet:
        lose(fleet, 1, StorageFailed())
        with pytest.raises(StorageFailed, match="Nothing was stored"):
            await fleet.run(PushAcross(parts(JobSpec(b"1"), JobSpec(b"2", delay=5_000)), clock.now_ms()))
        assert waiting(fleet) == [0, 0]
        assert await fleet.run(Claim(QUEUES[0], 10)) == []


async def test_what_a_worker_has_by_then_or_has_a_name_is_told(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock, 2) as fleet:
        lose(fleet, 1, StorageFailed(), lambda: fleet.run(Claim(QUEUES[0], 1)))
        named = JobSpec(b"3", job_id=f"{IDEMPOTENCY_PREFIX}k")
        jobs = [(QUEUES[0], [JobSpec(b"1"), JobSpec(b"2"), named]), (QUEUES[1], [JobSpec(b"4")])]
        with pytest.raises(
            PartlyPushed, match="2 of 4 jobs are stored, the others are not: a shard was lost meanwhile"
        ) as told:
            await fleet.run(PushAcross(jobs, clock.now_ms()))
        assert "nothing was stored" not in str(told.value).lower()
        assert [[each is not None for each in part] for part in told.value.stored] == [[True, False, True], [False]]
        assert waiting(fleet) == [1, 0]


async def test_nothing_is_taken_back_if_the_rest_may_be_stored(tmp_path: Path, clock: ManualClock) -> None:
    async with fleet_on(tmp_path, clock, 2) as fleet:
        lose(fleet, 1, OutcomeUnknown())
        with pytest.raises(PartlyPushed, match="1 of 2 jobs are stored, and of the others it is not known") as told:
            await fleet.run(PushAcross(parts(JobSpec(b"1")), clock.now_ms()))
        assert [[each is not None for each in part] for part in told.value.stored] == [[True], [False]]
        assert waiting(fleet) == [1, 0]


def test_the_batches_door_tells_the_ids_in_the_order_of_the_messages() -> None:
    partly = PartlyPushed("2 of 4 jobs are stored.", [[7, None], [9, None]])
    places = {QUEUES[0]: [0, 3], QUEUES[1]: [2, 1]}
    assert str(told_apart(partly, places)) == "2 of 4 jobs are stored.\n[7,null,9,null]"
    assert str(told_apart(partly, places, as_text=True)) == '2 of 4 jobs are stored.\n["7",null,"9",null]'
