"""Ready lists and logs of enqueue buffers, which only some stores have: see ``engine/prefetch`` and ``engine/buffer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.core.job import Job
    from penstock.core.queue import Queue


class ReadyLists(Protocol):
    """Ready lists of a shard, inside of a transaction: see ``engine/prefetch``."""

    @property
    def generation(self) -> int:
        """Which generation of ready lists this is."""

    @property
    def hot(self) -> Mapping[int, int]:
        """Numbers of the queues that had a ready list when it began, each with its epoch."""

    @property
    def lost(self) -> Collection[int]:
        """Numbers of the queues whose ready list was lost when it began. Their jobs must not be handed out."""

    @property
    def heated(self) -> Sequence[int]:
        """After the commit: the numbers of its queues that have a ready list, or have lost theirs."""

    @property
    def lists_generation(self) -> int:
        """Which generation of ready lists ``heated`` is about."""

    async def hot_lock(self) -> bool:
        """Keep other transactions from announcing ready lists until this one ends. Returns whether the shard has any list.

        Raises RowChanged if this generation was given up since the transaction began.
        """

    async def hot_add(self, queue: Queue) -> None:
        """Announce the ready list of a queue, after ``hot_lock``.

        What is leased for the list must be read by a later transaction: every push that does not know of the list is
        committed by then.
        """

    async def hot_fill(self, queue: int, epoch: int) -> int:
        """Write that jobs are leased for a ready list of the given epoch. Returns its new epoch.

        Raises RowChanged if the list was removed since the transaction began, or its generation was given up.
        """

    def claims_unlisted(self, queue: int) -> None:
        """Jobs are claimed from a queue without a ready list: the commit raises RowChanged if it has one by then."""

    async def hot_remove(self, queue: int, epoch: int) -> None:
        """Delete a ready list, unless jobs were leased for it since the given epoch."""

    async def abandon(self, generation: int) -> bool:
        """Begin a new generation, without any lists: those of the given one are lost. False if it has ended already."""

    async def lost_remove(self) -> list[int]:
        """Delete the lost lists whose jobs are all ready again. Returns the numbers of these queues."""

    async def generation_noted(self, generation: int) -> None:
        """Write that the leases which this server has handed out in earlier generations are stored."""

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[Job]:
        """Read leased jobs of lists that were lost, which no worker has started; locked like ``job_load``.

        Empty until each running server has recorded the leases it handed out, or the generation was given up ``grace_ms`` ago.
        """


class BufferLogs(Protocol):
    """How far the logs of enqueue buffers are stored, inside of a transaction: see ``engine/buffer``."""

    async def wal_stored(self, wal: int) -> int:
        """Return up to which number a server's log is stored, locked for this transaction; 0 for an unknown log."""

    async def wal_advance(self, wal: int, before: int, number: int) -> None:
        """Write up to which number a server's log is stored. Raises RowChanged if another server has stored a part of it."""
