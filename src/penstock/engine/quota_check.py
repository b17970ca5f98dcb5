"""Quotas: how many jobs each namespace may be given. Optional; ``submit.py`` asks before pushes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class QuotaCheck(Protocol):
    """Counts the jobs that each namespace is given. A namespace without a quota may be given any number."""

    def of(self, namespace: str) -> int | None:
        """Return the quota of a namespace, in jobs per minute. None: it has none."""

    async def admit(self, counts: Mapping[str, int]) -> None:
        """Count jobs for namespaces, all of them or none. Raises why not."""

    def give_back(self, counts: Mapping[str, int]) -> None:
        """Have jobs not counted that were admitted, and are not stored."""

    async def grant(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Count as many jobs for each namespace as there is room for; return how many, of those that have a quota."""

    async def charge(self, counts: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
        """Count jobs that have to be made whether there is room or not.

        Returns, by namespace, how many ms to put off those that there was no room for: they come at the pace of the quota.
        """
