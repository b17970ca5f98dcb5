"""What a store promises about API keys: kept as they are, through a restart; changes are counted; their number is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.apikey import ApiKey
from penstock.core.errors import TooMany

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


def make(bench: Workbench, key_id: str, *, expires_at: int | None = None) -> ApiKey:
    return ApiKey(
        id=key_id, digest=bytes(range(32)), namespaces=("a", "b:c"), roles=("produce", "consume"), label="Kasse ☃, 'x'",
        created_at=bench.now_ms, expires_at=expires_at,
    )  # fmt: skip


async def ids(bench: Workbench) -> list[str]:
    return [key.id for key in (await bench.store.key_list())[1]]


async def test_keys_are_kept_as_they_are_oldest_first(bench: Workbench) -> None:
    assert await bench.store.key_list() == (await bench.store.key_revision(), [])
    first = make(bench, "zz")
    await bench.store.key_add(first, 10)
    await bench.clock.advance(1)
    second = msgspec.structs.replace(make(bench, "aa", expires_at=bench.now_ms + 5), namespaces=("*",), label="")
    await bench.store.key_add(second, 10)
    assert (await bench.store.key_list())[1] == [first, second]
    await bench.restart()
    assert (await bench.store.key_list())[1] == [first, second]


async def test_a_revoked_key_stays_revoked_since_the_first_time(bench: Workbench) -> None:
    key = make(bench, "k")
    await bench.store.key_add(key, 10)
    await bench.clock.advance(7)
    at = bench.now_ms
    assert await bench.store.key_revoke("k")
    await bench.clock.advance(7)
    assert await bench.store.key_revoke("k")
    await bench.restart()
    assert (await bench.store.key_list())[1] == [msgspec.structs.replace(key, revoked_at=at)]
    assert not await bench.store.key_revoke("unknown")


async def test_every_change_is_counted(bench: Workbench) -> None:
    seen = [await bench.store.key_revision()]
    await bench.store.key_add(make(bench, "k"), 10)
    seen.append(await bench.store.key_revision())
    await bench.store.key_revoke("k")
    seen.append(await bench.store.key_revision())
    assert seen[0] < seen[1] < seen[2] == await bench.store.key_revision() == (await bench.store.key_list())[0]


async def test_keys_that_are_over_make_room_the_longest_first_and_good_ones_never(bench: Workbench) -> None:
    await bench.store.key_add(make(bench, "good"), 3)
    await bench.store.key_add(make(bench, "short", expires_at=bench.now_ms + 1), 3)
    await bench.store.key_add(make(bench, "revoked"), 3)
    with pytest.raises(TooMany, match="There are 3 API keys, and no more can be kept"):
        await bench.store.key_add(make(bench, "no"), 3)
    assert await ids(bench) == ["good", "revoked", "short"]
    await bench.clock.advance(5)
    await bench.store.key_revoke("revoked")
    await bench.clock.advance(5)
    await bench.store.key_add(make(bench, "next"), 3)
    assert await ids(bench) == ["good", "revoked", "next"]
    await bench.store.key_add(make(bench, "last"), 3)
    assert await ids(bench) == ["good", "last", "next"]
    with pytest.raises(TooMany):
        await bench.store.key_add(make(bench, "no"), 3)
