"""Numbers of jobs pushed by namespaces in the last minute: counted per second, in memory."""

from __future__ import annotations

from collections import deque

from penstock.core import limits


class Windows:
    """At most sixty-one small numbers per namespace, for any number of jobs.

    With very many namespaces, the counts of those without pushes for the longest time are dropped.
    """

    def __init__(self) -> None:
        self._taken: dict[str, deque[tuple[int, int]]] = {}  #: by namespace: the last moment of a second, its jobs

    def take(self, namespace: str, count: int, quota: int | None, now_ms: int) -> int:
        """Count ``count`` jobs if ``quota`` has room for all of them, and return 0; otherwise the ms until it has room.

        ``quota``: None counts them in any case. ``now_ms``: from a clock that only grows.
        """
        taken = self._taken.pop(namespace, None) or deque()
        self._taken[namespace] = taken  # moved to the end: used last
        if len(self._taken) > limits.quota_namespaces_max:
            del self._taken[next(iter(self._taken))]
        while taken and taken[0][0] <= now_ms - limits.MINUTE_MS:
            taken.popleft()
        over = 0 if quota is None else sum(each for _, each in taken) + count - quota
        if over > 0:
            for moment, each in taken:
                over -= each
                if over <= 0:
                    return moment + limits.MINUTE_MS - now_ms
            return limits.MINUTE_MS
        if taken and taken[-1][0] // limits.SECOND_MS == now_ms // limits.SECOND_MS:
            count += taken.pop()[1]
        taken.append((now_ms, count))
        return 0

    def refund(self, namespace: str, count: int) -> None:
        """Count ``count`` jobs less, beginning with the latest."""
        taken = self._taken.get(namespace)
        while taken and count:
            moment, latest = taken.pop()
            if latest > count:
                taken.append((moment, latest - count))
            count -= min(count, latest)

    def counts(self, now_ms: int) -> dict[str, int]:
        """Return the number of jobs that each namespace pushed in the last minute, without zeros."""
        since = now_ms - limits.MINUTE_MS
        sums = ((namespace, sum(count for at, count in taken if at > since)) for namespace, taken in self._taken.items())
        return {namespace: count for namespace, count in sums if count}
