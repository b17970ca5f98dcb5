"""Moves queues to their new shards when the number of shards changes, one at a time, while the server continues to work.

The stores record what is to be done, and what was done. So after a crash, any server that leads continues from there.
``queue_move.py`` has the steps; each is refused if it is not its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import RebalanceRefused, ServerError
from penstock.core.ids import ID_MAX, SHARDS_MAX, random_name, time_of
from penstock.core.lifecycle import State
from penstock.core.queue import Move, MoveStep, QueueKey
from penstock.core.sharding import shard_for
from penstock.engine.maintenance.service import PeriodicService
from penstock.engine.sharding.queue_move import (
    Bucket,
    CancelMove,
    CheckUnreadable,
    Clear,
    CountJobs,
    ExportCrons,
    FinishRebalance,
    Freeze,
    HandOver,
    ImportCrons,
    ImportJobs,
    Open,
    PackGroups,
    Prepare,
    Retarget,
    UnloadGroups,
)
from penstock.store.contract import Place, Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.cron import CronKey
    from penstock.core.queue import Queue
    from penstock.core.sharding import Layout
    from penstock.engine.context import EngineContext, ShardedContext
    from penstock.store.contract import MovedJob

log = structlog.get_logger("penstock.rebalance")

LEAD: Final = "rebalance"
#: Completed jobs first: they are the most, and no client waits for them.
_STATES: Final = (
    State.COMPLETED,
    State.DEAD,
    State.WAITING_CHILDREN,
    State.DELAYED,
    State.WAITING,
    State.ACTIVE,
)


class ShardView(msgspec.Struct):
    """One shard, by the data of this server."""

    shard: int
    up: bool
    shards: int | None  #: number of shards over which queues are spread, by its own data; None if it was never reached
    epoch: int | None
    target: int | None
    spare: bool  #: it has no queues, and may be removed
    queues: int
    misplaced: int  #: queues that must move to another shard, in the current rebalance or in the next one
    moved: int  #: queues that have moved away in the current rebalance


class Overview(msgspec.Struct):
    """The state of the shards."""

    shards: list[ShardView]
    rebalancing: bool
    target: int | None
    left: int  #: queues that are still to be moved
    moving: list[str]  #: queues that are not served now
    waiting: str | None  #: why the server that moves them waits; only that server has it


class Rebalancer(PeriodicService):
    """One per server; only the one that leads on the first shard works."""

    every_ms = 1_000

    def __init__(self, sharded: ShardedContext) -> None:
        super().__init__(sharded.engines[0])
        self._sharded = sharded
        self._lead_until = 0
        self.waiting: str | None = None

    # Commands of operators.

    def overview(self) -> Overview:
        """Return the place of all queues, as far as this server knows."""
        layouts = self._sharded.store.layouts
        target = self._target(layouts)
        wanted = target or max((each.shards for each in layouts), default=len(self._sharded.engines))
        views = [self._view(engine, wanted) for engine in self._sharded.engines]
        moving = [
            queue.key.name
            for engine in self._sharded.engines
            for queue in engine.store.away.values()
            if queue.move.step in (MoveStep.LEAVING, MoveStep.ARRIVING)
        ]
        left = sum(view.misplaced for view in views)
        return Overview(views, target is not None, target, left, sorted(set(moving)), self.waiting if target else None)

    @staticmethod
    def _view(engine: EngineContext, wanted: int) -> ShardView:
        store, layout = engine.store, engine.store.layout
        queues = store.queues()
        return ShardView(
            store.shard,
            store.status().writable,
            None if layout is None else layout.shards,
            None if layout is None else layout.epoch,
            None if layout is None else layout.target,
            layout is not None and store.shard >= layout.needed,
            len(queues),
            sum(shard_for(queue.key, wanted) != store.shard for queue in queues),
            sum(queue.move.step.has_left for queue in store.away.values()),
        )

    @staticmethod
    def _target(layouts: Sequence[Layout]) -> int | None:
        return next((each.target for each in layouts if each.target is not None), None)

    async def begin(self, target: int | None = None) -> Overview:
        """Begin to spread the queues over a number of shards (None: over all that exist). Raises RebalanceRefused.

        After this returns, the rebalance continues until it is done, on the server that leads.
        """
        store, engines = self._sharded.store, self._sharded.engines
        wanted = len(engines) if target is None else target
        if not 0 < wanted <= min(len(engines), SHARDS_MAX):
            raise RebalanceRefused(
                f"There are {len(engines)} stores. Restart all servers with the new number of stores first."
            )
        if down := store.down():
            raise RebalanceRefused(f"All shards must be available: {'; '.join(down)}")
        layouts = store.layouts
        under_way = self._target(layouts)
        if under_way is not None and under_way != wanted:
            raise RebalanceRefused(f"The queues are being spread over {under_way} shards. Wait until that is done.")
        if under_way is None and all(each.shards == wanted for each in layouts):
            return self.overview()
        needed = max(wanted, *(each.needed for each in layouts))
        for engine in engines:
            known = await engine.store.stores_known()
            if any(each < needed for each in known):
                raise RebalanceRefused(
                    f"A server has only {min(known)} of {needed} stores. Restart all servers with all of them first; one "
                    "that was killed is removed from the list after a minute."
                )
        await self._retarget(wanted)
        log.info("rebalance begins", shards=layouts[0].shards, target=wanted)
        return self.overview()

    async def _retarget(self, target: int) -> None:
        """Record the target in every store, the first one first. From then on the rebalance will be done."""
        webhooks = self._sharded.store.webhook_list()
        epoch = min(each.epoch for each in self._sharded.store.layouts)
        for engine in self._sharded.engines:
            layout = engine.store.layout
            if layout is not None and layout.epoch == epoch and layout.target is None:
                await engine.run(Retarget(epoch, target, webhooks))

    # Work.

    async def run_once(self) -> None:
        """Do all that is left to do, if this server leads."""
        target = self._target(self._sharded.store.layouts)
        if target is None:
            self.waiting = None
            return
        if not await self._take_lead():
            return
        try:
            await self._continue_rebalance(target)
            self.waiting = None
        except _LeadLostError as error:  # the new leader continues with the queue that was moving
            log.info("rebalance continues on another server", reason=str(error))
        except ServerError as error:
            self.waiting = str(error)
            log.warning("rebalance waits, and continues in the next round", reason=str(error))
            await self._let_go()

    async def _take_lead(self) -> bool:
        """Become or stay the leader; return whether that worked.

        It only saves work: the stores refuse writes of other servers.
        """
        now = self._engine.clock.steady_ms()
        if now < self._lead_until - limits.lead_ms // 2:
            return True
        term = await self._engine.store.lead(LEAD, limits.lead_ms)
        self._lead_until = 0 if term is None else now + limits.lead_ms
        return term is not None

    async def _keep_lead(self) -> None:
        if not self.goes_on():
            raise RebalanceRefused("This server is shutting down.")
        if not await self._take_lead():
            raise _LeadLostError

    async def _continue_rebalance(self, target: int) -> None:
        if down := self._sharded.store.down():
            raise RebalanceRefused(f"All shards must be available: {'; '.join(down)}")
        if any(each.target is None and each.shards != target for each in self._sharded.store.layouts):
            await self._retarget(target)
        tied: list[str] = []
        for engine in self._sharded.engines:
            for queue in [*engine.store.away.values(), *engine.store.queues()]:
                await self._keep_lead()
                try:
                    await self._look_after(engine, queue, target)
                except _TiedError:
                    tied.append(queue.key.name)
        if tied:
            raise RebalanceRefused(f"Jobs of these queues and of others wait for each other: {', '.join(tied[:10])}")
        if not all([await self._flip(engine) for engine in self._sharded.engines]):
            raise RebalanceRefused("A new queue with this name was created on the old shard.")
        log.info("rebalance done", shards=target)

    async def _flip(self, engine: EngineContext) -> bool:
        layout = engine.store.layout
        return layout is not None and (layout.target is None or await engine.run(FinishRebalance(layout.epoch)))

    async def _look_after(self, engine: EngineContext, queue: Queue, target: int) -> None:
        """Move a queue to its shard, from any state."""
        step = queue.move.step
        if step is MoveStep.HERE:
            peer = shard_for(queue.key, target)
            if peer != engine.store.shard:
                await self._move(engine, self._sharded.engines[peer], queue)
        elif step is MoveStep.LEAVING:
            await self._move(engine, self._sharded.engines[queue.move.peer], queue)
        elif step is MoveStep.MOVED:
            await self._finish(engine, self._sharded.engines[queue.move.peer], queue)
        elif step in (MoveStep.ARRIVING, MoveStep.CLEARING):
            source = self._sharded.engines[queue.move.peer].store
            if source.queue_find(queue.key) is None and source.queue_away(queue.key) is None:
                await self._forget(engine, queue)

    async def _forget(self, engine: EngineContext, queue: Queue) -> None:
        """Delete what was copied of a queue that was then removed on its old shard."""
        key, move = queue.key, queue.move._replace(step=MoveStep.ARRIVING, attempt=random_name())
        crons = await self._crons_of(engine, key)
        await engine.run(Prepare(key, queue.settings, queue.created_at, move))
        while await engine.run(Clear(key, move.attempt, crons, for_good=True)) > 0:
            await self._keep_lead()

    async def _move(self, source: EngineContext, target: EngineContext, queue: Queue) -> None:
        key = queue.key
        began = self._engine.clock.stopwatch()
        if queue.move.step is MoveStep.HERE:
            attempt = random_name()
            if source.ready_cache is not None:
                await source.ready_cache.clear(queue.key)
            try:
                queue = await source.run(Freeze(key, target.store.shard, attempt))
                log.info("queue begins to move", queue=key, shard=source.store.shard)
            except RebalanceRefused as error:
                raise _TiedError(str(error)) from error
        attempt = queue.move.attempt
        try:
            jobs, bucket = await self._copy(source, target, queue)
        except _LeadLostError:
            raise
        except ServerError:
            await self._stay(source, queue.key, attempt)
            raise
        await self._finish(source, target, queue, bucket)
        frozen_ms = round((self._opened - began) * 1000)
        log.info("queue moved", queue=key, shard=target.store.shard, jobs=jobs, frozen_ms=frozen_ms)

    async def _copy(self, source: EngineContext, target: EngineContext, queue: Queue) -> tuple[int, Bucket | None]:
        """Copy everything, compare, and let the old shard hand the queue over.

        Returns the number of its jobs, and how many jobs its rate limit still allows.
        """
        key, attempt = queue.key, queue.move.attempt
        move = await target.run(
            Prepare(key, queue.settings, queue.created_at, Move(MoveStep.ARRIVING, source.store.shard, attempt))
        )
        crons = await self._crons_of(target, key)
        while move.step is MoveStep.CLEARING and await target.run(Clear(key, attempt, crons)) > 0:
            await self._keep_lead()
        highest = 0
        for state in _STATES:
            highest = max(highest, await self._copy_state(source, target, queue, state))
        crons = await self._crons_of(source, key)
        left = list(crons)
        while left:
            packed = await source.run(ExportCrons(left))
            await target.run(ImportCrons(key, attempt, packed))
            done = {cron.key for cron, _ in packed}
            left = [each for each in left if each not in done] if done else []
        if queue.settings.limits_groups:
            await self._copy_groups(source, target, queue)
        counts = await target.run(CountJobs(key))
        await self._get_above(target, highest)
        bucket = await source.run(HandOver(key, attempt, counts, crons))
        if bucket is not None:
            bucket = bucket[0], bucket[1] + target.clock.steady_ms() - source.clock.steady_ms()
        return sum(counts.of(state) for state in _STATES), bucket

    async def _copy_state(self, source: EngineContext, target: EngineContext, queue: Queue, state: State) -> int:
        """Copy the jobs of one state; return the highest number among their ids, places and tokens."""
        later_ms = target.clock.steady_ms() - source.clock.steady_ms() + limits.move_lease_ms
        highest, after = 0, Place(0, 0)
        writing: deque[asyncio.Future[None]] = deque()
        try:
            while True:
                page = await source.store.job_select(Selection(queue, state, limits.select_jobs_max, ID_MAX, None, after))
                ids = [place.id for place in page]
                while ids:
                    await self._keep_lead()
                    moved_jobs, ids = await self._pack(source, ids)
                    if len(writing) >= limits.move_slices_max:
                        await writing.popleft()
                    if moved_jobs:  # the next ones are read while these are written
                        writing.append(target.run(ImportJobs(queue.key, queue.move.attempt, moved_jobs, later_ms)))
                        highest = max(highest, *(max(each.job.id, each.job.position, each.job.token) for each in moved_jobs))
                if len(page) < limits.select_jobs_max:
                    break
                after = page[-1]
            while writing:
                await writing.popleft()
        finally:
            await asyncio.gather(*writing, return_exceptions=True)
        return highest

    @staticmethod
    async def _pack(source: EngineContext, ids: list[int]) -> tuple[list[MovedJob], list[int]]:
        """Read the first of some jobs; return them, and the ids of the others. Damaged ones are moved to quarantine."""
        some = ids[: limits.move_slice_jobs]
        moved_jobs = await source.store.job_export(some)
        read = {moved.job.id for moved in moved_jobs}
        reached = some.index(moved_jobs[-1].job.id) + 1 if moved_jobs else len(some)  # the others may be too large
        damaged = [job_id for job_id in some[:reached] if job_id not in read]
        if damaged:
            await source.run(CheckUnreadable(damaged))
        return moved_jobs, ids[reached:]

    async def _copy_groups(self, source: EngineContext, target: EngineContext, queue: Queue) -> None:
        """Copy the settings of the groups of a queue, after its jobs."""
        last = ""
        later_ms = target.clock.steady_ms() - source.clock.steady_ms()
        while groups := await source.run(PackGroups(queue.key, last)):
            await target.run(UnloadGroups(queue.key, queue.move.attempt, groups, later_ms))
            last = groups[-1][0]

    async def _get_above(self, engine: EngineContext, highest: int) -> None:
        """Make sure that new ids of a shard are above all numbers that were copied to it. Ids are also places in line."""
        engine.ids.use(node=engine.store.node, floor=highest)
        until = engine.clock.steady_ms() + limits.move_hold_ms
        while engine.clock.now_ms() <= time_of(highest) and engine.clock.steady_ms() < until:
            await pause(engine.clock, limits.move_look_ms)

    async def _finish(
        self, source: EngineContext, target: EngineContext, queue: Queue, bucket: Bucket | None = None
    ) -> None:
        """Open a queue on its new shard, after it was handed over, and delete the rest on the old one."""
        key, attempt = queue.key, queue.move.attempt
        webhooks = [
            each for each in source.store.webhook_list() if each.namespace == key.namespace and each.queue == key.name
        ]
        await target.run(Open(key, attempt, webhooks, bucket))
        self._opened = self._engine.clock.stopwatch()
        while await source.run(Clear(key, attempt)) > 0:
            await self._keep_lead()

    async def _stay(self, source: EngineContext, key: QueueKey, attempt: int) -> None:
        try:
            await source.run(CancelMove(key, attempt))
        except ServerError as error:  # it has left, or its shard has failed: the next round finds out
            log.warning("a queue that could not be moved is not open again yet", queue=key, reason=str(error))

    async def _let_go(self) -> None:
        """Let all leaving queues be served again, because no server is moving them now."""
        for engine in self._sharded.engines:
            for queue in list(engine.store.away.values()):
                if queue.move.step is MoveStep.LEAVING and engine.store.status().writable:
                    await self._stay(engine, queue.key, queue.move.attempt)

    @staticmethod
    async def _crons_of(engine: EngineContext, key: QueueKey) -> list[CronKey]:
        crons = await engine.store.cron_list(key.namespace)
        return [cron.key for cron in crons if cron.plan.queue == key.name]


class _LeadLostError(ServerError):
    """Another server leads now."""


class _TiedError(ServerError):
    """This queue cannot be moved now; the others can."""
