"""Dependencies between jobs, and ends of needed jobs, in a transaction of the SQLite store."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.dependencies import NeedCount
from penstock.store.sqlite import rows
from penstock.store.sqlite.transaction_base import STEP, SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.dependencies import Dependency, JobEnd

_OPEN_NEEDS = (
    "select job, needs, state, name, null, error from dependencies"
    " where needs = ? and state <= 1 and job > ? and job < ? order by job limit ?"
)
_COUNT_OPEN = "select count(*) from (select 1 from dependencies where needs = ? and state <= 1 limit ?)"
_NEEDS_OF = "select job, needs, state, name, null, error from dependencies where job = ? and state <= 1 order by needs"
_NEED_PAGE = (
    "select job, needs, state, name, null, error from dependencies"
    " where state <= 1 and (needs, job) > (?, ?) order by needs, job limit ?"
)
_COUNT_NEEDS = (
    "select ?1, count(*) filter (where state <= 1), count(*) filter (where state = 2), count(*)"
    " from dependencies where job = ?1"
)
_FIND_NEEDED = (
    "select distinct d.needs from dependencies d join jobs j on j.id = d.job"
    " where d.name = ? and d.state = 1 and j.namespace = ? order by d.needs"
)
_ENDS = "select serial, job, state, buries, frees, inherited, error, result, after from ends order by serial limit ?"


class SqliteDependencies(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        self._begin()
        for start in range(0, len(needs), STEP):
            self._db.executemany("insert into dependencies values (?, ?, ?, ?, ?, ?)", needs[start : start + STEP])
            await self.pause()

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        self._begin()
        found = self._db.executemany(_OPEN_NEEDS, [(end.job, end.after, end.serial, limit) for end in ends])
        return [rows.read_dependency(row) for row in islice(found, limit)]

    async def need_open_count(self, needed: int, limit: int) -> int:
        self._begin()
        (count,) = next(iter(self._db.execute(_COUNT_OPEN, (needed, limit))))
        return int(count)

    async def need_of(self, job_id: int) -> list[Dependency]:
        self._begin()
        return [rows.read_dependency(row) for row in self._db.execute(_NEEDS_OF, (job_id,))]

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        self._begin()
        counted = self._db.executemany(_COUNT_NEEDS, [(job_id,) for job_id in jobs])
        return {job_id: NeedCount(*numbers) for job_id, *numbers in counted}

    async def need_find(self, namespace: int, name: str) -> list[int]:
        self._begin()
        return [job_id for (job_id,) in self._db.execute(_FIND_NEEDED, (name, namespace))]

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        self._begin()
        return [rows.read_dependency(row) for row in self._db.execute(_NEED_PAGE, (*after, limit))]

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        self._begin()
        self._db.executemany(
            "update dependencies set state = ?, result = ?, error = ? where job = ? and needs = ?",
            [(each.state, each.result, each.error, each.job, each.needs) for each in needs],
        )

    # Ends.

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        self._begin()
        self._db.executemany("insert into ends values (?, ?, ?, ?, ?, ?, ?, ?, ?)", ends)
        self._catalog.horizon.unfollowed = True

    async def end_list(self, limit: int) -> list[JobEnd]:
        self._begin()
        found: list[JobEnd] = []
        size = 0
        for row in self._db.execute(_ENDS, (limit,)):
            found.append(rows.read_end(row))
            size += found[-1].weight
            if size >= limits.flow_bytes_batch_max:
                break
        return found

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        self._begin()
        found = self._db.executemany("select job from ends where job = ? limit 1", [(job_id,) for job_id in jobs])
        return {job_id for (job_id,) in found}

    async def end_advance(self, end: JobEnd) -> None:
        self._begin()
        self._db.execute("update ends set after = ? where serial = ?", (end.after, end.serial))

    async def end_remove(self, serials: Sequence[int]) -> None:
        self._begin()
        self._db.executemany("delete from ends where serial = ?", [(serial,) for serial in serials])
        (self._catalog.horizon.unfollowed,) = (bool(x) for (x,) in self._db.execute("select exists (select 1 from ends)"))
