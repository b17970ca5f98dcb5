"""Groups of jobs that are paused or limited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.group_limits import GroupLimits
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue


class JobGroupTransaction(Protocol):
    """Limits of groups, inside of a transaction. They apply only to queues whose settings have ``limits_groups``."""

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        """Return the limits of a group, locked for this transaction; None if none were set."""

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        """Write the limits of groups, which ``job_ready`` applies from then on. They are deleted with the queue."""

    async def groups_limited(self, queue: Queue) -> int:
        """Count the groups that have limits.

        No other transaction adds one until this one ends, because each must call this before it does.
        """

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Read the limits of the groups whose names come after ``after``, in order."""

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        """Reopen up to ``limit`` groups for ``job_ready`` whose rate limit or hold has ended.

        Returns the steady time at which the next one reopens; None if there is none.
        """


class JobGroupReads(Protocol):
    """Groups, outside of transactions."""

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        """Count the waiting or active jobs of a group, or of all groups (None). The cost grows with their number."""
