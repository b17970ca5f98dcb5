"""Counters per queue for metrics, limited to queues that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core import limits
from penstock.core.queue import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

#: Counts of deleted queues, and of queues that came when the limit was reached.
OTHERS: Final = QueueKey("", "")
#: With fewer names than this, deleted queues are not searched for.
_FEW: Final = 32


class QueueCounters(Generic[C]):
    """Counters per queue. ``kind`` creates a counter, whose slots are numbers. ``exists`` returns whether a queue exists.

    The counts of deleted queues are added up under one name, so that the sums stay correct and the names do not accumulate.
    """

    def __init__(self, kind: type[C], exists: Callable[[QueueKey], object]) -> None:
        self.counts: dict[QueueKey, C] = {}
        self._kind = kind
        self._exists = exists
        self._look_at = _FEW

    def of(self, queue: QueueKey) -> C:
        """Return the counter of a queue, for an operation on it."""
        count = self.counts.get(queue)
        if count is None:
            if len(self.counts) >= self._look_at:
                self.forget_gone()
            if len(self.counts) >= limits.counted_topics_max:
                queue = OTHERS
            count = self.counts.setdefault(queue, self._kind())
        return count

    def forget_gone(self) -> None:
        """Remove the names of queues that no longer exist."""
        for queue in [each for each in self.counts if each != OTHERS and not self._exists(each)]:
            gone, others = self.counts.pop(queue), self.counts.setdefault(OTHERS, self._kind())
            for name in self._kind.__slots__:  # type: ignore[attr-defined]
                setattr(others, name, getattr(others, name) + getattr(gone, name))
        self._look_at = max(_FEW, 2 * len(self.counts))
