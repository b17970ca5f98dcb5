"""The engine of one shard: its store, its batcher, and the callers that wait. Doors use it as ``EngineApi``."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from penstock.core import limits
from penstock.core.durability import Durability
from penstock.core.errors import ServerError
from penstock.core.ids import IdSource, first_of
from penstock.core.pool_shares import ALL, Shares, Slots
from penstock.core.retention import Retention
from penstock.engine import dispatch
from penstock.engine.batcher import Batcher
from penstock.engine.event_feed import EventFeed
from penstock.engine.fair_share import FairShare
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import ClaimWaiters
from penstock.engine.jobs.loss_alerts import LossAlerts
from penstock.engine.jobs.queue_limits import QueueLimits
from penstock.engine.jobs.result_waiters import ResultWaiters
from penstock.engine.maintenance.dead_letter_service import DeadLetterService
from penstock.engine.maintenance.lease_clock import ClockMarker
from penstock.engine.maintenance.membership import Membership
from penstock.engine.maintenance.retention import RetentionService
from penstock.engine.maintenance.store_recovery import StoreRecovery
from penstock.engine.prefetch.unconfirmed_leases import UnconfirmedLeases
from penstock.engine.signals import EngineSignals
from penstock.engine.stats import EngineStats
from penstock.engine.submit import submit_chain
from penstock.engine.timers import Timer
from penstock.engine.worker_registry import WorkerRegistry

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Alarm, Clock
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.api import JobOutcome
    from penstock.engine.buffer.enqueue_buffer import EnqueueBuffer
    from penstock.engine.command import AnyCommand, JobRef, Submit
    from penstock.engine.maintenance.service import PeriodicService
    from penstock.engine.prefetch.ready_cache import ReadyCache
    from penstock.engine.quota_check import QuotaCheck
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import JournalBlock, Store

log = structlog.get_logger("penstock.engine")


class Engine:
    """Create it inside the event loop, ``start`` it, and ``await engine.run(command)``.

    ``durability``: what an answer means, see Durability. ``sync_interval_ms``: with ``interval``, how much a power cut may
    lose at most. ``retention``: how much of the past is kept. ``feed``, ``stats``, ``workers``, ``fair_share``: those that the
    shards of a server have in common. ``quotas``: checked before pushes, before rows are staged, and before the server itself
    pushes jobs. ``counts_pushes``: whether this engine checks quotas before pushes; False for a shard: the ShardedEngine does.
    ``ready_cache``, ``buffer``: make the optional stages of the submit chain (see ``submit.py``).
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        durability: Durability = Durability.ALWAYS,
        sync_interval_ms: int = 100,
        retention: Retention | None = None,
        feed: EventFeed | None = None,
        stats: EngineStats | None = None,
        workers: WorkerRegistry | None = None,
        fair_share: FairShare | None = None,
        quotas: QuotaCheck | None = None,
        counts_pushes: bool = True,
        ready_cache: Callable[[Engine], ReadyCache] | None = None,
        buffer: Callable[[Engine], EnqueueBuffer] | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.began_at = clock.steady_ms()  #: start of this engine; earlier due times of crons count as missed
        self.ids = IdSource(shard=store.shard, node=store.node, floor=store.id_floor)
        self.stats = EngineStats() if stats is None else stats
        self.feed = EventFeed() if feed is None else feed
        self.workers = WorkerRegistry(clock, self.feed) if workers is None else workers
        self.fair_share = (
            FairShare(clock) if fair_share is None else fair_share
        )  #: shares of the event loop, for each namespace
        self.pool_shares = Shares()  #: shares of each pool, for each namespace
        self.retention = retention or Retention()
        self.signals = EngineSignals()
        self._send_to_shard: Callable[[AnyCommand], bool] | None = None  #: see ``when_away``; None: there is one shard
        self.queue_limits = QueueLimits()
        self.claim_waiters = ClaimWaiters(self)
        self.result_waiters = ResultWaiters(self)
        self.loss_alerts = LossAlerts()
        self.replays = Slots(limits.replays_max, ALL)  #: turns of readers of the journal, for each namespace
        self.timer = Timer(self)
        self.leads = not store.capabilities.is_shared  #: whether it does the shard's tasks for one server at a time
        self._lead_ends: Alarm | None = None
        self.unconfirmed_leases = UnconfirmedLeases()  #: jobs from ready lists whose leases are not in the store yet
        self.hot: Mapping[int, int] = {}  #: queues with a ready list, as of this server's latest transaction, by number
        self._batcher = self._make_batcher(durability, sync_interval_ms)
        #: Checked before rows are staged, and before the server itself pushes jobs.
        self.quotas = quotas
        #: Answers pushes to some queues before they are stored.
        self.buffer = None if buffer is None else buffer(self)
        #: Hands out jobs of hot queues without a read of the store.
        self.ready_cache = None if ready_cache is None else ready_cache(self)
        #: Runs a command; awaiting it gives the answer, or raises why there is none.
        self.run: Submit = submit_chain(
            self._batcher.submit, quotas=quotas if counts_pushes else None, buffer=self.buffer, ready_lists=self.ready_cache
        )
        self._services = self._make_services()
        self._subscribe()

    def _make_batcher(self, durability: Durability, sync_interval_ms: int) -> Batcher:
        return Batcher(
            self.store,
            self.clock,
            self.ids,
            partial(dispatch.apply, self),
            self.stats,
            signals=self.signals,
            apply_in_side_lane=partial(dispatch.apply_in_side_lane, self),
            wants_alone=self.timer.has_expired_leases,
            weigh=self._weigh,
            send_on=self._sent_on,
            fair_share=self.fair_share,
            durability=durability,
            sync_interval_ms=sync_interval_ms,
        )

    def _make_services(self) -> list[PeriodicService]:
        """Return the maintenance services, in the order in which they are started and stopped."""
        services: list[PeriodicService] = [StoreRecovery(self), RetentionService(self), DeadLetterService(self)]
        services.append(Membership(self) if self.store.capabilities.is_shared else ClockMarker(self))
        if self.ready_cache is not None:
            services.append(self.ready_cache.lease_recorder)
        if self.buffer is not None:
            services.append(self.buffer.flusher)
        return services

    def _subscribe(self) -> None:
        """Subscribe the parts of the engine to its signals."""
        signals = self.signals
        self.store.when_moved.append(signals.queues_moved.emit)
        signals.queues_moved.subscribe(self._handle_moved_queues)
        for committed in (self._count, self.feed.committed):
            signals.committed.subscribe(committed)
        for answered in (self.result_waiters.answered, self.loss_alerts.answered):
            signals.answered.subscribe(answered)
        if self.ready_cache is not None:
            signals.before_answers.subscribe(self.ready_cache.offer)
            signals.committed.subscribe(self.ready_cache.committed)
        if self.store.capabilities.is_shared:
            self.store.follow(self._handle_remote_commits)

    @property
    def durable_up_to(self) -> int:
        """Number of the first event of the journal that is not yet as durable as an answer promises."""
        return self.store.journal_next if self.store.capabilities.commit_is_durable else self._batcher.durable_up_to

    def handle_recovery(self) -> None:
        """Handle recovery of the store: state that was not committed is discarded."""
        self.ids.use(node=self.store.node, floor=self.store.id_floor)
        self.signals.store_recovered.emit()
        self.result_waiters.check_all()
        self.loss_alerts.wake_all()
        self._batcher.confirm_durable(self.store.journal_next)
        self.timer.arm()

    def start(self) -> None:
        """Start the timer and the maintenance services."""
        self.timer.start()
        for service in self._services:
            service.start()

    async def close(self) -> None:
        """Answer all callers that wait, finish what was submitted, stop. The store stays open."""
        self.stop_waiting()
        self.workers.close()
        if self.buffer is not None:
            await self.buffer.close()
        if self.ready_cache is not None:
            await self.ready_cache.close()
        await self.stop_services()
        await self._batcher.close()

    async def stop_services(self) -> None:
        """Stop the timer and the maintenance services, until the next ``start``."""
        for service in self._services:
            await service.stop()
        self.timer.stop()
        if self.store.capabilities.is_shared:
            self.take_lead(None)

    def stop_waiting(self) -> None:
        """Answer all callers that wait, because the server is closing."""
        self.claim_waiters.answer_all_waiters()
        self.result_waiters.answer_all_waiters()
        self.loss_alerts.wake_all(over=True)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines: this one."""
        return (self,)

    def of(self, _queue: QueueKey) -> Engine:
        """Return the engine of a queue: this one has all queues."""
        return self

    async def wait(self, namespace: str, ref: JobRef, timeout_ms: int) -> JobOutcome | None:
        """Return how a job ended: see ``ResultWaiters.wait``."""
        return await self.result_waiters.wait(namespace, ref, timeout_ms)

    @property
    def waiting_callers(self) -> int:
        """Number of claims that wait for a job."""
        return self.claim_waiters.size

    @property
    def waiting_for_ends(self) -> int:
        """Number of callers that wait for a job to end."""
        return self.result_waiters.size

    def put_back(self, command: AnyCommand) -> None:
        """Queue a command again that was run already; its future stays. It does not pass the submit chain again."""
        self._batcher.put_back(command)

    def limit_namespaces(self, pool_shares: Shares) -> None:
        """Set the shares of each pool, for each namespace."""
        self.pool_shares = self.workers.pool_shares = self.store.pool_shares = pool_shares

    def leave_line(self, claim: Claim) -> bool:
        """Remove a claim from the line of its queue; False: it was not in it."""
        return self.claim_waiters.leave(claim)

    def send_on(self, command: AnyCommand, error: Exception) -> None:
        """Run a command on the shard its queue is on now; without one, it is refused with the error."""
        if not command.future.done() and not self._sent_on(command):
            command.future.set_exception(error)

    def when_away(self, send_on: Callable[[AnyCommand], bool]) -> None:
        """Register a function that takes over commands which are refused because their queue is on another shard."""
        self._send_to_shard = send_on

    def _sent_on(self, command: AnyCommand) -> bool:
        """Send a command to the shard of its queue, if the server has several. Return False if that is impossible."""
        return self._send_to_shard is not None and self._send_to_shard(command)

    def run_in_background(self, command: AnyCommand) -> None:
        """Run a command of the server itself, for which no caller waits. It passes no stage of the submit chain."""
        with contextlib.suppress(ServerError):
            self._batcher.submit(command).add_done_callback(_ignore)

    def highest_id(self) -> int:
        """Return an id that is not below the id of any stored job, of any server."""
        if not self.store.capabilities.is_shared:
            return self.ids.mark()
        return max(self.ids.mark(), first_of(self.clock.now_ms() + limits.clock_apart_ms))

    def end_serial(self, work: UnitOfWork) -> int:
        """Return a serial for the end of a job that is above the ids of all jobs that were pushed before it.

        Another server may have pushed one after this transaction had begun, and before it locked the job that ends.
        """
        if not self.store.capabilities.is_shared:
            return work.serial()
        return self.ids.above(self.clock.now_ms() + limits.clock_apart_ms)

    def may_have_waiting(self, queue: Queue) -> bool:
        """Return whether, as far as this server knows, a queue has a job to claim."""
        found = self.store.queue_find(queue.key)
        return found is not None and self.store.counts(found).waiting > 0

    def take_lead(self, term: int | None, until_ms: int = 0) -> None:
        """Record a leadership change. The leader does the tasks that only one server at a time may do.

        ``term``: None if another server leads. ``until_ms``: end of the lead by the steady clock, in case the database
        cannot be reached then.
        """
        if self._lead_ends is not None:
            self._lead_ends.cancel()
            self._lead_ends = None
        if term is not None:
            self._lead_ends = self.clock.call_at(until_ms, partial(self.take_lead, None))
        if self.leads != (term is not None):
            self.leads = term is not None
            log.info(
                "this server leads now" if self.leads else "this server does not lead any more",
                term=term, shard=self.store.shard,
            )  # fmt: skip
            self.signals.leadership_changed.emit()

    def _handle_remote_commits(self, blocks: Sequence[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Handle commits of other servers."""
        if webhooks:
            self.signals.webhooks_changed.emit()
            if self.ready_cache is not None:
                self.ready_cache.check_generation()
        for block in blocks:
            self.feed.publish(block)
        self.result_waiters.remote_committed(blocks)
        self.loss_alerts.remote_committed(blocks)
        for queue in [queue for number in ready if (queue := self._queue_or_none(number)) is not None]:
            self.claim_waiters.nudge_at(queue.key, self.clock.steady_ms())
        self.timer.arm()

    def _handle_moved_queues(self) -> None:
        """Handle moved queues: callers that wait at one, or for the end of one of its jobs, are checked again."""
        if self.claim_waiters.size:
            self.claim_waiters.handle_moved_queues()
        self.result_waiters.check_all()
        self.loss_alerts.wake_all()
        self.timer.arm()

    def _queue_or_none(self, number: int) -> Queue | None:
        try:
            return self.store.queue_by_number(number)
        except KeyError:  # another server has just created it, so no caller waits at it here
            return None

    def _weigh(self, command: AnyCommand, weight: int) -> int:
        """Return the cost of a heavy command. A claim for many jobs costs little if there are few."""
        if type(command) is Claim:
            queue = self.store.queue_find(command.queue)
            weight = max(1, 0 if queue is None else min(weight, self.store.counts(queue).waiting))
        return weight

    def _count(self, work: UnitOfWork) -> None:
        stats = self.stats
        stats.pushed += work.pushed
        stats.pulled += work.pulled
        stats.completed += work.completed
        stats.failed += work.failed
        for queue in work.dead_letters:
            self.signals.job_died.emit(queue)
        for number in work.tx.freed:
            self.claim_waiters.nudge_at(self.store.queue_by_number(number).key, work.steady_ms)
        self.timer.arm()


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
