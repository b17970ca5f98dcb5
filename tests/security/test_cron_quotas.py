"""Jobs that the server makes by itself, for crons and for jobs that repeat, count against the quota of their namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.cron import CronKey, CronPlan
from penstock.core.errors import QuotaExceeded
from penstock.core.events import EventKind
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.core.schedule import parse
from penstock.engine.jobs.push import Push
from penstock.engine.queues.crons import SaveCron
from tests.support.engines import claim_all
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.core.clock import ManualClock
    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio
SMALL, FREE = QueueKey("small", "q"), QueueKey("free", "q")
QUOTA = 5


async def add_crons(engine: Engine, queue: QueueKey, count: int, every_ms: int = 1_000) -> None:
    for number in range(count):
        plan = CronPlan(queue.name, parse(None, every_ms), prevent_overlap=False)
        await engine.run(SaveCron(CronKey(queue.namespace, f"c{number}"), plan, b"1"))


async def events(engine: Engine, kind: EventKind) -> list[str]:
    """Return the namespaces of the events of a kind."""
    blocks = await engine.store.journal_read(1, 100_000)
    return [block.queues[event[1]][0] for block in blocks for event in block.events if event[0] == kind]


@pytest.mark.parametrize("quotas", [{"small": QUOTA}])
async def test_ticks_beyond_the_quota_are_skipped_and_noted(engine: Engine, clock: ManualClock) -> None:
    await add_crons(engine, SMALL, 20)
    await add_crons(engine, FREE, 20)
    await clock.advance(1_000)
    assert len(await claim_all(engine, queue=SMALL)) == QUOTA
    assert len(await claim_all(engine, queue=FREE)) == 20
    assert (await events(engine, EventKind.CRON_SKIPPED)).count("small") == 20 - QUOTA
    with pytest.raises(QuotaExceeded):  # what crons have taken is taken
        await engine.run(Push(SMALL, [JobSpec(b"1")]))
    await engine.run(Push(FREE, [JobSpec(b"1")]))
    await clock.advance(30_000)
    assert (await events(engine, EventKind.CRON_FIRED)).count("small") == QUOTA
    await clock.advance(31_000)
    assert (await events(engine, EventKind.CRON_FIRED)).count("small") == 2 * QUOTA


@pytest.mark.parametrize("quotas", [{"small": 2}])
async def test_a_tick_that_pushes_nothing_is_not_counted(engine: Engine, clock: ManualClock) -> None:
    plan = CronPlan(SMALL.name, parse(None, 1_000))
    await engine.run(SaveCron(CronKey("small", "once"), plan, b"1"))
    for _ in range(10):
        await clock.advance(1_000)
    assert len(await claim_all(engine, queue=SMALL)) == 1
    await engine.run(Push(SMALL, [JobSpec(b"1")]))
    with pytest.raises(QuotaExceeded):
        await engine.run(Push(SMALL, [JobSpec(b"1")]))


def test_jobs_that_repeat_come_as_often_as_the_quota_allows(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", env={"NAMESPACE_QUOTAS": "small:4"}) as server,
        server.client(headers={"X-Namespace": "small"}) as small,
        server.client() as other,
    ):
        for client in (small, other):
            for _ in range(3):
                job = {"data": 1, "repeat": {"every": 1}}
                assert client.post("/queues/q/jobs", json=job).status_code == 200
        done: dict[str, int] = {"small": 0, "other": 0}
        for name, client in (("small", small), ("other", other)):
            for _ in range(8):
                pulled = client.get("/queues/q/jobs", params={"timeout": 300}).json().get("job")
                if pulled is not None:
                    assert client.post(f"/jobs/{pulled['id']}/ack", json={}).status_code == 200
                    done[name] += 1
        # Three were pushed, one more was within the quota; the others are put off, and not lost.
        assert done == {"small": 4, "other": 8}
        counts = small.get("/queues/q/counts").json()["counts"]
        assert counts["delayed"] == 3
        assert small.post("/queues/q/jobs", json={"data": 1}).status_code == 429
        assert other.post("/queues/q/jobs", json={"data": 1}).status_code == 200


def test_crons_of_a_tenant_over_http(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data", env={"NAMESPACE_QUOTAS": "small:2"}) as server,
        server.client(headers={"X-Namespace": "small"}) as small,
        server.client() as other,
    ):
        for client in (small, other):
            for number in range(10):
                cron = {
                    "name": f"c{number}",
                    "queue": "q",
                    "repeatEvery": limits.HOUR_MS,
                    "immediately": True,
                    "data": 1,
                }
                assert client.post("/crons", json=cron).status_code == 200
        taken = {"small": 0, "other": 0}
        for name, client in (("other", other), ("small", small)):
            while client.get("/queues/q/jobs", params={"timeout": 500}).json().get("job") is not None:
                taken[name] += 1
        assert taken == {"small": 2, "other": 10}
