"""One transaction on a PostgreSQL shard, with as few round trips as possible.

Each topic has its methods in its own module, see ``store/contract``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from penstock.core.errors import RowChanged
from penstock.core.ids import first_of
from penstock.store.contract import Horizon, JournalBlock
from penstock.store.postgres import commit_notice
from penstock.store.postgres.bulk_records import PostgresBulkRecords
from penstock.store.postgres.clock import Reading
from penstock.store.postgres.crons import PostgresCrons
from penstock.store.postgres.dependencies import PostgresDependencies
from penstock.store.postgres.errors import as_lost
from penstock.store.postgres.job_data import PostgresJobData
from penstock.store.postgres.job_groups import PostgresGroupLimits, PostgresJobGroups
from penstock.store.postgres.jobs import PostgresJobs
from penstock.store.postgres.journal import PostgresJournal
from penstock.store.postgres.queue_moves import PostgresQueueMoves
from penstock.store.postgres.queues import PostgresQueues
from penstock.store.postgres.ready_lists import PostgresReadyLists
from penstock.store.postgres.sharding import PostgresSharding
from penstock.store.postgres.webhooks import PostgresWebhooks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from asyncpg import Connection

    from penstock.store.postgres.store import PostgresStore

_encode = msgspec.msgpack.Encoder().encode
# In one order: the planner may read one column from an index, and the other from the table.
_ENTER = (
    "select clock_ms(), clock_shift, clock_term, version, generation, array(select queue from hot order by queue),"
    " array(select epoch from hot order by queue), array(select queue from lost) from catalog"
)
_FINISH = "select * from finish($1::int[], $2, $3::int[], $4, $5, $6, $7, $8, $9)"


class Finished(NamedTuple):
    """The entry of a transaction in the journal, after its commit."""

    number: int  #: of its block
    xid: str  #: the database's own number of the transaction
    block: JournalBlock
    body: bytes  #: the same, in stored form


class PostgresTransaction(
    PostgresQueueMoves,
    PostgresQueues,
    PostgresGroupLimits,
    PostgresJobs,
    PostgresJobData,
    PostgresDependencies,
    PostgresSharding,
    PostgresCrons,
    PostgresWebhooks,
    PostgresJournal,
    PostgresBulkRecords,
    PostgresReadyLists,
):
    """The methods are documented in ``contract.Transaction``."""

    def __init__(self, store: PostgresStore, id_mark: Callable[[], int], *, alone: bool) -> None:
        super().__init__()
        self._store = store
        self._alone = alone
        self._id_mark = id_mark
        self.freed: set[int] = set()  # always empty: no row is quarantined, because the database checks its own pages
        self.wrote = False
        self.block: JournalBlock | None = None
        self._groups = PostgresJobGroups(self._settings_of)
        self._emptied: set[int] = set()
        self._own_horizon = Horizon()
        self._fronts: set[int] = set()  #: queues in which a job got a position that other servers may count as empty
        self._new_crons = 0
        self._webhooks_changed = False
        self._changed: set[int] = set()  #: queues that other servers must read again
        self._finished: Finished | None = None
        self._announced: set[int] = set()  #: queues that get a ready list in this transaction
        self._unlisted: set[int] = set()  #: queues that must not have got a ready list since it began

    async def __aenter__(self) -> Self:
        store = self._store
        self._db: Connection = await store.begin(alone=self._alone)
        self._catalog = store.catalog
        try:
            await self._db.execute("begin")
            asked_ms = store.clock.local_ms()
            entered = await self._db.fetchrow(_ENTER)
            now_ms, shift, term, version, self.generation, queues, epochs, self.lost = entered
            if queues:
                self.hot = dict(zip(queues, epochs, strict=True))
            if queues or store.listed:
                # Jobs of a removed list are back in their old positions before the journal reports it.
                for queue in store.listed.difference(queues):
                    store.fronts.forget(queue)
                store.listed = set(queues)
            self.now_ms, self.steady_ms = store.clock.record_reading(Reading(now_ms, shift, term), asked_ms)
            self._young = first_of(self.now_ms)
            if version != self._catalog.version:
                store.stay_alone()
                await self._catalog.refresh(self._db)
            self._known = self._catalog.version
        except BaseException as failure:
            error = as_lost(self._db, failure)
            await store.roll_back(self._db, error)
            raise store.failed(error) from failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store = self._store
        committing = False
        try:
            if error is None:
                await self._put_groups_right()
                if self._events or self._deltas or self.wrote:
                    await self._finish()
                committing = True
                await self._db.execute("commit")
        except BaseException as broken:
            failure = as_lost(self._db, broken)
            committed: bool | None = False
            if committing and self._finished is not None:
                committed = await store.was_committed(self._finished, failure)
            if not committed:
                self._take_back()
                await store.roll_back(self._db, failure)
                raise store.failed(failure, unknown=committed is None) from broken
        if error is not None:
            error = as_lost(self._db, error)
            self._take_back()
            await store.roll_back(self._db, error)
            if (ours := store.failed(error)) is not error:
                raise ours from error
            return
        store.end(self._db)
        self._catalog.apply(self._deltas)
        self._catalog.crons += self._new_crons
        self._catalog.bring_forward(self._own_horizon)
        for queue in self._fronts:  # again, because another transaction may have read before this commit
            store.fronts.forget(queue)
        if self._finished is not None:
            number, _, block, _ = self._finished
            store.journal_next = max(store.journal_next, block.seq + len(block.events))
            self.block = store.follower.committed(number, block)
            store.worked()
        if self._moved:
            store.moved()

    async def _finish(self) -> None:
        """Number the events, notify the other servers, and check that nothing read from memory has changed."""
        self.wrote = True
        queues = self._mentioned()
        body = _encode((queues, self._events))
        own = self._own_horizon
        notice = commit_notice.CommitNotice(
            {number: delta for number, delta in self._deltas.items() if any(delta)},
            (own.due_ms, own.job_expiry_ms, own.lease_expiry_ms, own.cron_ms),
            self._new_crons,
            self._webhooks_changed,
            own.unfollowed,
            list(self._fronts),
            list(self._changed),
        )
        touched = [number for number in self._deltas if number not in self._emptied]
        block, seq, total, xid, self.hot_after_commit, self.lists_generation = await self._db.fetchrow(
            _FINISH, touched, self._known, list(self._emptied), len(self._events), self.now_ms, self._id_mark(),
            self._store.server, commit_notice.encode(notice), body,
        )  # fmt: skip
        if not self._unlisted.isdisjoint(set(self.hot_after_commit) - self._announced):
            raise RowChanged("A queue has got a ready list meanwhile.")
        self._store.journal_bytes = total
        self._finished = Finished(block, xid, JournalBlock(seq, self.now_ms, self._events, queues), body)
