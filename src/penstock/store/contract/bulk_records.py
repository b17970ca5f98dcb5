"""The ledger: consumer groups, staged writes and their rows, see ``core/bulk_records.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.bulk_records import BulkRecord, Chunk


class Search(NamedTuple):
    """Which entries of the ledger, oldest first. None: any."""

    kind: int
    namespace: str | None = None
    name: str | None = None
    before_ms: int | None = None  #: those written before this wall-clock time
    limit: int = limits.stages_max
    bodies: bool = True  #: False: without their bodies, which may be large


class BulkRecordTransaction(Protocol):
    """Entries and chunks, inside of a transaction."""

    async def entry_load(self, kind: int, namespace: str, name: str, number: int | None = None) -> list[BulkRecord]:
        """Read entries, all numbers or one, in order of the numbers; locked like ``job_load``."""

    async def entry_load_all(self, kind: int, namespace: str, places: Sequence[tuple[str, int | None]]) -> list[BulkRecord]:
        """``entry_load`` for many: names, each with all its numbers (None) or one. Those of a name come in order."""

    async def entry_save(self, entries: Sequence[BulkRecord]) -> None:
        """Write entries: new ones, or replacements of those that were read with that version. Raises RowChanged."""

    async def entry_remove(self, entries: Sequence[BulkRecord]) -> None:
        """Delete entries that were read with that version. Raises RowChanged."""

    async def chunk_add(self, chunks: Sequence[Chunk]) -> None:
        """Write new chunks."""

    async def chunk_take(self, owner: int, numbers: Sequence[int]) -> set[int]:
        """Delete chunks of an owner; return the numbers of the deleted ones."""

    async def chunk_drop(self, owner: int, limit: int) -> int:
        """Delete up to ``limit`` chunks of an owner; return their number."""


class BulkRecordReads(Protocol):
    """Entries and chunks, outside of transactions."""

    async def entry_list(self, search: Search) -> list[BulkRecord]:
        """Read entries of the ledger, on its own connection."""

    async def entry_totals(self, kind: int, namespace: str | None = None) -> tuple[int, int]:
        """Return the number of entries of a kind, of one namespace or all, and the sum of their weights."""

    async def chunk_read(self, owner: int, after: int, limit: int) -> list[Chunk]:
        """Read the next chunks of an owner after a number, in order, on its own connection.

        Chunks beyond ``claim_batch_bytes_max`` are left out.
        """
