"""Prometheus metrics of consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from penstock.core.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from penstock.core.clock import Clock
    from penstock.engine.bulk.consumer_groups import ConsumerGroups, GroupStatus

#: How long the figures are reused. More frequent scrapes get the same figures.
CHECK_MS: Final = 1_000
_LABELS: Final = ("namespace", "group")


class GroupMetrics:
    """Waiting and leased jobs of each consumer group, as of the last update. There are at most ``groups_max`` groups."""

    def __init__(self, groups: ConsumerGroups, clock: Clock) -> None:
        self._groups = groups
        self._clock = clock
        self._statuses: list[GroupStatus] = []
        self._checked_at: int | None = None

    async def update(self) -> None:
        """Update the figures of all groups. If this fails, no group has metrics."""
        now = self._clock.steady_ms()
        if self._checked_at is not None and now - self._checked_at < CHECK_MS:
            return
        self._checked_at = now
        try:
            self._statuses = await self._groups.statuses(None)
        except ServerError:
            self._statuses = []

    def describe(self) -> list[Metric]:
        """Describe no metrics, so that the registry does not collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        lag = GaugeMetricFamily("penstock_group_lag", "Waiting jobs in the queues of a consumer group.", labels=_LABELS)
        held = GaugeMetricFamily("penstock_group_in_flight", "Jobs that a consumer group holds.", labels=_LABELS)
        seen = GaugeMetricFamily(
            "penstock_group_last_seen_seconds", "Time of the last request of a consumer group, since 1970.", labels=_LABELS
        )
        for each in self._statuses:
            who = (each.namespace, each.group)
            lag.add_metric(who, each.lag)
            held.add_metric(who, each.in_flight)
            seen.add_metric(who, each.last_seen / 1000)
        yield lag
        yield held
        yield seen
