"""Ready lists and logs of enqueue buffers, which only some stores have: see ``engine/prefetch`` and ``engine/buffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue


class ReadyLists(Protocol):
    """Ready lists of a shard, inside of a transaction: see ``engine/prefetch``."""

    @property
    def generation(self) -> int:
        """The current generation of ready lists."""

    @property
    def hot(self) -> Mapping[int, int]:
        """Numbers of the queues that had a ready list at the start of the transaction, each with its epoch."""

    @property
    def lost(self) -> Collection[int]:
        """Numbers of the queues whose ready list was lost at the start of the transaction. Their jobs must not be delivered."""

    @property
    def hot_after_commit(self) -> Sequence[int]:
        """After the commit: the numbers of its queues whose ready list exists, or was lost."""

    @property
    def lists_generation(self) -> int:
        """The generation of ready lists that ``hot_after_commit`` refers to."""

    async def hot_lock(self) -> bool:
        """Lock ready lists against new ones of other transactions until this one ends. Returns whether the shard has any list.

        Raises RowChanged if this generation was ended since the transaction began.
        """

    async def hot_add(self, queue: Queue) -> None:
        """Announce the ready list of a queue, after ``hot_lock``.

        Jobs that are leased for the list must be read by a later transaction: every push that did not take the list into
        account is committed by then.
        """

    async def hot_fill(self, queue: int, epoch: int) -> int:
        """Record that jobs are leased for a ready list of the given epoch. Returns its new epoch.

        Raises RowChanged if the list was removed since the transaction began, or its generation was ended.
        """

    def claims_unlisted(self, queue: int) -> None:
        """Record a claim from a queue without a ready list: the commit raises RowChanged if the queue has one by then."""

    async def hot_remove(self, queue: int, epoch: int) -> None:
        """Delete a ready list, unless jobs were leased for it since the given epoch."""

    async def abandon(self, generation: int) -> bool:
        """Start a new generation, without any lists: those of the given generation are lost.

        Returns False if it has already ended.
        """

    async def lost_remove(self) -> list[int]:
        """Delete the lost lists whose jobs are all ready again. Returns the numbers of these queues."""

    async def generation_noted(self, generation: int) -> None:
        """Record that all leases which this server delivered in earlier generations are stored."""

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[JobRecord]:
        """Read leased jobs of lost lists, which no worker has started; locked like ``job_load``.

        Empty until each running server has recorded the leases it delivered, or the generation was ended ``grace_ms`` ago.
        """


class BufferLogs(Protocol):
    """The stored positions of the logs of enqueue buffers, inside of a transaction: see ``engine/buffer``."""

    async def log_stored(self, log_number: int) -> int:
        """Return the number up to which a server's log is stored, locked for this transaction; 0 for an unknown log."""

    async def log_advance(self, log_number: int, before: int, number: int) -> None:
        """Write the number up to which a server's log is stored.

        Raises RowChanged if another server has stored a part of it.
        """
