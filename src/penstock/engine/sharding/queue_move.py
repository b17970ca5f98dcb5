"""The steps of a shard when one of its queues moves to another shard, or a queue of another shard moves here.

Each step is one guarded write, and belongs to one attempt: a step of an attempt that was given up is refused.
``docs/shards.md`` describes the steps, and which shard decides when. ``rebalancer.py`` runs them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.cron import UNNUMBERED
from penstock.core.errors import RebalanceRefused
from penstock.core.group_limits import later
from penstock.core.job import JobFlag
from penstock.core.queue import SETTLED, Move, MoveStep, QueueKey, StateCounts
from penstock.core.sharding import shard_for
from penstock.engine.command import Command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.cron import CronKey, CronRecord
    from penstock.core.group_limits import GroupLimits
    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueSettings
    from penstock.core.webhook import WebhookRecord
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import MovedJob


#: How many jobs a rate limit still allows, and since when (steady ms).
Bucket = tuple[float, int]


class _OnTheMove:
    """Base of the steps of a move: the queue and the attempt. Answers wait for an fsync, with any durability."""

    __slots__ = ()

    durable = True


class Freeze(_OnTheMove, Command["Queue"]):
    """Freeze a queue, because it moves to the shard ``peer``. Nothing in it changes from now on.

    Refused with RebalanceRefused while jobs of this queue and of another one need each other.
    """

    __slots__ = ("attempt", "key", "peer")

    def __init__(self, key: QueueKey, peer: int, attempt: int) -> None:
        self.key = key
        self.peer = peer
        self.attempt = attempt


class Prepare(_OnTheMove, Command[Move]):
    """Prepare for a queue of the shard ``move.peer``. Answers its state here: it may have to be cleared first."""

    __slots__ = ("created_at", "key", "move", "settings")

    def __init__(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> None:
        self.key = key
        self.settings = settings
        self.created_at = created_at
        self.move = move


class ImportJobs(_OnTheMove, Command[None]):
    """Write jobs of an arriving queue. Jobs that exist already are not changed.

    ``later_ms``: how far the clock of this shard is ahead, plus the time by which leases are extended.
    """

    __slots__ = ("attempt", "key", "later_ms", "moved_jobs")

    def __init__(self, key: QueueKey, attempt: int, moved_jobs: Sequence[MovedJob], later_ms: int) -> None:
        self.key = key
        self.attempt = attempt
        self.moved_jobs = moved_jobs
        self.later_ms = later_ms

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.moved_jobs)


class ExportCrons(Command[list[tuple["CronRecord", bytes]]]):
    """Return some crons with the payloads of their jobs; fewer crons if the payloads are large."""

    __slots__ = ("keys",)

    def __init__(self, keys: Sequence[CronKey]) -> None:
        self.keys = keys

    def weight(self) -> int:
        """Return the number of its crons."""
        return len(self.keys)


class ImportCrons(_OnTheMove, Command[None]):
    """Write crons of an arriving queue. Crons that exist already are not changed."""

    __slots__ = ("attempt", "crons", "key")

    def __init__(self, key: QueueKey, attempt: int, crons: Sequence[tuple[CronRecord, bytes]]) -> None:
        self.key = key
        self.attempt = attempt
        self.crons = crons

    def weight(self) -> int:
        """Return the number of its crons."""
        return len(self.crons)


class PackGroups(Command[list[tuple[str, "GroupLimits"]]]):
    """Return the settings of some groups of a leaving queue: those whose names come after a given one."""

    __slots__ = ("after", "key")

    def __init__(self, key: QueueKey, after: str) -> None:
        self.key = key
        self.after = after


class UnloadGroups(_OnTheMove, Command[None]):
    """Write the settings of groups of an arriving queue. ``later_ms``: how far the clock of this shard is ahead."""

    __slots__ = ("attempt", "groups", "key", "later_ms")

    def __init__(self, key: QueueKey, attempt: int, groups: Sequence[tuple[str, GroupLimits]], later_ms: int) -> None:
        self.key = key
        self.attempt = attempt
        self.groups = groups
        self.later_ms = later_ms

    def weight(self) -> int:
        """Return the number of its groups."""
        return len(self.groups)


class CountJobs(Command[StateCounts]):
    """Count the jobs of a moving queue, one by one."""

    __slots__ = ("key",)

    def __init__(self, key: QueueKey) -> None:
        self.key = key


class CheckUnreadable(Command[None]):
    """Check jobs that could not be read: damaged ones are moved to quarantine."""

    __slots__ = ("ids",)

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = ids

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.ids)


class HandOver(_OnTheMove, Command["Bucket | None"]):
    """Hand over a queue: from this commit on, the other shard has it. ``counts``: the jobs that were copied there.

    Answers how many jobs its rate limit still allows.
    """

    __slots__ = ("attempt", "counts", "crons", "key")

    def __init__(self, key: QueueKey, attempt: int, counts: StateCounts, crons: Sequence[CronKey]) -> None:
        self.key = key
        self.attempt = attempt
        self.counts = counts
        self.crons = crons

    def weight(self) -> int:
        """Return the number of its crons, and one for the queue."""
        return 1 + len(self.crons)


class Open(_OnTheMove, Command[None]):
    """Open a queue on its new shard, after the old shard has handed it over. Doing it twice is allowed."""

    __slots__ = ("attempt", "bucket", "key", "webhooks")

    def __init__(self, key: QueueKey, attempt: int, webhooks: Sequence[WebhookRecord], bucket: Bucket | None) -> None:
        self.key = key
        self.attempt = attempt
        self.webhooks = webhooks
        self.bucket = bucket

    def weight(self) -> int:
        """Return the number of its webhooks, and one for the queue."""
        return 1 + len(self.webhooks)


class CancelMove(_OnTheMove, Command[None]):
    """Cancel the move of a leaving queue. Refused with RebalanceRefused if it is too late for that."""

    __slots__ = ("attempt", "key")

    def __init__(self, key: QueueKey, attempt: int) -> None:
        self.key = key
        self.attempt = attempt


class Clear(_OnTheMove, Command[int]):
    """Delete some jobs of a queue that has moved away, or of an earlier attempt to copy it here. Answers how many."""

    __slots__ = ("attempt", "crons", "for_good", "key")

    def __init__(self, key: QueueKey, attempt: int, crons: Sequence[CronKey] = (), *, for_good: bool = False) -> None:
        self.key = key
        self.attempt = attempt
        self.crons = crons
        self.for_good = for_good  #: it will not be copied here again

    def weight(self) -> int:
        """Return the number of its crons, and one for the queue."""
        return 1 + len(self.crons)


class Retarget(_OnTheMove, Command[None]):
    """Begin to spread queues over ``target`` shards. ``webhooks``: all webhooks, for a shard that was spare."""

    __slots__ = ("epoch", "target", "webhooks")

    def __init__(self, epoch: int, target: int, webhooks: Sequence[WebhookRecord]) -> None:
        self.epoch = epoch
        self.target = target
        self.webhooks = webhooks

    def weight(self) -> int:
        """Return the number of its webhooks, and one for the shard."""
        return 1 + len(self.webhooks)


class FinishRebalance(_OnTheMove, Command[bool]):
    """Finish the rebalance on this shard, if it has no queue any more that must move to another one.

    Answers whether it is finished.
    """

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


async def freeze(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Freeze]) -> None:
    """Apply a batch of frozen queues."""
    await work.flush()
    for command in commands:
        queue = work.tx.queue_find(command.key)
        if queue is None:
            work.refuse(command, RebalanceRefused("The queue does not exist any more, or is being moved already."))
        elif (
            any(job.has(JobFlag.AWAITED) for job, _ in work.ended)
            or await work.tx.end_list(1)
            or await work.tx.queue_tied(queue)
        ):
            work.refuse(command, RebalanceRefused(f"Jobs of {command.key.name} and of other queues wait for each other."))
        else:
            await work.tx.queue_move(queue, Move(MoveStep.LEAVING, command.peer, command.attempt))
            work.answer(command, queue)


async def prepare(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Prepare]) -> None:
    """Apply a batch of prepared arrivals."""
    for command in commands:
        queue = work.tx.queue_away(command.key)
        if queue is None and work.tx.queue_find(command.key) is not None:
            work.refuse(command, RebalanceRefused(f"Queue {command.key.name} is on both shards."))
            continue
        if queue is None:
            queue = await work.tx.queue_arrive(command.key, command.settings, command.created_at, command.move)
        elif queue.move.step in (MoveStep.LEAVING, MoveStep.MOVED):
            work.refuse(command, RebalanceRefused(f"Queue {command.key.name} is moving from this shard, not to it."))
            continue
        elif queue.move.attempt != command.move.attempt:
            await work.tx.queue_save(queue, command.settings, command.created_at)
            await work.tx.queue_move(queue, command.move._replace(step=MoveStep.CLEARING))
        work.answer(command, queue.move)


async def import_jobs(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ImportJobs]) -> None:
    """Apply a batch of copied jobs."""
    await work.flush()
    for command in commands:
        queue = _on_its_way(work, command, MoveStep.ARRIVING)
        if queue is None:
            continue
        known = await work.tx.job_known([moved.job.id for moved in command.moved_jobs])
        moved_jobs = [moved for moved in command.moved_jobs if moved.job.id not in known]
        if moved_jobs:
            await _write(work, queue, moved_jobs, command.later_ms)
        work.answer(command, None)


async def _write(work: UnitOfWork, queue: Queue, moved_jobs: Sequence[MovedJob], later_ms: int) -> None:
    named = [(queue.namespace_number, moved.job.custom_id) for moved in moved_jobs if moved.job.custom_id is not None]
    taken = await work.tx.job_find_custom(named) if named else {}
    jobs: list[JobRecord] = []
    for moved in moved_jobs:
        # A job that has a name on this shard already keeps it; the other job is found by its id only.
        name = moved.job.custom_id
        own = None if name is None or (queue.namespace_number, name) in taken else name
        jobs.append(
            msgspec.structs.replace(
                moved.job,
                namespace=queue.namespace_number,
                queue=queue.number,
                custom_id=own,
                lease_until=_later(moved.job.lease_until, later_ms),
                deadline=_later(moved.job.deadline, later_ms),
            )
        )
    await work.tx.job_insert([(job, moved.payload) for job, moved in zip(jobs, moved_jobs, strict=True)])
    if results := [(moved.job.id, moved.result) for moved in moved_jobs if moved.result is not None]:
        await work.tx.result_save(results)
    if logs := [(moved.job.id, moved.logs) for moved in moved_jobs if moved.logs]:
        await work.tx.log_insert(logs)
    if needs := [need for moved in moved_jobs for need in moved.needs]:
        await work.tx.need_add(needs)


def _later(steady_ms: int | None, later_ms: int) -> int | None:
    return None if steady_ms is None else steady_ms + later_ms


async def export_crons(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ExportCrons]) -> None:
    """Apply a batch of crons to be copied."""
    for command in commands:
        crons = await work.tx.cron_load(command.keys)
        data = await work.tx.cron_data_load(crons)
        work.answer(command, [(cron, data[cron.number]) for cron in crons if cron.number in data])


async def import_crons(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ImportCrons]) -> None:
    """Apply a batch of copied crons."""
    for command in commands:
        queue = _on_its_way(work, command, MoveStep.ARRIVING)
        if queue is None:
            continue
        known = {cron.key for cron in await work.tx.cron_load([cron.key for cron, _ in command.crons])}
        fresh = [
            (msgspec.structs.replace(cron, number=UNNUMBERED), data) for cron, data in command.crons if cron.key not in known
        ]
        if fresh:
            await work.tx.cron_insert(fresh)
        work.tx.queue_touch(queue)
        work.answer(command, None)


async def pack_groups(_engine: EngineContext, work: UnitOfWork, commands: Sequence[PackGroups]) -> None:
    """Apply a batch of group settings to be copied."""
    for command in commands:
        queue = work.tx.queue_away(command.key)
        found = [] if queue is None else await work.tx.group_page(queue, command.after, limits.move_slice_jobs)
        work.answer(command, found)


async def unload_groups(_engine: EngineContext, work: UnitOfWork, commands: Sequence[UnloadGroups]) -> None:
    """Apply a batch of copied group settings."""
    for command in commands:
        queue = _on_its_way(work, command, MoveStep.ARRIVING)
        if queue is not None:
            await work.tx.group_save(queue, [(name, later(group, command.later_ms)) for name, group in command.groups])
            work.tx.queue_touch(queue)
            work.answer(command, None)


async def count_jobs(_engine: EngineContext, work: UnitOfWork, commands: Sequence[CountJobs]) -> None:
    """Apply a batch of counts."""
    for command in commands:
        queue = work.tx.queue_away(command.key)
        if queue is None:
            work.refuse(command, RebalanceRefused("The queue is not moving."))
        else:
            work.answer(command, await work.tx.queue_count(queue))


async def check_unreadable(_engine: EngineContext, work: UnitOfWork, commands: Sequence[CheckUnreadable]) -> None:
    """Apply a batch of checks of jobs that could not be read."""
    for command in commands:
        await work.tx.payload_load(command.ids)
        work.answer(command, None)


async def hand_over(_engine: EngineContext, work: UnitOfWork, commands: Sequence[HandOver]) -> None:
    """Apply a batch of handed over queues: this is the moment at which a queue changes its shard."""
    for command in commands:
        queue = _on_its_way(work, command, MoveStep.LEAVING)
        if queue is None:
            continue
        counts = await work.tx.queue_count(queue)
        if counts != command.counts:
            work.refuse(command, RebalanceRefused(f"{counts} were not copied: the other shard has {command.counts}."))
            continue
        await _remove_crons(work, command.crons)
        bucket = None if queue.settings.rate_limit is None else await work.tx.bucket_load(queue)
        await work.tx.queue_move(queue, queue.move._replace(step=MoveStep.MOVED))
        work.answer(command, bucket)


async def open_(engine: EngineContext, work: UnitOfWork, commands: Sequence[Open]) -> None:
    """Apply a batch of opened queues."""
    for command in commands:
        queue = work.tx.queue_away(command.key)
        if queue is None:  # it was opened before, and may have been removed since
            work.answer(command, None)
            continue
        if _on_its_way(work, command, MoveStep.ARRIVING) is None:
            continue
        await work.tx.queue_move(queue, SETTLED)
        await _add_webhooks(engine, work, command.webhooks)
        if command.bucket is not None:
            await work.tx.bucket_save(queue, *command.bucket)
        work.ready.add(queue.number)
        work.answer(command, None)


async def cancel_move(_engine: EngineContext, work: UnitOfWork, commands: Sequence[CancelMove]) -> None:
    """Apply a batch of cancelled moves."""
    for command in commands:
        queue = _on_its_way(work, command, MoveStep.LEAVING)
        if queue is not None:
            await work.tx.queue_move(queue, SETTLED)
            work.ready.add(queue.number)
            work.answer(command, None)


async def clear(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Clear]) -> None:
    """Apply a batch of deletions. A queue that is empty after an earlier attempt is ready for the next one."""
    for command in commands:
        queue = work.tx.queue_away(command.key)
        if queue is None or queue.move.step not in (MoveStep.MOVED, MoveStep.CLEARING):
            work.refuse(command, RebalanceRefused("There is nothing to clear."))
            continue
        if queue.move.attempt != command.attempt:
            work.refuse(command, RebalanceRefused("Another attempt to move the queue has begun."))
            continue
        count = await work.tx.queue_clear(queue, limits.move_slice_jobs)
        if not count:
            stays_away = command.for_good or queue.move.step is MoveStep.MOVED
            await _remove_crons(work, command.crons)
            next_ = MoveStep.GONE if stays_away else MoveStep.ARRIVING
            await work.tx.queue_move(queue, queue.move._replace(step=next_))
        work.answer(command, count)


async def retarget(engine: EngineContext, work: UnitOfWork, commands: Sequence[Retarget]) -> None:
    """Apply a batch of rebalances that begin."""
    for command in commands:
        layout = work.tx.layout
        if layout is None or layout.epoch != command.epoch or layout.target not in (None, command.target):
            work.refuse(command, RebalanceRefused("Another rebalance is in progress."))
            continue
        if layout.target is None:
            if layout.shard >= layout.shards:
                kept = {webhook.id for webhook in command.webhooks}
                gone = [each.id for each in engine.store.webhook_list() if each.id not in kept]
                if gone:
                    await work.tx.webhook_remove(gone)
                await _add_webhooks(engine, work, [each for each in command.webhooks if each.queue is None])
            await work.tx.layout_save(layout._replace(target=command.target))
        work.answer(command, None)


async def finish_rebalance(engine: EngineContext, work: UnitOfWork, commands: Sequence[FinishRebalance]) -> None:
    """Apply a batch of finished rebalances. The catalog is as new as the transaction, and cannot change during it."""
    for command in commands:
        layout = work.tx.layout
        if layout is None or layout.target is None or layout.epoch != command.epoch:
            work.answer(command, layout is not None and layout.epoch > command.epoch)
            continue
        away = list(work.tx.away.values())
        here = [queue for queue in engine.store.queues() if queue.move.step is MoveStep.HERE]
        done = all(shard_for(queue.key, layout.target) == layout.shard for queue in here)
        done = done and all(queue.move.step is MoveStep.GONE for queue in away)
        if done:
            if away:
                await work.tx.queues_forget()
            await work.tx.layout_save(layout._replace(shards=layout.target, epoch=layout.epoch + 1, target=None))
        work.answer(command, done)


def _on_its_way(
    work: UnitOfWork, command: ImportJobs | ImportCrons | UnloadGroups | HandOver | Open | CancelMove, step: MoveStep
) -> Queue | None:
    """Return the queue of a command if its move has the step that the command expects; otherwise refuse the command."""
    queue = work.tx.queue_away(command.key)
    if queue is not None and queue.move.step is step and queue.move.attempt == command.attempt:
        return queue
    found = "gone, or here" if queue is None else f"{queue.move.step.name}, attempt {queue.move.attempt}"
    work.refuse(command, RebalanceRefused(f"Queue {command.key.name} is not in the expected state: it is {found}."))
    return None


async def _remove_crons(work: UnitOfWork, keys: Sequence[CronKey]) -> None:
    crons = await work.tx.cron_load(keys) if keys else []
    if crons:
        await work.tx.cron_remove([(cron, cron.next_run) for cron in crons])


async def _add_webhooks(engine: EngineContext, work: UnitOfWork, webhooks: Sequence[WebhookRecord]) -> None:
    """Register webhooks under the ids they have on other shards. Each shard counts its own deliveries."""
    fresh = [
        msgspec.structs.replace(each, cursor=engine.store.journal_next, successes=0, failures=0, last_triggered=None)
        for each in webhooks
        if engine.store.webhook_find(each.id) is None
    ]
    if fresh:
        await work.tx.webhook_save(fresh)
        work.after_commit.append(engine.signals.webhooks_changed.emit)
