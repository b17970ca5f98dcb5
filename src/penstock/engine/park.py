"""A worker parks its job until the jobs that it needs have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.lifecycle import Arrow
from penstock.engine.flows import go_on
from penstock.engine.settle import Settlement, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work


class Park(Settlement):
    """Park jobs until the jobs that they need have ended. One that needs none of them any more is ready again at once."""

    __slots__ = ()


async def park(engine: Engine, work: Work, commands: Sequence[Park]) -> None:
    """Apply a batch of parked jobs. The transaction holds them, so an end of a needed job counts before this or after it."""
    parked: list[Job] = []

    def put(_command: Park, _index: int, job: Job) -> None:
        work.move(job, Arrow.PARK)
        parked.append(job)

    await settle(engine, work, commands, put)
    counts = await work.tx.need_count([job.id for job in parked]) if parked else {}
    for job in parked:
        if job.id not in counts or not counts[job.id].open:
            go_on(work, job)
