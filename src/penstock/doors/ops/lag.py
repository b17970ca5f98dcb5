"""The delay of the event loop, measured by one timer and how late it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.core.clock import Clock

#: Time between two measurements.
EVERY_MS: Final = 50
#: The maximum is that of this period and the last one: of half a minute to a minute.
_PERIOD_LOOKS: Final = 600


class LoopLag:
    """Measures how late timers of the running event loop are, in whole milliseconds. It starts when it is constructed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = 0.0
        self._most_s = self._most_before_s = 0.0
        self._measurements = 0
        self._expect()

    def _expect(self) -> None:
        self._due_ms = self._clock.steady_ms() + EVERY_MS
        self._clock.call_at(self._due_ms, self._measure)

    def _measure(self) -> None:
        self._last_s = max(0, self._clock.steady_ms() - self._due_ms) / 1_000
        self._most_s = max(self._most_s, self._last_s)
        self._measurements += 1
        if self._measurements % _PERIOD_LOOKS == 0:
            self._most_before_s, self._most_s = self._most_s, 0.0
        self._expect()

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield GaugeMetricFamily("penstock_loop_lag_seconds", "How late the event loop's last timer was.", self._last_s)
        most = max(self._most_s, self._most_before_s)
        yield GaugeMetricFamily("penstock_loop_lag_max_seconds", "How late a timer was at most, in the last minute.", most)
