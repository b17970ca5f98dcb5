"""The part of a transaction for other shards: relayed ends of jobs, and names that are unique in a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.dependencies import Relay
from penstock.core.errors import RowChanged
from penstock.core.reservations import Reservation
from penstock.store.sqlite import rows
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.dependencies import JobEnd

_ASK = (
    "insert into relays (needed, shard, asked_at, told, spared, serial, state, buries, frees, inherited)"
    " values (?1, ?2, ?3, 0, 0, 0, 0, 0, 0, 0)"
    " on conflict do update set asked_at = excluded.asked_at, next_at = iif(?4, null, next_at)"
)
_END = (
    "update relays set next_at = ?, told = 0, spared = ?, serial = ?, state = ?, buries = ?, frees = ?, inherited = ?,"
    " error = ?, result = ? where needed = ?"
)
_SHARDS = "select distinct shard from relays where next_at <= ?"
_DUE = (
    "select shard, spared, asked_at, told, serial, needed, state, buries, frees, inherited, error, result, 0"
    " from relays where shard = ? and next_at <= ? order by next_at limit ?"
)
_AGAIN = (
    "update relays set next_at = ?, told = told + 1 where needed = ? and shard = ? and serial = ? and next_at is not null"
)
_TOLD = "where needed = ? and shard = ? and serial = ? and asked_at = ?"
_KEEP = f"update relays set next_at = null, error = null, result = null {_TOLD}"  # noqa: S608
_DROP = f"delete from relays {_TOLD}"  # noqa: S608
_RESERVATION = "select namespace, name, shard, ticket, at from reservations"


class SqliteSharding(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    # Relays.

    async def relay_ask(self, jobs: Sequence[int], shard: int, *, alive: bool) -> None:
        self._begin()
        self._db.executemany(_ASK, [(job_id, shard, self.now_ms, alive) for job_id in jobs])

    async def relay_asked(self, jobs: Sequence[int], shard: int) -> dict[int, int | None]:
        self._begin()
        found = self._db.executemany(
            "select needed, iif(next_at is null, null, told) from relays where needed = ? and shard = ?",
            [(job_id, shard) for job_id in jobs],
        )
        return dict(found)

    async def relay_end(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        self._begin()
        self._db.executemany(
            _END,
            [
                (self.now_ms, spared, e.serial, e.state, e.buries, e.frees, e.inherited, e.error, e.result, e.job)
                for e, spared in ends
            ],
        )

    async def relay_shards(self) -> set[int]:
        self._begin()
        return {shard for (shard,) in self._db.execute(_SHARDS, (self.now_ms,))}

    async def relay_due(self, shard: int, limit: int) -> list[Relay]:
        self._begin()
        found: list[Relay] = []
        size = 0
        for to, spared, asked_at, deliveries, *end in self._db.execute(_DUE, (shard, self.now_ms, limit)):
            found.append(Relay(to, rows.read_end(tuple(end)), spared, asked_at, deliveries))
            size += found[-1].end.weight
            if size >= limits.flow_bytes_batch_max:
                break
        return found

    async def relay_again(self, relays: Sequence[tuple[Relay, int]]) -> None:
        self._begin()
        self._db.executemany(_AGAIN, [(at, each.end.job, each.shard, each.end.serial) for each, at in relays])

    async def relay_done(self, relays: Sequence[Relay], *, keep: bool) -> None:
        self._begin()
        keys = [(each.end.job, each.shard, each.end.serial, each.asked_at) for each in relays]
        self._db.executemany(_KEEP if keep else _DROP, keys)

    async def relay_forget(self, jobs: Sequence[int]) -> None:
        self._begin()
        self._db.executemany("delete from relays where needed = ? and next_at is null", [(job_id,) for job_id in jobs])

    # Names.

    async def name_load(self, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Reservation]:
        self._begin()
        found = self._db.executemany(f"{_RESERVATION} where namespace = ? and name = ?", list(names))
        return {each.key: each for each in map(Reservation._make, found)}

    async def name_save(self, reservations: Sequence[tuple[Reservation, int]]) -> None:
        self._begin()
        before = self._db.total_changes()
        self._db.executemany(
            "insert into reservations values (?, ?, ?, ?, ?) on conflict do nothing",
            [each for each, old in reservations if not old],
        )
        self._db.executemany(
            "update reservations set shard = ?, ticket = ?, at = ? where namespace = ? and name = ? and ticket = ?",
            [(each.shard, each.ticket, each.at, *each.key, old) for each, old in reservations if old],
        )
        changed = self._db.total_changes() - before
        if changed != len(reservations):
            raise RowChanged(f"A write expected to change {len(reservations)} reservations and changed {changed}.")

    async def name_page(self, after: tuple[str, str], limit: int) -> list[Reservation]:
        self._begin()
        found = self._db.execute(
            f"{_RESERVATION} where (namespace, name) > (?, ?) order by namespace, name limit ?", (*after, limit)
        )
        return [Reservation._make(row) for row in found]

    async def name_remove(self, reservations: Sequence[Reservation]) -> None:
        self._begin()
        self._db.executemany(
            "delete from reservations where namespace = ? and name = ? and ticket = ? and at = ?",
            [(*each.key, each.ticket, each.at) for each in reservations],
        )

    async def ticket_hold(self, tickets: Sequence[int]) -> set[int]:
        self._begin()
        found = self._db.executemany("select ticket from withdrawn where ticket = ?", [(ticket,) for ticket in tickets])
        return {ticket for (ticket,) in found}

    async def ticket_withdraw(self, tickets: Sequence[int]) -> None:
        self._begin()
        self._db.executemany(
            "insert into withdrawn values (?, ?) on conflict do nothing", [(ticket, self.now_ms) for ticket in tickets]
        )

    async def ticket_trim(self, before_ms: int, limit: int) -> None:
        self._begin()
        self._db.execute(
            "delete from withdrawn where ticket in (select ticket from withdrawn where at < ? limit ?)", (before_ms, limit)
        )
