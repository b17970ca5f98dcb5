"""Moves of queues between shards, in a transaction on a PostgreSQL shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.lifecycle import STORED_STATES
from penstock.core.queue import Move, MoveStep, Queue, QueueKey, QueueSettings, StateCounts
from penstock.store.catalog import as_counts
from penstock.store.postgres import rows
from penstock.store.postgres.commit_notice import CommitNotice, bring_forward
from penstock.store.postgres.queues import PostgresQueues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.sharding import Layout
    from penstock.store.contract import Horizon

_MOVE_QUEUE = (
    "update queues set standing = $1, peer = $2, attempt = $3, version = $4"
    " where number = $5 and standing = $6 and attempt = $7 and not removed"
)
_COUNT_STATE = "(select count(*) from jobs where queue = $1 and state = {})"
_COUNT_QUEUE = f"select {', '.join(_COUNT_STATE.format(int(state)) for state in STORED_STATES)}"
_SOME_OF_QUEUE = "select id from jobs where queue = $1 and state = {} limit $2"
# On jobs of other queues, on this shard or another.
_TIED = (
    "select exists (select from dependencies d join jobs a on a.id = d.job left join jobs b on b.id = d.needs"
    " where d.state <= 1 and (a.queue = $1) is distinct from (b.queue = $1) and (a.queue = $1 or b.queue = $1))"
    " or exists (select from relays r join jobs b on b.id = r.needed where b.queue = $1)"
)


class PostgresQueueMoves(PostgresQueues):
    """The methods are documented in ``contract.Transaction``."""

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._moved = self._webhooks_changed = True  # so that the other servers read queues, too
        return await self._make_queue(key, settings, created_at, move)

    async def queue_move(self, queue: Queue, move: Move) -> None:
        version = await self._next_version()
        before = queue.move
        await self._guarded(_MOVE_QUEUE, [*move, version, queue.number, before.step, before.attempt], 1, "queues")
        self._moved = self._webhooks_changed = True
        self._set_move(queue, move)
        await self._catalog.extend_horizon(self._db)
        bring_forward(self._own_horizon, CommitNotice(horizon=_moments(self._catalog.horizon)))

    async def queues_forget(self) -> None:
        version = await self._next_version()
        await self._db.execute("update queues set removed = true, version = $1 where standing = $2", version, MoveStep.GONE)
        self._drop_gone()

    async def layout_save(self, layout: Layout) -> None:
        await self._next_version()
        await self._db.execute("update layout set shards = $1, epoch = $2, target = $3", *layout[1:])
        self._webhooks_changed = True
        self._set_layout(layout)

    async def queue_count(self, queue: Queue) -> StateCounts:
        return as_counts(list(await self._db.fetchrow(_COUNT_QUEUE, queue.number)))

    async def queue_tied(self, queue: Queue) -> bool:
        tied: bool = await self._db.fetchval(_TIED, queue.number)
        return tied

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        for state in STORED_STATES:
            found = await self._db.fetch(_SOME_OF_QUEUE.format(int(state)), queue.number, limit)
            if found:
                ids = [row[0] for row in found]
                await self._guarded(rows.CLEAR_JOBS, [ids], len(ids))
                self._tally(queue.number)[state] -= len(ids)
                return len(ids)
        self.wrote = True
        await self._groups.forget(self._db, queue.number)
        return 0

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        return {row[0] for row in await self._db.fetch("select id from jobs where id = any ($1::bigint[])", ids)}


def _moments(horizon: Horizon) -> tuple[int | None, int | None, int | None, int | None]:
    return horizon.due_ms, horizon.job_expiry_ms, horizon.lease_expiry_ms, horizon.cron_ms
