"""The part of a transaction for other shards: relayed ends of jobs, and names that are unique in a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.dependencies import Relay
from penstock.core.errors import RowChanged
from penstock.core.reservations import Reservation
from penstock.store.postgres import rows
from penstock.store.postgres.schema import LOCK_TICKETS
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.dependencies import JobEnd

_ASK = (
    "insert into relays (needed, shard, asked_at, told, spared, serial, state, buries, frees, inherited)"
    " select needed, $2, $3, 0, 0, 0, 0, false, false, false from unnest($1::bigint[]) as needed"
    " on conflict (needed, shard) do update set asked_at = excluded.asked_at,"
    " next_at = case when $4::bool then null else relays.next_at end"
)
_ASKED = (
    "select needed, case when next_at is not null then told end from relays where needed = any ($1::bigint[]) and shard = $2"
)
_END = (
    "update relays r set next_at = $1, told = 0, spared = u.spared, serial = u.serial, state = u.state, buries = u.buries,"
    " frees = u.frees, inherited = u.inherited, error = u.error, result = u.result"
    " from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::smallint[], $6::bool[], $7::bool[], $8::bool[], $9::bytea[],"
    " $10::bytea[]) as u (needed, spared, serial, state, buries, frees, inherited, error, result) where r.needed = u.needed"
)
_SHARDS = "select distinct shard from relays where next_at <= $1"
_DUE = """
with first as materialized (select * from relays where shard = $1 and next_at <= $2 order by next_at limit $3)
select shard, spared, asked_at, told, serial, needed, state, buries, frees, inherited, error, result from (
  select *, sum(coalesce(length(result), 0)) over (order by next_at, needed) - coalesce(length(result), 0) as ahead
  from first) as r where ahead < $4 order by next_at, needed
