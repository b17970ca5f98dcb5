"""What a store promises about queues and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import PushSubscription, QueueKey, QueueSettings, StallConfig, StateCounts
from tests.store.conformance.workbench import MAIL

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio

SETTINGS = QueueSettings(
    paused=True,
    rate_limit=5,
    concurrency=3,
    stall=StallConfig(enabled=False, max_stalls=9),
    subscriptions=(
        PushSubscription(5, "https://good.com/ä?a=b", "geheim ☃", 7),
        PushSubscription(6, "http://other.com", "", 8),
    ),
)


async def test_a_queue_is_made_when_first_opened_and_found_afterwards(bench: Workbench) -> None:
    assert bench.store.queue_find(MAIL) is None
    async with bench.transaction() as tx:
        assert tx.queue_find(MAIL) is None
        opened = await tx.queue_open(MAIL)
        assert tx.queue_find(MAIL) is opened
        assert await tx.queue_open(MAIL) is opened
    assert bench.queue().settings == QueueSettings()
    assert bench.store.queue_by_number(opened.number).key == MAIL


async def test_queues_of_the_same_name_in_two_namespaces_are_two(bench: Workbench) -> None:
    other = QueueKey("other", "mail")
    await bench.put()
    await bench.put(queue=other, count=2)
    assert bench.store.counts(bench.queue()).waiting == 1
    assert bench.store.counts(bench.queue(other)).waiting == 2
    assert {queue.key for queue in bench.store.queues()} == {MAIL, other}


async def test_settings_survive_a_restart(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.queue_save(await tx.queue_open(MAIL), SETTINGS, 123)
    await bench.restart()
    assert bench.queue().settings == SETTINGS
    assert bench.queue().created_at == 123


async def test_what_is_rolled_back_did_not_happen(bench: Workbench) -> None:
    await bench.put(queue=QueueKey("default", "old"))
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.queue_save(await tx.queue_open(QueueKey("default", "old")), SETTINGS, 5)
            opened = await tx.queue_open(QueueKey("new", "new"))
            await tx.job_insert([(bench.make(opened), msgspec.convert({"data": b""}, type=_payload()))])
            raise RuntimeError
    assert bench.store.queue_find(QueueKey("new", "new")) is None
    assert bench.queue(QueueKey("default", "old")).settings == QueueSettings()
    assert bench.store.totals() == StateCounts(waiting=1)
    await bench.restart()
    assert bench.store.queue_find(QueueKey("new", "new")) is None
    assert bench.store.totals() == StateCounts(waiting=1)


async def test_a_removed_queue_is_forgotten(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.queue_open(MAIL)
    async with bench.transaction() as tx:
        await tx.queue_remove(await tx.queue_open(MAIL))
    assert bench.store.queue_find(MAIL) is None
    await bench.restart()
    assert bench.store.queues() == []


async def test_counts_follow_every_write_and_survive_a_restart(bench: Workbench) -> None:
    (a,) = await bench.put()
    await bench.put(state=State.DELAYED, run_at=bench.now_ms + 1_000)
    await bench.put(state=State.COMPLETED, count=2)
    await bench.put(state=State.DEAD)
    assert bench.store.counts(bench.queue()) == StateCounts(waiting=1, delayed=1, active=0, completed=2, dead=1)
    await bench.step(a, Arrow.CLAIM, 30_000)
    assert bench.store.counts(bench.queue()) == StateCounts(waiting=0, delayed=1, active=1, completed=2, dead=1)
    await bench.step(a, Arrow.CANCEL)
    expected = StateCounts(waiting=0, delayed=1, active=0, completed=2, dead=1)
    assert bench.store.counts(bench.queue()) == expected
    assert bench.store.totals() == expected
    await bench.restart()
    assert bench.store.counts(bench.queue()) == expected
    assert bench.store.totals() == expected


async def test_counts_inside_a_transaction_include_what_it_wrote(bench: Workbench) -> None:
    await bench.put(count=3)
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
        jobs = [job for job, _ in await tx.job_ready(queue, 2)]
        await tx.job_remove([(job, job.state, job.token) for job in jobs])
        assert tx.counts(queue).waiting == 1
        assert bench.store.counts(queue).waiting == 3
    assert bench.store.counts(bench.queue()).waiting == 1


def _payload() -> type:
    from penstock.core.job import Payload

    return Payload
