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

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.core.group_limits import ROOM_DEFAULT, GroupLimits
from penstock.store.job_groups import FIELDS, JobGroupChanges, limits_after
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    import apsw

    from penstock.core.group_limits import Room
    from penstock.core.queue import Queue, QueueSettings

#: A waiting job of a group: its id, and its place in the group: the negative priority, and the position.
_Job = tuple[Any, ...]
#: Up to this many groups of a queue are read one by one: that takes less time.
_FEW: Final = 8
#: Groups whose jobs are read together, at most.
_TOGETHER: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode


class _Reads(NamedTuple):
    """Statements about the jobs of some groups. Each row begins with the number of a group among them."""

    active: str
    ready: str
    behind: str
    limits: str


#: For one group by its name.
_ONE: Final = _Reads(
    "select 0, count(*) from jobs where queue = ?1 and group_id = ?2 and state = 2",
    "select 0, id, -priority, position from jobs where queue = ?1 and group_id = ?2 and state = 0 and blocked = 0",
    "select 0, id, -priority, position from jobs where queue = ?1 and group_id = ?2 and state = 0 and blocked = 1"
    " order by priority desc, position limit ?3",
    f"select 0, {FIELDS} from groups where queue = ?1 and group_id = ?2",  # noqa: S608
)
#: For several groups, by a JSON list of their names. It takes longer to begin with.
_MANY: Final = _Reads(
    "select w.key, (select count(*) from jobs where queue = ?1 and group_id = w.value and state = 2) from json_each(?2) w",
    "select w.key, j.id, -j.priority, j.position from json_each(?2) w cross join jobs j"
    " on j.queue = ?1 and j.group_id = w.value and j.state = 0 and j.blocked = 0",
    "select w.key, j.id, -j.priority, j.position from json_each(?2) w cross join jobs j on j.id in"
    " (select id from jobs where queue = ?1 and group_id = w.value and state = 0 and blocked = 1"
    " order by priority desc, position limit ?3)",
    f"select w.key, {FIELDS} from json_each(?2) w cross join groups g on g.queue = ?1 and g.group_id = w.value",  # noqa: S608
)
_BLOCK = "update jobs set blocked = ? where id = ?"
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

    async def put_right(self, steady_ms: int, pause: Callable[[], Awaitable[None]]) -> None:
        """Unblock the first jobs of each touched group up to its limit, and block all others. Awaits ``pause`` between."""
        touched: dict[int, list[str]] = {}
        for queue, group in self._touched:
            touched.setdefault(queue, []).append(group)
        for queue, groups in touched.items():
            size = _TOGETHER if len(groups) > _FEW else 1
            for start in range(0, len(groups), size):
                self._put_right(queue, groups[start : start + size], steady_ms)
                await pause()
        self._touched.clear()
        self._claimed.clear()

    def _put_right(self, queue: int, groups: list[str], steady_ms: int) -> None:
        """Put some groups of one queue right. Their jobs are read by a few statements, however many groups there are."""
        rooms = self._rooms(queue, groups, steady_ms)
        free: dict[int, list[int]] = {}  # numbers of groups in the list, by how many of their jobs may be ready
        for number, active in self._read("active", queue, groups):
            room = rooms[number]
            free.setdefault(max(0, min(room.at_once - active, room.more)), []).append(number)
        ready: dict[int, list[_Job]] = {}
        for number, *job in self._read("ready", queue, groups):
            ready.setdefault(number, []).append(tuple(job))
        changes: list[tuple[int, int]] = []
        for count, numbers in free.items():
            behind: dict[int, list[_Job]] = {}
            if count:
                for at, *job in self._read("behind", queue, [groups[number] for number in numbers], count):
                    behind.setdefault(numbers[at], []).append(tuple(job))
            for number in numbers:
                changes += _changes(ready.get(number, []), behind.get(number, []), count)
        if changes:
            self._db.executemany(_BLOCK, changes)

    def _read(self, what: str, queue: int, groups: list[str], *more: int) -> Iterable[Any]:
        reads, names = (_ONE, groups[0]) if len(groups) == 1 else (_MANY, _encode(groups).decode())
        return self._db.execute(getattr(reads, what), (queue, names, *more))

    def _rooms(self, queue: int, groups: list[str], steady_ms: int) -> list[Room]:
        """Bring the limits of some groups up to date, and return how many of the jobs of each may be claimed now."""
        settings = self._settings(queue)
        if not settings.limits_groups:
            return [ROOM_DEFAULT] * len(groups)
        stored = {number: _read(row) for number, *row in self._read("limits", queue, groups)}
        rooms = []
        for number, group in enumerate(groups):
            claimed = self._claimed.get((queue, group), 0)
            changed, room = limits_after(stored.get(number), steady_ms, claimed, settings.group_defaults)
            if changed is not None:
                self.save(queue, group, changed)
            rooms.append(room)
        return rooms

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


def _changes(ready: list[_Job], behind: list[_Job], count: int) -> Iterator[tuple[int, int]]:
    """Return which jobs of a group are blocked (1) or unblocked (0), so that its first ``count`` jobs are ready."""
    first = set(sorted([*ready, *behind], key=lambda job: job[1:])[:count])
    for job in ready:
        if job not in first:
            yield 1, job[0]
    for job in behind:
        if job in first:
            yield 0, job[0]


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
