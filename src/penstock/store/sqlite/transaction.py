"""One transaction of the SQLite store: started by its first statement, committed or rolled back at the end of its block.

Each topic has its methods in its own module, see ``store/contract``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import apsw

from penstock.core.time_slices import Pauses
from penstock.store.sqlite import lease_clock
from penstock.store.sqlite.bulk_records import SqliteBulkRecords
from penstock.store.sqlite.crons import SqliteCrons
from penstock.store.sqlite.dependencies import SqliteDependencies
from penstock.store.sqlite.job_data import SqliteJobData
from penstock.store.sqlite.job_groups import SqliteGroupLimits, SqliteJobGroups
from penstock.store.sqlite.jobs import SqliteJobs
from penstock.store.sqlite.journal import SqliteJournal
from penstock.store.sqlite.queue_moves import SqliteQueueMoves
from penstock.store.sqlite.queues import SqliteQueues
from penstock.store.sqlite.sharding import SqliteSharding
from penstock.store.sqlite.webhooks import SqliteWebhooks

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.core.clock import Clock
    from penstock.store.contract import JournalBlock
    from penstock.store.sqlite.store import SqliteStore


class SqliteTransaction(
    SqliteQueueMoves,
    SqliteQueues,
    SqliteGroupLimits,
    SqliteJobs,
    SqliteJobData,
    SqliteDependencies,
    SqliteSharding,
    SqliteCrons,
    SqliteWebhooks,
    SqliteJournal,
    SqliteBulkRecords,
):
    """The methods are documented in ``contract.Transaction``."""

    def __init__(self, store: SqliteStore, clock: Clock, id_mark: Callable[[], int]) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._catalog = store.catalog
        self._db = store.db
        self._id_mark = id_mark
        self.freed: set[int] = set()
        self.wrote = False
        self.block: JournalBlock | None = None
        self._begun = False
        self._groups = SqliteJobGroups(self._db, self._settings_of)
        self._recount = False
        self._new_crons = 0
        self._paused = False

    async def pause(self) -> None:
        if self._pauses is None:
            self._pauses = Pauses()
        if self._pauses.is_due:
            if not self._paused:
                self._store.writer.begin()  # only now: without a pause, nothing else runs during a transaction
                self._paused = True
            await self._pauses.pause()

    async def __aenter__(self) -> Self:
        if self._store.checkpointer.finishing:
            await self._store.checkpointer.finished()
        self.now_ms, self.steady_ms = self._clock.now_ms(), self._clock.steady_ms()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                try:
                    if self._begun or self._events:
                        if self._groups.touched:
                            await self._groups.put_right(self.steady_ms, self.pause)
                        self._commit()
                    return
                except BaseException as failure:
                    self._roll_back()
                    if isinstance(failure, apsw.Error):
                        raise self._store.failed(failure) from failure
                    raise
            self._roll_back()
            if isinstance(error, apsw.Error):
                raise self._store.failed(error) from error
        finally:
            if self._paused:
                self._store.writer.end()

    def _commit(self) -> None:
        if self._paused:  # the disk may have failed meanwhile
            self._store.check_writable(grows=False)
        if self._events:
            self._begin()
            self._write_journal()
        self.wrote = self._db.total_changes() != self._changes_before
        self._db.execute("commit")
        self._catalog.apply(self._deltas)
        self._catalog.crons += self._new_crons
        self._store.committed(recount=self._recount, moved=self._moved)

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # after some errors SQLite has already rolled back
            self._db.execute("rollback")
        self._take_back()
        self._store.rolled_back()

    async def clock_mark(self) -> None:
        self._begin()
        lease_clock.save_mark(self._db, self.steady_ms)
