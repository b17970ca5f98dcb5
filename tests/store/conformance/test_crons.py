"""What a store promises about crons: they are kept, found when due, and one tick is never used twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core import limits
from penstock.core.cron import UNNUMBERED, CronKey, CronPlan, CronRecord
from penstock.core.errors import RowChanged, TooMany
from penstock.core.queue import QueueKey
from penstock.core.schedule import parse

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio

PLAN = CronPlan("mail", parse("0 2 * * *", timezone="Europe/Berlin"), priority=3, max_limit=9, prevent_overlap=False)


async def put(
    bench: Workbench, name: str = "nightly", next_run: int = 1_000, *, namespace: str = "default", data: bytes = b"{}"
) -> CronRecord:
    cron = CronRecord(UNNUMBERED, CronKey(namespace, name), PLAN, next_run)
    async with bench.transaction() as tx:
        await tx.queue_open(QueueKey(namespace, "mail"))
        await tx.cron_insert([(cron, data)])
    return cron


async def test_a_cron_is_kept_with_everything_and_survives_a_restart(bench: Workbench) -> None:
    cron = await put(bench, data=b'{"a": 1}')
    assert cron.number != UNNUMBERED
    for _ in range(2):
        assert await bench.store.cron_get(cron.key) == cron
        async with bench.transaction() as tx:
            assert await tx.cron_load([cron.key, CronKey("default", "other")]) == [cron]
            assert await tx.cron_data_load([cron]) == {cron.number: b'{"a": 1}'}
        assert bench.store.horizon.cron_ms == 1_000
        await bench.restart()


async def test_crons_are_listed_by_name_and_apart_by_namespace(bench: Workbench) -> None:
    b, a, elsewhere = await put(bench, "b"), await put(bench, "a"), await put(bench, "a", namespace="other")
    assert await bench.store.cron_list("default") == [a, b]
    assert await bench.store.cron_list("other") == [elsewhere]
    assert await bench.store.cron_list("unknown") == []
    assert await bench.store.cron_get(CronKey("unknown", "a")) is None
    for _ in range(2):
        assert bench.store.cron_count() == 3
        await bench.restart()


async def test_due_crons_are_found_earliest_first_and_the_horizon_follows(bench: Workbench) -> None:
    late, soon, last = await put(bench, "late", 20), await put(bench, "soon", 10), await put(bench, "last", 500)
    assert bench.store.horizon.cron_ms == 10
    async with bench.transaction() as tx:
        assert await tx.cron_due(9, 10) == []
        assert await tx.cron_due(20, 1) == [soon]
        assert bench.store.horizon.cron_ms == 20  # there may be more
        assert await tx.cron_due(20, 10) == [soon, late]
        assert bench.store.horizon.cron_ms == 500
        await tx.cron_save([(msgspec.structs.replace(late, next_run=100), 20)])
        assert bench.store.horizon.cron_ms == 100
        await tx.cron_remove([(soon, 10), (last, 500)])
    assert [cron.next_run for cron in await bench.store.cron_list("default")] == [100]


async def test_a_tick_is_used_once(bench: Workbench) -> None:
    cron = await put(bench)
    moved = msgspec.structs.replace(cron, next_run=2_000, executions=1)
    async with bench.transaction() as tx:
        await tx.cron_save([(moved, 1_000)])
    for verb in ("cron_save", "cron_remove"):
        with pytest.raises(RowChanged):
            async with bench.transaction() as tx:
                await getattr(tx, verb)([(msgspec.structs.replace(cron, next_run=3_000), 1_000)])
    assert await bench.store.cron_get(cron.key) == moved


async def test_what_is_rolled_back_did_not_happen(bench: Workbench) -> None:
    cron = await put(bench)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            await tx.cron_due(5_000, 10)
            await tx.cron_data_save(cron, b"other")
            await tx.cron_remove([(cron, 1_000)])
            raise RuntimeError
    assert bench.store.cron_count() == 1
    assert bench.store.horizon.cron_ms == 1_000
    async with bench.transaction() as tx:
        assert await tx.cron_data_load([cron]) == {cron.number: b"{}"}


async def test_a_removed_cron_is_gone_with_its_data_and_its_name_is_free(bench: Workbench) -> None:
    cron = await put(bench)
    async with bench.transaction() as tx:
        await tx.cron_data_save(cron, b"new")
        assert await tx.cron_data_load([cron]) == {cron.number: b"new"}
        await tx.cron_remove([(cron, 1_000)])
        assert await tx.cron_load([cron.key]) == []
    assert (await bench.store.cron_get(cron.key), bench.store.cron_count()) == (None, 0)
    again = await put(bench, data=b"again")
    async with bench.transaction() as tx:
        assert await tx.cron_data_load([again]) == {again.number: b"again"}


async def test_there_are_only_so_many(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "crons_max", 1)
    await put(bench)
    with pytest.raises(TooMany):
        await put(bench, "one too many")


async def test_data_is_read_up_to_a_bound_and_the_horizon_remembers_the_rest(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "claim_batch_bytes_max", 3)
    crons = [await put(bench, str(n), 10 + n) for n in range(3)]
    async with bench.transaction() as tx:
        await tx.cron_due(100, 10)
        assert bench.store.horizon.cron_ms is None
        assert await tx.cron_data_load(crons) == {cron.number: b"{}" for cron in crons[:2]}
    assert bench.store.horizon.cron_ms == 12
