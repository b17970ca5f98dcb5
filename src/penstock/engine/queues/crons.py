"""Crons: saving and removing them, and what happens at their ticks.

A tick is used in the transaction that pushes its job, by one write that expects the tick that was read. So either both are
done or none, and no tick is used twice. See ``docs/crons.md`` for the rules.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.core import limits
from penstock.core.cron import UNNUMBERED, CronRecord
from penstock.core.errors import CronNotFound, InvalidInput, QueueMoving, RowChanged, ServerError, TooMany
from penstock.core.events import EventKind
from penstock.core.job import JobSpec
from penstock.core.queue import QueueKey
from penstock.engine.command import Command
from penstock.engine.jobs.push import push_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.cron import CronKey, CronPlan
    from penstock.core.queue import Queue
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

_encode_options = msgspec.json.Encoder().encode
OVERLAP = "overlap"
NO_WORKER = "no-worker"
QUOTA = "quota"


class SaveCron(Command[CronRecord]):
    """Add a cron, or replace the one of that name. Answers the cron as it is now.

    ``immediately``: a new cron has its first tick at once. A replaced cron keeps its count and, if it has the same schedule,
    its next tick. So a program that adds its crons again at each start does not delay their ticks.
    """

    __slots__ = ("data", "executions", "immediately", "key", "plan")

    grows = True

    def __init__(self, key: CronKey, plan: CronPlan, data: bytes, *, immediately: bool = False) -> None:
        self.key = key
        self.plan = plan
        self.data = data
        self.immediately = immediately
        self.executions = 0  #: count of a new cron, which had that many on another shard

    def tenant(self) -> str | None:
        """Return the namespace of the cron."""
        return self.key.namespace

    def weight(self) -> int:
        """Return the weight of its payload."""
        return 1 + len(self.data) // limits.weight_bytes


class RemoveCron(Command[None]):
    """Remove a cron; the jobs it has pushed stay. Refused with CronNotFound."""

    __slots__ = ("key",)

    def __init__(self, key: CronKey) -> None:
        self.key = key

    def tenant(self) -> str | None:
        """Return the namespace of the cron."""
        return self.key.namespace


async def save_cron(engine: EngineContext, work: UnitOfWork, commands: Sequence[SaveCron]) -> None:
    """Apply a batch of saved crons."""
    for command in commands:
        try:
            cron = await _save(engine, work, command)
        except (InvalidInput, TooMany) as error:
            work.refuse(command, error)
        else:
            work.answer(command, cron)


async def _save(engine: EngineContext, work: UnitOfWork, command: SaveCron) -> CronRecord:
    key, plan = command.key, command.plan
    old = next(iter(await work.tx.cron_load([key])), None)
    next_run = plan.schedule.next_after(work.now_ms)
    if next_run is None:
        raise InvalidInput("Invalid cron expression: the day never occurs")
    if old is not None and old.plan.schedule == plan.schedule:
        next_run = min(next_run, old.next_run)
    elif old is None and command.immediately:
        next_run = work.now_ms
    if old is None:
        taken, held = await work.tx.cron_tally(key.namespace)
        engine.pool_shares.check("crons", key.namespace, most=limits.crons_max, taken=taken, held=held)
    queue = await work.tx.queue_open(QueueKey(key.namespace, plan.queue))
    if old is None:
        cron = CronRecord(UNNUMBERED, key, plan, next_run, command.executions)
        await work.tx.cron_insert([(cron, command.data)])
        when = {"pattern": plan.schedule.expression, "every": plan.schedule.every_ms}
        given = {name: value for name, value in when.items() if value is not None}
        _journal_event(work, EventKind.CRON_CREATED, queue, cron, **given, nextRun=next_run)
    else:
        cron = CronRecord(old.number, key, plan, next_run, old.executions)
        await work.tx.cron_save([(cron, old.next_run)])
        await work.tx.cron_data_save(cron, command.data)
        _journal_event(work, EventKind.CRON_UPDATED, queue, cron, nextRun=next_run)
    return cron


async def remove_cron(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RemoveCron]) -> None:
    """Apply a batch of removed crons."""
    for command in commands:
        found = await work.tx.cron_load([command.key])
        if not found:
            work.refuse(command, CronNotFound())
            continue
        if any(_is_away(work, cron) for cron in found):
            work.refuse(command, QueueMoving())
            continue
        for cron in found:
            await work.tx.cron_remove([(cron, cron.next_run)])
            await _journal_removal(work, cron)
        work.answer(command, None)


# Ticks.


class _Tick(NamedTuple):
    """A tick that is due: the cron as it was read, the queue of its job, and why the job may not be pushed."""

    cron: CronRecord
    queue: Queue
    problem: str | None  #: why the tick is missed
    skipped: str | None  #: why the tick is skipped on purpose

    @property
    def fires(self) -> bool:
        return self.problem is None and self.skipped is None


async def fire(engine: EngineContext, work: UnitOfWork) -> None:
    """Use the ticks that are due, a bounded number at a time. The timer continues at once with the rest."""
    due = [cron for cron in await work.tx.cron_due(work.now_ms, limits.sweep_crons_max) if not _is_away(work, cron)]
    ticks = [tick for cron in due if (tick := await _decide_tick(engine, work, cron)) is not None]
    data = await work.tx.cron_data_load([tick.cron for tick in ticks if tick.fires])
    firing = [tick for tick in ticks if tick.cron.number in data]
    left = {tick.cron.number for tick in ticks if tick.fires} - data.keys()  # too much at once: left for the next batch
    firing, over = await _within_quotas(engine, work, firing)
    jobs = await push_inside(work, [(tick.queue, _job(tick.cron, data[tick.cron.number])) for tick in firing])
    pushed = {tick.cron.number for tick, job in zip(firing, jobs, strict=True) if job is not None}
    _refund(engine, work, [tick for tick in firing if tick.cron.number not in pushed])
    for cron, queue, problem, skipped in ticks:
        if problem is not None:
            _journal_event(work, EventKind.CRON_MISSED, queue, cron, error=problem)
        elif skipped is not None:
            _journal_event(work, EventKind.CRON_SKIPPED, queue, cron, reason=skipped)
        elif cron.number in left:
            continue
        elif cron.number in over:
            _journal_event(work, EventKind.CRON_SKIPPED, queue, cron, reason=QUOTA)
        elif cron.number in pushed:
            _journal_event(work, EventKind.CRON_FIRED, queue, cron)
        else:
            _journal_event(work, EventKind.CRON_SKIPPED, queue, cron, reason=OVERLAP)
    left_out = {tick.cron.number for tick in ticks if tick.skipped is not None or tick in firing} - pushed | over
    await _move_on(work, [cron for cron in due if cron.number not in left], pushed, left_out)
    await work.flush()


async def _within_quotas(engine: EngineContext, work: UnitOfWork, firing: list[_Tick]) -> tuple[list[_Tick], set[int]]:
    """Count the jobs of ticks. Return the ticks within the quotas, and the numbers of the crons over a quota."""
    if engine.quotas is None or not firing:
        return firing, set()
    granted = dict(await engine.quotas.grant(_counts(firing)))
    taken = {namespace: count for namespace, count in granted.items() if count}
    work.when_undone.append(partial(engine.quotas.refund, taken))
    within: list[_Tick] = []
    over: set[int] = set()
    for tick in firing:
        room = granted.get(tick.cron.key.namespace)
        if room == 0:
            over.add(tick.cron.number)
            continue
        if room is not None:
            granted[tick.cron.key.namespace] = room - 1
        within.append(tick)
    return within, over


def _refund(engine: EngineContext, work: UnitOfWork, idle: list[_Tick]) -> None:
    """Undo the count of ticks that pushed nothing, because the last job of their cron is still there."""
    if engine.quotas is not None and idle:
        work.after_commit.append(partial(engine.quotas.refund, _counts(idle)))


def _counts(ticks: list[_Tick]) -> dict[str, int]:
    return Counter(tick.cron.key.namespace for tick in ticks)


async def _decide_tick(engine: EngineContext, work: UnitOfWork, cron: CronRecord) -> _Tick | None:
    """Decide what to do about a tick; None if there is nothing to do, because the cron is at its end."""
    if cron.is_used_up:
        return None
    try:
        queue = await work.tx.queue_open(QueueKey(cron.key.namespace, cron.plan.queue))
    except (
        TooMany,
        QueueMoving,
    ):  # its queue was removed and cannot be created: there is no place for the job or an event
        return None
    return _Tick(cron, queue, _why_missed(engine, work, cron), _why_skipped(engine, cron, queue))


def _why_missed(engine: EngineContext, work: UnitOfWork, cron: CronRecord) -> str | None:
    late_ms = work.now_ms - cron.next_run
    if engine.store.status().full:
        return "The disk is full"
    if not cron.plan.skip_missed:
        return None
    if late_ms > work.steady_ms - engine.began_at:
        return f"Was due {late_ms} ms ago, when the server was not running"
    if late_ms > limits.cron_late_ms_max:
        return f"Was due {late_ms} ms ago: the server was held up, or its clock was set forward"
    return None


def _why_skipped(engine: EngineContext, cron: CronRecord, queue: Queue) -> str | None:
    """Return why a tick is skipped; None if it is not.

    There is a worker if one has registered and sent a heartbeat lately, or if a claim waits for a job now.
    """
    if not cron.plan.skip_if_no_worker or engine.workers.serve(*queue.key) or engine.claim_waiters.waiting(queue.key):
        return None
    return NO_WORKER


def _job(cron: CronRecord, data: bytes) -> JobSpec:
    plan, job = cron.plan, cron.plan.job
    options: dict[str, object] = {}
    if job.tags:
        options["tags"] = job.tags
    if plan.dedup is not None:
        options["dedup"] = plan.dedup
    if job.name is not None:
        options["name"] = job.name
    return JobSpec(
        data,
        _encode_options(options) if options else None,
        priority=plan.priority,
        delay=job.delay,
        max_attempts=job.max_attempts,
        backoff=job.backoff,
        ttl=job.ttl,
        timeout=job.timeout,
        unique_key=cron.job_key,
        group_id=job.group_id,
        flags=job.flags,
        details=job.details,
        dedup=plan.dedup,
    )


async def _move_on(work: UnitOfWork, due: list[CronRecord], pushed: set[int], skipped: set[int]) -> None:
    """Move all crons to their next tick, which is never in the past. Remove those that have none, or are used up."""
    saved: list[tuple[CronRecord, int]] = []
    removed: list[tuple[CronRecord, int]] = []
    for cron in due:
        # A cron that ticks every few ms and finds its last job still there must not use too much time.
        next_run = _next_run(work, cron, work.now_ms + (limits.cron_skip_ms - 1 if cron.number in skipped else 0))
        moved = msgspec.structs.replace(
            cron, next_run=next_run or cron.next_run, executions=cron.executions + (cron.number in pushed)
        )
        (removed if moved.is_used_up or next_run is None else saved).append((moved, cron.next_run))
    if saved:
        await work.tx.cron_save(saved)
    if removed:
        await work.tx.cron_remove(removed)
        for cron, _ in removed:
            await _journal_removal(work, cron)


def _next_run(work: UnitOfWork, cron: CronRecord, after_ms: int) -> int | None:
    try:
        return cron.plan.schedule.next_after(after_ms, cron.next_run)
    except InvalidInput:  # this machine does not have the time zone any more: try again later, so that others do not wait
        return work.now_ms + limits.HOUR_MS


def _is_away(work: UnitOfWork, cron: CronRecord) -> bool:
    """Return whether the queue of a cron is moving to another shard: its ticks wait until the queue is there."""
    return bool(work.tx.away) and work.tx.queue_away(QueueKey(cron.key.namespace, cron.plan.queue)) is not None


def _journal_event(work: UnitOfWork, kind: EventKind, queue: Queue, cron: CronRecord, **more: Any) -> None:
    work.tx.queue_touch(queue)  # a cron moves with its queue
    work.journal_queue_event(kind, queue, {"name": cron.key.name, "queue": cron.plan.queue, **more})


async def _journal_removal(work: UnitOfWork, cron: CronRecord) -> None:
    try:
        queue = await work.tx.queue_open(QueueKey(cron.key.namespace, cron.plan.queue))
    except RowChanged:  # the transaction has to be done again
        raise
    except ServerError:
        return
    work.tx.queue_touch(queue)
    work.journal_queue_event(EventKind.CRON_DELETED, queue, {"name": cron.key.name})
