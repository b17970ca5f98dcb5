"""Groups of jobs that are paused or limited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.group_limits import GroupLimits
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue


class JobGroupTransaction(Protocol):
    """Limits of groups, inside of a transaction. Only those of queues whose settings say ``limits_groups`` count."""

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        """Return what was set of a group, held for this transaction; None if nothing was."""

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        """Write what is set of groups, and have ``job_ready`` go by it. Forgotten with the queue."""

    async def groups_limited(self, queue: Queue) -> int:
        """Count the groups of which something is set.

        Until the end of the transaction nobody else adds one, provided that everybody asks this before they do.
        """

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Read what was set of the groups whose names come after one, in order."""

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        """Have ``job_ready`` look again at up to ``limit`` groups that time lets go on: their rate limit, or a hold.

        Returns the steady moment from which it lets the next one; None if there is none.
        """


class JobGroupReads(Protocol):
    """Groups, outside of transactions."""

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        """Count the waiting or active jobs of a group, or of all groups (None). The cost grows with their number."""
