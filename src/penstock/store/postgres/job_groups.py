"""The groups that one transaction changes; see ``store/sqlite/job_groups.py`` for how claims skip blocked jobs.

The limits of a group are read and written under the lock of the group, which a transaction holds until it ends: two servers
never use the same free place. For a queue without limited groups, according to its settings, the table is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.group_limits import ROOM_DEFAULT, GroupLimits
from penstock.store.job_groups import FIELDS, Group, JobGroupChanges, limits_after
from penstock.store.postgres.schema import LOCK_QUEUE
from penstock.store.postgres.transaction_base import LOCK, PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from penstock.core.queue import Queue

_PUT_RIGHT = "select put_right($1::int[], $2::text[], $3::bigint[], $4::bigint[])"
_HOLD = f"select queue, group_id, {FIELDS} from hold_groups($1::int[], $2::text[])"  # noqa: S608
_SAVE = f"""
insert into groups (queue, group_id, {FIELDS}, reopens_at)
select * from unnest($1::int[], $2::text[], $3::boolean[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
  $9::bigint[], $10::bigint[])
on conflict (queue, group_id) do update set
  {", ".join(f"{name} = excluded.{name}" for name in (*GroupLimits.__struct_fields__, "reopens_at"))}
"""  # noqa: S608
_REMOVE = "delete from groups t using unnest($1::int[], $2::text[]) as u (q, g) where t.queue = u.q and t.group_id = u.g"
_PAGE = f"select group_id, {FIELDS} from groups where queue = $1 and group_id > $2 order by group_id limit $3"  # noqa: S608
_COUNT_SET = (
    "select count(*) from groups where queue = $1"
    " and (paused or concurrency is not null or rate_limit is not null or held_until is not null)"
)
_DUE = "select group_id from groups where queue = $1 and reopens_at <= $2 order by reopens_at limit $3"
_NEXT_DUE = "select min(reopens_at) from groups where queue = $1 and reopens_at > $2"


class PostgresJobGroups(JobGroupChanges):
    """The groups that one transaction changes. ``settings`` returns those of a queue."""

    @property
    def queues(self) -> set[int]:
        """Return the queues with groups that are to be updated."""
        return {queue for queue, _ in self._touched}

    async def put_right(self, db: Connection, steady_ms: int) -> None:
        """Unblock the first jobs of each touched group up to its limit, and block all others."""
        touched, self._touched = sorted(self._touched), set()
        claimed, self._claimed = self._claimed, {}
        rooms = dict.fromkeys(touched, ROOM_DEFAULT)
        if any(self._settings(queue).limits_groups for queue, _ in touched):
            changed: list[tuple[Group, GroupLimits]] = []
            found = await self._hold(db, touched)  # all of them in one statement, so that the order of locks is fixed
            for group in touched:
                defaults = self._settings(group[0]).group_defaults
                after, rooms[group] = limits_after(found.get(group), steady_ms, claimed.get(group, 0), defaults)
                if after is not None:
                    changed.append((group, after))
            await self.save(db, changed)
        columns = zip(*((*group, *room) for group, room in rooms.items()), strict=True)
        await db.execute(_PUT_RIGHT, *(list(column) for column in columns))

    # Limits of groups.

    @staticmethod
    async def _hold(db: Connection, groups: Sequence[Group]) -> dict[Group, GroupLimits]:
        found = await db.fetch(_HOLD, [queue for queue, _ in groups], [group for _, group in groups])
        return {(row[0], row[1]): GroupLimits(*row[2:]) for row in map(tuple, found)}

    async def load(self, db: Connection, queue: int, group: str) -> GroupLimits | None:
        """Return the limits of a group; None if none were set. They are locked until the transaction ends."""
        return (await self._hold(db, [(queue, group)])).get((queue, group))

    async def save(self, db: Connection, groups: Sequence[tuple[Group, GroupLimits]]) -> None:
        """Write the limits of groups."""
        kept = [self._row(group, limits) for group, limits in groups if limits.is_kept]
        gone = [group for group, limits in groups if not limits.is_kept]
        if kept:
            await db.execute(_SAVE, *(list(column) for column in zip(*kept, strict=True)))
        if gone:
            await db.execute(_REMOVE, [queue for queue, _ in gone], [group for _, group in gone])

    @staticmethod
    async def page(db: Connection, queue: int, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        """Return the limits of the groups of a queue, in order of their names, after a given one."""
        return [(row[0], GroupLimits(*row[1:])) for row in map(tuple, await db.fetch(_PAGE, queue, after, limit))]

    @staticmethod
    async def count(db: Connection, queue: int) -> int:
        """Return how many groups of a queue are paused or limited."""
        found: int = await db.fetchval(_COUNT_SET, queue)
        return found

    async def reopen(self, db: Connection, queue: int, steady_ms: int, limit: int) -> int | None:
        """Touch groups whose rate limit or hold has ended; return the moment at which the next one ends."""
        found = [row[0] for row in await db.fetch(_DUE, queue, steady_ms, limit)]
        self._touched.update((queue, group) for group in found)
        if len(found) >= limit:
            return steady_ms
        next_ms: int | None = await db.fetchval(_NEXT_DUE, queue, steady_ms)
        return next_ms

    @staticmethod
    async def forget(db: Connection, queue: int) -> None:
        """Delete the limits of the groups of a deleted queue."""
        await db.execute("delete from groups where queue = $1", queue)


class PostgresGroupLimits(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        return await self._groups.load(self._db, queue.number, group)

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        self.wrote = True
        await self._groups.save(self._db, [((queue.number, group), limits_) for group, limits_ in groups])
        for group, _ in groups:
            self._groups.touch(queue.number, group)
        self.queue_touch(queue)  # the settings must still say that its groups are limited
        self._changed.add(queue.number)  # claims that wait on another server may get a job now

    async def groups_limited(self, queue: Queue) -> int:
        await self._db.execute(LOCK, LOCK_QUEUE, queue.number)
        return await self._groups.count(self._db, queue.number)

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        return await self._groups.page(self._db, queue.number, after, limit)

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        return await self._groups.reopen(self._db, queue.number, self.steady_ms, limit)
