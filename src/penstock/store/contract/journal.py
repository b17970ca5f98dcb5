"""The journal: one block of events per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.core.events import Event
    from penstock.core.history import History


class JournalBlock(msgspec.Struct, frozen=True):
    """The events of one commit: ``seq`` is the number of the first, the others follow without a gap."""

    seq: int
    at: int  #: wall clock, ms
    events: Sequence[Sequence[Any]]  #: see ``core.events``: kind, queue, job, custom id, and the fields of the kind
    queues: dict[int, tuple[str, str]]  #: namespace and name of every queue the events mention
    shard: int = 0
    around: tuple[str, str] = ("", "")  #: what to put around the number of an event to say where a reader of all shards is


class JournalPage(msgspec.Struct, frozen=True):
    """A stretch of the journal, with the events of one namespace, and those of none.

    In a block, an event of another namespace is ``store.journal.FOREIGN``. A block may end before its last event: the next page
    goes on there.
    """

    first: int  #: number of the first event of the first block that was read; 0 if there was none
    following: int  #: number of the event that the next page begins with
    blocks: Sequence[JournalBlock]  #: that have such events
    is_last: bool  #: it was read to the end of the journal


class Follower(Protocol):
    """Hears of what other servers have committed to the same store, in order and each once."""

    def __call__(self, blocks: Sequence[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Take note of some blocks.

        ``ready``: the numbers of queues in which something may have become claimable. ``webhooks``: they were changed.
        """


class JournalTransaction(Protocol):
    """The journal, inside of a transaction."""

    def journal(self, events: Sequence[Event]) -> None:
        """Add events to the journal of this commit, in order."""

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        """Drop up to ``limit`` of the oldest blocks that are too old or too much; return how many went."""


class JournalReads(Protocol):
    """The journal, outside of transactions."""

    @property
    def history(self) -> History:
        """Which history the journal tells: numbers of events mean the same only within one."""

    @property
    def journal_next(self) -> int:
        """The number the next event of the journal will get."""

    async def journal_end(self) -> int:
        """Look up the number the next event will get, also after what other servers have just written."""

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        """Read up to ``limit`` blocks of the journal, from the one that holds the given number on."""

    async def journal_first(self) -> int | None:
        """Look up the number of the oldest event that is kept; None if none is."""

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        """Read the journal as one namespace sees it, from the block that holds the given number on.

        A page ends after ``bytes_max`` bytes of the namespace's events, or after ``limits.replay_read_bytes`` of all that was
        read, or ``limits.replay_blocks`` blocks. What other namespaces did is not decoded.
        """

    def follow(self, listener: Follower) -> None:
        """Call back with what other servers commit. Never called by a store that is not shared."""
