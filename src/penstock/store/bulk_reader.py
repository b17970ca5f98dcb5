"""Bulk reads of a store from another process: unchanged rows, in chunks, from one consistent view.

The readers never write. Of the server, they need only the address of its store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

#: The columns that are read of a job's head, in order. Options, payload and result follow.
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
    """Jobs at one moment: the queues, by number, as namespace and name; and rows in chunks."""

    queues: dict[int, tuple[str, str]]
    chunks: AsyncIterator[list[Row]]


class Block(NamedTuple):
    """A block of the journal in stored form: see ``contract.JournalBlock``."""

    seq: int
    at: int  #: wall clock, ms
    body: bytes


class Leased(NamedTuple):
    """The columns that are read of a leased job."""

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
        """Read the record of a slice of an epoch: see ``core.bulk_records.EpochSlice``. None: there is no such slice."""

    def fetch(self, ids: Sequence[int]) -> AsyncIterator[list[Leased]]:
        """Read jobs by their ids, in order, in chunks of limited size. Unknown and damaged jobs are left out."""

    def jobs(self, wanted: JobsWanted) -> AbstractAsyncContextManager[Jobs]:
        """Read jobs, all in their state at one moment. The rows and bytes of a chunk are limited."""

    def journal(self, seq: int, to: int) -> AsyncIterator[Block]:
        """Read the blocks that contain events from one number up to another, in order."""

    async def journal_at(self, at_ms: int) -> int | None:
        """Find the first event at or after a wall-clock time; None if there is none."""

    async def close(self) -> None:
        """Close the store."""
