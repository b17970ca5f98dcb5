"""Servers that share one store: their numbers, the lead, and quotas they count together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Take(NamedTuple):
    """Some jobs that a namespace is to be given, counted against its quota."""

    namespace: str
    jobs: int  #: how many; below zero: so many were counted a moment ago and are not used
    quota: int | None  #: jobs in any minute; None: count them in any case


class ClusterStore(Protocol):
    """What servers of one store agree on, outside of transactions."""

    node: int  #: the number of this server on it, part of every id too; known once it is open, and may change by keeping it

    servers: int  #: how many use it, this one included, as it was when ``keep_node`` was last called

    async def keep_node(self) -> None:
        """Show the other servers that this one lives, and that its ``node`` is taken."""

    async def lead(self, name: str, for_ms: int) -> int | None:
        """Take or renew the lead in something that one server at a time should do; None if another one has it.

        Returns the term: it grows whenever the lead changes hands.
        """

    async def quota_take(self, takes: Sequence[Take]) -> list[int]:
        """Count jobs against quotas, in order: each take as a whole or, if its quota has no room, not at all.

        Returns for each 0, or how many ms until there is room. What is counted is common to all servers that use the store. It
        is not part of any transaction, and need not survive a crash of the store. Raises StorageFailed if nobody can count.
        """
