"""Queues of a transaction on a PostgreSQL shard: their names, settings, counts and rate limits."""

from __future__ import annotations

from penstock.core.queue import SETTLED, Move, Queue, QueueKey, QueueSettings, empties_bucket
from penstock.store.postgres.catalog import encode_settings
from penstock.store.postgres.schema import LOCK_QUEUE
from penstock.store.postgres.transaction_base import LOCK, PostgresTransactionBase

# A removed queue keeps its number: a job that another server pushed meanwhile refers to it.
_OPEN_QUEUE = (
    "insert into queues (namespace, name, created_at, settings, version, standing, peer, attempt)"
    " values ($1, $2, $3, $4, $5, $6, $7, $8)"
    " on conflict (namespace, name) do update set removed = false, created_at = $3, settings = $4, version = $5,"
    " standing = $6, peer = $7, attempt = $8 returning number"
)
_SAVE_BUCKET = (
    "insert into buckets values ($1, $2, $3) on conflict (queue) do update set tokens = excluded.tokens, at = excluded.at"
)


class PostgresQueues(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        found = self._catalog.by_key.get(key)
        if found is not None:
            return found
        self._check_home(key)
        if not must:
            self._store.pool_shares.check_queues(key.namespace, self._catalog.held.get(key.namespace, 0))
        return await self._make_queue(key, QueueSettings(), None, SETTLED)

    async def _make_queue(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        version = await self._next_version()
        namespace = await self._open_namespace(key.namespace)
        number = await self._db.fetchval(
            _OPEN_QUEUE, namespace, key.name, created_at, encode_settings(settings), version, *move
        )
        queue = Queue(number, namespace, key, created_at, settings, move)
        self._add_queue(queue)
        return queue

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        version = await self._next_version()
        await self._db.execute(
            "update queues set settings = $1, created_at = $2, version = $3 where number = $4",
            encode_settings(settings), created_at, version, queue.number,
        )  # fmt: skip
        if empties_bucket(queue.settings, settings):
            await self._db.execute("delete from buckets where queue = $1", queue.number)
        if queue.settings.subscriptions != settings.subscriptions:
            self._webhooks_changed = True
        self._set_queue(queue, settings, created_at)
        self._changed.add(queue.number)

    async def queue_remove(self, queue: Queue) -> None:
        version = await self._next_version()
        await self._db.execute("update queues set removed = true, version = $1 where number = $2", version, queue.number)
        await self._db.execute("delete from buckets where queue = $1", queue.number)
        await self._groups.forget(self._db, queue.number)
        if queue.settings.subscriptions:
            self._webhooks_changed = True
        self._drop_queue(queue)
        self._emptied.add(queue.number)
        self._changed.add(queue.number)

    async def is_empty(self, queue: Queue) -> bool:
        empty: bool = await self._db.fetchval("select are_empty(array[$1::int])", queue.number)
        return empty

    async def count_active(self, queue: Queue) -> int:
        await self._db.execute(LOCK, LOCK_QUEUE, queue.number)
        count: int = await self._db.fetchval("select count(*) from jobs where state = 2 and queue = $1", queue.number)
        return count

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        await self._db.execute(LOCK, LOCK_QUEUE, queue.number)
        row = await self._db.fetchrow("select tokens, at from buckets where queue = $1", queue.number)
        return None if row is None else (row[0], row[1])

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        self.wrote = True
        await self._db.execute(_SAVE_BUCKET, queue.number, tokens, at_ms)
