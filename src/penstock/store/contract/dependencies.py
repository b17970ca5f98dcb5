"""Dependencies between jobs, and ends of needed jobs that were not delivered yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.dependencies import Dependency, JobEnd, Need, NeedCount


class DependencyTransaction(Protocol):
    """Dependencies (``need_``) and ends (``end_``). While ends are kept, ``Horizon.unfollowed`` is set."""

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        """Write new dependencies."""

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies on jobs that have ended, in the order of the ends, then of the waiting jobs.

        For each end, only dependencies of jobs with an id above its ``after`` and below its ``serial``.
        """

    async def need_open_count(self, needed: int, limit: int) -> int:
        """Count the open dependencies on a job, up to ``limit``."""

    async def need_of(self, job_id: int) -> list[Dependency]:
        """Read the open dependencies of a job, oldest needed job first."""

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        """Count the dependencies of some jobs, without reading their contents. A job without dependencies has zeros."""

    async def need_find(self, namespace: int, name: str) -> list[int]:
        """Find the failed jobs with a name (as users see it) that still keep a job of the namespace waiting.

        They may be deleted; several jobs may have had the same name one after the other.
        """

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies after a needed and a waiting job, in the order of the needed ones."""

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        """Write the states of dependencies."""

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        """Store ends until they are removed. Their serials are new."""

    async def end_list(self, limit: int) -> list[JobEnd]:
        """Read up to ``limit`` ends, lowest serial first, and lock them for this transaction.

        Fewer when their results and errors reach ``flow_bytes_batch_max``.
        """

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        """Return which of some jobs have a stored end."""

    async def end_advance(self, end: JobEnd) -> None:
        """Write the ``after`` of a stored end."""

    async def end_remove(self, serials: Sequence[int]) -> None:
        """Delete ends."""


class DependencyReads(Protocol):
    """Dependencies, outside of transactions."""

    async def need_list(
        self,
        job_id: int,
        states: Sequence[Need] | None = None,
        limit: int = limits.list_jobs_max,
        offset: int = 0,
        *,
        namespace: str = "",
    ) -> list[Dependency]:
        """Read dependencies of a job, in some states or all, oldest needed job first, on its own connection.

        Raises InvalidInput if they are larger than ``list_bytes_max``.
        """
