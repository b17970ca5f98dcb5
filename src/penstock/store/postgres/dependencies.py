"""Dependencies between jobs, and ends of needed jobs, in a transaction on a PostgreSQL shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.dependencies import NeedCount
from penstock.store.postgres import reads, rows
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.dependencies import Dependency, JobEnd

_ADD_NEEDS = (
    "insert into dependencies (job, needs, state, name, result, error)"
    " select * from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::text[], $5::bytea[], $6::bytea[])"
)
_OPEN_NEEDS = """
select d.job, d.needs, d.state, d.name, null::bytea, d.error
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as u (needs, after, serial, place)
cross join lateral (
  select * from dependencies where needs = u.needs and state <= 1 and job > u.after and job < u.serial order by job limit $4
) as d order by u.place, d.job limit $4
"""
_COUNT_OPEN = "select count(*) from (select from dependencies where needs = $1 and state <= 1 limit $2) as d"
_NEEDS_OF = (
    "select job, needs, state, name, null::bytea, error from dependencies where job = $1 and state <= 1 order by needs"
)
_NEED_PAGE = (
    "select job, needs, state, name, null::bytea, error from dependencies"
    " where state <= 1 and (needs, job) > ($1, $2) order by needs, job limit $3"
)
_COUNT_NEEDS = (
    "select u.job, count(*) filter (where d.state <= 1), count(*) filter (where d.state = 2), count(d.job)"
    " from unnest($1::bigint[]) as u (job) left join dependencies d on d.job = u.job group by u.job"
)
_FIND_NEEDED = (
    "select distinct d.needs from dependencies d join jobs j on j.id = d.job"
    " where j.namespace = $1 and d.name = $2 and d.state = 1 order by d.needs"
)
_SAVE_NEEDS = (
    "update dependencies d set state = u.state, result = u.result, error = u.error"
    " from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bytea[]) as u (job, needs, state, result, error)"
    " where d.job = u.job and d.needs = u.needs"
)
# The newest bytes are left to the next batch: the sum is over the earlier ends.
_ENDS = """
with first as materialized (select * from ends order by serial limit $1 for update)
select serial, job, state, buries, frees, inherited, error, result, after from (
  select *, sum(coalesce(length(result), 0) + 3 * coalesce(length(error), 0)) over (order by serial)
            - coalesce(length(result), 0) - 3 * coalesce(length(error), 0) as ahead from first) as e
where ahead < $2 order by serial
"""


class PostgresDependencies(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        self.wrote = True
        await self._db.execute(
            _ADD_NEEDS,
            [each.job for each in needs],
            [each.needs for each in needs],
            [each.state for each in needs],
            [each.name for each in needs],
            [each.result for each in needs],
            [_utf8(each.error) for each in needs],
        )

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        bounds = [end.job for end in ends], [end.after for end in ends], [end.serial for end in ends]
        return [rows.read_dependency(row) for row in await self._db.fetch(_OPEN_NEEDS, *bounds, limit)]

    async def need_open_count(self, needed: int, limit: int) -> int:
        return int(await self._db.fetchval(_COUNT_OPEN, needed, limit))

    async def need_of(self, job_id: int) -> list[Dependency]:
        return [rows.read_dependency(row) for row in await self._db.fetch(_NEEDS_OF, job_id)]

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        found = await self._db.fetch(_COUNT_NEEDS, jobs)
        return {job_id: NeedCount(*numbers) for job_id, *numbers in found}

    async def need_find(self, namespace: int, name: str) -> list[int]:
        if reads.ZERO in name:
            return []
        return [row[0] for row in await self._db.fetch(_FIND_NEEDED, namespace, name)]

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        return [rows.read_dependency(row) for row in await self._db.fetch(_NEED_PAGE, *after, limit)]

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        self.wrote = True
        await self._db.execute(
            _SAVE_NEEDS,
            [each.job for each in needs],
            [each.needs for each in needs],
            [each.state for each in needs],
            [each.result for each in needs],
            [_utf8(each.error) for each in needs],
        )

    # Ends.

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        self.wrote = True
        await self._db.executemany(
            "insert into ends values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            [end._replace(error=_utf8(end.error)) for end in ends],  # type: ignore[arg-type]
        )
        self._catalog.horizon.unfollowed = self._own_horizon.unfollowed = True

    async def end_list(self, limit: int) -> list[JobEnd]:
        found: list[JobEnd] = []
        size = 0
        with self._catalog.track_commits() as meanwhile:
            read = await self._db.fetch(_ENDS, limit, limits.flow_bytes_batch_max)
        for row in read:
            found.append(rows.read_end(row))
            size += found[-1].weight
            if size >= limits.flow_bytes_batch_max:
                break
        if not found:  # another server has delivered them
            self._catalog.horizon.unfollowed = meanwhile.unfollowed
        return found

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        found = await self._db.fetch("select job from ends where job = any ($1::bigint[])", jobs)
        return {row[0] for row in found}

    async def end_advance(self, end: JobEnd) -> None:
        self.wrote = True
        await self._db.execute("update ends set after = $1 where serial = $2", end.after, end.serial)

    async def end_remove(self, serials: Sequence[int]) -> None:
        self.wrote = True
        await self._db.execute("delete from ends where serial = any ($1::bigint[])", serials)
        with self._catalog.track_commits() as meanwhile:
            left = await self._db.fetchval("select exists (select from ends)")
        self._catalog.horizon.unfollowed = left or meanwhile.unfollowed


def _utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
