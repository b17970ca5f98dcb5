"""Quotas: how many jobs a namespace may be given in a minute."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.access.quotas import Counter, Quotas
from penstock.core.clock import ManualClock, yield_to_loop
from penstock.core.errors import (
    InvalidInput,
    OutcomeUnknown,
    PartlyDone,
    QuotaExceeded,
    ServerError,
    StorageFailed,
    TooMany,
)
from penstock.core.job import JobSpec
from penstock.core.sharding import fnv1a32
from penstock.engine.jobs.push import Push
from penstock.engine.submit import submit_chain
from penstock.store.contract import QuotaCount
from tests.support.engines import QUEUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.store.contract import Store
    from penstock.store.sqlite import SqliteStore

pytestmark = pytest.mark.anyio


async def test_so_many_pass_in_a_minute_and_the_next_waits(store: SqliteStore, clock: ManualClock) -> None:
    quotas = Quotas({"acme": 3}, Counter([store], clock))
    await quotas.admit({"acme": 2})
    await clock.advance(10_000)
    await quotas.admit({"acme": 1})
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 1})
    assert str(caught.value) == "namespace acme exceeded quota of 3 enqueues/minute. Retry in 50 s."
    assert caught.value.retry_after_ms == 50_000
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 3})
    assert caught.value.retry_after_ms == 60_000
    await clock.advance(49_999)
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"acme": 1})
    await clock.advance(1)
    await quotas.admit({"acme": 2})


async def test_what_is_refused_for_one_namespace_is_not_counted_for_the_others(
    store: SqliteStore, clock: ManualClock
) -> None:
    quotas = Quotas({"acme": 5, "small": 1}, Counter([store], clock))
    await quotas.admit({"small": 1, "acme": 1})
    await clock.advance(1_000)
    for _ in range(3):
        with pytest.raises(QuotaExceeded, match="namespace small"):
            await quotas.admit({"acme": 3, "small": 1, "free": 100})
    with pytest.raises(InvalidInput, match="namespace small"):
        await quotas.admit({"acme": 3, "small": 2})
    await quotas.admit({"acme": 4})
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({"acme": 1})
    assert caught.value.retry_after_ms == 59_000, "what was counted before is still counted as of then"


async def test_a_batch_passes_as_a_whole_or_not_at_all(store: SqliteStore, clock: ManualClock) -> None:
    quotas = Quotas({"acme": 10}, Counter([store], clock))
    await quotas.admit({"acme": 8})
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"acme": 3})
    await quotas.admit({"acme": 2})
    with pytest.raises(InvalidInput, match="send fewer than 11"):  # waiting would not help
        await quotas.admit({"acme": 11})


async def test_who_has_no_quota_has_no_limit_unless_there_is_one_for_everybody(
    store: SqliteStore, clock: ManualClock
) -> None:
    quotas = Quotas({"acme": 1}, Counter([store], clock))
    assert quotas.of("other") is None
    for _ in range(10):
        await quotas.admit({"other": 1_000})
    quotas = Quotas({"acme": 5, "*": 1, "closed": 0}, Counter([store], clock))
    assert (quotas.of("acme"), quotas.of("other")) == (5, 1)
    for namespace in ("a", "b"):
        await quotas.admit({namespace: 1})
        with pytest.raises(QuotaExceeded):
            await quotas.admit({namespace: 1})
    with pytest.raises(QuotaExceeded):
        await quotas.admit({"closed": 1})


class Unreachable:
    """A store that can be cut off, and of which several servers know."""

    def __init__(self, store: Store, servers: int) -> None:
        self.shard, self.servers = store.shard, servers
        self.down = False
        self.asked: list[Sequence[QuotaCount]] = []
        self._store = store

    async def quota_take(self, takes: Sequence[QuotaCount]) -> list[int]:
        self.asked.append(takes)
        await asyncio.sleep(0)
        if self.down:
            raise StorageFailed
        return await self._store.quota_take(takes)


async def test_what_comes_at_once_is_one_question_and_what_comes_meanwhile_the_next(
    store: SqliteStore, clock: ManualClock
) -> None:
    asked = Unreachable(store, 1)
    quotas = Quotas({"acme": 100}, Counter([cast("Store", asked)], clock))
    first = [asyncio.create_task(quotas.admit({"acme": 1})) for _ in range(20)]
    while not asked.asked:
        await asyncio.sleep(0)
    await asyncio.gather(*first, *(quotas.admit({"acme": 1}) for _ in range(30)))
    assert [len(takes) for takes in asked.asked] == [20, 30]


async def test_a_store_that_cannot_be_asked_leaves_each_server_its_share(store: SqliteStore, clock: ManualClock) -> None:
    home = Unreachable(store, 1)
    other = Unreachable(store, 3)  # has seen more of the servers
    name = next(name for name in "abcdef" if fnv1a32(name) % 2 == 0)
    quotas = Quotas({name: 10, "tiny": 1}, Counter([cast("Store", home), cast("Store", other)], clock))
    await quotas.admit({name: 4})
    home.down = True
    await clock.advance(60_000)
    await quotas.admit({name: 2})
    await quotas.admit({name: 1})
    with pytest.raises(QuotaExceeded) as caught:
        await quotas.admit({name: 1})
    assert "exceeded quota of 10" in str(caught.value), "the quota is the one that was set"
    quotas.refund({name: 1})
    await quotas.admit({name: 1})
    home.down = False
    await quotas.admit({name: 7})
    with pytest.raises(QuotaExceeded):
        await quotas.admit({name: 1})
    await clock.advance(60_000)
    await quotas.admit({name: 10})


async def test_a_quota_that_is_smaller_than_the_number_of_servers_leaves_one_and_none_leaves_none(
    store: SqliteStore, clock: ManualClock
) -> None:
    away = Unreachable(store, 5)
    away.down = True
    quotas = Quotas({"tiny": 2, "closed": 0}, Counter([cast("Store", away)], clock))
    await quotas.admit({"tiny": 1})
    for name in ("tiny", "closed"):
        with pytest.raises(QuotaExceeded):
            await quotas.admit({name: 1})


async def test_who_leaves_before_the_answer_has_taken_nothing(store: SqliteStore, clock: ManualClock) -> None:
    quotas = Quotas({"acme": 1}, Counter([store], clock))
    leaving = asyncio.create_task(quotas.admit({"acme": 1}))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await yield_to_loop()
    await quotas.admit({"acme": 1})


@pytest.mark.parametrize(
    ("error", "counted"), [(StorageFailed(), False), (TooMany(), False), (OutcomeUnknown(), True), (PartlyDone(), True)]
)
async def test_a_push_that_did_not_happen_is_not_counted(
    store: SqliteStore, clock: ManualClock, error: ServerError, counted: bool
) -> None:
    async def fail() -> Any:
        raise error

    quotas = Quotas({QUEUE.namespace: 1}, Counter([store], clock))
    submit = submit_chain(lambda _command: asyncio.ensure_future(fail()), quotas=quotas)
    with pytest.raises(type(error)):
        await submit(Push(QUEUE, [JobSpec(b"1")]))
    await yield_to_loop()
    (wait_ms,) = await store.quota_take([QuotaCount(QUEUE.namespace, 1, 1)])
    assert (wait_ms > 0) is counted
