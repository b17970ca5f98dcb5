"""Reads of the SQLite store outside of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import JobQuarantined, StorageFailed
from penstock.core.queue import MoveStep, QueueKey
from penstock.store.catalog import CatalogReads
from penstock.store.contract import (
    JobPlace,
    JournalBlock,
    JournalPage,
    LogEntry,
    MovedJob,
    Page,
    Place,
    Search,
    Selection,
)
from penstock.store.read_turns import OWN
from penstock.store.sqlite import (
    bulk_records,
    crons,
    reads,
    rows,
)
from penstock.store.sqlite.catalog import SqliteCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from penstock.core.bulk_records import BulkRecord, Chunk
    from penstock.core.cron import CronKey, CronRecord
    from penstock.core.dependencies import Dependency, Need
    from penstock.core.job import Delivery, JobRecord, Payload
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue
    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import FinishedMinutes
    from penstock.store.sqlite.reads import Readers
    from penstock.store.sqlite.webhooks import Webhooks
    from penstock.store.sqlite.writer import Writer

_PLACES = (
    "select j.id, q.standing, n.name, q.name from jobs j join queues q on q.number = j.queue"
    " join namespaces n on n.number = q.namespace where j.id = ?"
)


class SqliteStoreReads(CatalogReads[SqliteCatalog]):
    """See ``contract.Store`` for what each method promises."""

    readers: Readers
    webhooks: Webhooks
    journal_next: int
    writer: Writer
    _db: apsw.Connection
    _connected: bool

    @property
    def db(self) -> apsw.Connection:
        """The writer's connection, to be used on the event loop only, and outside of transactions after ``writer.idle``."""
        if not self._connected:
            raise StorageFailed
        return self._db

    async def job_get(self, namespace: str, ref: int | str) -> tuple[JobRecord, Payload] | None:
        number = self.catalog.namespaces.get(namespace)
        if number is None:
            return None
        by = "id" if isinstance(ref, int) else "custom_id"
        statement = (
            f"select {rows.HEAD}, {rows.BODY} from jobs j left join payloads p on p.id = j.id"  # noqa: S608
            f" where j.{by} = ? and j.namespace = ?"
        )
        await self.writer.idle()
        try:
            for row in self.db.execute(statement, (ref, number)):
                found = rows.read_job_body(row)
                if self._is_seen(found[0]):
                    return found
        except (rows.DamagedRow, UnicodeDecodeError):
            raise JobQuarantined from None
        return None

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        await self.writer.idle()
        number = self.catalog.namespaces.get(namespace)
        found = self.db.executemany(
            "select custom_id, id from jobs where namespace = ? and custom_id = ?", [(number, name) for name in names]
        )
        return dict(found)

    async def job_export(self, ids: Sequence[int]) -> list[MovedJob]:
        return await self.readers.run(OWN, lambda db: reads.export(db, ids))

    async def job_places(self, ids: Sequence[int]) -> dict[int, JobPlace]:
        await self.writer.idle()
        found = self.db.executemany(_PLACES, [(job_id,) for job_id in ids])
        return {job_id: JobPlace(MoveStep(step), QueueKey(*key)) for job_id, step, *key in found}

    async def job_select(self, selection: Selection) -> list[Place]:
        return await self.readers.run(selection.queue.key.namespace, lambda db: reads.select(db, selection))

    async def job_page(self, page: Page) -> list[Delivery]:
        return await self.readers.run(page.queue.key.namespace, lambda db: reads.page(db, page), bounded=True)

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        return await self.readers.run(queue.key.namespace, lambda db: reads.priority_counts(db, queue.number), bounded=True)

    async def prioritized_count(self, queue: Queue) -> int:
        return await self.readers.run(
            queue.key.namespace, lambda db: reads.prioritized_count(db, queue.number), bounded=True
        )

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        return await self.readers.run(
            queue.key.namespace, lambda db: reads.group_count(db, queue.number, state, group), bounded=True
        )

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        return await self.readers.run(
            queue.key.namespace, lambda db: reads.finished_minutes(db, queue.number, state), bounded=True
        )

    async def result_list(self, ids: Sequence[int], *, namespace: str = OWN) -> dict[int, bytes]:
        return await self.readers.run(namespace, lambda db: reads.results(db, ids))

    async def result_get(self, job_id: int, *, namespace: str = OWN) -> bytes | None:  # noqa: ARG002 - it is read at once
        await self.writer.idle()
        return rows.read_result(self.db, job_id)

    async def need_list(
        self,
        job_id: int,
        states: Sequence[Need] | None = None,
        limit: int = limits.list_jobs_max,
        offset: int = 0,
        *,
        namespace: str = OWN,
    ) -> list[Dependency]:
        return await self.readers.run(namespace, lambda db: reads.needs(db, job_id, states, limit, offset))

    async def log_get(self, job_id: int, *, namespace: str = OWN) -> list[LogEntry]:  # noqa: ARG002 - it is read at once
        await self.writer.idle()
        return reads.logs(self.db, job_id)

    async def job_fetch(self, ids: Sequence[int], *, namespace: str = OWN) -> list[Delivery]:
        return await self.readers.run(namespace, lambda db: reads.fetch(db, ids))

    async def head_list(self, ids: Sequence[int], *, namespace: str = OWN) -> list[JobRecord]:
        return await self.readers.run(namespace, lambda db: reads.heads(db, ids))

    async def entry_list(self, search: Search) -> list[BulkRecord]:
        return await self.readers.run(search.namespace or OWN, lambda db: bulk_records.entries(db, search))

    async def entry_totals(self, kind: int, namespace: str | None = None) -> tuple[int, int]:
        return await self.readers.run(namespace or OWN, lambda db: bulk_records.totals(db, kind, namespace))

    async def chunk_read(self, owner: int, after: int, limit: int) -> list[Chunk]:
        return await self.readers.run(OWN, lambda db: bulk_records.chunks(db, owner, after, limit))

    async def cron_get(self, key: CronKey) -> CronRecord | None:
        await self.writer.idle()
        return next(iter(crons.read(self.db, crons.FIND, tuple(key))), None)

    async def cron_list(self, namespace: str) -> list[CronRecord]:
        return await self.readers.run(namespace, lambda db: crons.read(db, crons.LIST, (namespace,)))

    def webhook_list(self) -> list[WebhookRecord]:
        return sorted(self.webhooks.by_id.values(), key=lambda each: each.id)

    def webhook_find(self, webhook_id: int) -> WebhookRecord | None:
        return self.webhooks.by_id.get(webhook_id)

    async def journal_end(self) -> int:
        return self.journal_next

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        return await self.readers.run(OWN, lambda db: reads.journal(db, seq, limit))

    async def journal_first(self) -> int | None:
        return await self.readers.run(OWN, reads.journal_first)

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        return await self.readers.run(namespace, lambda db: reads.journal_page(db, seq, namespace, bytes_max))
