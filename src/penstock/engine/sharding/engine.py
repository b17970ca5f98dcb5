"""Several shards, each with its own engine, as one engine for the doors.

A queue is on one shard, so nearly every command goes to one engine as it is. A command about several jobs is split, and its
outcomes are joined again; a command about no queue goes to all shards. No transaction spans shards: ``name_registry.py`` and
``remote_dependencies.py`` keep names and dependencies correct over all shards nevertheless.

Queues move to other shards when the number of shards changes. The shard that had a queue refuses commands about it. Such a
command is held here until the queue is on its new shard, and is run there. Jobs keep their ids, so a job that is not on the
shard in its id is looked up on the others.
"""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.dependencies import Need
from penstock.core.errors import (
    CronNotFound,
    InvalidInput,
    JobNotFound,
    OwnAncestor,
    QueueMoving,
    ServerError,
    ShuttingDown,
    StorageFailed,
    SubscriptionNotFound,
    WebhookNotFound,
)
from penstock.core.ids import SHARDS_MAX, from_uuid, shard_of, to_uuid
from penstock.core.job import details_of
from penstock.core.queue import MoveStep, QueueKey
from penstock.engine.api import JobOutcome
from penstock.engine.command import QueueCommand
from penstock.engine.event_feed import EventFeed
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.dead_letters import SettleDead
from penstock.engine.jobs.dependencies import Adopt, CancelChildren, DropDependency
from penstock.engine.jobs.flow_push import PushFlow, push_flow_on_shards
from penstock.engine.jobs.push import Push, PushAcross
from penstock.engine.jobs.settle import Ack, LeaseCommand, Renew
from penstock.engine.jobs.settle_by_id import AckById, NackById, RenewById
from penstock.engine.jobs.update import AddLog, ClearLog, EditData, MoveJob
from penstock.engine.queues.crons import RemoveCron, SaveCron
from penstock.engine.queues.push_subscriptions import RemoveSubscription
from penstock.engine.queues.webhooks import AddWebhook, EnableWebhook, RemoveWebhook
from penstock.engine.sharding.name_registry import NameRegistry
from penstock.engine.sharding.push import ShardedPush, is_plain
from penstock.engine.sharding.rebalancer import Rebalancer
from penstock.engine.sharding.remote_dependencies import Auditor, CancelIdle, Relayer
from penstock.engine.submit import submit_chain
from penstock.store.sharded import ShardedStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.job import JobRecord
    from penstock.core.pool_shares import Shares
    from penstock.core.webhook import WebhookRecord
    from penstock.engine.command import AnyCommand, Command, JobRef, Submit
    from penstock.engine.engine import Engine
    from penstock.engine.jobs.settle import ItemOutcome
    from penstock.engine.maintenance.service import PeriodicService
    from penstock.engine.quota_check import QuotaCheck
    from penstock.engine.stats import EngineStats
    from penstock.engine.worker_registry import WorkerRegistry
    from penstock.store.contract import JournalBlock

T = TypeVar("T")


def _within(namespace: str | None) -> Callable[[QueueKey], bool]:
    """Return a function that returns whether a queue is in a namespace (None: in any)."""
    return lambda queue: namespace in (None, queue.namespace)


class ShardFeed(EventFeed):
    """The feed of one shard, which is part of the feed of all shards.

    Each shard numbers its own events. So that a client can continue after any event of any shard, each
    event has the numbers of all shards: ``12-7-30`` means that the first shard was read up to 12, the second up to 7.
    """

    def __init__(self, whole: EventFeed, positions: list[int], shard: int) -> None:
        super().__init__()
        self.removed = whole.removed
        self._whole = whole
        self._positions = positions
        self._shard = shard

    @property
    def has_listeners(self) -> bool:
        """Return whether there are listeners, to this shard or to all."""
        return super().has_listeners or self._whole.has_listeners

    def publish(self, block: JournalBlock) -> None:
        """Pass on a block, to listeners of this shard and to listeners of all."""
        super().publish(block)
        if block.seq:
            self._positions[self._shard] = block.seq + len(block.events) - 1
            texts = [str(position) for position in self._positions]
            before, after = texts[: self._shard], texts[self._shard + 1 :]
            around = "".join(f"{each}-" for each in before), "".join(f"-{each}" for each in after)
            block = msgspec.structs.replace(block, shard=self._shard, around=around)
        self._whole.publish(block)


