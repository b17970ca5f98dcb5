"""When a batch is worth its while: ``minOffsetsPerTrigger`` and ``maxTriggerDelay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client._clock import steady

if TYPE_CHECKING:
    from collections.abc import Callable


class TriggerPacing:
    """Holds a stream back until so many rows wait, or so much time is over since the last batch.

    ``least``: rows, None for no such wish. ``delay_ms``: the longest wait. ``clock``: seconds that only ever grow. The first
    batch after a start is not held back, as it may have been waited for already.
    """

    def __init__(self, least: int | None, delay_ms: int, clock: Callable[[], float] = steady) -> None:
        self._least = least
        self._delay_s = delay_ms / 1000
        self._clock = clock
        self._last_s: float | None = None

    @property
    def asks(self) -> bool:
        """Tell whether it needs to know how many rows wait."""
        return self._least is not None

    def holds(self, waiting: int) -> bool:
        """Tell whether to wait for more. ``waiting``: rows that a batch could have now."""
        if self._least is None or waiting >= self._least or self._last_s is None:
            return False
        return self._clock() - self._last_s < self._delay_s

    def went(self) -> None:
        """Note that a batch goes out now."""
        self._last_s = self._clock()
