"""When a batch is large enough to run: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._clock import steady

if TYPE_CHECKING:
    from collections.abc import Callable


class TriggerPacing:
    """Delays a stream until so many rows wait, or so much time has passed since the last batch.

    ``least``: rows; None: no delay. ``delay_ms``: the longest wait. ``clock``: seconds that never go back. The first batch
    after a start is not delayed, because it may have waited before.
    """

    def __init__(self, least: int | None, delay_ms: int, clock: Callable[[], float] = steady) -> None:
        self._least = least
        self._delay_s = delay_ms / 1000
        self._clock = clock
        self._last_s: float | None = None

    @property
    def asks(self) -> bool:
        """Whether the number of waiting rows is needed."""
        return self._least is not None

    def holds(self, waiting: int) -> bool:
        """Return whether to wait for more rows. ``waiting``: the rows of a batch that would run now."""
        if self._least is None or waiting >= self._least or self._last_s is None:
            return False
        return self._clock() - self._last_s < self._delay_s

    def went(self) -> None:
        """Record that a batch runs now."""
        self._last_s = self._clock()