class ShardedEngine:
    """The methods are documented in ``Engine``. Made from engines that share a feed, statistics and workers.

    ``quotas``: checked before pushes and before rows are staged. The engines have the same quotas, and do not check them before
    pushes.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        feed: EventFeed,
        stats: EngineStats,
        workers: WorkerRegistry,
        clock: Clock,
        *,
        quotas: QuotaCheck | None = None,
    ) -> None:
        assert 0 < len(engines) <= SHARDS_MAX
        self.engines = tuple(engines)
        self.feed = feed
        self.stats = stats
        self.workers = workers
        self.clock = clock
        self.fair_share = engines[0].fair_share
        self.store = ShardedStore([engine.store for engine in engines])
        self._held: dict[AnyCommand, asyncio.Task[None]] = {}  #: about queues that are moving to another shard
        for engine in engines:
            engine.when_away(self._send_on)
            if engine.buffer is not None:
                engine.buffer.route = self.of
        self.quotas = quotas  #: checked before rows are staged
        #: Runs a command; awaiting it gives the answer, or raises why there is none.
        self.run: Submit = submit_chain(self._run_on_shards, quotas=quotas)
        self.rebalancer = Rebalancer(self)
        self._split = self._split_table()
        self.relayers = [Relayer(engine, [other for other in engines if other is not engine]) for engine in engines]
        for engine, relayer in zip(engines, self.relayers, strict=True):
            engine.signals.relays_written.subscribe(relayer.wake)
        self._services: list[PeriodicService] = [
            *self.relayers,
            *(Auditor(engine, engines, self.store.shards_of) for engine in engines),
            *(NameRegistry(engine, engines) for engine in engines),
        ]

    def _split_table(self) -> dict[type[AnyCommand], Callable[[Any], Awaitable[Any]]]:
        """Return what runs the commands that are not about one queue."""
        return {
            SaveCron: self._save_cron,
            RemoveCron: self._remove_cron,
            AddWebhook: self._add_webhook,
            RemoveWebhook: self._to_all_webhooks,
            EnableWebhook: self._to_all_webhooks,
            RemoveSubscription: self._remove_subscription,
            MoveJob: self._by_ref,
            EditData: self._by_ref,
            AddLog: self._by_ref,
            ClearLog: self._by_ref,
            CancelChildren: self._cancel_children,
            DropDependency: self._unneed,
            Adopt: self._adopt,
            PushAcross: self._push_across,
            PushFlow: lambda command: push_flow_on_shards(self, command),
            AckById: self._by_id,
            NackById: self._by_id,
            RenewById: self._by_id,
            SettleDead: self._settle_dead,
        }

    # Which engine.

    def of(self, queue: QueueKey) -> Engine:
        """Return the engine of the shard that has a queue."""
        return self.engines[self.store.place_of(queue)]

    async def _at(
        self, namespace: str, ref: JobRef, token: int | None = None, may: Callable[[QueueKey], bool] | None = None
    ) -> Engine:
        """Return the engine of a job. Raises JobNotFound, or StorageFailed if a shard that may have it cannot be reached.

        ``may``: whether jobs of a queue may be known, if not those of the namespace.

        A lease token contains the shard that created it; without a token, a custom id must not be in use on two shards.
        """
        if isinstance(ref, str):
            if token is not None:
                ref = token
            else:
                found = await self.store.jobs_named(namespace, ref)
                if len(found) > 1:
                    raise InvalidInput(
                        f"Several jobs on different shards have the id {ref!r}. Use the id that Penstock assigned."
                    )
                if not found:
                    raise JobNotFound
                ref = found[0][0].id
        if token is None and self.store.has_moved:
            place = (await self.store.locate([ref], may or _within(namespace))).get(ref)
            if place is None:
                raise JobNotFound
            if not place[1].is_seen:
                raise QueueMoving
            return self.engines[place[0]]
        number = shard_of(ref)
        if number >= len(self.engines):
            raise JobNotFound
        return self.engines[number]

    # Queues that are moving to another shard.

    def _send_on(self, command: AnyCommand) -> bool:
        """Take over a command that a shard refused because its queue is not there. Return False if the refusal is final."""
        if not isinstance(command, QueueCommand):
            return False
        if len(self._held) >= limits.held_commands_max:
            return False
        if command not in self._held:
            self._held[command] = asyncio.get_running_loop().create_task(self._bring(command), name="penstock-held")
        return True

    async def _bring(self, command: Any) -> None:
        """Run a command on the shard of its queue, when the queue has arrived.

        A claim waits for its own time, and is not refused.
        """
        patience_ms = command.state.wait_ms if isinstance(command, Claim) else limits.move_hold_ms
        try:
            if not hasattr(command, "bounced_ms"):
                command.bounced_ms = self.clock.steady_ms()
            else:  # this server had old information about the place of the queue, and has newer one now
                await pause(self.clock, limits.move_look_ms)
            until = command.bounced_ms + patience_ms
            while not self._is_here(command.queue) and self.clock.steady_ms() < until and not command.future.done():
                await pause(self.clock, limits.move_look_ms)
            here, left_ms = self._is_here(command.queue), max(0, until - self.clock.steady_ms())
        finally:
            del self._held[command]
        if isinstance(command, Claim):
            command.state.resume_wait(left_ms)
            command.bounced_ms = self.clock.steady_ms()
            if command.state.is_abandoned:
                command.future.cancel()
        if command.future.done():
            return
        if here:
            engine = self.of(command.queue)
            if isinstance(command, Claim):
                command.state.move_to(engine)
            engine.put_back(command)
        elif isinstance(command, Claim):
            command.future.set_result([])
        else:
            command.future.set_exception(QueueMoving())

    def _is_here(self, queue: QueueKey) -> bool:
        """Return whether the shard of a queue serves it, as far as this server knows."""
        return self.of(queue).store.queue_away(queue) is None

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt as long as it is refused because a queue is moving, up to a limit."""
        until = self.clock.steady_ms() + limits.move_hold_ms
        while True:
            try:
                return await attempt()
            except QueueMoving:
                if self.clock.steady_ms() >= until:
                    raise
            await pause(self.clock, limits.move_look_ms)

    # Running commands.

    def _run_on_shards(self, command: Command[T]) -> asyncio.Future[T]:
        """Run a command on the shard of its queue, or on all shards that it concerns."""
        if isinstance(command, QueueCommand):
            engine = self.of(command.queue)
            if isinstance(command, Push) and not is_plain(command.jobs):
                return asyncio.ensure_future(self._push(command))  # type: ignore[arg-type]
            return engine.run(command)
        return asyncio.ensure_future(self._run(command))

    async def _run(self, command: Command[T]) -> T:
        if isinstance(command, LeaseCommand):
            return await self._settle(command)  # type: ignore[return-value]
        answer: T = await self._split[type(command)](command)
        return answer

    async def wait(self, namespace: str, ref: JobRef, timeout_ms: int) -> JobOutcome | None:
        """Return how a job ended: see ``ResultWaiters.wait``."""
        until = self.clock.steady_ms() + timeout_ms
        begun = False
        while True:
            left_ms = max(0, until - self.clock.steady_ms())
            try:
                engine = await self._at(namespace, ref)
                return await engine.wait(namespace, ref, left_ms)
            except QueueMoving:  # its queue has moved since, or the job was removed
                begun = True
            except JobNotFound:
                if not begun:
                    raise
                return JobOutcome(completed=False)
            if not left_ms:
                return None
            await pause(self.clock, limits.move_look_ms)

    async def _by_ref(self, command: Any) -> Any:
        if isinstance(command.ref, int) and (guess := self.store.guess(command.ref)) is not None:
            try:
                return await self.engines[guess].run(command)
            except (JobNotFound, QueueMoving):
                if not self.store.has_moved:  # checked after the request, which may have brought newer information
                    raise

        async def attempt() -> Any:
            return await (await self._at(command.namespace, command.ref)).run(copy.copy(command))

        return await self._patiently(attempt)

    async def _settle(self, command: LeaseCommand) -> list[Any]:
        """Split a lease command by the shards of its jobs, and join the outcomes in their order."""
        outcomes: list[Any] = [JobNotFound()] * len(command.holds)
        places: dict[Engine, list[int]] = {}
        for place, hold in enumerate(command.holds):
            guess = None
            if isinstance(hold.ref, int):
                # A job that was claimed after it moved has a token that was made on its present shard.
                guess = self.store.guess(hold.token if hold.token is not None and self.store.has_moved else hold.ref)
            try:
                engine = (
                    self.engines[guess]
                    if guess is not None
                    else await self._at(command.namespace or "", hold.ref, hold.token, command.may)
                )
                places.setdefault(engine, []).append(place)
            except ServerError as error:
                outcomes[place] = error
        await self._settle_at(command, places, outcomes)
        if self.store.has_moved:
            await self._settle_elsewhere(command, outcomes)
        return outcomes

    async def _settle_elsewhere(self, command: LeaseCommand, outcomes: list[Any]) -> None:
        """Look up, on the other shards, jobs that were not found, and wait for those that are moving."""
        until = self.clock.steady_ms() + limits.move_hold_ms
        while True:
            again = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, (JobNotFound, QueueMoving))]
            refs = {place: command.holds[place].ref for place in again}
            for place, ref in refs.items():
                if isinstance(ref, str):
                    named = await self.store.jobs_named(command.namespace or "", ref)
                    refs[place] = named[0][0].id if len(named) == 1 else ref
            ids = [ref for ref in refs.values() if isinstance(ref, int)]
            if not ids:
                return
            found = await self.store.locate(ids, command.may or _within(command.namespace))
            places: dict[Engine, list[int]] = {}
            waits = False
            for place, ref in refs.items():
                number, step = found.get(ref, (0, None)) if isinstance(ref, int) else (0, None)
                if step is None:
                    outcomes[place] = JobNotFound()
                elif step is MoveStep.HERE:
                    places.setdefault(self.engines[number], []).append(place)
                else:
                    outcomes[place] = QueueMoving()
                    waits = True
            await self._settle_at(command, places, outcomes)
            moving = any(isinstance(outcomes[place], QueueMoving) for place in again)
            if not (waits or moving) or self.clock.steady_ms() >= until:
                return
            await pause(self.clock, limits.move_look_ms)

    @staticmethod
    async def _settle_at(command: LeaseCommand, places: dict[Engine, list[int]], outcomes: list[Any]) -> None:
        """Run the parts of a lease command on their shards, and record the outcomes."""

        async def on_one(engine: Engine, mine: list[int]) -> None:
            part = copy.copy(command)
            part.holds = [command.holds[place] for place in mine]
            if isinstance(command, Ack):
                part.results = [command.results[place] for place in mine]  # type: ignore[attr-defined]
                if command.removes is not None:
                    part.removes = [command.removes[place] for place in mine]  # type: ignore[attr-defined]
            if isinstance(command, Renew):
                part.leases_ms = [command.leases_ms[place] for place in mine]  # type: ignore[attr-defined]
            try:
                answers: list[Any] = await engine.run(part)
            except ServerError as error:  # this shard has failed; what the others did is kept
                answers = [error] * len(mine)
            for place, answer in zip(mine, answers, strict=True):
                outcomes[place] = answer

        await asyncio.gather(*(on_one(engine, mine) for engine, mine in places.items()))

    async def _settle_dead(self, command: SettleDead) -> ItemOutcome:
        """Settle a dead job on its shard: its token contains the shard on which it was leased."""
        try:
            engine = await self._at("", command.hold.ref, command.hold.token)
        except JobNotFound as error:
            return error
        outcome = await engine.run(command)
        if isinstance(outcome, JobNotFound) and self.store.has_moved and isinstance(command.hold.ref, int):
            place = (await self.store.locate([command.hold.ref])).get(command.hold.ref)
            if place is not None and place[1].is_seen:
                return await self.engines[place[0]].run(copy.copy(command))
        return outcome

    async def _by_id(self, command: AckById | NackById | RenewById) -> list[Any]:
        """Split commands by id by the shards of their queues, and join the outcomes in their order."""
        outcomes: list[Any] = [None] * len(command.receipts)
        left = list(range(len(command.receipts)))
        until = self.clock.steady_ms() + limits.move_hold_ms
        while True:
            places: dict[Engine, list[int]] = {}
            for place in left:
                places.setdefault(self.of(command.receipts[place].queue), []).append(place)
            await asyncio.gather(*(self._by_id_at(engine, command, mine, outcomes) for engine, mine in places.items()))
            left = [place for place in left if isinstance(outcomes[place], QueueMoving)]
            if not left or self.clock.steady_ms() >= until:
                return outcomes
            await pause(self.clock, limits.move_look_ms)

    @staticmethod
    async def _by_id_at(
        engine: Engine, command: AckById | NackById | RenewById, mine: list[int], outcomes: list[Any]
    ) -> None:
        answers: list[Any]
        try:
            answers = await engine.run(type(command)([command.receipts[place] for place in mine]))
        except ServerError as error:  # this shard has failed; what the others did is kept
            answers = [error] * len(mine)
        for place, answer in zip(mine, answers, strict=True):
            outcomes[place] = answer

    # Flows.

    async def _unneed(self, command: DropDependency) -> bool:
        return await self._patiently(lambda: self._unneed_now(command))

    async def _unneed_now(self, command: DropDependency) -> bool:
        """Let jobs of all shards continue without a job. The job may have been removed, and still be needed on some shard."""
        found = await self.store.job_get(command.namespace, command.needed)
        refs = {command.needed} if found is None else {command.needed, found[0].id}
        dropped = [
            await self._found(engine, DropDependency(command.namespace, ref)) for ref in refs for engine in self.engines
        ]
        if all(each is None for each in dropped):
            raise JobNotFound
        return any(dropped)

    @staticmethod
    async def _found(engine: Engine, command: DropDependency) -> bool | None:
        try:
            return await engine.run(command)
        except JobNotFound:
            return None

    async def _adopt(self, command: Adopt) -> None:
        child = await self._job(command.namespace, command.child)
        parent = await self._job(command.namespace, command.parent)
        above: JobRecord | None = parent
        for _ in range(limits.flow_depth_max):
            if above is None:
                break
            if above.id == child.id:
                raise OwnAncestor
            name = details_of(above).parent
            found = None if name is None else await self.store.job_get(command.namespace, from_uuid(name) or name)
            above = None if found is None else found[0]
        else:
            raise OwnAncestor
        known_as = parent.custom_id or to_uuid(parent.id)

        async def attempt() -> None:
            engine = await self._at(command.namespace, child.id)
            await engine.run(Adopt(command.namespace, child.id, parent.id, known_as))

        await self._patiently(attempt)

    async def _job(self, namespace: str, ref: JobRef) -> JobRecord:
        found = await self.store.job_get(namespace, ref)
        if found is None:
            raise JobNotFound
        return found[0]

    async def _cancel_children(self, command: CancelChildren) -> int:
        return await self._patiently(lambda: self._cancel_children_now(command))

    async def _cancel_children_now(self, command: CancelChildren) -> int:
        """Cancel the children on other shards there. Their ends reach their parent's shard like any other end."""
        job = await self._job(command.namespace, command.ref)
        home = await self._at(command.namespace, job.id)
        needs = await home.store.need_list(job.id, (Need.PENDING, Need.FAILED), namespace=command.namespace)
        remote: dict[int, list[int]] = {}
        for child, shard in (await self.store.shards_of([each.needs for each in needs])).items():
            if shard != home.store.shard:
                remote.setdefault(shard, []).append(child)
        count, gone = 0, frozenset[int]()
        for shard, children in remote.items():
            cancelled = await self.engines[shard].run(CancelIdle(command.namespace, children, job.id))
            count += cancelled.idle
            gone |= cancelled.gone
            await self.relayers[shard].round()
        away = frozenset(child for children in remote.values() for child in children)
        return count + await home.run(CancelChildren(command.namespace, job.id, away, gone))

    # Crons: on the shard of the queue to which they push.

    async def _save_cron(self, command: SaveCron) -> Any:
        return await self._patiently(lambda: self._save_cron_now(copy.copy(command)))

    async def _save_cron_now(self, command: SaveCron) -> Any:
        home = self.of(QueueKey(command.key.namespace, command.plan.queue))
        elsewhere: list[Engine] = []
        for engine in self.engines:  # a cron of that name that pushed to another queue is replaced
            try:
                old = None if engine is home else await engine.store.cron_get(command.key)
            except StorageFailed:  # a cron of that name may be there, unless it is known to be on its queue's shard
                if await home.store.cron_get(command.key) is None:
                    raise
                continue
            if old is not None:
                command.executions = max(command.executions, old.executions)
                elsewhere.append(engine)
        saved = await home.run(command)
        for engine in elsewhere:
            await engine.run(RemoveCron(command.key))
        return saved

    async def _remove_cron(self, command: RemoveCron) -> None:
        await self._patiently(lambda: self._remove_cron_now(copy.copy(command)))

    async def _remove_cron_now(self, command: RemoveCron) -> None:
        found = await self.store.cron_get(command.key)
        if found is None:
            raise CronNotFound
        await self.of(QueueKey(command.key.namespace, found.plan.queue)).run(command)

    # Webhooks: registered where their events happen, under one id.

    async def _add_webhook(self, command: AddWebhook) -> WebhookRecord:
        if command.queue is not None:
            key = QueueKey(command.namespace, command.queue)

            async def attempt() -> WebhookRecord:
                if not self._is_here(key):
                    raise QueueMoving
                return await self.of(key).run(copy.copy(command))

            return await self._patiently(attempt)
        first, *others = self.engines
        added = await first.run(command)
        done = [first]
        try:
            for engine in others:
                copied = copy.copy(command)
                copied.known_as = added.id
                await engine.run(copied)
                done.append(engine)
        except ServerError:
            for engine in done:
                await engine.run(RemoveWebhook(command.namespace, added.id))
            raise
        return added

    async def _to_all_webhooks(self, command: RemoveWebhook | EnableWebhook) -> None:
        found = False
        for engine in self.engines:
            try:
                await engine.run(copy.copy(command))
            except WebhookNotFound:
                continue
            found = True
        if not found:
            raise WebhookNotFound

    async def _remove_subscription(self, command: RemoveSubscription) -> None:
        """Remove a subscription on the shard that has it: it moves with its queue."""

        async def attempt() -> None:
            for engine in self.engines:
                try:
                    return await engine.run(copy.copy(command))
                except SubscriptionNotFound:
                    continue
            if self.store.is_moving:
                raise QueueMoving  # it may have moved from a later shard to an earlier one
            raise SubscriptionNotFound

        await self._patiently(attempt)

    async def _push(self, command: Push) -> list[JobRecord]:
        (jobs,) = await ShardedPush(self, [(command.queue, command.jobs)], None, command.room).run()
        return jobs

    async def _push_across(self, command: PushAcross) -> list[list[JobRecord]]:
        """Push to several queues: all or none on each shard, the jobs of each part in order."""
        return await ShardedPush(self, command.parts, command.asked_ms).run()

    def limit_namespaces(self, pool_shares: Shares) -> None:
        """Set the shares of each pool, for each namespace."""
        for engine in self.engines:
            engine.limit_namespaces(pool_shares)

    @property
    def pool_shares(self) -> Shares:
        """Shares of each pool, for each namespace."""
        return self.engines[0].pool_shares

    # Start and stop.

    def start(self) -> None:
        """Start the timers and the maintenance services."""
        for engine in self.engines:
            engine.start()
        for service in self._services:
            service.start()
        self.rebalancer.start()

    def highest_id(self) -> int:
        """Return an id that no stored job is above, on any shard."""
        return max(engine.highest_id() for engine in self.engines)

    async def close(self) -> None:
        """Answer all callers that wait, finish what was submitted, stop. The stores stay open."""
        await self.rebalancer.stop()
        await asyncio.gather(*(service.stop() for service in self._services))
        held = dict(self._held)
        for command, task in held.items():
            task.cancel()
            if not command.future.done():
                command.future.set_exception(ShuttingDown())
        await asyncio.gather(*held.values(), return_exceptions=True)
        await asyncio.gather(*(engine.close() for engine in self.engines))

    def stop_waiting(self) -> None:
        """Answer all callers that wait, because the server is closing."""
        for engine in self.engines:
            engine.stop_waiting()

    @property
    def waiting_callers(self) -> int:
        """Number of claims that wait for a job."""
        return sum(engine.waiting_callers for engine in self.engines)

    @property
    def waiting_for_ends(self) -> int:
        """Number of callers that wait for a job to end."""
        return sum(engine.waiting_for_ends for engine in self.engines)
