"""The state of a store, and its durability."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.core.errors import StorageFailed, StorageFull


class StoreStatus(msgspec.Struct):
    """How the store is doing, for health checks and metrics."""

    writable: bool = True
    full: bool = False
    error: str | None = None
    since_ms: int | None = None  #: wall clock when it stopped being fine
    quarantined: int = 0
    refusal: str | None = None  #: what to answer while it is full, where the usual text would not be true
    reserve_bytes: int | None = None  #: held for acknowledgements on a full disk; None where there is no such reserve
    reserve_short: bool = False  #: it is smaller than the settings say

    def check(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if no write can be taken; ``grows`` = it would need more room."""
        if self.error is not None and not self.full:
            raise StorageFailed(f"Storage failed ({self.error}): nothing was stored. The server retries by itself.")
        if grows and self.full:
            raise StorageFull(self.refusal)


class StoreHealth(Protocol):
    """Sync, recovery and status of a store."""

    async def sync(self) -> None:
        """Return once everything committed before the call survives a power cut.

        Raises OutcomeUnknown if the disk would not have it, and takes no further writes until healed.
        """

    async def heal(self) -> bool:
        """Try to get out of trouble; True if the store takes writes again."""

    async def close(self) -> None:
        """Make everything durable and let go of the store."""

    def status(self) -> StoreStatus:
        """Tell how the store is doing, from memory."""

    def down(self) -> list[str]:
        """Tell what cannot be reached right now, so that lists and sums may lack something."""

    def size_bytes(self) -> int:
        """Return what the store takes up on disk."""

    def check_writable(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if the store cannot take a write; ``grows`` = it would need more room."""
