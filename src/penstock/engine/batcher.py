"""Gathers commands and commits them together.

Commands that arrive while the event loop is busy with a transaction wait for the next one; then they all go into it. So the
more there is to do, the larger the groups, and nobody ever waits for a timer. This is group commit: with durability
``always``, one fsync in a thread answers everything committed before it began, and the next group forms meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from penstock.core import limits
from penstock.core.clock import settle
from penstock.core.durability import Durability
from penstock.core.errors import OutcomeUnknown, PenstockError, QueueMoving, RowChanged, ShuttingDown, StorageFull, TooMany
from penstock.engine.work import Work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import Alarm, Clock
    from penstock.core.ids import IdSource
    from penstock.engine.command import AnyCommand, Command
    from penstock.engine.stats import Stats
    from penstock.store.contract import Store

log = structlog.get_logger("penstock.engine")

T = TypeVar("T")


class Group(NamedTuple):
    """Answers that may leave together, and when their batch began to form."""

    answers: list[tuple[AnyCommand, Any]]
    work: Work | None  #: what to time and to tell; None if another group of the same work does
    since: float


class Batcher:
    """One per store. ``apply`` decides a batch of commands inside a transaction."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        apply: Callable[[Work, list[AnyCommand]], Awaitable[None]],
        stats: Stats,
        *,
        durability: Durability,
        sync_interval_ms: int,
    ) -> None:
        self.after_commit: list[Callable[[Work], None]] = []  #: called with every committed piece of work
        self.when_answered: list[Callable[[Work], None]] = []  #: called when it is as durable as an answer promises
        #: Offered what is refused because its queue is on another shard; True if it is taken care of.
        self.send_on: Callable[[AnyCommand, Exception], bool] = lambda _command, _error: False
        self.when_vouched: list[Callable[[], None]] = []  #: called when more of the journal is
        #: Number of the first event of the journal that is not yet as durable as an answer promises.
        self.vouched = store.journal_next
        self._store = store
        self._clock = clock
        self._ids = ids
        self._apply = apply
        self._stats = stats
        self._durability = durability
        self._sync_interval_ms = sync_interval_ms
        self._loop = asyncio.get_running_loop()
        self._pending: list[AnyCommand] = []
        self._since = 0.0
        self._running: asyncio.Task[None] | None = None
        self._unsynced: list[Group] = []
        self._syncing: asyncio.Task[None] | None = None
        self._next_sync: Alarm | None = None
        self._sync_wanted = False
        self._closed = False

    def submit(self, command: Command[T]) -> asyncio.Future[T]:
        """Queue a command for the next transaction; the future is its answer. Raises what keeps it from being queued."""
        if self._closed:
            raise ShuttingDown
        if command.grows:
            self._store.check_writable(grows=True)
        pending = self._pending
        if len(pending) >= limits.pending_commands_max:
            raise TooMany("Too many requests are waiting to be written. Slow down and retry.")
        if not pending:
            self._since = self._clock.stopwatch()
        pending.append(command)
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="penstock-batcher")
        future = command.future = self._loop.create_future()
        return future

    def take_over(self, command: AnyCommand) -> None:
        """Queue a command that somebody waits for already, and that another shard could not do."""
        if self._closed:
            self._blame(command, ShuttingDown())
            return
        if not self._pending:
            self._since = self._clock.stopwatch()
        self._pending.append(command)
        if self._running is None:
            self._running = self._loop.create_task(self._run(), name="penstock-batcher")

    async def close(self) -> None:
        """Finish what was submitted; everything later is refused."""
        self._closed = True
        while self._running is not None or self._syncing is not None:
            await asyncio.gather(*(task for task in (self._running, self._syncing) if task is not None))
        if self._next_sync is not None:
            self._next_sync.cancel()

    async def _run(self) -> None:
        try:
            while self._pending:
                await self._gather()
                batch = self._pending[: limits.batch_commands_max]
                del self._pending[: limits.batch_commands_max]
                await self._commit(batch)
        finally:
            self._running = None

    async def _gather(self) -> None:
        """Wait as long as every turn of the event loop brings more: a transaction costs much, one more command in it little."""
        seen = 0
        while seen < len(self._pending) < limits.batch_commands_max:
            seen = len(self._pending)
            await settle(1)

    async def _commit(self, batch: list[AnyCommand], *, last_try: bool = False) -> None:
        since, started = self._since, self._clock.stopwatch()
        try:
            try:
                work = await self._transact(batch)
            except RowChanged:
                work = await self._transact(batch)
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends in the answers of this batch
            if last_try:
                self._blame(batch[0], error)
            else:
                await self._sort_out(batch, error)
            return
        self._stats.committed(len(batch), self._clock.stopwatch() - started)
        if self._durability is not Durability.ALWAYS or self._store.capabilities.commit_is_durable:
            self.vouched = self._store.journal_next
        self._pending[:0] = work.deferred
        self._announce(work)
        self._deliver(work, since)

    async def _transact(self, batch: list[AnyCommand]) -> Work:
        async with self._store.transaction(self._ids.mark) as tx:
            work = Work(tx, self._ids)
            await self._apply(work, batch)
            await work.flush()
        return work

    def _announce(self, work: Work) -> None:
        """Tell everybody inside the server what was committed. It is committed: nothing here may undo or repeat it."""
        for call in work.after_commit:
            call()
        self._tell(self.after_commit, work)

    @staticmethod
    def _tell(listeners: list[Callable[[Work], None]], work: Work) -> None:
        for listen in listeners:
            try:
                listen(work)
            except Exception:
                log.exception("a listener failed after a commit")

    async def _sort_out(self, batch: list[AnyCommand], error: Exception) -> None:
        """Nothing of the batch was stored, as far as is known. Find out which command is to blame, so that it fails alone."""
        if isinstance(error, StorageFull):  # what needs no more room has a chance now that the reserve was given back
            for command in batch:
                if command.grows:
                    self._blame(command, error)
            batch = [command for command in batch if not command.grows]
        elif isinstance(error, OutcomeUnknown) or len(batch) == 1:  # what may have happened must not be done again
            for command in batch:
                self._blame(command, error)
            return
        for command in batch:
            if not command.future.done():
                await self._commit([command], last_try=True)

    def _blame(self, command: AnyCommand, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            log.error("a command failed unexpectedly", command=type(command).__name__, exc_info=error)
            error = PenstockError()
        self._refuse(command, error)

    def _refuse(self, command: AnyCommand, error: Exception) -> None:
        if not command.future.done() and not (isinstance(error, QueueMoving) and self.send_on(command, error)):
            command.future.set_exception(error)

    # Durability.

    def _deliver(self, work: Work, since: float) -> None:
        """Answer a committed piece of work, now or after the next fsync."""
        for command, error in work.refusals:
            self._refuse(command, error)
        now, later = work.answers, work.answers
        all_on_disk = not work.tx.wrote and self._syncing is None and not self._unsynced
        if self._store.capabilities.commit_is_durable or all_on_disk:
            later = []
        elif self._durability is Durability.ALWAYS:
            now = []
        else:
            later = [each for each in work.answers if each[0].durable]
            if later:
                now = [each for each in work.answers if not each[0].durable]
        if now:
            self._answer(Group(now, work, since))
        if later:
            self._unsynced.append(Group(later, None if now else work, since))
            self._start_sync()
        elif self._durability is Durability.ALWAYS and work.tx.wrote and not work.answers:
            self._sync_in_background()  # nobody was promised anything, but it happened, and is to be told of
        elif self._durability is Durability.INTERVAL and self._next_sync is None and work.tx.wrote:
            self._next_sync = self._clock.call_at(self._clock.steady_ms() + self._sync_interval_ms, self._sync_in_background)

    def _answer(self, group: Group) -> None:
        for command, outcome in group.answers:
            if not command.future.done():
                command.future.set_result(outcome)
        if group.work is not None:
            took = self._clock.stopwatch() - group.since
            for histogram, times in group.work.timings:
                histogram.observe(took, times)
            self._tell(self.when_answered, group.work)

    def _start_sync(self) -> None:
        if self._syncing is None:
            self._syncing = self._loop.create_task(self._sync(), name="penstock-sync")

    async def _sync(self) -> None:
        """Sync as long as there is something to sync: one fsync covers all that was committed before it began."""
        try:
            while self._unsynced or self._sync_wanted:
                groups, self._unsynced = self._unsynced, []
                self._sync_wanted = False
                started, committed = self._clock.stopwatch(), self._store.journal_next
                try:
                    await self._store.sync()
                except OutcomeUnknown as error:
                    # What was answered already is covered by the chosen durability; from here on writes are refused.
                    log.error("fsync failed", error=str(error))
                    for group in groups + self._unsynced:
                        for command, _ in group.answers:
                            self._blame(command, error)
                    self._unsynced = []
                    self._sync_wanted = False
                    return
                self._stats.synced(self._clock.stopwatch() - started)
                for group in groups:
                    self._answer(group)
                self.vouch(committed)
        finally:
            self._syncing = None

    def vouch(self, journal_next: int) -> None:
        """Note that the journal is durable up to a number, and tell whoever waits for that."""
        self.vouched = journal_next
        for call in self.when_vouched:
            call()

    def _sync_in_background(self) -> None:
        self._next_sync = None
        self._sync_wanted = True
        self._start_sync()
