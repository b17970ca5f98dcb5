"""Ready lists and logs of enqueue buffers, which only some stores have: see ``engine/prefetch`` and ``engine/buffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.core.job import Job
    from penstock.core.queue import Queue


class FastTransaction(Protocol):
    """The operations of a transaction for ready lists and logs of enqueue buffers: see ``Transaction.fast``."""

    async def hot_lock(self) -> bool:
        """Keep other transactions from announcing ready lists until this one ends; tell whether the shard has any list.

        Raises RowChanged if this generation was given up since the transaction began.
        """

    async def hot_add(self, queue: Queue) -> None:
        """Announce the ready list of a queue, after ``hot_lock``.

        What is leased for the list must be read by a later transaction: every push that does not know of the list is
        committed by then.
        """

    async def hot_fill(self, queue: int, epoch: int) -> int:
        """Note that jobs are leased for a ready list, which has the given epoch; return its new epoch.

        Raises RowChanged if the list was removed since the transaction began, or its generation was given up.
        """

    def claims_unlisted(self, queue: int) -> None:
        """Jobs of a queue are claimed that has no ready list: the commit raises RowChanged if it has one by then."""

    async def hot_remove(self, queue: int, epoch: int) -> None:
        """Note that a ready list is gone, unless something was leased for it since the given epoch."""

    async def abandon(self, generation: int) -> bool:
        """Begin a new generation, without any lists: those of the given one are lost. False if it is over already."""

    async def lost_remove(self) -> list[int]:
        """Note that everything that was on lost lists is back, where it is; return the numbers of these queues."""

    async def generation_noted(self, generation: int) -> None:
        """Note that the store knows who has what this server has handed out in earlier generations."""

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[Job]:
        """Read active jobs that nobody has started, of lists that were lost; held like job_load.

        None before every server that lives has noted what it has handed out, or the generation was given up ``grace_ms`` ago.
        """

    async def wal_stored(self, wal: int) -> int:
        """Return up to which number a server's log is stored, and hold that; 0 for an unknown one."""

    async def wal_advance(self, wal: int, before: int, number: int) -> None:
        """Note up to which number a server's log is stored. Raises RowChanged if somebody else has stored of it meanwhile."""
