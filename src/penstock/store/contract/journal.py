"""The journal: one block of events per commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from penstock.core.events import Event
    from penstock.core.history import History


class JournalBlock(msgspec.Struct, frozen=True):
    """The events of one commit: ``seq`` is the number of the first event, the others follow without a gap."""

    seq: int
    at: int  #: wall clock, ms
    events: Sequence[Sequence[Any]]  #: see ``core.events``: kind, queue, job, custom id, and the fields of the kind
    queues: dict[int, tuple[str, str]]  #: namespace and name of every queue the events mention
    shard: int = 0
    around: tuple[str, str] = ("", "")  #: prefix and suffix of an event's number in the position of a reader of all shards


class JournalPage(msgspec.Struct, frozen=True):
    """A range of the journal, with the events of one namespace, and the events without a namespace.

    In a block, an event of another namespace is ``store.journal_pages.FOREIGN``. A block may end before its last event:
    the next page continues there.
    """

    first: int  #: number of the first event of the first block that was read; 0 if none was read
    following: int  #: number of the event at which the next page begins
    blocks: Sequence[JournalBlock]  #: the blocks that have such events
    is_last: bool  #: the end of the journal was reached


class Follower(Protocol):
    """Receives the commits of other servers to the same store, in order and each once."""

    def __call__(self, blocks: Sequence[JournalBlock], ready: set[int], *, webhooks: bool) -> None:
        """Receive some blocks.

        ``ready``: numbers of the queues in which a job may have become ready. ``webhooks``: they were changed.
        """


class JournalTransaction(Protocol):
    """The journal, inside of a transaction."""

    def journal(self, events: Sequence[Event]) -> None:
        """Add events to the journal of this commit, in order."""

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        """Delete up to ``limit`` of the oldest blocks that are too old or exceed ``bytes_max``. Returns how many."""


class JournalReads(Protocol):
    """The journal, outside of transactions."""

    @property
    def history(self) -> History:
        """The identity of the journal: event numbers can be compared only within one history."""

    @property
    def journal_next(self) -> int:
        """The number of the next event of the journal."""

    async def journal_end(self) -> int:
        """Read the number of the next event, after the latest commits of other servers."""

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        """Read up to ``limit`` blocks of the journal, from the one that contains the given number on."""

    async def journal_first(self) -> int | None:
        """Read the number of the oldest stored event; None if there is none."""

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        """Read the events of one namespace, from the block that has the given number on.

        A page ends after ``bytes_max`` bytes of the namespace's events, or after ``limits.replay_read_bytes`` of all that was
        read, or ``limits.replay_blocks`` blocks. The events of other namespaces are not decoded.
        """

    def follow(self, listener: Follower) -> None:
        """Call ``listener`` with the commits of other servers. A store that is not shared never calls it."""
