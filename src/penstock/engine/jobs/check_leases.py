"""Checks which jobs are still held, and sets an alert for them. So a worker is notified that a job was cancelled.

A heartbeat reports it too, but it writes each lease. This command only reads. Then its caller waits for the alert, which a
commit fires that ends one of the jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import TooMany
from penstock.engine.jobs.settle import LeaseCommand, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.loss_alerts import LossAlert
    from penstock.engine.jobs.settle import LeaseRef
    from penstock.engine.unit_of_work import UnitOfWork


class CheckLeases(LeaseCommand):
    """Return which jobs are still held: the outcome of a held job is None. ``alert`` is set for the held jobs."""

    __slots__ = ("alert",)

    def __init__(
        self,
        namespace: str | None,
        holds: Sequence[LeaseRef],
        alert: LossAlert,
        may: Callable[[QueueKey], bool] | None = None,
    ) -> None:
        super().__init__(namespace, holds, may)
        self.alert = alert


async def check_leases(engine: EngineContext, work: UnitOfWork, commands: Sequence[CheckLeases]) -> None:
    """Apply a batch of lease checks."""

    def note(command: CheckLeases, _index: int, job: JobRecord) -> None:
        if not command.alert.is_closed:
            engine.loss_alerts.add(job.id, command.alert)

    if not engine.loss_alerts.has_room:
        for command in commands:
            work.refuse(
                command,
                TooMany("Too many leases are watched on this server. A heartbeat reports lost leases, too."),
            )
        return
    await settle(engine, work, commands, note)
