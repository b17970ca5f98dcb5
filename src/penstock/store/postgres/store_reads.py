"""Reads of the PostgreSQL store outside of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core import limits
from penstock.core.errors import StorageFailed
from penstock.store.catalog import CatalogReads
from penstock.store.postgres import bulk_records, crons, reads
from penstock.store.postgres.catalog import PostgresCatalog
from penstock.store.postgres.errors import translate
from penstock.store.read_turns import OWN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncpg import Connection, Pool

    from penstock.core.bulk_records import BulkRecord, Chunk
    from penstock.core.cron import CronKey, CronRecord
    from penstock.core.dependencies import Dependency, Need
    from penstock.core.job import Delivery, JobRecord, Payload
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue
    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import (
        FinishedMinutes,
        JobPlace,
        JournalBlock,
        JournalPage,
        LogEntry,
        MovedJob,
        Page,
        Place,
        Search,
        Selection,
        StoreStatus,
    )
    from penstock.store.read_turns import ReadTurns

_END = "select seq + count from journal order by block desc limit 1"


class PostgresStoreReads(CatalogReads[PostgresCatalog]):
    """See ``contract.Store`` for what each method promises."""

    journal_next: int
    read_turns: ReadTurns
    _readers: Pool | None
    _status: StoreStatus

    def check_writable(self, *, grows: bool) -> None:
        self._status.check(grows=grows)

    async def _read(self, namespace: str, read: Callable[[Connection], Awaitable[Any]], *, bounded: bool = False) -> Any:
        """Run a read of a namespace on one of the connections. ``bounded``: see ``ReadTurns.take``, which may raise TooMany."""
        self.check_writable(grows=False)  # fail at once instead of waiting for a connection that cannot be opened
        await self.read_turns.take(namespace, bounded=bounded)
        try:
            return await self._read_now(read)
        finally:
            self.read_turns.give_back(namespace)

    async def _read_long(self, queue: Queue, read: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Run a listing or a count of a queue. Raises TooMany."""
        return await self._read(queue.key.namespace, read, bounded=True)

    async def _read_now(self, read: Callable[[Connection], Awaitable[Any]]) -> Any:
        self.check_writable(grows=False)  # the database may have been lost during the wait
        if self._readers is None:
            raise StorageFailed
        try:
            async with self._readers.acquire() as db:
                try:
                    return await read(db)
                except Exception as error:  # a connection that is closed while it is being used may raise any error
                    if db.is_closed():
                        raise StorageFailed from error
                    raise
        except Exception as error:
            ours = translate(error)
            if ours is None:
                raise
            raise ours from error

    async def job_get(self, namespace: str, ref: int | str) -> tuple[JobRecord, Payload] | None:
        found: tuple[JobRecord, Payload] | None = await self._read(namespace, lambda db: reads.job(db, namespace, ref))
        return found if found is not None and self._is_seen(found[0]) else None

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        return await self._read(namespace, lambda db: reads.named(db, namespace, names))  # type: ignore[no-any-return]

    async def job_export(self, ids: Sequence[int]) -> list[MovedJob]:
        return await self._read(OWN, lambda db: reads.export(db, ids))  # type: ignore[no-any-return]

    async def job_places(self, ids: Sequence[int]) -> dict[int, JobPlace]:
        return await self._read(OWN, lambda db: reads.places(db, ids))  # type: ignore[no-any-return]

    async def job_select(self, selection: Selection) -> list[Place]:
        return await self._read(selection.queue.key.namespace, lambda db: reads.select(db, selection))  # type: ignore[no-any-return]

    async def job_page(self, page: Page) -> list[Delivery]:
        return await self._read_long(page.queue, lambda db: reads.page(db, page))  # type: ignore[no-any-return]

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        return await self._read_long(queue, lambda db: reads.priority_counts(db, queue.number))  # type: ignore[no-any-return]

    async def prioritized_count(self, queue: Queue) -> int:
        return await self._read_long(queue, lambda db: reads.prioritized_count(db, queue.number))  # type: ignore[no-any-return]

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        return await self._read_long(queue, lambda db: reads.group_count(db, queue.number, state, group))  # type: ignore[no-any-return]

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        return await self._read_long(queue, lambda db: reads.finished_minutes(db, queue.number, state))  # type: ignore[no-any-return]

    async def result_list(self, ids: Sequence[int], *, namespace: str = OWN) -> dict[int, bytes]:
        return await self._read(namespace, lambda db: reads.results(db, ids))  # type: ignore[no-any-return]

    async def result_get(self, job_id: int, *, namespace: str = OWN) -> bytes | None:
        return await self._read(namespace, lambda db: reads.result(db, job_id))  # type: ignore[no-any-return]

    async def need_list(
        self,
        job_id: int,
        states: Sequence[Need] | None = None,
        limit: int = limits.list_jobs_max,
        offset: int = 0,
        *,
        namespace: str = OWN,
    ) -> list[Dependency]:
        return await self._read(namespace, lambda db: reads.needs(db, job_id, states, limit, offset))  # type: ignore[no-any-return]

    async def log_get(self, job_id: int, *, namespace: str = OWN) -> list[LogEntry]:
        return await self._read(namespace, lambda db: reads.logs(db, job_id))  # type: ignore[no-any-return]

    async def job_fetch(self, ids: Sequence[int], *, namespace: str = OWN) -> list[Delivery]:
        return await self._read(namespace, lambda db: reads.fetch(db, ids))  # type: ignore[no-any-return]

    async def head_list(self, ids: Sequence[int], *, namespace: str = OWN) -> list[JobRecord]:
        return await self._read(namespace, lambda db: reads.heads(db, ids))  # type: ignore[no-any-return]

    async def entry_list(self, search: Search) -> list[BulkRecord]:
        return await self._read(search.namespace or OWN, lambda db: bulk_records.entries(db, search))  # type: ignore[no-any-return]

    async def entry_totals(self, kind: int, namespace: str | None = None) -> tuple[int, int]:
        return await self._read(namespace or OWN, lambda db: bulk_records.totals(db, kind, namespace))  # type: ignore[no-any-return]

    async def chunk_read(self, owner: int, after: int, limit: int) -> list[Chunk]:
        return await self._read(OWN, lambda db: bulk_records.chunks(db, owner, after, limit))  # type: ignore[no-any-return]

    async def cron_get(self, key: CronKey) -> CronRecord | None:
        found = crons.read(await self._read(key.namespace, lambda db: db.fetch(crons.FIND, *key)))
        return next(iter(found), None)

    async def cron_list(self, namespace: str) -> list[CronRecord]:
        return crons.read(await self._read(namespace, lambda db: db.fetch(crons.LIST, namespace)))

    def webhook_list(self) -> list[WebhookRecord]:
        return sorted(self.catalog.webhooks.values(), key=lambda each: each.id)

    def webhook_find(self, webhook_id: int) -> WebhookRecord | None:
        return self.catalog.webhooks.get(webhook_id)

    async def journal_end(self) -> int:
        found = await self._read(OWN, lambda db: db.fetchval(_END))
        return max(self.journal_next, found or 1)

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        return await self._read(OWN, lambda db: reads.journal(db, seq, limit))  # type: ignore[no-any-return]

    async def journal_first(self) -> int | None:
        return await self._read(OWN, lambda db: db.fetchval(reads.JOURNAL_FIRST))  # type: ignore[no-any-return]

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        return await self._read(namespace, lambda db: reads.journal_page(db, seq, namespace, bytes_max))  # type: ignore[no-any-return]
