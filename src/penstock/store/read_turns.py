"""Turns at the readers of a store: its threads, or its connections for reads.

A read may take seconds, and there are only a few readers. So the reads of each namespace wait in a line of their own, and the
lines are served in rotation. While reads of several namespaces run or wait, one namespace has at most half of the readers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.pool_shares import Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.pool_shares import Shares

#: The line of reads that the server does for itself, not for a namespace.
OWN: Final = ""


class ReadTurns:
    """``readers``: how many reads run at a time.

    ``shares``: returns the shares of pools. They apply to a namespace that reads alone: where tenants are separated, it
    leaves some readers free (``namespace_share``; default: half), otherwise it may use all.
    """

    def __init__(self, readers: int, clock: Clock, shares: Callable[[], Shares]) -> None:
        self._clock = clock
        self._slots = Slots(readers, alone=lambda: shares().percent)

    @property
    def waiting(self) -> int:
        """Return how many reads wait."""
        return self._slots.waiting

    async def take(self, namespace: str, *, bounded: bool = False) -> None:
        """Wait for a reader, and take it. The caller returns it with ``give_back``.

        ``bounded``: raise TooMany if ``limits.reads_waiting_max`` reads of the namespace wait already, or if none of the
        readers is free for it within ``limits.read_wait_ms_max``. Default: wait in any case, for reads that are short, or
        that the server does for itself.
        """
        if not bounded:
            await self._slots.acquire(namespace)
            return
        if self._slots.waiting_of(namespace) >= limits.reads_waiting_max:
            raise TooMany(
                f"Too many listings and counts of namespace {namespace} wait (max {limits.reads_waiting_max}). Wait for the "
                "answers to those, then retry."
            )
        try:
            await self._slots.acquire(namespace, self._clock, limits.read_wait_ms_max)
        except TimeoutError:
            raise TooMany(
                f"This listing or count waited {limits.read_wait_ms_max // limits.SECOND_MS} s for others of namespace "
                f"{namespace}, and was not begun. Send fewer at the same time, then retry."
            ) from None

    def give_back(self, namespace: str) -> None:
        """Return a reader."""
        self._slots.release(namespace)
