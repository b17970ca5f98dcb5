"""Where the lines of queues begin, for claims that would have to wade through dead rows to get there.

A row that was claimed stays in the index until vacuum may remove it, and vacuum may not as long as somebody has an old
transaction open: a backup, a report, a forgotten session. A claim then steps over everything that was claimed since. So a
server that sees a look at a line become slow remembers how far the line was empty and begins there the next time.

It is a hint: nothing is claimed because of it that is not there and free. A job that stands before the remembered place, which
takes a rollback or another server's doing to get there, is found by the look at the whole line that is due every second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core import limits
from penstock.core.ids import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Job

#: A look at a whole line that takes longer is not repeated for every claim.
SLOW_MS: Final = 5.0
WHOLE_EVERY_MS: Final = 1_000
#: Places this young are never taken for empty: another server may be about to commit a job there.
YOUNG_MS: Final = 2_000
#: A queue with more priorities in use is always looked at as a whole.
PRIORITIES_MAX: Final = 32

_INT_MAX: Final = 2**31 - 1
_BIGINT_MAX: Final = 2**63 - 1


class Stretch(NamedTuple):
    """A piece of a line: these priorities, and for a single one these positions."""

    priority_min: int
    priority_max: int
    position_min: int
    position_max: int


class QueueHead:
    """``floors``: by priority, a position before which nothing stands (but for what jumped the line); None if not known."""

    def __init__(self, looked_at: int, floors: dict[int, int | None]) -> None:
        self.looked_at = looked_at
        self.floors = floors

    def stretches(self) -> list[Stretch]:
        """Return the whole line but for what is known to be empty, in order."""
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

    def learn(self, jobs: Sequence[Job], *, to_the_end: bool, now_ms: int) -> None:
        """Hear what a look along the stretches has found. ``to_the_end``: there was nothing else."""
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
    """The fronts of a server's queues, by number."""

    def __init__(self) -> None:
        self._fronts: dict[int, QueueHead] = {}

    def stretches(self, queue: int, now_ms: int) -> list[Stretch] | None:
        """Return where to look for the next jobs of a queue; None if the whole line is to be looked at."""
        front = self._fronts.get(queue)
        if front is None or not front.looked_at <= now_ms < front.looked_at + WHOLE_EVERY_MS:
            return None
        return front.stretches()

    def looked(self, queue: int, jobs: Sequence[Job], limit: int, *, now_ms: int, took_ms: float | None) -> None:
        """Hear what a look has found. ``took_ms``: how long it took to look at the whole line; None if it was not that."""
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
        """Hear that a job may stand where nothing stood."""
        self._fronts.pop(queue, None)
