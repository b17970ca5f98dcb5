"""Pause, concurrency and rate limit of a group of a queue: which of its waiting jobs may be claimed.

These are pure functions of the stored limits and the time. All moments are on the clock of leases, in ms.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from penstock.core import limits

#: Jobs of one group that may be active at once, unless its concurrency was set: they run one after the other.
CONCURRENCY_DEFAULT: Final = 1


class Room(NamedTuple):
    """How many waiting jobs of a group may be ready: ``at_once`` less the active ones, and ``more`` at most."""

    at_once: int
    more: int


#: The room of a group without limits.
ROOM_DEFAULT: Final = Room(CONCURRENCY_DEFAULT, CONCURRENCY_DEFAULT)


class GroupDefaults(msgspec.Struct, frozen=True):
    """Limits that workers request for groups of a queue without limits of their own. Stored in the settings of the queue."""

    concurrency: int | None = None  #: jobs of each group that may be active at once; None: CONCURRENCY_DEFAULT
    rate_limit: int | None = None  #: jobs of each group that may be claimed within ``rate_window_ms``
    rate_window_ms: int = limits.SECOND_MS
    until: int = 0  #: wall clock, ms: when they end, unless a worker requests them again

    def joined(self, asked: GroupDefaults, now_ms: int) -> GroupDefaults:
        """Return the defaults after a worker requested some: the stricter one of each.

        Returns the same object if nothing has to be written: these are at least as strict, and do not end soon.
        """
        if now_ms >= self.until:
            return msgspec.structs.replace(asked, until=now_ms + limits.group_defaults_ms)
        concurrency = self.concurrency
        if asked.concurrency is not None:
            concurrency = asked.concurrency if concurrency is None else min(concurrency, asked.concurrency)
        rate = self.rate_limit, self.rate_window_ms
        if asked.rate_limit is not None and asked.is_slower_than(self):
            rate = asked.rate_limit, asked.rate_window_ms
        until = self.until
        is_same = (concurrency, *rate) == (asked.concurrency, asked.rate_limit, asked.rate_window_ms)
        if (concurrency, *rate) != (self.concurrency, self.rate_limit, self.rate_window_ms) or (
            is_same and until - now_ms < limits.group_defaults_ms // 2
        ):
            until = now_ms + limits.group_defaults_ms
        return GroupDefaults(concurrency, *rate, until=until)

    def is_slower_than(self, other: GroupDefaults) -> bool:
        """Return whether the rate limit allows fewer jobs than another one, over a long time."""
        if self.rate_limit is None:
            return False
        if other.rate_limit is None:
            return True
        return self.rate_limit * other.rate_window_ms < other.rate_limit * self.rate_window_ms


class GroupLimits(msgspec.Struct, frozen=True):
    """The limits of a group, and how much of its rate limit is used. The order of the fields is stored."""

    paused: bool = False
    concurrency: int | None = None  #: jobs that may be active at once; None: CONCURRENCY_DEFAULT
    rate_limit: int | None = None  #: jobs that may be claimed within ``rate_window_ms``; None: no limit
    rate_window_ms: int = limits.SECOND_MS
    window_at: int | None = None  #: when the current window began, with its first claim
    taken: int = 0  #: jobs claimed in that window
    held_until: int | None = None  #: no job may be claimed before this moment

    @property
    def is_set(self) -> bool:
        """Whether a limit of the group is set."""
        return self.paused or self.concurrency is not None or self.rate_limit is not None or self.held_until is not None

    @property
    def is_kept(self) -> bool:
        """Whether the row must be kept."""
        return self.is_set or self.window_at is not None

    def rate(self, defaults: GroupDefaults | None) -> tuple[int | None, int]:
        """Return the rate limit that applies now, and its window in ms."""
        if self.rate_limit is None and defaults is not None:
            return defaults.rate_limit, defaults.rate_window_ms
        return self.rate_limit, self.rate_window_ms

    def at(self, steady_ms: int, claimed: int = 0, defaults: GroupDefaults | None = None) -> GroupLimits:
        """Return the limits after ``claimed`` more jobs at a moment, without windows and holds that have ended by then."""
        window_at, taken = self.window_at, self.taken
        rate_limit, window_ms = self.rate(defaults)
        if window_at is not None and (rate_limit is None or steady_ms >= window_at + window_ms):
            window_at, taken = None, 0
        if claimed and rate_limit is not None:
            window_at, taken = steady_ms if window_at is None else window_at, taken + claimed
        held_until = None if self.held_until is not None and steady_ms >= self.held_until else self.held_until
        if (window_at, taken, held_until) == (self.window_at, self.taken, self.held_until):
            return self
        return msgspec.structs.replace(self, window_at=window_at, taken=taken, held_until=held_until)

    def room(self, defaults: GroupDefaults | None = None) -> Room:
        """Return how many jobs may be ready, at the moment that was passed to ``at``.

        At most as many as one batch claims: the cost of the update after each claim must not grow with the limits.
        """
        at_once = self.concurrency
        if at_once is None and defaults is not None:
            at_once = defaults.concurrency
        more = limits.claim_batch_jobs_max
        rate_limit, _ = self.rate(defaults)
        if self.paused or self.held_until is not None:
            more = 0
        elif rate_limit is not None:
            more = min(more, max(0, rate_limit - self.taken))
        return Room(CONCURRENCY_DEFAULT if at_once is None else at_once, more)

    def reopens_at(self, defaults: GroupDefaults | None = None) -> int | None:
        """Return the moment at which more jobs may be claimed, or at which the row need not be kept; None if there is none."""
        if self.paused:
            return None
        if self.held_until is not None:
            return self.held_until
        rate_limit, window_ms = self.rate(defaults)
        if self.window_at is not None and rate_limit is not None and (self.taken >= rate_limit or not self.is_set):
            return self.window_at + window_ms
        return None

    def wait_ms(self, steady_ms: int, after: int | None = None, defaults: GroupDefaults | None = None) -> int | None:
        """Return how long the rate limit or a hold lasts; None if neither applies.

        ``after``: the rate limit counts as free (0) until so many jobs of its window were claimed.
        """
        if self.held_until is not None:
            return self.held_until - steady_ms
        if self.window_at is None:
            return None
        if after is not None and self.taken < after:
            return 0
        return self.window_at + self.rate(defaults)[1] - steady_ms


#: The limits of a group without limits.
NOT_LIMITED: Final = GroupLimits()


def later(group: GroupLimits, later_ms: int) -> GroupLimits:
    """Return the limits with later moments, for a shard whose clock of leases is ahead by the given time."""
    return msgspec.structs.replace(
        group,
        window_at=None if group.window_at is None else group.window_at + later_ms,
        held_until=None if group.held_until is None else group.held_until + later_ms,
    )