"""
_AGAIN = (
    "update relays r set next_at = u.next_at, told = r.told + 1"
    " from unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[]) as u (needed, shard, serial, next_at)"
    " where r.needed = u.needed and r.shard = u.shard and r.serial = u.serial and r.next_at is not null"
)
_TOLD = (
    "unnest($1::bigint[], $2::int[], $3::bigint[], $4::bigint[]) as u (needed, shard, serial, asked_at)"
    " where r.needed = u.needed and r.shard = u.shard and r.serial = u.serial and r.asked_at = u.asked_at"
)
_KEEP = f"update relays r set next_at = null, error = null, result = null from {_TOLD}"  # noqa: S608
_DROP = f"delete from relays r using {_TOLD}"  # noqa: S608
_RESERVATION = "select r.namespace, r.name, r.shard, r.ticket, r.at from reservations r"
# In order, so that two servers that lock the same names wait for each other instead of blocking each other.
_LOAD_NAMES = (
    f"{_RESERVATION} join unnest($1::text[], $2::text[]) as u (namespace, name)"
    " on r.namespace = u.namespace and r.name = u.name order by r.namespace, r.name for update of r"
)
_ADD_NAMES = (
    "insert into reservations select * from unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[])"
    " order by 1, 2 on conflict do nothing"
)
_SAVE_NAMES = (
    "update reservations r set shard = u.shard, ticket = u.ticket, at = u.at"
    " from unnest($1::text[], $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[])"
    " as u (namespace, name, shard, ticket, at, old)"
    " where r.namespace = u.namespace and r.name = u.name and r.ticket = u.old"
)
_REMOVE_NAMES = (
    "delete from reservations r"
    " using unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) as u (namespace, name, ticket, at)"
    " where r.namespace = u.namespace and r.name = u.name and r.ticket = u.ticket and r.at = u.at"
)


class PostgresSharding(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    # Relays.

    async def relay_ask(self, jobs: Sequence[int], shard: int, *, alive: bool) -> None:
        self.wrote = True
        await self._db.execute(_ASK, sorted(set(jobs)), shard, self.now_ms, alive)

    async def relay_asked(self, jobs: Sequence[int], shard: int) -> dict[int, int | None]:
        return dict(await self._db.fetch(_ASKED, jobs, shard))

    async def relay_end(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        self.wrote = True
        await self._db.execute(
            _END,
            self.now_ms,
            [end.job for end, _ in ends],
            [spared for _, spared in ends],
            [end.serial for end, _ in ends],
            [end.state for end, _ in ends],
            [end.buries for end, _ in ends],
            [end.frees for end, _ in ends],
            [end.inherited for end, _ in ends],
            [None if end.error is None else end.error.encode() for end, _ in ends],
            [end.result for end, _ in ends],
        )

    async def relay_shards(self) -> set[int]:
        return {row[0] for row in await self._db.fetch(_SHARDS, self.now_ms)}

    async def relay_due(self, shard: int, limit: int) -> list[Relay]:
        found = await self._db.fetch(_DUE, shard, self.now_ms, limit, limits.flow_bytes_batch_max)
        return [
            Relay(to, rows.read_end((*end, 0)), spared, asked_at, deliveries)
            for to, spared, asked_at, deliveries, *end in found
        ]

    async def relay_again(self, relays: Sequence[tuple[Relay, int]]) -> None:
        self.wrote = True
        await self._db.execute(
            _AGAIN,
            [each.end.job for each, _ in relays],
            [each.shard for each, _ in relays],
            [each.end.serial for each, _ in relays],
            [at for _, at in relays],
        )

    async def relay_done(self, relays: Sequence[Relay], *, keep: bool) -> None:
        self.wrote = True
        await self._db.execute(
            _KEEP if keep else _DROP,
            [each.end.job for each in relays],
            [each.shard for each in relays],
            [each.end.serial for each in relays],
            [each.asked_at for each in relays],
        )

    async def relay_forget(self, jobs: Sequence[int]) -> None:
        self.wrote = True
        await self._db.execute("delete from relays where needed = any ($1::bigint[]) and next_at is null", jobs)

    # Names.

    async def name_load(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reservation]:
        wanted = list(names)
        found = await self._db.fetch(_LOAD_NAMES, [each[0] for each in wanted], [each[1] for each in wanted])
        return {each.key: each for each in map(Reservation._make, found)}

    async def name_save(self, reservations: Sequence[tuple[Reservation, int]]) -> None:
        self.wrote = True
        changed = 0
        fresh = [each for each, old in reservations if not old]
        if fresh:
            changed += _changed(await self._db.execute(_ADD_NAMES, *map(list, zip(*fresh, strict=True))))
        others = [(*each, old) for each, old in reservations if old]
        if others:
            changed += _changed(await self._db.execute(_SAVE_NAMES, *map(list, zip(*others, strict=True))))
        if changed != len(reservations):
            raise RowChanged(f"A write expected to change {len(reservations)} reservations and changed {changed}.")

    async def name_page(self, after: tuple[str, str], limit: int) -> list[Reservation]:
        found = await self._db.fetch(
            f"{_RESERVATION} where (namespace, name) > ($1, $2) order by namespace, name limit $3", *after, limit
        )
        return [Reservation._make(row) for row in found]

    async def name_remove(self, reservations: Sequence[Reservation]) -> None:
        self.wrote = True
        await self._db.execute(
            _REMOVE_NAMES,
            [each.namespace for each in reservations],
            [each.name for each in reservations],
            [each.ticket for each in reservations],
            [each.at for each in reservations],
        )

    async def ticket_hold(self, tickets: Sequence[int]) -> set[int]:
        return {row[0] for row in await self._db.fetch("select hold_tickets($1::bigint[])", tickets)}

    async def ticket_withdraw(self, tickets: Sequence[int]) -> None:
        self.wrote = True
        await self._db.execute("select pg_advisory_xact_lock($1, 0)", LOCK_TICKETS)
        if tickets:
            await self._db.execute(
                "insert into withdrawn select ticket, $2 from unnest($1::bigint[]) as ticket on conflict do nothing",
                tickets,
                self.now_ms,
            )

    async def ticket_trim(self, before_ms: int, limit: int) -> None:
        self.wrote = True
        await self._db.execute(
            "delete from withdrawn where ticket in (select ticket from withdrawn where at < $1 limit $2)", before_ms, limit
        )


def _changed(status: str) -> int:
    """Return the number of rows that a statement changed."""
    return int(status.rpartition(" ")[2])
