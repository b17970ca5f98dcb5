"""How many jobs each namespace may be given in a minute."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from penstock.access.identity import ANYWHERE
from penstock.core import limits
from penstock.core.errors import InvalidInput, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock


class Counter(Protocol):
    """Counts what namespaces were given in the last minute. In memory is enough for one server; several need a shared one."""

    async def take(self, namespace: str, count: int, quota: int) -> int:
        """Count ``count`` more if ``quota`` has room for all of them, and return 0; else return how many ms until it has."""

    async def give_back(self, namespace: str, count: int) -> None:
        """Count ``count`` less: they were taken a moment ago and are not used."""


class MemoryCounter:
    """Counts by the second, so at most sixty-one small numbers a namespace, however much it is given.

    Of very many namespaces, those not seen for the longest time are forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, deque[tuple[int, int]]] = {}  #: by namespace: the last moment of a second, how many in it

    async def take(self, namespace: str, count: int, quota: int) -> int:
        """Count, or tell how long to wait."""
        now = self._clock.steady_ms()
        taken = self._taken.pop(namespace, None) or deque()
        self._taken[namespace] = taken  # put back at the end: last seen
        if len(self._taken) > limits.quota_namespaces_max:
            del self._taken[next(iter(self._taken))]
        while taken and taken[0][0] <= now - limits.MINUTE_MS:
            taken.popleft()
        over = sum(each for _, each in taken) + count - quota
        if over > 0:
            for moment, each in taken:
                over -= each
                if over <= 0:
                    return moment + limits.MINUTE_MS - now
            return limits.MINUTE_MS
        if taken and taken[-1][0] // limits.SECOND_MS == now // limits.SECOND_MS:
            count += taken.pop()[1]
        taken.append((now, count))
        return 0

    async def give_back(self, namespace: str, count: int) -> None:
        """Count less, beginning with the latest."""
        taken = self._taken.get(namespace)
        while taken and count:
            moment, latest = taken.pop()
            if latest > count:
                taken.append((moment, latest - count))
            count -= min(count, latest)


class Quotas:
    """``quotas`` are enqueues per minute by namespace; ``*`` is the quota of each that is not listed."""

    def __init__(self, quotas: Mapping[str, int], counter: Counter) -> None:
        self._quotas = dict(quotas)
        self._default = self._quotas.pop(ANYWHERE, None)
        self._counter = counter

    def of(self, namespace: str) -> int | None:
        """Return the quota of a namespace (None: it has none)."""
        return self._quotas.get(namespace, self._default)

    async def admit(self, counts: Mapping[str, int]) -> None:
        """Count jobs for namespaces: all of them or, if there is no room, none. Raises QuotaExceeded, or InvalidInput."""
        quotas = {namespace: quota for namespace in counts if (quota := self.of(namespace)) is not None}
        for namespace, quota in quotas.items():
            if counts[namespace] > quota > 0:
                raise InvalidInput(
                    f"namespace {namespace} has a quota of {quota} enqueues/minute; "
                    f"send fewer than {counts[namespace]} at once"
                )
        admitted: list[str] = []
        try:
            for namespace, quota in quotas.items():
                await self._take(namespace, counts[namespace], quota)
                admitted.append(namespace)
        except QuotaExceeded:
            for namespace in admitted:
                await self._counter.give_back(namespace, counts[namespace])
            raise

    async def _take(self, namespace: str, count: int, quota: int) -> None:
        wait_ms = await self._counter.take(namespace, count, quota)
        if wait_ms:
            raise QuotaExceeded(
                f"namespace {namespace} exceeded quota of {quota} enqueues/minute. "
                f"Retry in {-(-wait_ms // limits.SECOND_MS)} s.",
                retry_after_ms=wait_ms,
            )
