"""The state of a store, and its durability."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.core.errors import StorageFailed, StorageFull


class StoreStatus(msgspec.Struct):
    """The state of the store, for health checks and metrics."""

    writable: bool = True
    full: bool = False
    error: str | None = None
    since_ms: int | None = None  #: wall clock, ms: start of the failure
    quarantined: int = 0
    refusal: str | None = None  #: the error text while it is full, if it differs from the usual one
    reserve_bytes: int | None = None  #: reserved for acknowledgements on a full disk; None: the store has no such reserve
    reserve_short: bool = False  #: the reserve is smaller than configured

    def check(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if no write is accepted. ``grows``: the write needs more disk space."""
        if self.error is not None and not self.full:
            raise StorageFailed(f"Storage failed ({self.error}): nothing was stored. The server retries automatically.")
        if grows and self.full:
            raise StorageFull(self.refusal)


class StoreHealth(Protocol):
    """Sync, recovery and status of a store."""

    async def sync(self) -> None:
        """Return once everything committed before the call survives a power cut.

        Raises OutcomeUnknown if the disk fails. No write is accepted then until ``recover`` succeeds.
        """

    async def recover(self) -> bool:
        """Try to recover from a failure. Returns whether the store accepts writes again."""

    async def close(self) -> None:
        """Make everything durable and close the store."""

    def status(self) -> StoreStatus:
        """Return the state of the store, from memory."""

    def down(self) -> list[str]:
        """Return the shards that cannot be reached now. They are missing from lists and sums."""

    def size_bytes(self) -> int:
        """Return the size of the store on disk."""

    def check_writable(self, *, grows: bool) -> None:
        """Raise StorageFull or StorageFailed if no write is accepted. ``grows``: the write needs more disk space."""
