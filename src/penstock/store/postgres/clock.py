"""The time of a shard: the database's clock, so that all servers agree on leases and due times.

A transaction reads the database's clock once, at its start. Between reads, a server uses its own clock, shifted by the last
reading; it only decides when to read again, and never changes a job.

Due times use the database's wall clock, which may be set. Leases use a count that is the wall clock plus a shift, which all
servers share (``catalog.clock_shift``). Each server compares what it reads with its own clock, which cannot be set: when the
database's clock was set, the count it reads is wrong by that much. The server then uses its own clock, and corrects the
shift for all servers. See ADR 14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Alarm, Boot, Clock

#: A smaller difference (ms) is normal drift, not a step of a clock.
STEP_MS: Final = 250
#: Clocks may drift by one part in this many.
DRIFT: Final = 1_000
#: An older mark of the count of leases (ms) means that no server was running: each server writes one every second.
UNSEEN_MS: Final = 5_000


class Reading(NamedTuple):
    """A reading of the database's clock."""

    database_ms: int  #: its wall clock
    shift: int  #: of the count that leases use
    term: int  #: number of corrections of the shift


class ShardClock:
    """A clock that follows the database."""

    def __init__(self, local: Clock, *, follow: bool = True) -> None:
        self._local = local
        self._follow = follow
        self._ahead_ms = 0  #: of the count of leases
        self._wall_ahead_ms = 0  #: of the database's wall clock
        self._term: int | None = None
        self._heard_ms = 0  #: time of the last reading, by the local clock
        self._doubt_ms = 0  #: duration of that reading: the database's answer may be older by this
        #: Called with the correct shift, and the term of the wrong one.
        self.when_set: Callable[[int, int], None] = lambda _shift, _term: None

    def local_ms(self) -> int:
        """Return the local clock, to be passed to ``record_reading`` with the answer."""
        return self._local.steady_ms()

    @property
    def is_known(self) -> bool:
        """Whether the database's clock was read before."""
        return self._term is not None

    def record_reading(self, reading: Reading, asked_ms: int) -> tuple[int, int]:
        """Record a reading of the database's clock; return the wall and the steady time of the transaction that read it.

        ``asked_ms``: time of the query, by the local clock.
        """
        if not self._follow:  # a test sets the time
            return self._local.now_ms(), self._local.steady_ms()
        heard_ms = self._local.steady_ms()
        count = reading.database_ms + reading.shift
        self._wall_ahead_ms = reading.database_ms - heard_ms
        # A correction keeps the count as it is. Only a server that starts while no other one runs sets it back, and no other
        # one ran only if this one did not run, either. So a new term is no reason to accept an unlikely count: the clock may
        # have been set again since that correction.
        was_there = self._term is not None and heard_ms - self._heard_ms <= UNSEEN_MS
        if was_there and self._term is not None and reading.term < self._term:
            return reading.database_ms, asked_ms + self._ahead_ms  # it was read before a correction that is already applied
        if (was_there or reading.term == self._term) and not self._is_likely(count, asked_ms, heard_ms):
            count = asked_ms + self._ahead_ms
            self.when_set(count - reading.database_ms, reading.term)
            return reading.database_ms, count
        self._term = reading.term
        self._ahead_ms = count - heard_ms
        self._heard_ms, self._doubt_ms = heard_ms, heard_ms - asked_ms
        return reading.database_ms, count

    def _is_likely(self, count: int, asked_ms: int, heard_ms: int) -> bool:
        """Return whether the count is possible between query and answer, according to the local clock."""
        drift = STEP_MS + (heard_ms - self._heard_ms) // DRIFT
        first, last = asked_ms + self._ahead_ms - drift, heard_ms + self._ahead_ms + self._doubt_ms + drift
        return first <= count <= last

    @property
    def given_ms(self) -> int | None:
        """The steady time that statements use instead of the database's: None, unless a test sets the time."""
        return None if self._follow else self._local.steady_ms()

    @property
    def counted_ms(self) -> int | None:
        """The steady time for leases of servers; None if a test sets the time, which does not apply to them."""
        return self.steady_ms() if self._follow else None

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._local.steady_ms() + self._wall_ahead_ms if self._follow else self._local.now_ms()

    def steady_ms(self) -> int:
        """Return milliseconds at the pace of the local clock, in line with the database."""
        return self._local.steady_ms() + self._ahead_ms

    def boot(self) -> Boot:
        """Return the current start of this machine."""
        return self._local.boot()

    def stopwatch(self) -> float:
        """Return seconds with the finest available resolution."""
        return self._local.stopwatch()

    def call_at(self, steady_ms: int, callback: Callable[[], None]) -> Alarm:
        """Schedule a call by the local clock."""
        return self._local.call_at(steady_ms - self._ahead_ms, callback)
