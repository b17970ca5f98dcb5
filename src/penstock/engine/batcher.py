"""Collects commands and commits them together.

Commands that arrive while the event loop is busy with a transaction wait for the next one; then all of them go into it. So
batches are larger when there is more to do, and no command ever waits for a timer. This is group commit: with durability
``always``, one fsync in a thread answers everything that was committed before it began, and the next batch forms meanwhile.

On a store with several lanes, a busy server has several batches in progress, so that the store works while the server
computes, and the server computes while the store works. Pushes and acknowledgements do not depend on other commands. They
have lanes of their own, and are done there in order. The main lane has all other commands: claims, timers, and changes on
which other commands depend. A batch that has to be alone waits for all lanes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog

from penstock.core import limits
from penstock.core.clock import yield_to_loop
from penstock.core.durability import Durability
from penstock.core.errors import OutcomeUnknown, QueueMoving, RowChanged, ServerError, ShuttingDown, StorageFull
from penstock.engine.command import Lane
from penstock.engine.fair_queue import FairQueue
from penstock.engine.unit_of_work import UnitOfWork

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.clock import Alarm, Clock
    from penstock.core.ids import IdSource
    from penstock.engine.command import AnyCommand, Command
    from penstock.engine.fair_share import FairShare
    from penstock.engine.signals import EngineSignals
    from penstock.engine.stats import EngineStats
    from penstock.store.contract import Store

log = structlog.get_logger("penstock.engine")

T = TypeVar("T")


class AnswersToSend(NamedTuple):
    """Answers that may be sent together, and when their batch began to form."""

    answers: list[tuple[AnyCommand, Any]]
    work: UnitOfWork | None  #: for timings and events; None if another of the same work has it
    since: float


class SideLane:
    """A lane beside the main one: its waiting commands, since when they wait, and its running task."""

    def __init__(self, pending: FairQueue) -> None:
        self.pending = pending
        self.since = 0.0
        self.running: asyncio.Task[None] | None = None


class Batcher:
    """One per store.

    ``apply`` runs a batch of commands inside a transaction; ``apply_in_side_lane`` runs one in a side lane. ``wants_alone``
    returns whether the next batch of the main lane has to be alone. ``weigh``: see ``FairQueue``. ``send_on`` is called with
    a command that is refused because its queue is on another shard; it returns True if it takes the command over.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdSource,
        apply: Callable[[UnitOfWork, list[AnyCommand]], Awaitable[None]],
        stats: EngineStats,
        *,
        signals: EngineSignals,
        apply_in_side_lane: Callable[[UnitOfWork, list[AnyCommand]], Awaitable[None]],
        wants_alone: Callable[[], bool],
        weigh: Callable[[AnyCommand, int], int],
        send_on: Callable[[AnyCommand], bool],
        fair_share: FairShare,
        durability: Durability,
        sync_interval_ms: int,
    ) -> None:
        #: Number of the first event of the journal that is not yet as durable as an answer promises.
        self.durable_up_to = store.journal_next
        self._store = store
        self._clock = clock
        self._ids = ids
        self._apply = apply
        self._apply_in_side_lane = apply_in_side_lane
        self._wants_alone = wants_alone
        self._stats = stats
        self._signals = signals
        self._send_on = send_on
        self._fair_share = fair_share
        self._durability = durability
        self._sync_interval_ms = sync_interval_ms
        self._loop = asyncio.get_running_loop()
        self._pending = FairQueue(weigh, clock.stopwatch, fair_share)
        self._since = 0.0
        self._running: asyncio.Task[None] | None = None
        self._side_lanes: dict[int, SideLane] = {}
        if store.capabilities.lanes > 1:
            self._side_lanes = {
                lane: SideLane(FairQueue(weigh, clock.stopwatch, fair_share)) for lane in (Lane.PUSHES, Lane.ACKS)
            }
        self._is_split = False  #: the main lane is running, and has no command that could be done in a side lane
        self._unsynced: list[AnswersToSend] = []
        self._syncing: asyncio.Task[None] | None = None
        self._next_sync: Alarm | None = None
        self._sync_wanted = False
        self._closed = False

    def submit(self, command: Command[T]) -> asyncio.Future[T]:
        """Queue a command for the next transaction; the future is its answer. Raises an error if it cannot be queued."""
        if self._closed:
            raise ShuttingDown
        self._store.check_writable(grows=command.grows)  # no command should wait behind one whose outcome is being found out
        lane = self._side_lanes.get(command.lane) if self._side_lanes else None
        if lane is not None and (self._is_split or lane.running is not None):
            self._put_in_lane(lane, command)
        else:
            if self._pending.add(command):
                self._since = self._clock.stopwatch()
            if self._running is None:
                self._running = self._loop.create_task(self._run(), name="penstock-batcher")
        future = command.future = self._loop.create_future()
        return future

    def put_back(self, command: AnyCommand) -> None:
        """Queue a command again that a caller already waits for: the fast path, or another shard, could not run it."""
        waited_for = command.future
        try:
            self.submit(command)
        except ServerError as error:
            command.future = waited_for
            self._blame(command, error)
            return
        command.future = waited_for

    async def close(self) -> None:
        """Finish all submitted commands; later ones are refused."""
        self._closed = True
        while True:
            tasks = (self._running, self._syncing, *(lane.running for lane in self._side_lanes.values()))
            if not any(tasks):
                break
            await asyncio.gather(*(task for task in tasks if task is not None))
        if self._next_sync is not None:
            self._next_sync.cancel()

    async def _run(self) -> None:
        try:
            busy = False
            while self._pending:
                await self._gather(self._pending)
                if not self._side_lanes:
                    await self._commit(self._pending.take(), alone=True)
                elif self._wants_alone():
                    await self._commit(self._take_all(), alone=True)
                else:
                    self._split_lanes(busy=busy)
                    if self._pending:
                        await self._commit(self._pending.take())
                busy = True
        finally:
            self._running = None
            self._is_split = False

    def _split_lanes(self, *, busy: bool) -> None:
        """Move commands to the side lanes that may be done there, unless the batcher was idle a moment ago.

        The commands of a lane are done in order. So from then on none of them may be done in the main lane.
        """
        self._is_split = True
        if busy:
            for command in self._pending.take_out(
                self._side_lanes
            ):  # there is room: while a lane is idle, no command waits for it
                self._put_in_lane(self._side_lanes[command.lane], command)
        elif self._pending.has(self._side_lanes):
            self._is_split = False

    def _take_all(self) -> list[AnyCommand]:
        """Take the next batch of all lanes: a batch that is alone must include all earlier commands."""
        self._is_split = False
        batch = self._pending.take()
        for lane in self._side_lanes.values():
            batch += lane.pending.take()
        return batch

    def _put_in_lane(self, lane: SideLane, command: AnyCommand) -> None:
        if lane.pending.add(command):
            lane.since = self._clock.stopwatch()
        if lane.running is None:
            lane.running = self._loop.create_task(self._run_lane(lane), name="penstock-batcher-side-lane")

    async def _run_lane(self, lane: SideLane) -> None:
        try:
            while lane.pending:
                await self._gather(lane.pending)
                if lane.pending:
                    await self._commit(lane.pending.take(), lane=lane)
        finally:
            lane.running = None

    async def _gather(self, pending: FairQueue) -> None:
        """Wait as long as each turn of the event loop brings more commands.

        A transaction costs much, one more command in it little. While several namespaces are active, wait for one turn only,
        because a namespace with many requests brings more in every turn.
        """
        seen = 0
        while seen < len(pending):
            seen = len(pending)
            await yield_to_loop(1)  # at least once, so that other connections are read and answered between two batches
            if pending.full or self._fair_share.shared:
                return

    async def _commit(
        self, batch: list[AnyCommand], *, alone: bool = False, lane: SideLane | None = None, last_try: bool = False
    ) -> None:
        since, started = self._since if lane is None else lane.since, self._clock.stopwatch()
        if self._store.status().full and not (batch := self._refuse_growing(batch)):
            return
        try:
            work = await self._transact_with_retries(batch, alone=alone, lane=lane)
        except Exception as error:  # noqa: BLE001 - whatever it was, it ends in the answers of this batch
            if last_try and not (isinstance(error, StorageFull) and error.room_made):
                self._blame(batch[0], error)
            else:
                await self._retry_one_by_one(batch, error, lane=lane)
            return
        self._stats.committed(len(batch), self._clock.stopwatch() - started)
        if self._durability is not Durability.ALWAYS or self._store.capabilities.commit_is_durable:
            self.durable_up_to = self._store.journal_next
        if work.deferred:
            self._pending.put_first(work.deferred)
        if self._signals.before_answers.subscribers and (
            work.reconfigured or ((lists := work.tx.ready_lists) is not None and lists.hot_after_commit)
        ):
            await self._signals.before_answers.emit(work)
        self._announce(work)
        self._deliver(work, since)

    async def _transact_with_retries(self, batch: list[AnyCommand], *, alone: bool, lane: SideLane | None) -> UnitOfWork:
        """Repeat a transaction as long as other servers get in the way: many may be changing the same rows."""
        for _ in range(limits.row_changed_tries_max - 1):
            try:
                return await self._transact(batch, alone=alone, lane=lane)
            except RowChanged:
                alone = True
        return await self._transact(batch, alone=True, lane=lane)

    async def _transact(self, batch: list[AnyCommand], *, alone: bool, lane: SideLane | None) -> UnitOfWork:
        undo: list[Callable[[], object]] = []
        try:
            async with self._store.transaction(self._ids.mark, alone=alone) as tx:
                work = UnitOfWork(tx, self._ids, alone=alone)
                undo = work.when_undone
                await (self._apply if lane is None else self._apply_in_side_lane)(work, batch)
                await work.flush()
        except OutcomeUnknown:
            raise
        except BaseException:
            for call in undo:
                call()
            raise
        return work

    def _announce(self, work: UnitOfWork) -> None:
        """Announce inside the server what was committed. It is committed: nothing here may undo or repeat it."""
        for call in work.after_commit:
            call()
        self._signals.committed.emit(work)

    async def _retry_one_by_one(self, batch: list[AnyCommand], error: Exception, *, lane: SideLane | None) -> None:
        """Find the command that made its batch fail, so that it fails alone. As far as is known, nothing was stored."""
        if isinstance(error, StorageFull):  # commands that need little space may succeed: there may be a reserve
            batch = self._refuse_growing(batch)
        elif isinstance(error, OutcomeUnknown) or len(batch) == 1:  # what may be stored must not be repeated
            for command in batch:
                self._blame(command, error)
            return
        for command in batch:
            if not command.future.done():
                await self._commit([command], alone=True, lane=lane, last_try=True)

    def _refuse_growing(self, batch: list[AnyCommand]) -> list[AnyCommand]:
        """Refuse commands that need more space on disk if there is none; return the rest."""
        try:
            self._store.check_writable(grows=True)
        except ServerError as error:
            for command in batch:
                if command.grows:
                    self._blame(command, error)
            return [command for command in batch if not command.grows]
        return batch

    def _blame(self, command: AnyCommand, error: Exception) -> None:
        if not isinstance(error, ServerError):
            log.error("a command failed unexpectedly", command=type(command).__name__, exc_info=error)
            error = ServerError()
        elif isinstance(error, OutcomeUnknown):
            error = error.with_advice(command.if_unknown)
        self._refuse(command, error)

    def _refuse(self, command: AnyCommand, error: Exception) -> None:
        if not command.future.done() and not (isinstance(error, QueueMoving) and self._send_on(command)):
            command.future.set_exception(error)

    # Durability.

    def _deliver(self, work: UnitOfWork, since: float) -> None:
        """Answer committed work, now or after the next fsync."""
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
        if work.early:
            self._answer(AnswersToSend(work.early, None, since))
        waits = bool(later or (work.early and not self._store.capabilities.commit_is_durable))
        if now or (work.early and not waits):
            self._answer(AnswersToSend(now, work, since))
        if waits:
            self._unsynced.append(AnswersToSend(later, None if now else work, since))
            self._start_sync()
        elif self._durability is Durability.ALWAYS and work.tx.wrote and not work.answers:
            self._sync_in_background()  # no answer waits for it, but its events do
        elif self._durability is Durability.INTERVAL and self._next_sync is None and work.tx.wrote:
            self._next_sync = self._clock.call_at(self._clock.steady_ms() + self._sync_interval_ms, self._sync_in_background)

    def _answer(self, to_send: AnswersToSend) -> None:
        for command, outcome in to_send.answers:
            if not command.future.done():
                command.future.set_result(outcome)
        if to_send.work is not None:
            took = self._clock.stopwatch() - to_send.since
            for histogram, times in to_send.work.timings:
                histogram.observe(took, times)
            self._signals.answered.emit(to_send.work)

    def _start_sync(self) -> None:
        if self._syncing is None:
            self._syncing = self._loop.create_task(self._sync(), name="penstock-sync")

    async def _sync(self) -> None:
        """Run fsyncs as long as there is something to write: one covers all that was committed before it began."""
        try:
            while self._unsynced or self._sync_wanted:
                synced, self._unsynced = self._unsynced, []
                self._sync_wanted = False
                started, committed = self._clock.stopwatch(), self._store.journal_next
                try:
                    await self._store.sync()
                except OutcomeUnknown as error:
                    # Answers that were sent already are covered by the chosen durability; from here on writes are refused.
                    log.error("fsync failed", error=str(error))
                    for each in synced + self._unsynced:
                        for command, _ in each.answers:
                            self._blame(command, error)
                    self._unsynced = []
                    self._sync_wanted = False
                    return
                self._stats.synced(self._clock.stopwatch() - started)
                for each in synced:
                    self._answer(each)
                self.confirm_durable(committed)
        finally:
            self._syncing = None

    def confirm_durable(self, journal_next: int) -> None:
        """Record that the journal is durable up to a number, and announce it."""
        self.durable_up_to = journal_next
        self._signals.durable.emit()

    def _sync_in_background(self) -> None:
        self._next_sync = None
        self._sync_wanted = True
        self._start_sync()
