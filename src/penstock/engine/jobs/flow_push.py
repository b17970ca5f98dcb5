"""Pushing a whole flow: jobs of several queues that need each other. All of them are pushed, or none."""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import InvalidInput, NamespaceLimit, OutcomeUnknown, PartlyDone, ServerError
from penstock.core.lifecycle import Arrow, State
from penstock.engine.jobs.build import create_queue
from penstock.engine.jobs.push import PushAcross, make_one, permitted
from penstock.engine.jobs.uniqueness import ExistingJobs
from penstock.engine.queues.admin import MoveBatch
from penstock.engine.sharding.push import ShardedPush, check_shard, why

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord, JobSpec
    from penstock.core.queue import QueueKey
    from penstock.core.reservations import Permit
    from penstock.engine.context import EngineContext, ShardedContext
    from penstock.engine.sharding.push import Item
    from penstock.engine.unit_of_work import UnitOfWork


#: States of jobs that no worker has or had.
_NOT_BEGUN: Final = (State.WAITING, State.DELAYED, State.WAITING_CHILDREN)


class PushFlow(PushAcross):
    """Push jobs to several queues in one transaction. A job follows those that it needs. Answers one job for each part.

    Each part is one job, with a ``job_id``. Refused if a ``job_id`` is taken.
    """

    __slots__ = ()

    def __init__(self, jobs: Sequence[tuple[QueueKey, JobSpec]], permit: Permit | None = None) -> None:
        super().__init__([(queue, (new,)) for queue, new in jobs], 0, permit)


def _taken(name: str | None) -> InvalidInput:
    return InvalidInput(f"Flow job {name} already exists")


async def push_flow(engine: EngineContext, work: UnitOfWork, commands: Sequence[PushFlow]) -> None:
    """Apply a batch of flows."""
    commands = await permitted(work, commands)
    names = ExistingJobs(work)
    await names.prefetch([(key, new) for command in commands for key, jobs in command.parts for new in jobs])
    for command in commands:
        names.begin(command.permit)
        try:
            await _check(work, names, command)
        except (InvalidInput, NamespaceLimit) as error:
            work.refuse(command, error)
            continue
        pushed: list[list[JobRecord]] = []
        for key, jobs in command.parts:
            await work.pause()
            queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
            if queue.created_at is None:
                await create_queue(work, queue)
            pushed.append([names.keep(await make_one(work, queue, new, names)) for new in jobs])
        work.answer(command, pushed)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def _check(work: UnitOfWork, names: ExistingJobs, command: PushFlow) -> None:
    """Check a flow, and refuse it before any job of it is made."""
    earlier: set[str] = set()
    for key, jobs in command.parts:
        queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
        await names.prefetch_opened(queue)
        await names.check(queue, jobs, earlier)
        for new in jobs:
            found, _ = await names.find(queue, new)
            if found is not None:
                raise _taken(new.job_id)


# On several shards.


class _ShardedFlowPush(ShardedPush):
    """The part of a flow that is pushed to one shard."""

    async def _push(self, shard: int, items: Sequence[Item], permit: Permit) -> None:
        allowed = permit if permit.tickets or permit.remote else None
        answers = await self._engines[shard].run(PushFlow([(item.queue, item.new) for item in items], allowed))
        self._answers.update((item.place, job) for item, (job,) in zip(items, answers, strict=True))

    async def _again(self, items: Sequence[tuple[Item, int]]) -> None:
        for item, _ in items:
            raise _taken(item.new.job_id)


async def push_flow_on_shards(sharded: ShardedContext, command: PushFlow) -> list[list[JobRecord]]:
    """Push a flow whose queues may be on several shards. Each run of jobs on one shard is one transaction, in order.

    If one run is refused, the jobs before it are cancelled, except those that a worker has already: then PartlyDone
    names the stored jobs. If the outcome of a run is unknown, nothing is cancelled, because a parent that is stored
    needs its children.
    """
    runs = [(shard, list(run)) for shard, run in groupby(command.parts, lambda part: sharded.store.place_of(part[0]))]
    _check_shards(sharded, {shard for shard, _ in runs})
    pushed: list[list[JobRecord]] = []
    for _, parts in runs:
        try:
            pushed += await _ShardedFlowPush(sharded, parts, None).run()
        except OutcomeUnknown as error:
            if len(runs) == 1:
                raise
            raise _unknown(command, len(pushed), len(parts)) from error
        except ServerError as error:
            left = await _cancel(sharded, command, pushed)
            if not left:
                raise
            text = (
                f"{len(left)} of {len(command.parts)} jobs of the flow are stored and could not be cancelled: {_list(left)}."
            )
            raise PartlyDone(
                f"{text} The others are not stored: {why(error)} Cancel these, or push the others with PUSH."
            ) from error
    return pushed


def _check_shards(sharded: ShardedContext, shards: set[int]) -> None:
    """Raise StorageFailed or StorageFull if one of several shards accepts no writes.

    Then nothing is stored on the others.
    """
    if len(shards) > 1:
        for shard in sorted(shards):
            check_shard(sharded.engines[shard], shard)


async def _cancel(sharded: ShardedContext, command: PushFlow, pushed: Sequence[Sequence[JobRecord]]) -> list[str]:
    """Cancel jobs of a flow, those that need others first. Return the ids of the jobs that are still stored."""
    left = []
    for (queue, (new,)), (job,) in zip(reversed(command.parts[: len(pushed)]), reversed(pushed), strict=True):
        cancelled: list[JobRecord] = []
        with contextlib.suppress(ServerError):
            cancelled = await sharded.run(MoveBatch(queue, Arrow.CANCEL, _NOT_BEGUN, [job.id]))
        if not cancelled:
            left.append(str(new.job_id))
    return left[::-1]


def _unknown(command: PushFlow, stored: int, asked: int) -> OutcomeUnknown:
    """Return the error that names the jobs of a flow that are stored, may be stored, and are not stored."""
    names = [str(new.job_id) for _, (new,) in command.parts]
    groups = {
        "are stored": names[:stored],
        "may be stored": names[stored : stored + asked],
        "are not stored": names[stored + asked :],
    }
    said = "; ".join(f"{len(some)} {what} ({_list(some)})" for what, some in groups.items() if some)
    return OutcomeUnknown(
        f"A shard was lost while it stored a part of the flow. Of {len(names)} jobs, {said}. Nothing was cancelled. Request "
        "the jobs by their ids once the shard is back, then push what is missing with PUSH, or cancel what is stored."
    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[: limits.names_told_max])
    return shown if len(names) <= limits.names_told_max else f"{shown}, ..."
