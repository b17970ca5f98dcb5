"""Dependencies between jobs, and ends of needed jobs that were not passed on yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.dependencies import Dependency, JobEnd, Need, NeedCount


class DependencyTransaction(Protocol):
    """Dependencies (``need_``) and ends (``end_``). While an end is kept, the horizon says so."""

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        """Write new dependencies."""

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies on jobs that have ended, in the order of the ends, then of the waiting jobs.

        Of each end only those whose job has an id above its ``after`` and below its ``serial``.
        """

    async def need_of(self, job_id: int) -> list[Dependency]:
        """Read the open dependencies of a job, oldest needed job first."""

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        """Count the dependencies of some jobs, without reading what is in them. A job that has none is counted as zero."""

    async def need_find(self, namespace: int, name: str) -> list[int]:
        """Find jobs by the name users know them by that have failed and still keep a job of the namespace waiting.

        They may be gone; there may be several that had the same name one after the other.
        """

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        """Read up to ``limit`` open dependencies behind a needed and a waiting job, in the order of the needed ones."""

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        """Write where dependencies stand now."""

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        """Keep ends until they are removed. Their serials are fresh."""

    async def end_list(self, limit: int) -> list[JobEnd]:
        """Read up to ``limit`` ends, lowest serial first, and hold them for this transaction.

        Fewer when their results and errors reach ``flow_bytes_batch_max``.
        """

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        """Return which of some jobs have an end that is kept."""

    async def end_advance(self, end: JobEnd) -> None:
        """Write the ``after`` of an end that is kept."""

    async def end_remove(self, serials: Sequence[int]) -> None:
        """Forget ends."""


class DependencyReads(Protocol):
    """Dependencies, outside of transactions."""

    async def need_list(
        self, job_id: int, states: Sequence[Need] | None = None, limit: int = limits.list_jobs_max, offset: int = 0
    ) -> list[Dependency]:
        """Read dependencies of a job, in some states or all, oldest needed job first, on its own connection.

        Raises InvalidInput if they are larger than ``list_bytes_max``.
        """
