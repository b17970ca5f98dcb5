"""Moves of queues between shards, in a transaction of the SQLite store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import RowChanged
from penstock.core.lifecycle import STORED_STATES, State
from penstock.core.queue import Move, MoveStep, Queue, QueueKey, QueueSettings, StateCounts
from penstock.store.catalog import as_counts
from penstock.store.sqlite.queues import SqliteQueues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.sharding import Layout

# Each statement uses the index of its state.
_OF_QUEUE = {
    State.WAITING: "from jobs indexed by jobs_ready where queue = ? and state = 0",
    State.DELAYED: "from jobs indexed by jobs_delayed where queue = ? and state = 1",
    State.ACTIVE: "from jobs where queue = ? and state = 2",
    State.COMPLETED: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 3",
    State.DEAD: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 4",
    State.WAITING_CHILDREN: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 5",
}
_COUNT_QUEUE = {state: f"select count(*) {where}" for state, where in _OF_QUEUE.items()}
_SOME_OF_QUEUE = {state: f"select id {where} limit ?" for state, where in _OF_QUEUE.items()}
# On jobs of other queues, on this shard or another.
_TIED = (
    "select exists (select 1 from dependencies d join jobs a on a.id = d.job left join jobs b on b.id = d.needs"
    " where d.state <= 1 and (a.queue = ?1) is not (b.queue = ?1) and (a.queue = ?1 or b.queue = ?1))"
    " or exists (select 1 from relays r join jobs b on b.id = r.needed where b.queue = ?1)"
)


class SqliteQueueMoves(SqliteQueues):
    """The methods are documented in ``contract.Transaction``."""

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._moved = True
        return self._make_queue(key, settings, created_at, move)

    async def queue_move(self, queue: Queue, move: Move) -> None:
        self._begin()
        self._db.execute(
            "update queues set standing = ?, peer = ?, attempt = ? where number = ? and standing = ? and attempt = ?",
            (*move, queue.number, queue.move.step, queue.move.attempt),
        )
        if self._db.changes() != 1:
            raise RowChanged
        self._set_move(queue, move)
        self._catalog.read_horizon(self._db)

    async def queues_forget(self) -> None:
        self._begin()
        self._db.execute("delete from queues where standing = ?", (MoveStep.GONE,))
        self._drop_gone()

    async def layout_save(self, layout: Layout) -> None:
        self._begin()
        self._db.execute("update layout set shards = ?, epoch = ?, target = ?", layout[1:])
        self._set_layout(layout)

    async def queue_count(self, queue: Queue) -> StateCounts:
        found = {state: self._db.execute(_COUNT_QUEUE[state], (queue.number,)).get for state in STORED_STATES}
        return as_counts([found[state] for state in STORED_STATES])

    async def queue_tied(self, queue: Queue) -> bool:
        self._begin()
        return bool(self._db.execute(_TIED, (queue.number,)).get)

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        self._begin()
        for state in STORED_STATES:
            ids = [job_id for (job_id,) in self._db.execute(_SOME_OF_QUEUE[state], (queue.number, limit))]
            if ids:
                self._db.executemany("delete from jobs where id = ?", [(job_id,) for job_id in ids])
                self._forget(ids)
                self._tally(queue.number)[state] -= len(ids)
                return len(ids)
        self._groups.forget(queue.number)
        return 0

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        self._begin()
        found = self._db.executemany("select id from jobs where id = ?", [(job_id,) for job_id in ids])
        return {job_id for (job_id,) in found}
