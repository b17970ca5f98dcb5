"""The time of a shard: the database's clock, so that all servers agree on leases and due times.

A transaction asks the database once, at its beginning. In between, a server goes by its own clock, shifted by what the database
said last; it only decides when to look again, never what has become of a job.

Due times go by the database's wall clock, which may be set. Leases go by a count that is the wall clock plus a shift, which all
servers share (``catalog.clock_shift``). Each server compares what it reads with its own clock, which no one can set: when the
database's clock was set, the count it reads is wrong by that much. The server then goes by its own clock, and corrects the
shift for everybody. See ADR 14.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Alarm, Boot, Clock

#: Less than this (ms) is no step of a clock, but the way it runs.
STEP_MS: Final = 250
#: Clocks may run apart by one part in so many.
DRIFT: Final = 1_000
#: A mark of the count of leases that is older (ms) means that no server was there: they write one every second.
UNSEEN_MS: Final = 5_000


class Reading(NamedTuple):
    """What the database says about time."""

    database_ms: int  #: its wall clock
    shift: int  #: of the count that leases go by
    term: int  #: how often the shift was corrected


class ShardClock:
    """A clock that follows the database."""

    def __init__(self, local: Clock, *, follow: bool = True) -> None:
        self._local = local
        self._follow = follow
        self._ahead_ms = 0  #: of the count of leases
        self._wall_ahead_ms = 0  #: of the database's wall clock
        self._term: int | None = None
        self._heard_ms = 0  #: when the database was last heard, by the local clock
        self._doubt_ms = 0  #: how long that took: how much earlier it may have spoken
        #: Called with the shift that is right, and the term of the one that is not.
        self.when_set: Callable[[int, int], None] = lambda _shift, _term: None

    def local_ms(self) -> int:
        """Return the local clock, to be shown to ``told`` with the answer."""
        return self._local.steady_ms()

    @property
    def is_known(self) -> bool:
        """Tell whether the database was heard before."""
        return self._term is not None

    def told(self, reading: Reading, asked_ms: int) -> tuple[int, int]:
        """Hear what time it is in the database; return the wall and the steady time of the transaction that asked.

        ``asked_ms``: when it was asked, by the local clock.
        """
        if not self._follow:  # a test tells the time
            return self._local.now_ms(), self._local.steady_ms()
        heard_ms = self._local.steady_ms()
        count = reading.database_ms + reading.shift
        self._wall_ahead_ms = reading.database_ms - heard_ms
        # A correction keeps the count as it is. Only a server that starts when no other one was there sets it back, and none
        # was there only if this one was not, either. So a term that is new is no reason to believe a count that is not likely:
        # the clock may have been set again since that correction.
        was_there = self._term is not None and heard_ms - self._heard_ms <= UNSEEN_MS
        if was_there and self._term is not None and reading.term < self._term:
            return reading.database_ms, asked_ms + self._ahead_ms  # it was read before a correction that we know of
        if (was_there or reading.term == self._term) and not self._is_likely(count, asked_ms, heard_ms):
            count = asked_ms + self._ahead_ms
            self.when_set(count - reading.database_ms, reading.term)
            return reading.database_ms, count
        self._term = reading.term
        self._ahead_ms = count - heard_ms
        self._heard_ms, self._doubt_ms = heard_ms, heard_ms - asked_ms
        return reading.database_ms, count

    def _is_likely(self, count: int, asked_ms: int, heard_ms: int) -> bool:
        """Tell whether the database may have counted this between question and answer, as far as we know its clock."""
        drift = STEP_MS + (heard_ms - self._heard_ms) // DRIFT
        first, last = asked_ms + self._ahead_ms - drift, heard_ms + self._ahead_ms + self._doubt_ms + drift
        return first <= count <= last

    @property
    def given_ms(self) -> int | None:
        """The steady time that statements go by instead of the database's: None, unless a test tells the time."""
        return None if self._follow else self._local.steady_ms()

    @property
    def counted_ms(self) -> int | None:
        """The steady time that leases of servers go by; None if a test tells the time, which is not for them."""
        return self.steady_ms() if self._follow else None

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._local.steady_ms() + self._wall_ahead_ms if self._follow else self._local.now_ms()

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
