"""Pushing a whole flow: jobs of several queues that need each other, all of them or none."""

from __future__ import annotations

import contextlib
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidInput, PenstockError
from penstock.core.events import EventKind
from penstock.core.lifecycle import Arrow
from penstock.engine.change import MoveJob
from penstock.engine.produce import PushAcross, make_one, permitted
from penstock.engine.pushing import Pushing
from penstock.engine.taken import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job, NewJob
    from penstock.core.names import Permit
    from penstock.core.queue import QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.fleet import Fleet
    from penstock.engine.pushing import Item
    from penstock.engine.work import Work


class PushFlow(PushAcross):
    """Put jobs on several queues in one transaction. A job comes after those that it needs. Answers one job per part.

    Each part is one job, with a ``job_id``. Refused if a ``job_id`` is taken.
    """

    __slots__ = ()

    def __init__(self, jobs: Sequence[tuple[QueueKey, NewJob]], permit: Permit | None = None) -> None:
        super().__init__([(queue, (new,)) for queue, new in jobs], 0, permit)


def _taken(name: str | None) -> InvalidInput:
    return InvalidInput(f"Flow job {name} already exists")


async def push_flow(engine: Engine, work: Work, commands: Sequence[PushFlow]) -> None:
    """Apply a batch of flows."""
    commands = await permitted(work, commands)
    names = Names(work)
    await names.prefetch([(key, new) for command in commands for key, jobs in command.parts for new in jobs])
    for command in commands:
        names.afar = {} if command.permit is None else command.permit.afar
        try:
            await _check(work, names, command)
        except InvalidInput as error:
            work.refuse(command, error)
            continue
        pushed: list[list[Job]] = []
        for key, jobs in command.parts:
            queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
            if queue.created_at is None:
                await work.tx.queue_save(queue, queue.settings, work.now_ms)
                work.tell(EventKind.QUEUE_CREATED, queue)
            pushed.append([names.keep(await make_one(work, queue, new, names)) for new in jobs])
        work.answer(command, pushed)
    await work.flush()
    work.timings.append((engine.stats.push_time, len(commands)))


async def _check(work: Work, names: Names, command: PushFlow) -> None:
    """Refuse a flow before any of it is made."""
    earlier: set[str] = set()
    for key, jobs in command.parts:
        queue = work.tx.queue_find(key) or await work.tx.queue_open(key)
        await names.check(queue, jobs, earlier)
        for new in jobs:
            found, _ = await names.find(queue, new)
            if found is not None:
                raise _taken(new.job_id)


# On several shards.


class _FlowPushing(Pushing):
    """A part of a flow that is on one shard, on its way."""

    async def _push(self, shard: int, items: Sequence[Item], permit: Permit) -> None:
        allowed = permit if permit.tickets or permit.afar else None
        answers = await self._engines[shard].run(PushFlow([(item.queue, item.new) for item in items], allowed))
        self._answers.update((item.place, job) for item, (job,) in zip(items, answers, strict=True))

    async def _again(self, items: Sequence[tuple[Item, int]]) -> None:
        for item, _ in items:
            raise _taken(item.new.job_id)


async def push_flow_on_shards(fleet: Fleet, command: PushFlow) -> list[list[Job]]:
    """Push a flow whose queues may be on several shards: in one transaction for each run of jobs on one shard, in order.

    If one is refused, those before it are cancelled, unless a worker has them already.
    """
    pushed: list[list[Job]] = []
    for _, run in groupby(command.parts, lambda part: fleet.store.place_of(part[0])):
        parts = list(run)
        try:
            pushed += await _FlowPushing(fleet, parts, None).run()
        except PenstockError:
            for (queue, _), (job,) in zip(reversed(command.parts[: len(pushed)]), reversed(pushed), strict=True):
                with contextlib.suppress(PenstockError):
                    await fleet.run(MoveJob(queue.namespace, job.id, Arrow.CANCEL))
            raise
    return pushed
