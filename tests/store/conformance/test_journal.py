"""What a store promises about the journal: one block a commit, numbers without gaps, trimmed from the old end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from penstock.core.events import EventKind, queue_event
from penstock.core.queue import QueueKey
from penstock.store.journal_pages import FOREIGN
from tests.store.conformance.workbench import MAIL

if TYPE_CHECKING:
    from penstock.store.contract import JournalBlock, JournalPage
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio


async def write(bench: Workbench, count: int, note: str = "") -> None:
    async with bench.transaction() as tx:
        queue = await tx.queue_open(MAIL)
        tx.journal([queue_event(EventKind.QUEUE_DRAINED, queue.number, note or number) for number in range(count)])


def numbers(blocks: list[JournalBlock]) -> list[int]:
    return [block.seq + offset for block in blocks for offset in range(len(block.events))]


async def test_each_commit_is_a_block_and_the_numbers_have_no_gaps(bench: Workbench) -> None:
    for count in (1, 3, 2):
        await write(bench, count)
    blocks = await bench.store.journal_read(1, 100)
    assert [len(block.events) for block in blocks] == [1, 3, 2]
    assert numbers(blocks) == [1, 2, 3, 4, 5, 6]
    assert all(block.at == bench.now_ms for block in blocks)
    queue = bench.queue()
    assert blocks[1].queues == {queue.number: ("default", "mail")}
    assert blocks[1].events[2] == [EventKind.QUEUE_DRAINED, queue.number, 0, None, 2]


async def test_reading_starts_with_the_block_that_holds_the_number(bench: Workbench) -> None:
    for _ in range(4):
        await write(bench, 5)
    assert [block.seq for block in await bench.store.journal_read(8, 2)] == [6, 11]
    assert [block.seq for block in await bench.store.journal_read(11, 10)] == [11, 16]
    assert [block.seq for block in await bench.store.journal_read(99, 10)] == [16]


async def test_the_numbering_goes_on_after_a_restart_and_leaves_no_gap_after_a_rollback(bench: Workbench) -> None:
    await write(bench, 2)
    with pytest.raises(RuntimeError):
        async with bench.transaction() as tx:
            queue = await tx.queue_open(MAIL)
            tx.journal([queue_event(EventKind.QUEUE_PAUSED, queue.number)])
            raise RuntimeError
    await write(bench, 1)
    await bench.restart()
    await write(bench, 2)
    assert numbers(await bench.store.journal_read(1, 100)) == [1, 2, 3, 4, 5]


async def test_old_blocks_are_trimmed_by_age_and_the_newest_stays(bench: Workbench) -> None:
    for _ in range(3):
        await write(bench, 2)
        await bench.clock.advance(1_000)
    async with bench.transaction() as tx:
        assert await tx.journal_trim(bench.now_ms - 1_500, 1 << 40, 100) == 2
        assert await tx.journal_trim(bench.now_ms + 1, 1 << 40, 100) == 0
    await bench.restart()
    await write(bench, 1)
    assert numbers(await bench.store.journal_read(1, 100)) == [5, 6, 7]


async def test_blocks_are_trimmed_by_size_a_bounded_number_at_a_time(bench: Workbench) -> None:
    for _ in range(10):
        await write(bench, 1, "x" * 1_000)
    async with bench.transaction() as tx:
        assert await tx.journal_trim(0, 3_500, 4) == 4
        assert await tx.journal_trim(0, 3_500, 100) == 3
        assert await tx.journal_trim(0, 3_500, 100) == 0
    assert numbers(await bench.store.journal_read(1, 100)) == [8, 9, 10]


async def test_the_highest_id_ever_handed_out_is_remembered_although_its_job_is_gone(bench: Workbench) -> None:
    for _ in range(5):
        last = bench.serial()
    await write(bench, 1)
    await bench.restart()
    assert bench.store.id_floor >= last


async def write_mixed(bench: Workbench, *namespaces: str) -> None:
    """Write one block with one event of a queue of each namespace."""
    async with bench.transaction() as tx:
        queues = [await tx.queue_open(QueueKey(namespace, "q")) for namespace in namespaces]
        tx.journal([queue_event(EventKind.QUEUE_DRAINED, queue.number, at) for at, queue in enumerate(queues)])


async def test_a_page_has_the_events_of_one_namespace_with_their_numbers(bench: Workbench) -> None:
    await write_mixed(bench, "a", "b", "a")
    await write_mixed(bench, "b", "b")
    await write_mixed(bench, "b", "a")
    page = await bench.store.journal_page(1, "a", 10_000)
    assert (page.first, page.following, page.is_last) == (1, 8, True)
    found = [
        (block.seq + index, event[4])
        for block in page.blocks
        for index, event in enumerate(block.events)
        if event is not FOREIGN
    ]
    assert found == [(1, 0), (3, 2), (7, 1)]
    assert (await bench.store.journal_page(1, "c", 10_000)).blocks == []
    assert await bench.store.journal_first() == 1


async def test_a_page_is_bounded_by_what_it_holds_and_by_what_is_read_for_it(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await bench.store.journal_first() is None
    for _ in range(3):
        await write_mixed(bench, "a", "a", "b", "a")
    pages: list[JournalPage] = []
    following = 1
    while not pages or not pages[-1].is_last:
        pages.append(await bench.store.journal_page(following, "a", 1))
        following = pages[-1].following
    told = [len(page.blocks) and page.following - 1 for page in pages]
    assert told == [1, 2, 4, 5, 6, 8, 9, 10, 12, 0], "one event a page, and in the end a page without any"
    monkeypatch.setattr(limits, "replay_read_bytes", 1)
    page = await bench.store.journal_page(1, "c", 10_000)
    assert (page.following, page.blocks, page.is_last) == (5, [], False)


async def test_an_event_without_a_queue_is_on_the_page_of_its_namespace(bench: Workbench) -> None:
    async with bench.transaction() as tx:
        tx.journal([queue_event(EventKind.CRON_DELETED, 0, {"name": name}, namespace=name) for name in ("a", "b")])
    page = await bench.store.journal_page(1, "b", 10_000)
    (block,) = page.blocks
    assert block.events[0] is FOREIGN
    assert block.events[1][4] == {"name": "b"}
