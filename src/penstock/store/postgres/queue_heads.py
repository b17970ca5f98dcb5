"""Start positions for claims, so that they need not step over many dead rows at the front of a queue.

A claimed row stays in the index until vacuum may remove it, and vacuum may not remove it as long as an old transaction is
open: a backup, a report, a forgotten session. A claim then steps over all rows claimed since. So a server for which a
claim's query was slow stores how far the front of the queue was empty, and starts there the next time.

It is a hint: a claim only takes jobs that exist and are free. A job before the remembered position, which needs a rollback
or an action of another server to get there, is found by the query of the whole queue that runs every second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core import limits
from penstock.core.ids import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord

#: A slower query of a whole queue is not repeated for every claim.
SLOW_MS: Final = 5.0
WHOLE_EVERY_MS: Final = 1_000
#: Positions this young never count as empty: another server may be about to commit a job there.
YOUNG_MS: Final = 2_000
#: For a queue with more priorities in use, the whole queue is always queried.
PRIORITIES_MAX: Final = 32

_INT_MAX: Final = 2**31 - 1
_BIGINT_MAX: Final = 2**63 - 1


class Stretch(NamedTuple):
    """A part of a queue: these priorities, and for a single priority these positions."""

    priority_min: int
    priority_max: int
    position_min: int
    position_max: int


class QueueHead:
    """``floors``.

    By priority, a position before which there are no jobs (except jobs moved to the front); None if not known.
    """

    def __init__(self, queried_at: int, floors: dict[int, int | None]) -> None:
        self.queried_at = queried_at
        self.floors = floors

    def stretches(self) -> list[Stretch]:
        """Return the whole queue without the parts that are known to be empty, in order."""
        found: list[Stretch] = []
        above = _INT_MAX + 1
        for priority in sorted(self.floors, reverse=True):
            if priority + 1 < above:
                found.append(Stretch(priority + 1, above - 1, -_BIGINT_MAX, _BIGINT_MAX))
            floor = self.floors[priority]
            if floor is None:
                found.append(Stretch(priority, priority, -_BIGINT_MAX, _BIGINT_MAX))
            else:
                found += (Stretch(priority, priority, -_BIGINT_MAX, -1), Stretch(priority, priority, floor, _BIGINT_MAX))
            above = priority
        found.append(Stretch(-_INT_MAX - 1, above - 1, -_BIGINT_MAX, _BIGINT_MAX))
        return found

    def learn(self, jobs: Sequence[JobRecord], *, to_the_end: bool, now_ms: int) -> None:
        """Record the result of a query of the stretches. ``to_the_end``: there were no other jobs."""
        young = first_of(now_ms - YOUNG_MS)
        first: dict[int, int] = {}
        for job in jobs:
            if job.position >= 0:
                first.setdefault(job.priority, job.position)
        reached = _INT_MAX if not jobs else jobs[-1].priority
        for priority in self.floors.keys() | {job.priority for job in jobs}:
            if priority in first:
                self.floors[priority] = min(first[priority], young)
            elif to_the_end or priority > reached:
                self.floors[priority] = young
            else:
                self.floors.setdefault(priority, None)


class QueueHeads:
    """The heads of a server's queues, by number."""

    def __init__(self) -> None:
        self._fronts: dict[int, QueueHead] = {}

    def stretches(self, queue: int, now_ms: int) -> list[Stretch] | None:
        """Return where to search for the next jobs of a queue; None: the whole queue."""
        front = self._fronts.get(queue)
        if front is None or not front.queried_at <= now_ms < front.queried_at + WHOLE_EVERY_MS:
            return None
        return front.stretches()

    def record_query(self, queue: int, jobs: Sequence[JobRecord], limit: int, *, now_ms: int, took_ms: float | None) -> None:
        """Record the result of a query. ``took_ms``: how long a query of the whole queue took; None if it was not one."""
        front = self._fronts.get(queue)
        if took_ms is not None:
            if took_ms <= SLOW_MS:
                self._fronts.pop(queue, None)
                return
            front = self._fronts[queue] = QueueHead(now_ms, dict.fromkeys(() if front is None else front.floors))
        if front is not None:
            full = sum(job.size for job in jobs) >= limits.claim_batch_bytes_max
            front.learn(jobs, to_the_end=len(jobs) < limit and not full, now_ms=now_ms)
            if len(front.floors) > PRIORITIES_MAX:
                del self._fronts[queue]

    def forget(self, queue: int) -> None:
        """Record that a job may be at a position that counted as empty."""
        self._fronts.pop(queue, None)
