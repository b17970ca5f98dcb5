"""Queues of a transaction in the SQLite store: their names, settings, counts and rate limits."""

from __future__ import annotations

from penstock.core.lifecycle import STORED_STATES
from penstock.core.queue import SETTLED, Move, Queue, QueueKey, QueueSettings, empties_bucket
from penstock.store.sqlite.catalog import encode_settings
from penstock.store.sqlite.transaction_base import SqliteTransactionBase


class SqliteQueues(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        found = self._catalog.by_key.get(key)
        if found is not None:
            return found
        self._check_home(key)
        if not must:
            self._store.pool_shares.check_queues(key.namespace, self._catalog.held.get(key.namespace, 0))
        return self._make_queue(key, QueueSettings(), None, SETTLED)

    def _make_queue(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._begin()
        namespace = self._open_namespace(key.namespace)
        self._db.execute(
            "insert into queues (namespace, name, created_at, settings, standing, peer, attempt) values (?, ?, ?, ?, ?, ?, ?)",
            (namespace, key.name, created_at, encode_settings(settings), *move),
        )
        queue = Queue(self._db.last_insert_rowid(), namespace, key, created_at, settings, move)
        self._add_queue(queue)
        return queue

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        self._begin()
        self._db.execute(
            "update queues set settings = ?, created_at = ? where number = ?",
            (encode_settings(settings), created_at, queue.number),
        )
        if empties_bucket(queue.settings, settings):
            self._catalog.buckets.pop(queue.number, None)
        self._set_queue(queue, settings, created_at)

    async def queue_remove(self, queue: Queue) -> None:
        self._begin()
        self._db.execute("delete from queues where number = ?", (queue.number,))
        self._groups.forget(queue.number)
        self._drop_queue(queue)

    async def is_empty(self, queue: Queue) -> bool:
        counts = self.counts(queue)
        return not any(counts.of(state) for state in STORED_STATES)

    async def count_active(self, queue: Queue) -> int:
        return self.counts(queue).active

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        return self._catalog.buckets.get(queue.number)

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        before = self._catalog.buckets.get(queue.number)
        self._catalog.buckets[queue.number] = tokens, at_ms

        def undo() -> None:
            if before is None:
                self._catalog.buckets.pop(queue.number, None)
            else:
                self._catalog.buckets[queue.number] = before

        self._undo.append(undo)
