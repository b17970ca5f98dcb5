"""Groups: jobs of one group run one after the other, and a group that is busy must not hold up the others.

Looking for the next job must not wade through a million jobs of a busy group. So a grouped job that may not run yet is marked
``blocked`` and sits in another part of the index: claims never see it. Per group, exactly as many waiting jobs are unblocked
as the group has free places. Whatever changes a group inside a transaction (a push, an ack, a new priority, a cancel, a pause)
marks it as touched, and every touched group is put right once, before the next claim and before the commit.

The table ``groups`` has a row for each group that is paused or limited. It is only read for queues whose settings say so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.group_limits import NOT_LIMITED, ROOM_DEFAULT, GroupLimits
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from penstock.core.queue import Queue, QueueSettings

#: Name and queue of a group.
Group = tuple[int, str]

_FIELDS: Final = ", ".join(GroupLimits.__struct_fields__)
_COUNT_ACTIVE = "select count(*) from jobs where queue = ? and group_id = ? and state = 2"
_READY = "select id, -priority, position from jobs where queue = ? and group_id = ? and state = 0 and blocked = 0"
_NEXT = (
    "select id, -priority, position from jobs where queue = ? and group_id = ? and state = 0 and blocked = 1"
    " order by priority desc, position limit ?"
)
_LOAD = f"select {_FIELDS} from groups where queue = ? and group_id = ?"  # noqa: S608
_PAGE = f"select group_id, {_FIELDS} from groups where queue = ? and group_id > ? order by group_id limit ?"  # noqa: S608
_SAVE = "insert or replace into groups values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT_SET = (
    "select count(*) from groups where queue = ?"
    " and (paused or concurrency is not null or rate_limit is not null or held_until is not null)"
)
_DUE = "select group_id from groups where queue = ? and reopens_at <= ? order by reopens_at limit ?"
_NEXT_DUE = "select min(reopens_at) from groups where queue = ? and reopens_at > ?"


class SqliteJobGroups:
    """The groups that one transaction changes. ``settings`` returns those of a queue."""

    def __init__(self, db: apsw.Connection, settings: Callable[[int], QueueSettings]) -> None:
        self._db = db
        self._settings = settings
        self._touched: set[Group] = set()
        self._claimed: dict[Group, int] = {}

    def touch(self, queue: int, group: str) -> None:
        """A job of a group was written, or the limits of the group."""
        self._touched.add((queue, group))

    def claimed(self, queue: int, group: str) -> None:
        """A job of a group was claimed, which was noted by ``touch``, too."""
        if self._settings(queue).limits_groups:
            self._claimed[queue, group] = self._claimed.get((queue, group), 0) + 1

    def put_right(self, steady_ms: int) -> None:
        """Unblock the first jobs of each touched group for which there is room, and no others."""
        for queue, group in self._touched:
            room = ROOM_DEFAULT
            settings = self._settings(queue)
            if settings.limits_groups:
                defaults = settings.group_defaults
                stored = self.load(queue, group) or NOT_LIMITED
                limits = stored.at(steady_ms, self._claimed.get((queue, group), 0), defaults)
                if limits is not stored:
                    self.save(queue, group, limits)
                if limits is not NOT_LIMITED or defaults is not None:
                    room = limits.room(defaults)
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

    # What was set of them.

    def load(self, queue: int, group: str) -> GroupLimits | None:
        """Return what was set of a group; None if nothing was."""
        return next((_read(row) for row in self._db.execute(_LOAD, (queue, group))), None)

    def save(self, queue: int, group: str, limits: GroupLimits) -> None:
        """Write what is set of a group."""
        if limits.is_kept:
            reopens_at = limits.reopens_at(self._settings(queue).group_defaults)
            self._db.execute(_SAVE, (queue, group, *(getattr(limits, name) for name in _NAMES), reopens_at))
        else:
            self._db.execute("delete from groups where queue = ? and group_id = ?", (queue, group))

    def page(self, queue: int, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Return what was set of the groups of a queue, in order of their names, from one on."""
        return [(row[0], _read(row[1:])) for row in self._db.execute(_PAGE, (queue, after, limit))]

    def count(self, queue: int) -> int:
        """Return how many groups of a queue are paused or limited."""
        found: int = self._db.execute(_COUNT_SET, (queue,)).get
        return found

    def reopen(self, queue: int, steady_ms: int, limit: int) -> int | None:
        """Touch groups whose jobs time lets through again; return the moment at which it does for the next."""
        found = [group for (group,) in self._db.execute(_DUE, (queue, steady_ms, limit))]
        self._touched.update((queue, group) for group in found)
        if len(found) >= limit:
            return steady_ms
        next_ms: int | None = self._db.execute(_NEXT_DUE, (queue, steady_ms)).get
        return next_ms

    def forget(self, queue: int) -> None:
        """Forget what was set of the groups of a queue that is gone."""
        self._db.execute("delete from groups where queue = ?", (queue,))


_NAMES: Final = GroupLimits.__struct_fields__


def _read(row: Iterable[object]) -> GroupLimits:
    paused, *others = row
    return GroupLimits(bool(paused), *others)  # type: ignore[arg-type]


class SqliteGroupLimits(SqliteTransactionBase):
    """See ``contract.Transaction`` for what each method promises."""

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
