"""The reads of one namespace do not keep the readers of a store from the others.

A reader is a thread (SQLite) or a connection (PostgreSQL). The counts here are blocked until the test lets them end.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.errors import StorageFailed, TooMany
from penstock.core.pool_shares import Shares
from penstock.core.queue import QueueKey
from penstock.store.postgres import reads as postgres_reads
from penstock.store.postgres.store import READERS
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite import reads as sqlite_reads

if TYPE_CHECKING:
    from tests.store.conformance.workbench import Workbench

pytestmark = pytest.mark.anyio
FLOOD, QUIET = QueueKey("flood", "q"), QueueKey("quiet", "q")


class Counts:
    """Counts of a store that begin when they have a reader, and end when the test says so."""

    def __init__(self, bench: Workbench, patch: pytest.MonkeyPatch) -> None:
        self.store = bench.store
        self.readers = sqlite_reads.THREADS if isinstance(bench.store, SqliteStore) else READERS
        self.begun: list[str] = []  #: the namespaces of the counts that have begun, in order
        self._loop = asyncio.get_running_loop()
        self._beginnings: asyncio.Queue[str] = asyncio.Queue()
        self._may_end = threading.Semaphore(0)
        self._may_end_here = asyncio.Semaphore(0)
        self._tasks: list[asyncio.Task[Any]] = []
        patch.setattr(sqlite_reads, "priority_counts", self._in_thread)
        patch.setattr(postgres_reads, "priority_counts", self._here)

    def _in_thread(self, _db: object, queue: int) -> dict[int, int]:
        self._loop.call_soon_threadsafe(self._begin, queue)
        self._may_end.acquire()
        return {}

    async def _here(self, _db: object, queue: int) -> dict[int, int]:
        self._begin(queue)
        await self._may_end_here.acquire()
        return {}

    def _begin(self, number: int) -> None:
        self._beginnings.put_nowait(self.store.queue_by_number(number).key.namespace)

    def ask(self, key: QueueKey, count: int = 1) -> list[asyncio.Task[dict[int, int]]]:
        queue = self.store.queue_find(key)
        assert queue is not None
        tasks = [asyncio.create_task(self.store.priority_counts(queue)) for _ in range(count)]
        self._tasks += tasks
        return tasks

    async def next(self) -> str:
        """Wait until the next count has begun; return its namespace."""
        self.begun.append(await asyncio.wait_for(self._beginnings.get(), 30))
        return self.begun[-1]

    async def nothing_begins(self) -> None:
        await yield_to_loop()
        assert self._beginnings.empty()

    def end_one(self) -> None:
        """Let one of the counts that have begun end."""
        self._may_end.release()
        self._may_end_here.release()

    async def end_of_one(self) -> None:
        """Let one of them end, and wait for that."""
        self.end_one()
        await asyncio.wait([task for task in self._tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)

    @property
    def done(self) -> int:
        return sum(task.done() for task in self._tasks)

    async def end_all(self) -> None:
        for _ in self._tasks:
            self.end_one()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def counts(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Any:
    for key in (FLOOD, QUIET):
        await bench.put(queue=key)
    made = Counts(bench, monkeypatch)
    yield made
    await made.end_all()


async def test_a_read_gets_the_next_reader_although_forty_of_another_namespace_wait(counts: Counts) -> None:
    counts.ask(FLOOD, 40)
    for _ in range(counts.readers):
        assert await counts.next() == "flood"
    counts.ask(QUIET)
    await counts.nothing_begins()
    counts.end_one()
    assert await counts.next() == "quiet"


async def test_where_tenants_are_separated_half_of_the_readers_are_free_for_others(counts: Counts) -> None:
    counts.store.pool_shares = Shares(lambda: True)
    counts.ask(FLOOD, 40)
    for _ in range(counts.readers // 2):
        await counts.next()
    await counts.nothing_begins()
    counts.ask(QUIET)
    assert await counts.next() == "quiet"


async def test_a_namespace_that_reads_alone_has_all_readers_again(counts: Counts) -> None:
    counts.ask(FLOOD, 40)
    for _ in range(counts.readers):
        await counts.next()
    (quiet,) = counts.ask(QUIET)
    while not quiet.done():
        await counts.end_of_one()
    while len(counts.begun) < counts.done + counts.readers:
        await counts.next()
    await counts.nothing_begins()


async def test_reads_of_several_namespaces_take_turns(counts: Counts) -> None:
    counts.ask(FLOOD, 60)
    for _ in range(counts.readers):
        await counts.next()
    quiet = counts.ask(QUIET, 10)
    while not all(task.done() for task in quiet):
        await counts.end_of_one()
    assert counts.done - len(quiet) <= counts.readers * (1 + len(quiet))


async def test_more_than_a_number_of_waiting_counts_are_refused(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "reads_waiting_max", 5)
    counts.ask(FLOOD, counts.readers + 5)
    for _ in range(counts.readers):
        await counts.next()
    (refused,) = counts.ask(FLOOD)
    with pytest.raises(TooMany, match=r"namespace flood wait \(max 5\).*retry"):
        await refused
    counts.ask(QUIET)
    counts.end_one()
    assert await counts.next() == "quiet"


async def test_a_count_that_waits_too_long_is_refused_and_the_others_are_answered(bench: Workbench, counts: Counts) -> None:
    counts.ask(FLOOD, counts.readers)
    for _ in range(counts.readers):
        await counts.next()
    late = counts.ask(FLOOD)[0]
    await yield_to_loop()
    await bench.clock.advance(limits.read_wait_ms_max - 1)
    recent = counts.ask(FLOOD)[0]
    assert not late.done()
    await bench.clock.advance(1)
    with pytest.raises(TooMany, match=r"waited 30 s .*namespace flood.*retry"):
        await late
    counts.end_one()
    await counts.next()
    await counts.end_all()
    assert await recent == {}


async def test_a_read_whose_caller_has_gone_has_its_reader_until_it_ends(bench: Workbench, counts: Counts) -> None:
    if not isinstance(bench.store, SqliteStore):
        pytest.skip("a statement of PostgreSQL ends with its caller")
    first, *_ = counts.ask(FLOOD, counts.readers)
    for _ in range(counts.readers):
        await counts.next()
    counts.ask(FLOOD)
    await yield_to_loop()
    first.cancel()
    await counts.nothing_begins()
    assert bench.store.readers.waiting == 1
    counts.end_one()
    await counts.next()
    assert bench.store.readers.waiting == 0


async def test_reads_that_wait_while_the_store_is_closed_fail(counts: Counts) -> None:
    store = counts.store
    if not isinstance(store, SqliteStore):
        pytest.skip("the connections of PostgreSQL are ended")
    waiting = counts.ask(FLOOD, counts.readers + 1)[-1]
    for _ in range(counts.readers):
        await counts.next()
    for _ in range(counts.readers):
        counts.end_one()
    store.readers.close()
    with pytest.raises(StorageFailed):
        await waiting
