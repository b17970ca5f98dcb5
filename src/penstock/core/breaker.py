"""A circuit breaker: after a failure, calls pause for some time, then they are tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: Pause after a failure (ms). It doubles with each further failure in a row, up to the longest.
REST_MS: Final = 250
REST_MS_MAX: Final = 10_000


class Breaker:
    """Call ``allows`` before each try, and report its outcome. ``failures``: how many failures in a row start a pause."""

    def __init__(self, clock: Clock, *, failures: int = 1, rest_ms: int = REST_MS, rest_ms_max: int = REST_MS_MAX) -> None:
        self._clock = clock
        self._failures_allowed = failures
        self._rest_ms = rest_ms
        self._rest_ms_max = rest_ms_max
        self._failures = 0
        self._until = 0

    @property
    def is_open(self) -> bool:
        """Whether calls pause now."""
        return self._clock.steady_ms() < self._until

    def allows(self) -> bool:
        """Return whether a call may be tried."""
        return not self.is_open

    def failed(self) -> None:
        """Record a failed try."""
        self._failures += 1
        beyond = self._failures - self._failures_allowed
        if beyond >= 0:
            rest = min(self._rest_ms_max, self._rest_ms << min(beyond, 20))
            self._until = self._clock.steady_ms() + rest

    def worked(self) -> None:
        """Record a successful try, and reset the count of failures."""
        self._failures = 0
        self._until = 0
