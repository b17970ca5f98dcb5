"""What a store promises about the ledger: entries guarded by their version, chunks that are taken once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.bulk_records import BulkRecord, Chunk, EntryKind
from penstock.core.errors import RowChanged
from penstock.core.lifecycle import State
from penstock.store.contract import Search

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio

EPOCH = EntryKind.EPOCH


async def save(bench: Workbench, *entries: BulkRecord) -> None:
    async with bench.transaction() as tx:
        await tx.entry_save(entries)


async def load(bench: Workbench, kind: int, namespace: str, name: str, number: int | None = None) -> list[BulkRecord]:
    async with bench.transaction() as tx:
        return await tx.entry_load(kind, namespace, name, number)


async def test_entries_are_kept_as_they_are(bench: Workbench) -> None:
    first = BulkRecord(EPOCH, "default", "g ä", 2, 5, b"\x00body", 7)
    second = first._replace(number=1, at=6, body=b"")
    await save(bench, first, second, first._replace(namespace="other"), first._replace(kind=EntryKind.STAGE))
    await bench.restart()
    assert await load(bench, EPOCH, "default", "g ä") == [second._replace(version=1), first._replace(version=1)]
    assert await load(bench, EPOCH, "default", "g ä", 2) == [first._replace(version=1)]
    assert await load(bench, EPOCH, "default", "another") == []


async def test_many_entries_are_read_at_once(bench: Workbench) -> None:
    entries = [BulkRecord(EPOCH, "default", name, number, 5, b"x") for name in ("a", "b", "ä") for number in (3, 1, 2)]
    await save(bench, *entries, entries[0]._replace(namespace="other"), entries[0]._replace(kind=EntryKind.STAGE))
    async with bench.transaction() as tx:
        found = await tx.entry_load_all(EPOCH, "default", [("ä", None), ("a", 2), ("none", None), ("b", 9)])
        assert await tx.entry_load_all(EPOCH, "default", []) == []
        await tx.entry_remove(found)
    assert sorted(found) == [each._replace(version=1) for each in sorted([*entries[6:], entries[2]])]
    assert [each.number for each in found if each.name == "ä"] == [1, 2, 3]
    assert await load(bench, EPOCH, "default", "ä") == []


async def test_an_entry_takes_the_place_of_the_one_that_was_read(bench: Workbench) -> None:
    await save(bench, BulkRecord(EPOCH, "default", "g", 1, 5, b"a"))
    (read,) = await load(bench, EPOCH, "default", "g")
    await save(bench, read._replace(body=b"b", at=6, weight=9))
    (read_again,) = await load(bench, EPOCH, "default", "g")
    assert read_again == BulkRecord(EPOCH, "default", "g", 1, 6, b"b", 9, 2)
    for late in (read, read._replace(version=0)):
        with pytest.raises(RowChanged):
            await save(bench, late)
    async with bench.transaction() as tx:
        with pytest.raises(RowChanged):
            await tx.entry_remove([read])
    async with bench.transaction() as tx:
        await tx.entry_remove([read_again])
        await tx.entry_remove([])
    assert await load(bench, EPOCH, "default", "g") == []


async def test_entries_are_listed_oldest_first(bench: Workbench) -> None:
    await save(
        bench,
        BulkRecord(EPOCH, "default", "g", 3, 5, b"a", 10),
        BulkRecord(EPOCH, "default", "h", 1, 4, b"b", 1),
        BulkRecord(EPOCH, "other", "g", 2, 5, b"c", 100),
        BulkRecord(EntryKind.GROUP, "default", "g", 0, 1),
    )

    async def listed(search: Search) -> list[tuple[str, str, int, bytes]]:
        return [(each.namespace, each.name, each.number, each.body) for each in await bench.store.entry_list(search)]

    everything = [("default", "h", 1, b"b"), ("other", "g", 2, b"c"), ("default", "g", 3, b"a")]
    assert await listed(Search(EPOCH)) == everything
    assert await listed(Search(EPOCH, limit=2)) == everything[:2]
    assert await listed(Search(EPOCH, "default", bodies=False)) == [("default", "h", 1, b""), ("default", "g", 3, b"")]
    assert await listed(Search(EPOCH, "default", "g")) == everything[2:]
    assert await listed(Search(EPOCH, before_ms=5)) == everything[:1]
    assert await bench.store.entry_totals(EPOCH) == (3, 111)
    assert await bench.store.entry_totals(EntryKind.COMMIT) == (0, 0)


async def test_a_chunk_is_taken_once(bench: Workbench) -> None:
    chunks = [Chunk(7, number, "mail ä", 3, bytes([number]) * 10) for number in range(5)]
    async with bench.transaction() as tx:
        await tx.chunk_add([*chunks, chunks[0]._replace(owner=8)])
    await bench.restart()
    assert await bench.store.chunk_read(7, -1, 10) == chunks
    assert await bench.store.chunk_read(7, 1, 2) == chunks[2:4]
    async with bench.transaction() as tx:
        assert await tx.chunk_take(7, [1, 2]) == {1, 2}
    async with bench.transaction() as tx:
        assert await tx.chunk_take(7, [2, 3, 9]) == {3}
    async with bench.transaction() as tx:
        assert await tx.chunk_drop(7, 1) == 1
        assert await tx.chunk_drop(7, 9) == 1
    assert await bench.store.chunk_read(7, -1, 10) == []
    assert await bench.store.chunk_read(8, -1, 10) == [chunks[0]._replace(owner=8)]


async def test_what_is_rolled_back_never_happened(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        await tx.chunk_add([Chunk(7, 0, "mail", 1, b"a")])
    with pytest.raises(ZeroDivisionError):
        async with bench.transaction() as tx:
            await tx.entry_save([BulkRecord(EPOCH, "default", "g", 1, 5)])
            await tx.chunk_take(7, [0])
            raise ZeroDivisionError
    assert await bench.store.entry_list(Search(EPOCH)) == []
    assert len(await bench.store.chunk_read(7, -1, 10)) == 1


async def test_jobs_are_fetched_by_their_ids(bench: Workbench) -> None:
    jobs = [*await bench.put(state=State.ACTIVE), *await bench.put()]
    found = await bench.store.job_fetch([jobs[1].id, 5, jobs[0].id])
    assert {each.job.id: each.job for each in found} == {job.id: job for job in jobs}
    assert all(each.payload.data for each in found)
