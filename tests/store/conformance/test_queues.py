"""What a store promises about queues and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import Move, MoveStep, PushSubscription, QueueKey, QueueSettings, StallConfig, StateCounts
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


def by_namespace(bench: Workbench) -> dict[str, set[QueueKey]]:
    """Return the queues of each namespace, after a check that the number of queues agrees."""
    store = bench.store
    found = {name: {queue.key for queue in store.queues_of(name)} for name in store.queue_namespaces()}
    assert {name: store.queue_count(name) for name in found} == {name: len(keys) for name, keys in found.items()}
    assert store.queue_count() == len(store.queues()) == sum(map(len, found.values()))
    return found


async def test_queues_are_found_by_their_namespace(bench: Workbench) -> None:
    other = QueueKey("other", "mail")
    async with bench.transaction() as tx:
        for key in (MAIL, other, QueueKey("other", "more")):
            await tx.queue_open(key)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.queue_remove(await tx.queue_open(MAIL))
            await tx.queue_open(QueueKey("new", "new"))
            raise RuntimeError
    for _ in range(2):
        assert by_namespace(bench) == {MAIL.namespace: {MAIL}, "other": {other, QueueKey("other", "more")}}
        assert (bench.store.queues_of("new"), bench.store.queue_count("new")) == ([], 0)
        await bench.restart()
    async with bench.transaction() as tx:
        await tx.queue_remove(await tx.queue_open(MAIL))
        await tx.queue_remove(await tx.queue_open(other))
    assert by_namespace(bench) == {"other": {QueueKey("other", "more")}}


async def test_queues_that_leave_are_found_until_they_have_moved(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
    async with bench.transaction() as tx:
        await tx.queue_move(queue, Move(MoveStep.LEAVING, 1, 1))
    assert by_namespace(bench) == {MAIL.namespace: {MAIL}}
    async with bench.transaction() as tx:
        await tx.queue_move(queue, Move(MoveStep.MOVED, 1, 1))
    assert by_namespace(bench) == {}


async def test_queues_with_push_subscriptions_are_found(bench: Workbench) -> None:
    subscribed = QueueSettings(subscriptions=(PushSubscription(1, "https://example.com/", "", 1),))
    async with bench.transaction() as tx:
        await tx.queue_open(QueueKey("other", "mail"))
        await tx.queue_save(await tx.queue_open(MAIL), subscribed, None)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.queue_save(await tx.queue_open(MAIL), QueueSettings(), None)
            raise RuntimeError
    for _ in range(2):
        assert [queue.key for queue in bench.store.queues_subscribed()] == [MAIL]
        await bench.restart()
    async with bench.transaction() as tx:
        await tx.queue_save(await tx.queue_open(MAIL), QueueSettings(), None)
    assert bench.store.queues_subscribed() == []


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
