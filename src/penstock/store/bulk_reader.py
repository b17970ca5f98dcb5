"""Reading a store in bulk, from another process: rows as they are, in chunks, from one consistent view.

The readers never write, and need nothing of the server but the address of its store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

#: What is read of a job's head, in order. What is kept beside it follows: options, payload, result.
HEAD: Final = (
    "id", "queue", "state", "priority", "attempts", "max_attempts", "custom_id", "unique_key", "group_id", "created_at",
    "run_at", "started_at", "finished_at", "expires_at", "progress", "size", "details",
)  # fmt: skip

Row = tuple[Any, ...]


class JobsWanted(msgspec.Struct, frozen=True):
    """Which jobs to read. None: all."""

    namespace: str | None = None
    queues: list[str] | None = None
    states: list[int] | None = None
    created_from: int | None = None  #: wall clock, ms
    created_to: int | None = None  #: wall clock, ms; not including it
    payload: bool = True  #: read payloads, options and results, too


class Jobs(NamedTuple):
    """Jobs of one moment: the queues there were, by number, as namespace and name; and rows in chunks."""

    queues: dict[int, tuple[str, str]]
    chunks: AsyncIterator[list[Row]]


class Block(NamedTuple):
    """A block of the journal as it is stored: see ``contract.JournalBlock``."""

    seq: int
    at: int  #: wall clock, ms
    body: bytes


class Leased(NamedTuple):
    """What is read of a job that somebody has."""

    id: int
    queue: int
    state: int
    token: int
    priority: int
    attempts: int
    custom_id: str | None
    created_at: int
    options: bytes | None
    data: bytes


class BulkReader(Protocol):
    """Reads one store."""

    damaged: int  #: jobs that were left out of ``jobs`` because their payloads do not match their checksums

    async def queues(self) -> dict[int, tuple[str, str]]:
        """Return namespace and name of all queues, by number."""

    async def slice(self, namespace: str, name: str, number: int) -> bytes | None:
        """Read what is noted of a slice of an epoch: see ``core.ledger.Slice``. None: there is none."""

    def fetch(self, ids: Sequence[int]) -> AsyncIterator[list[Leased]]:
        """Read jobs by their ids, in order, in chunks that are bounded in bytes. Unknown and damaged ones are left out."""

    def jobs(self, wanted: JobsWanted) -> AbstractAsyncContextManager[Jobs]:
        """Read jobs, all as they were at one moment. A chunk is bounded in rows and bytes."""

    def journal(self, seq: int, to: int) -> AsyncIterator[Block]:
        """Read the blocks that hold events from one number up to another, in order."""

    async def journal_at(self, at_ms: int) -> int | None:
        """Find the first event at or after a wall-clock time; None if there is none."""

    async def close(self) -> None:
        """Let go of the store."""
