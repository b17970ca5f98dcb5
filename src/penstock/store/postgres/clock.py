"""The time of a shard: the database's clock, so that all servers agree on leases and due times.

A transaction asks the database once, at its beginning. In between, a server goes by its own clock, shifted by what the database
said last; it only decides when to look again, never what has become of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Alarm, Boot, Clock


class ShardClock:
    """A clock that follows the database. Wall and steady time are one here: what the database says."""

    def __init__(self, local: Clock, *, follow: bool = True) -> None:
        self._local = local
        self._follow = follow
        self._ahead_ms = 0

    def told(self, database_ms: int) -> tuple[int, int]:
        """Hear what time it is in the database; return the wall and the steady time of the transaction that asked."""
        if not self._follow:  # a test tells the time
            return self._local.now_ms(), self._local.steady_ms()
        self._ahead_ms = database_ms - self._local.steady_ms()
        return database_ms, database_ms

    @property
    def given_ms(self) -> int | None:
        """The steady time that statements go by instead of the database's: None, unless a test tells the time."""
        return None if self._follow else self._local.steady_ms()

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self.steady_ms() if self._follow else self._local.now_ms()

    def steady_ms(self) -> int:
        """Return milliseconds at the pace of the local clock, in step with the database."""
        return self._local.steady_ms() + self._ahead_ms

    def boot(self) -> Boot:
        """Return which start of this machine this is."""
        return self._local.boot()

    def stopwatch(self) -> float:
        """Return seconds with the finest resolution there is."""
        return self._local.stopwatch()

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Book a call by the local clock."""
        return self._local.call_at(steady_ms - self._ahead_ms, callback)
