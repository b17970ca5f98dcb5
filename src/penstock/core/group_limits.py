"""Pause, concurrency and rate limit of one group of a queue: which of its waiting jobs may be claimed.

Pure functions of what is stored and of the time. All moments are on the count that leases go by, in ms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core import limits

#: Jobs of one group that may be active at once, unless its concurrency was set: they run one after the other.
CONCURRENCY_DEFAULT: Final = 1


class Room(NamedTuple):
    """How many waiting jobs of a group may stand ready: ``at_once`` less the active ones, and ``more`` at most."""

    at_once: int
    more: int


#: Of a group that nothing was set of.
ROOM_DEFAULT: Final = Room(CONCURRENCY_DEFAULT, CONCURRENCY_DEFAULT)


class GroupLimits(msgspec.Struct, frozen=True):
    """What was set of a group, and how much of its rate limit is used up. The order of the fields is stored."""

    paused: bool = False
    concurrency: int | None = None  #: jobs that may be active at once; None: CONCURRENCY_DEFAULT
    rate_limit: int | None = None  #: jobs that may be claimed within ``rate_window_ms``; None: as many as there are
    rate_window_ms: int = limits.SECOND_MS
    window_at: int | None = None  #: when the present window began, with its first claim
    taken: int = 0  #: jobs claimed in that window
    held_until: int | None = None  #: no job may be claimed before

    @property
    def is_set(self) -> bool:
        """Tell whether there is anything to remember."""
        return self.paused or self.concurrency is not None or self.rate_limit is not None or self.held_until is not None

    def at(self, steady_ms: int, claimed: int = 0) -> GroupLimits:
        """Return the limits after ``claimed`` more jobs at a moment, without windows and holds that are over by then."""
        window_at, taken = self.window_at, self.taken
        if window_at is not None and (self.rate_limit is None or steady_ms >= window_at + self.rate_window_ms):
            window_at, taken = None, 0
        if claimed and self.rate_limit is not None:
            window_at, taken = steady_ms if window_at is None else window_at, taken + claimed
        held_until = None if self.held_until is not None and steady_ms >= self.held_until else self.held_until
        if (window_at, taken, held_until) == (self.window_at, self.taken, self.held_until):
            return self
        return msgspec.structs.replace(self, window_at=window_at, taken=taken, held_until=held_until)

    def room(self) -> Room:
        """Return how many jobs may stand ready, at the moment that ``at`` was asked for.

        Never more than one batch of claims takes: what is put right after each claim must not grow with the limits.
        """
        at_once = CONCURRENCY_DEFAULT if self.concurrency is None else self.concurrency
        more = limits.claim_batch_jobs_max
        if self.paused or self.held_until is not None:
            more = 0
        elif self.rate_limit is not None:
            more = min(more, max(0, self.rate_limit - self.taken))
        return Room(at_once, more)

    def reopens_at(self) -> int | None:
        """Return the moment from which more jobs may be claimed; None if it is not time that holds them back."""
        if self.paused:
            return None
        if self.held_until is not None:
            return self.held_until
        if self.window_at is not None and self.rate_limit is not None and self.taken >= self.rate_limit:
            return self.window_at + self.rate_window_ms
        return None

    def wait_ms(self, steady_ms: int, after: int | None = None) -> int | None:
        """Return how long the rate limit or a hold lasts; None if neither is in force.

        ``after``: the rate limit counts as free (0) until so many jobs of its window were claimed.
        """
        if self.held_until is not None:
            return self.held_until - steady_ms
        if self.window_at is None:
            return None
        if after is not None and self.taken < after:
            return 0
        return self.window_at + self.rate_window_ms - steady_ms


def later(group: GroupLimits, later_ms: int) -> GroupLimits:
    """Return the limits with their moments put off, for a shard whose count of time is ahead by so much."""
    return msgspec.structs.replace(
        group,
        window_at=None if group.window_at is None else group.window_at + later_ms,
        held_until=None if group.held_until is None else group.held_until + later_ms,
    )
