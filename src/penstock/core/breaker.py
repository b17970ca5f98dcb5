"""A circuit breaker: who has just failed is left alone for a while, and then tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock

#: Rest after a failure (ms); doubled for each further one in a row, up to the longest.
REST_MS: Final = 250
REST_MS_MAX: Final = 10_000


class Breaker:
    """Ask ``allows`` before each try, and tell it how it went. ``failures``: how many may come in a row before it rests."""

    def __init__(self, clock: Clock, *, failures: int = 1, rest_ms: int = REST_MS, rest_ms_max: int = REST_MS_MAX) -> None:
        self._clock = clock
        self._failures_allowed = failures
        self._rest_ms = rest_ms
        self._rest_ms_max = rest_ms_max
        self._failures = 0
        self._until = 0

    @property
    def is_open(self) -> bool:
        """Tell whether it rests right now."""
        return self._clock.steady_ms() < self._until

    def allows(self) -> bool:
        """Tell whether to try."""
        return not self.is_open

    def failed(self) -> None:
        """Hear that a try has failed."""
        self._failures += 1
        beyond = self._failures - self._failures_allowed
        if beyond >= 0:
            rest = min(self._rest_ms_max, self._rest_ms << min(beyond, 20))
            self._until = self._clock.steady_ms() + rest

    def worked(self) -> None:
        """Hear that a try has worked: all is forgiven."""
        self._failures = 0
        self._until = 0
