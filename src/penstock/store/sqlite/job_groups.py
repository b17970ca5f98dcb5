"""Groups: the jobs of one group run one after the other, and a busy group must not delay the others.

The search for the next job must not step over a million jobs of a busy group. So a grouped job that may not run yet is
marked ``blocked`` and is in another part of the index: claims do not read it. Per group, the number of unblocked waiting
jobs equals the number of free places of the group. Every change of a group inside a transaction (a push, an ack, a new
priority, a cancel, a pause) marks it as touched, and every touched group is updated once, before the next claim and before
the commit.

The table ``groups`` has a row for each group that is paused or limited. It is only read for queues whose settings have
``limits_groups``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.group_limits import ROOM_DEFAULT, GroupLimits
from penstock.store.job_groups import FIELDS, JobGroupChanges, limits_after
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from penstock.core.queue import Queue, QueueSettings

_COUNT_ACTIVE = "select count(*) from jobs where queue = ? and group_id = ? and state = 2"
_READY = "select id, -priority, position from jobs where queue = ? and group_id = ? and state = 0 and blocked = 0"
_NEXT = (
    "select id, -priority, position from jobs where queue = ? and group_id = ? and state = 0 and blocked = 1"
    " order by priority desc, position limit ?"
)
_LOAD = f"select {FIELDS} from groups where queue = ? and group_id = ?"  # noqa: S608
_PAGE = f"select group_id, {FIELDS} from groups where queue = ? and group_id > ? order by group_id limit ?"  # noqa: S608
_SAVE = "insert or replace into groups values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT_SET = (
    "select count(*) from groups where queue = ?"
    " and (paused or concurrency is not null or rate_limit is not null or held_until is not null)"
)
_DUE = "select group_id from groups where queue = ? and reopens_at <= ? order by reopens_at limit ?"
_NEXT_DUE = "select min(reopens_at) from groups where queue = ? and reopens_at > ?"


class SqliteJobGroups(JobGroupChanges):
    """The groups that one transaction changes. ``settings`` returns those of a queue."""

    def __init__(self, db: apsw.Connection, settings: Callable[[int], QueueSettings]) -> None:
        super().__init__(settings)
        self._db = db

    def put_right(self, steady_ms: int) -> None:
        """Unblock the first jobs of each touched group up to its limit, and block all others."""
        for queue, group in self._touched:
            room = ROOM_DEFAULT
            settings = self._settings(queue)
            if settings.limits_groups:
                claimed = self._claimed.get((queue, group), 0)
                changed, room = limits_after(self.load(queue, group), steady_ms, claimed, settings.group_defaults)
                if changed is not None:
                    self.save(queue, group, changed)
            active = self._db.execute(_COUNT_ACTIVE, (queue, group)).get if room.more else 0
            self._unblock(queue, group, max(0, min(room.at_once - active, room.more)))
        self._touched.clear()
        self._claimed.clear()

    def _unblock(self, queue: int, group: str, count: int) -> None:
        ready = [tuple(row) for row in self._db.execute(_READY, (queue, group))]
        behind = [tuple(row) for row in self._db.execute(_NEXT, (queue, group, count))] if count else []
        first = sorted([*ready, *behind], key=lambda row: row[1:])[:count]
        for row in set(ready).difference(first):
            self._db.execute("update jobs set blocked = 1 where id = ?", (row[0],))
        for row in set(behind).intersection(first):
            self._db.execute("update jobs set blocked = 0 where id = ?", (row[0],))

    # Limits of groups.

    def load(self, queue: int, group: str) -> GroupLimits | None:
        """Return the limits of a group; None if it has none."""
        return next((_read(row) for row in self._db.execute(_LOAD, (queue, group))), None)

    def save(self, queue: int, group: str, limits: GroupLimits) -> None:
        """Write the limits of a group."""
        if limits.is_kept:
            self._db.execute(_SAVE, self._row((queue, group), limits))
        else:
            self._db.execute("delete from groups where queue = ? and group_id = ?", (queue, group))

    def page(self, queue: int, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Return the limits of the groups of a queue, in order of their names, after a given one."""
        return [(row[0], _read(row[1:])) for row in self._db.execute(_PAGE, (queue, after, limit))]

    def count(self, queue: int) -> int:
        """Return how many groups of a queue are paused or limited."""
        found: int = self._db.execute(_COUNT_SET, (queue,)).get
        return found

    def reopen(self, queue: int, steady_ms: int, limit: int) -> int | None:
        """Touch groups whose rate limit or hold has ended; return the moment at which the next one ends."""
        found = [group for (group,) in self._db.execute(_DUE, (queue, steady_ms, limit))]
        self._touched.update((queue, group) for group in found)
        if len(found) >= limit:
            return steady_ms
        next_ms: int | None = self._db.execute(_NEXT_DUE, (queue, steady_ms)).get
        return next_ms

    def forget(self, queue: int) -> None:
        """Delete the limits of the groups of a deleted queue."""
        self._db.execute("delete from groups where queue = ?", (queue,))


def _read(row: Iterable[object]) -> GroupLimits:
    paused, *others = row
    return GroupLimits(bool(paused), *others)  # type: ignore[arg-type]


class SqliteGroupLimits(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        return self._groups.load(queue.number, group)

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        self._begin()
        for group, limits_ in groups:
            self._groups.save(queue.number, group, limits_)
            self._groups.touch(queue.number, group)

    async def groups_limited(self, queue: Queue) -> int:
        return self._groups.count(queue.number)

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        return self._groups.page(queue.number, after, limit)

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        self._begin()
        return self._groups.reopen(queue.number, self.steady_ms, limit)
