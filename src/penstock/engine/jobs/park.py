"""A worker parks its job until the jobs that it needs have ended."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from penstock.core.errors import NothingToAwait, QueueMoving
from penstock.core.lifecycle import Arrow
from penstock.engine.jobs.settle import LeaseCommand, find_held, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.settle import ItemOutcome
    from penstock.engine.unit_of_work import UnitOfWork


class Park(LeaseCommand):
    """Park jobs until the jobs that they need have ended. A job that needs none of them any more stays with its worker."""

    __slots__ = ()


async def park(engine: EngineContext, work: UnitOfWork, commands: Sequence[Park]) -> None:
    """Apply a batch of parked jobs. The transaction locks them, so the end of a needed job is applied before or after it."""
    await work.prefetch([hold.ref for command in commands for hold in command.holds])
    found = {job.id for command in commands for job in await _jobs(work, command)}
    counts = await work.tx.need_count(sorted(found)) if found else {}

    def put(_command: Park, _index: int, job: JobRecord) -> ItemOutcome:
        if job.id not in counts or not counts[job.id].open:
            return NothingToAwait()
        work.move(job, Arrow.PARK)
        return None

    await settle(engine, work, commands, put)


async def _jobs(work: UnitOfWork, command: Park) -> list[JobRecord]:
    """Return the jobs of a command that are on this shard."""
    found: list[JobRecord] = []
    for hold in command.holds:
        with contextlib.suppress(QueueMoving):
            job = await find_held(work, command, hold)
            found += [] if job is None else [job]
    return found
