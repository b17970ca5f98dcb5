"""Servers that share one store: their numbers, the leader, and the quotas that they count together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class QuotaCount(NamedTuple):
    """Jobs of a namespace that are to be counted against its quota."""

    namespace: str
    jobs: int  #: number of jobs; below zero: jobs that were counted before and are not used
    quota: int | None  #: jobs per minute; None: count them in any case


class ClusterStore(Protocol):
    """State that servers of one store share, outside of transactions."""

    node: int  #: its number in the store, also a part of every id; set when the store is open, ``keep_node`` may change it

    servers: int  #: number of servers of the store, including this one, at the last call of ``keep_node``

    async def keep_node(self) -> None:
        """Renew this server's entry, so that other servers see that it runs and do not use its ``node``."""

    async def lead(self, name: str, for_ms: int) -> int | None:
        """Become or stay the leader for a task that one server at a time runs; None if another server is the leader.

        Returns the term: it grows whenever the leader changes.
        """

    async def quota_take(self, takes: Sequence[QuotaCount]) -> list[int]:
        """Count jobs against quotas, in order: each take as a whole or, if its quota has no room, not at all.

        Returns for each 0, or the ms until there is room. All servers of the store share the counts. They are not part of
        any transaction, and need not survive a crash of the store. Raises StorageFailed if counting fails.
        """
