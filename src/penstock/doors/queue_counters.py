"""Counts by queue, for metrics: of as many queues as there are, and not of those that were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core import limits
from penstock.core.queue import QueueKey

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

#: Where queues are counted that are gone, and those that came when there were too many already.
OTHERS: Final = QueueKey("", "")
#: With fewer names than this, it is not looked which of them are gone.
_FEW: Final = 32


class QueueCounters(Generic[C]):
    """Counts by queue. ``kind`` makes a count: its slots are numbers. ``exists`` tells whether there is a queue.

    The counts of queues that are gone are added up under one name, so that sums stay and names do not.
    """

    def __init__(self, kind: type[C], exists: Callable[[QueueKey], object]) -> None:
        self.counts: dict[QueueKey, C] = {}
        self._kind = kind
        self._exists = exists
        self._look_at = _FEW

    def of(self, queue: QueueKey) -> C:
        """Return the count of a queue that something was done with."""
        count = self.counts.get(queue)
        if count is None:
            if len(self.counts) >= self._look_at:
                self.forget_gone()
            if len(self.counts) >= limits.counted_topics_max:
                queue = OTHERS
            count = self.counts.setdefault(queue, self._kind())
        return count

    def forget_gone(self) -> None:
        """Forget the names of queues that are gone."""
        for queue in [each for each in self.counts if each != OTHERS and not self._exists(each)]:
            gone, others = self.counts.pop(queue), self.counts.setdefault(OTHERS, self._kind())
            for name in self._kind.__slots__:  # type: ignore[attr-defined]
                setattr(others, name, getattr(others, name) + getattr(gone, name))
        self._look_at = max(_FEW, 2 * len(self.counts))
