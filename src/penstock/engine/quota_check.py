"""Quotas: how many jobs each namespace may push. Optional; ``submit.py`` checks them before pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class QuotaCheck(Protocol):
    """Counts the jobs of each namespace. A namespace without a quota may have any number."""

    def of(self, namespace: str) -> int | None:
        """Return the quota of a namespace, in jobs per minute. None: it has none."""

    async def admit(self, counts: Mapping[str, int]) -> None:
        """Count jobs for namespaces, all of them or none. Raises an error if there is no room."""

    def refund(self, counts: Mapping[str, int]) -> None:
        """Undo the count of jobs that were admitted and are not stored."""

    async def grant(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Count as many jobs for each namespace as there is room for.

        Return the numbers for namespaces that have a quota.
        """

    async def charge(self, counts: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
        """Count jobs that have to be made even if there is no room.

        Returns, by namespace, by how many ms to delay the jobs for which there was no room, so that they come at the pace of
        the quota.
        """
