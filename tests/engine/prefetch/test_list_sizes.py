"""Ready lists: how much is on them, and what happens when Redis has no room for more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.job import JobSpec
from penstock.core.pool_shares import Shares
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.store.redis.ready_lists import KEEP_S
from tests.engine.prefetch.conftest import HOT_JOBS
from tests.engine.prefetch.test_ready_cache import heat, ids, ready_cache, take_fast
from tests.support.engines import QUEUE, ack, claim, claim_all, push, push_many

if TYPE_CHECKING:
    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.engine import Engine
    from tests.support.redis import OwnRedis

    Pair = tuple[Engine, Engine]

pytestmark = pytest.mark.anyio

OTHERS = QUEUE._replace(namespace="others")


async def heat_with(engine: Engine, size: int, count: int = 100, queue: QueueKey = QUEUE) -> list[JobRecord]:
    """Push jobs with payloads of a size, and take some, so that the queue is hot; return the others, in order."""
    pushed = await engine.run(Push(queue, [JobSpec(b"1" * size)] * count))
    taken = await claim_all(engine, HOT_JOBS, queue=queue)
    assert ids(taken) == ids(pushed[:HOT_JOBS])
    return pushed[HOT_JOBS:]


def listed_bytes(redis: OwnRedis) -> int:
    """Return the bytes of the jobs on all lists."""
    client = redis.client()
    keys = [key for key in client.keys("penstock:*:jobs") if client.exists(key)]
    return sum(len(body) for key in keys for body in client.hvals(key))


async def test_the_bytes_of_a_list_are_bounded_and_all_jobs_are_handed_out_in_order(
    pair: Pair, redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    monkeypatch.setattr(limits, "fast_list_bytes_max", 50_000)
    expected = await heat_with(a, 10_000)
    taken: list[JobRecord] = []
    for _ in range(len(expected) // 2):
        taken += await take_fast(a)
        assert 0 < listed_bytes(redis) + 10_000 < 60_000
        taken += await take_fast(b)
    assert ids(taken) == ids(expected)


async def test_large_jobs_are_handed_out_by_the_database_in_order(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    expected = await heat_with(a, limits.fast_job_bytes_max + 1, 40)
    assert ids(await claim_all(a, 1)) == ids(expected[:1])
    assert listed_bytes(redis) == 0
    assert ready_cache(a).jobs_handed_out == 0
    assert not redis.client().keys("penstock:*")
    assert [job.id for _ in range(10) for job in await claim_all(b, 1)] == ids(expected[1:11])


async def test_a_list_ends_where_a_large_job_begins(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    small = await heat(a, 30)
    large = [await push(a, data=b"1" * (limits.fast_job_bytes_max + 1)) for _ in range(3)]
    more = await push_many(a, 30)
    expected = ids([*small, *large, *more])
    assert [job.id for _ in range(len(expected)) for job in await claim_all(b, 1)] == expected
    assert ready_cache(b).jobs_handed_out >= len(small)
    assert listed_bytes(redis) == 0


async def test_a_large_job_of_higher_priority_is_handed_out_first(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a)
    assert ids(await take_fast(a)) == ids(expected[:1])
    large = await push(b, data=b"1" * (limits.fast_job_bytes_max + 1), priority=5)
    small = await push(b, priority=4)
    assert [job.id for _ in range(4) for job in await claim_all(a, 1)] == [large.id, small.id, *ids(expected[1:3])]


async def test_more_urgent_jobs_than_one_fetch_takes_are_handed_out_first(pair: Pair) -> None:
    a, b = pair
    expected = await heat(a, 300)
    await take_fast(a)
    urgent = await push_many(b, 3 * limits.fast_jobs_min, priority=5)
    taken = [job.id for _ in range(len(urgent) + 2) for job in await claim_all(a, 1)]
    assert taken == [*ids(urgent), *ids(expected[1:3])]


async def test_a_namespace_has_its_share_of_the_bytes_of_all_lists(
    pair: Pair, redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = pair
    a.limit_namespaces(Shares(lambda: True))
    monkeypatch.setattr(limits, "fast_bytes_max", 100_000)
    for name in ("1", "2", "3", "4"):
        queue = QUEUE._replace(name=name)
        expected = await heat_with(a, 1_000, queue=queue)
        assert ids(await claim_all(a, 1, queue=queue)) == ids(expected[:1])
    assert listed_bytes(redis) < 70_000
    others = await heat_with(a, 1_000, queue=OTHERS)
    before = ready_cache(a).jobs_handed_out
    assert ids(await claim_all(a, 1, queue=OTHERS)) == ids(others[:1])
    assert ready_cache(a).jobs_handed_out == before + 1
    assert listed_bytes(redis) < 110_000


async def test_when_redis_is_out_of_memory_lists_are_not_given_up(pair: Pair, redis: OwnRedis) -> None:
    a, b = pair
    mine = await heat(a)
    others = await push_many(a, 100, queue=OTHERS)
    await claim_all(a, HOT_JOBS, queue=OTHERS)
    taken = await take_fast(a)
    taken_others = await claim_all(b, 1, queue=OTHERS)
    redis.client().config_set("maxmemory", "1")
    before = ready_cache(a).jobs_handed_out
    taken += await claim_all(a, 1)
    assert ready_cache(a).jobs_handed_out == before + 1
    urgent = await push(b, priority=5)
    assert ids(await claim_all(a, 1)) == [urgent.id]
    taken += [job for _ in range(len(mine) - 2) for job in await claim_all(b, 1)]
    taken_others += [job for _ in range(len(others) - HOT_JOBS - 1) for job in await claim_all(a, 1, queue=OTHERS)]
    assert ids(taken) == ids(mine)
    assert ids(taken_others) == ids(others[HOT_JOBS:])
    assert await claim(a) is None
    assert ready_cache(a).generation == ready_cache(b).generation == 0
    for job in taken + taken_others:
        assert job.attempts == 0
    assert await ack(a, taken[-1], token=taken[-1].token) is None


async def test_when_redis_is_out_of_memory_the_list_that_was_to_be_filled_leaves_nothing_behind(
    pair: Pair, redis: OwnRedis
) -> None:
    a, b = pair
    expected = await heat(a)
    redis.client().config_set("maxmemory", "1")
    taken = [job for _ in range(10) for job in await claim_all(a, 1)]
    taken += [job for _ in range(10) for job in await claim_all(b, 1)]
    assert ids(taken) == ids(expected[:20])
    assert ids([job for job, _ in await b.run(Claim(QUEUE, 100))]) == ids(expected[20:])
    assert ready_cache(a).generation == ready_cache(b).generation == 0


async def test_keys_in_use_do_not_expire_and_others_do_soon(pair: Pair, redis: OwnRedis) -> None:
    a, _ = pair
    await heat(a)
    await take_fast(a)
    client = redis.client()
    keys = client.keys("penstock:*")
    assert keys
    for key in keys:
        assert 0 < client.ttl(key) <= KEEP_S
        client.expire(key, KEEP_S // 4)
    await take_fast(a)
    for key in client.keys("penstock:*"):
        assert client.ttl(key) > KEEP_S // 2
