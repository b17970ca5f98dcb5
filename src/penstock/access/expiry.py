"""The expiry of credentials: everything that stays open because of a token ends with the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.access.identity import Identity
    from penstock.core.clock import Alarm, Clock


class Expiry:
    """Calls ``end`` when an identity expires or is revoked, and immediately if it already has.

    Call ``cancel`` when it is no longer needed.
    """

    def __init__(self, identity: Identity, clock: Clock, end: Callable[[], None]) -> None:
        self._identity = identity
        self._clock = clock
        self._end = end
        self._alarm: Alarm | None = None
        identity.watch(self._check_expiry)
        self._check_expiry()

    def cancel(self) -> None:
        """Stop watching."""
        self._identity.unwatch(self._check_expiry)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _check_expiry(self) -> None:
        expires_ms = self._identity.expires_ms
        if expires_ms is None:
            return
        left_ms = expires_ms - self._clock.now_ms()
        if left_ms <= 0:
            self.cancel()
            self._end()
        else:  # by the wall clock, which may have been set before the alarm fires
            self._alarm = self._clock.call_at(self._clock.steady_ms() + min(left_ms, limits.DAY_MS), self._check_expiry)
