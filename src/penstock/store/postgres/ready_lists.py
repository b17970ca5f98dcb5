"""Ready lists and logs of enqueue buffers, in a transaction on a PostgreSQL shard."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import RowChanged
from penstock.store.catalog import except_queues
from penstock.store.postgres import rows
from penstock.store.postgres.transaction_base import PostgresTransactionBase, changed_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue
    from penstock.store.contract import BufferLogs, ReadyLists

# The epochs of a list are always different from those of a later list of the same queue.
_ADD_HOT = "insert into hot values ($1, clock_ms() << 20) on conflict (queue) do nothing"
_FILL_HOT = (
    "with this as (select from catalog where generation = $3 for share)"
    " update hot set epoch = hot.epoch + 1 from this where queue = $1 and epoch = $2 returning epoch"
)
_ABANDON = "update catalog set generation = generation + 1, fenced_at = $1"
_REMOVE_LOST = (
    "delete from lost l where not exists (select from jobs j where j.state = 2 and j.started_at is null"
    " and j.lease_until is not null and j.queue = l.queue) returning l.queue"
)
_ADVANCE_WAL = (
    "insert into wals values ($1, $3, $4)"
    " on conflict (wal) do update set stored = excluded.stored, at = excluded.at where wals.stored = $2"
)


class PostgresReadyLists(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    generation = 0
    hot: Mapping[int, int] = MappingProxyType({})
    lost: Collection[int] = ()
    hot_after_commit: Sequence[int] = ()
    lists_generation = 0

    @property
    def ready_lists(self) -> ReadyLists:
        return self

    @property
    def buffer_logs(self) -> BufferLogs:
        return self

    async def hot_lock(self) -> bool:
        # With this lock, the next statement sees every list that was announced before.
        if await self._db.fetchval("select generation from catalog for update") != self.generation:
            raise RowChanged
        has_any: bool = await self._db.fetchval("select exists (select from hot)")
        return has_any

    async def hot_add(self, queue: Queue) -> None:
        self.wrote = True
        self._announced.add(queue.number)
        await self._db.execute(_ADD_HOT, queue.number)

    async def hot_fill(self, queue: int, epoch: int) -> int:
        self.wrote = True
        new_epoch: int | None = await self._db.fetchval(_FILL_HOT, queue, epoch, self.generation)
        if new_epoch is None:
            raise RowChanged
        return new_epoch

    def claims_unlisted(self, queue: int) -> None:
        self._unlisted.add(queue)

    async def hot_remove(self, queue: int, epoch: int) -> None:
        self.wrote = True
        if changed_rows(await self._db.execute("delete from hot where queue = $1 and epoch = $2", queue, epoch)):
            self.hot = {number: each for number, each in self.hot.items() if number != queue}

    async def abandon(self, generation: int) -> bool:
        if await self._db.fetchval("select generation from catalog for update") != generation:
            return False
        self.wrote = True
        await self._db.execute(_ABANDON, self.steady_ms)
        await self._db.execute("insert into lost select queue from hot on conflict do nothing")
        await self._db.execute("delete from hot")
        self._webhooks_changed = True  # so that the other servers read it at once
        return True

    async def lost_remove(self) -> list[int]:
        found = [row[0] for row in await self._db.fetch(_REMOVE_LOST)]
        if found:
            self.wrote = True
            self._changed.update(found)  # claims that wait there may get a job now
        return found

    async def generation_noted(self, generation: int) -> None:
        await self._db.execute(
            "update nodes set generation = $1 where server = $2 and generation < $1", generation, self._store.server
        )

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[JobRecord]:
        statement = except_queues(rows.SET_ASIDE, self._catalog.frozen)
        return rows.read_jobs(await self._db.fetch(statement, steady_ms, grace_ms, limit))

    async def log_stored(self, log_number: int) -> int:
        found: int | None = await self._db.fetchval("select stored from wals where wal = $1 for update", log_number)
        return found or 0

    async def log_advance(self, log_number: int, before: int, number: int) -> None:
        await self._guarded(_ADVANCE_WAL, [log_number, before, number, self.now_ms], 1, "logs")
        if not before:  # a new one, so delete very old ones
            await self._db.execute("delete from wals where at < $1", self.now_ms - limits.enqueue_log_known_ms)
