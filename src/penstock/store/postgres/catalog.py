"""The catalog of a PostgreSQL shard, as one of its servers has it.

Queues, their settings and webhooks are as new as the transaction that reads them: each one compares the catalog's version
first. Counts follow the journal and are slightly behind the commits of other servers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.lifecycle import STORED_STATES
from penstock.core.queue import Move, MoveStep, Queue, QueueKey, QueueSettings
from penstock.core.sharding import Layout
from penstock.store import catalog
from penstock.store.catalog import empty_tally
from penstock.store.contract import Horizon
from penstock.store.postgres import webhooks
from penstock.store.postgres.commit_notice import CommitNotice, bring_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncpg import Connection

    from penstock.core.webhook import WebhookRecord

#: Counting all jobs, at the start of a server, may take this long.
COUNT_S: Final = 600.0

_decode_settings = msgspec.msgpack.Decoder(QueueSettings).decode
encode_settings = msgspec.msgpack.Encoder().encode


class PostgresCatalog(catalog.Catalog):
    """Filled by ``load``, updated by this server's commits and, from the journal, by those of others."""

    def __init__(self) -> None:
        super().__init__()
        self.version = -1
        self.check: Callable[[Layout], None] = lambda _: None  #: raises StoreIncompatible
        self.moved: Callable[[], None] = lambda: None
        self.webhooks: dict[int, WebhookRecord] = {}
        self._tracked: dict[int, Horizon] = {}  #: queries of due times in progress, with the times committed meanwhile

    async def load(self, db: Connection) -> None:
        """Read everything. Call it in a transaction that sees one state of the database throughout."""
        await self.refresh(db)
        self.crons = await db.fetchval("select count(*) from crons")
        self.total = empty_tally()
        for number in self.tallies:
            self.tallies[number] = empty_tally()
        for number, state, count in await db.fetch(_COUNT, timeout=COUNT_S):
            if number in self.tallies and state in STORED_STATES:
                self.tallies[number][state] = count
                self.total[state] += count
        await self.read_horizon(db)

    async def refresh(self, db: Connection) -> None:
        """Read the changes of queues since the last call, and all webhooks, of which there are few."""
        version = await db.fetchval("select version from catalog")
        moved = False
        for number, namespace, key, created_at, settings, removed, *way in await db.fetch(_CHANGED, self.version):
            known = self.by_number.get(number)
            move = Move(MoveStep(way[0]), *way[1:])
            moved = moved or move != (Move() if known is None else known.move)
            if removed:
                if known is not None:
                    self.remove(known)
            elif known is not None:
                self.configure(known, _decode_settings(settings), created_at)
                self.set_move(known, move)
            else:
                self.namespaces[key[0]] = namespace
                self.add(Queue(number, namespace, QueueKey(*key), created_at, _decode_settings(settings), move))
        self.webhooks = {each.id: each for each in await webhooks.read(db)}
        layout = await db.fetchrow(LAYOUT)
        before, self.layout = self.layout, None if layout is None else Layout(*layout)
        if self.layout is not None:
            self.check(self.layout)
        self.version = version
        if moved or self.layout != before:
            self.moved()

    async def read_horizon(self, db: Connection) -> None:
        """Read the next due times from the database."""
        with self.track_commits() as meanwhile:
            *moments, unfollowed = await db.fetchrow(_NEXT_MOMENTS)
        bring_forward(meanwhile, CommitNotice(horizon=tuple(moments), unfollowed=unfollowed))
        for name in Horizon.__struct_fields__:  # other objects refer to it
            setattr(self.horizon, name, getattr(meanwhile, name))

    @contextmanager
    def track_commits(self) -> Iterator[Horizon]:
        """Record the commits of others during a query of due times: its answer may not include them."""
        meanwhile = Horizon()
        self._tracked[id(meanwhile)] = meanwhile
        try:
            yield meanwhile
        finally:
            del self._tracked[id(meanwhile)]

    async def extend_horizon(self, db: Connection) -> None:
        """Read due times that are earlier than the known ones, and keep the known ones."""
        *moments, unfollowed = await db.fetchrow(_NEXT_MOMENTS)
        bring_forward(self.horizon, CommitNotice(horizon=tuple(moments), unfollowed=unfollowed))

    def apply_notice(self, notice: CommitNotice) -> None:
        """Apply a commit of another server."""
        self.apply(notice.tallies)
        self.crons += notice.crons
        self._bring_forward(notice)

    def bring_forward(self, due: Horizon) -> None:
        """Apply a due time of this server's commit, also if a query of due times is in progress."""
        moments = due.due_ms, due.job_expiry_ms, due.lease_expiry_ms, due.cron_ms
        self._bring_forward(CommitNotice(horizon=moments, unfollowed=due.unfollowed))

    def _bring_forward(self, notice: CommitNotice) -> None:
        bring_forward(self.horizon, notice)
        for meanwhile in self._tracked.values():
            bring_forward(meanwhile, notice)


_CHANGED = (
    "select q.number, q.namespace, array[n.name, q.name], q.created_at, q.settings, q.removed,"
    " q.standing, q.peer, q.attempt"
    " from queues q join namespaces n on n.number = q.namespace where q.version > $1"
)
LAYOUT: Final = "select shard, shards, epoch, target from layout"
_COUNT = "select queue, state, count(*) from jobs group by queue, state"
_NEXT_MOMENTS = """
select (select min(run_at)      from jobs where state = 1),
       (select min(expires_at)  from jobs where expires_at is not null and state in (0, 1, 5)),
       (select min(lease_until) from jobs where state = 2),
       (select min(next_run)    from crons),
       exists (select from ends)
"""
