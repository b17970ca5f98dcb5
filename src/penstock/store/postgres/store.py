"""The PostgreSQL store: a shard in a database that operators already run, shared by any number of servers.

A server has three connections that write the batches of its batcher, so that the database works while the server does; one
that follows the journal; one that renews the server's entry, and checks the database; one that
counts for quotas, if there are any; and a few
that read. The data in the database is authoritative: the data in memory is a copy that is checked (queues), or a hint where to
search (counts, horizon, heads).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import structlog
from asyncpg import Connection, Pool

from penstock.core.clock import pause
from penstock.core.errors import OutcomeUnknown, RowChanged, ServerError, StorageFailed, StorageFull, TooMany
from penstock.core.history import UNKNOWN
from penstock.core.ids import NODES_MAX, random_name
from penstock.core.sharding import ALONE, Layout
from penstock.store.contract import Capabilities, Horizon, StoreStatus
from penstock.store.postgres import api_keys, history, migrate
from penstock.store.postgres.catalog import LAYOUT, PostgresCatalog
from penstock.store.postgres.clock import STEP_MS, UNSEEN_MS, Reading, ShardClock
from penstock.store.postgres.connect import ANSWER_MS, answered, connect
from penstock.store.postgres.errors import as_lost, is_lost, reason_of, translate
from penstock.store.postgres.follower import PostgresFollower
from penstock.store.postgres.queue_heads import QueueHeads
from penstock.store.postgres.quotas import QuotaCounter
from penstock.store.postgres.store_reads import PostgresStoreReads
from penstock.store.postgres.transaction import Finished, PostgresTransaction
from penstock.store.postgres.transaction_slots import TransactionSlots
from penstock.store.read_turns import OWN, ReadTurns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from penstock.core.apikey import ApiKey
    from penstock.core.clock import Clock
    from penstock.store import contract
    from penstock.store.contract import (
        QuotaCount,
        Store,
    )

log = structlog.get_logger("penstock.store")

READERS: Final = 4
#: Transactions that may be open at the same time.
LANES: Final = 3
#: How long a server owns its number without renewing it.
NODE_LEASE_MS: Final = 60_000
#: How long to try to find out whether a commit with a lost answer happened, and the pause between two tries.
DOUBT_MS: Final = 10_000
DOUBT_PAUSE_MS: Final = 100
#: Servers that start at the same time may choose the same number; maximum number of tries to get another one.
NODE_TRIES: Final = 10
#: Servers that start at the same time may correct it together.
CLOCK_TRIES: Final = 10
#: The pause after a query of due times, as a multiple of its duration.
EXTEND_HORIZON_REST: Final = 50


_NO_ROOM: Final = "the database has no room left"
_NO_ROOM_AT_ALL: Final = "the database has no room left, not even for pulls and acknowledgements"
_REFUSE_JOBS: Final = (
    "The database has no room left: new jobs are refused until space is freed there. Pulls and acknowledgements are tried, but "
    "there is no reserve for them. Nothing was stored."
)
_REFUSE_ALL: Final = (
    "The database has no room left, and no reserve for pulls and acknowledgements: they fail, too, until space is freed there. "
    "Nothing was stored."
)
#: Checks whether the database can enlarge files: allocates a mebibyte and releases it.
_PROBE: Final = "begin; create unlogged table room_probe as select generate_series(1, 30000) as number; rollback"


class PostgresStore(PostgresStoreReads):
    """The methods are documented in ``contract.Store``. Open it with ``open``."""

    capabilities = Capabilities(name="postgres", commit_is_durable=True, is_shared=True, lanes=LANES)

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        layout: Layout = ALONE,
        database_clock: bool = True,
        answer_ms: int = ANSWER_MS,
    ) -> None:
        self._url = url
        self._answer_ms = answer_ms
        self._layout = layout
        self.shard = layout.shard
        self.clock = ShardClock(clock, follow=database_clock)
        self.clock.when_set = self._correct_clock
        self._correcting: asyncio.Task[None] | None = None
        self.server = random_name()  #: distinguishes this server's commits from those of others
        self.node = 0
        self.servers = 1
        self.catalog = PostgresCatalog()
        self.when_moved: list[Callable[[], None]] = []
        self._new_layout: Layout | None = ALONE if layout == ALONE else None  #: written into a new database
        self.follower = PostgresFollower(self)
        self.fronts = QueueHeads()
        self.listed: set[int] = set()  #: queues that had a ready list when the last transaction began
        self.journal_next = 1
        self.journal_bytes = 0
        self.id_floor = 0
        self.history = UNKNOWN
        self._status = StoreStatus()
        self._size_bytes = 0
        self._extend_horizon_at = 0.0
        self._writers: list[Connection] = []
        self._idle: list[Connection] = []  #: writers without a transaction
        self._listener: Connection | None = None
        self._pulse: Connection | None = None
        self._readers: Pool | None = None
        self.read_turns = ReadTurns(READERS, self.clock, lambda: self.pool_shares)
        self._quotas = QuotaCounter(url, self.clock, answer_ms)
        self._turns = TransactionSlots(LANES)
        self._asking = asyncio.Lock()  #: the pulse connection has several callers, and answers one query at a time

    @classmethod
    async def open(
        cls,
        url: str,
        clock: Clock,
        *,
        layout: Layout = ALONE,
        database_clock: bool = True,
        answer_ms: int = ANSWER_MS,
        may_be_down: bool = False,
    ) -> PostgresStore:
        """Open a shard, and create its tables if there are none.

        ``layout``: its number, and the number of shards. ``database_clock``: use the database's clock, or the given one.
        ``answer_ms``: the database counts as lost if it answers nothing for this long; default 5 s.
        ``may_be_down``: a database that cannot be reached is no error; it is available once ``recover`` reaches it.
        Raises StoreIncompatible, ConfigInvalid, StorageFailed.
        """
        store = cls(url, clock, layout=layout, database_clock=database_clock, answer_ms=answer_ms)
        try:
            await store._connect_all()
        except StorageFailed as error:
            await store._disconnect_all()
            if not may_be_down:
                raise
            store.lost(error)
        except BaseException:
            await store._disconnect_all()
            raise
        return store

    @property
    def source(self) -> str:
        return self._url

    @property
    def identity(self) -> str:
        """Identifies this shard; it never changes. Empty until the shard is reached for the first time."""
        return self.history.identity

    async def _connect_all(self) -> None:
        first = await self._watched(writer=True)
        self._writers = [first]
        await migrate.check(first)
        await self._write_layout(first)
        if not self.clock.is_known:
            await self._resume_clock(first)
        while len(self._writers) < LANES:
            self._writers.append(await self._watched(writer=True))
        self._idle = list(self._writers)
        self._pulse = await self._watched(quick=True)
        self._listener = await self._watched()
        await self.follower.listen(self._listener)  # before the read, so that no commit is missed in between
        self._readers = await asyncpg.create_pool(
            self._url, min_size=0, max_size=READERS, connect=lambda *_, **__: connect(self._url)
        )
        self.catalog = PostgresCatalog()
        self.catalog.check, self.catalog.moved = self._layout.check, self.moved
        async with self._listener.transaction(isolation="repeatable_read", readonly=True):
            await self.catalog.load(self._listener)
            self.history = await history.read(self._listener)
            block, seq, count, total = await self._listener.fetchrow(_LAST_BLOCK) or (0, 1, 0, 0)
            mark = await self._listener.fetchval(_ID_FLOOR)
        self.journal_next, self.journal_bytes = seq + count, total
        self.id_floor = max(self.id_floor, mark)
        missed = await self.follower.missed(self._listener, block)
        self.follower.start(self._listener, block)
        await self.keep_node()
        self.follower.publish(missed, set(), webhooks=bool(missed))

    async def layout_begin(self, layout: Layout) -> None:
        self._new_layout = layout
        async with self._turns.alone():
            if self._writers and self.catalog.layout is None:
                await self._write_layout(self._writers[0])
                await self.catalog.refresh(self._writers[0])

    async def layout_refresh(self) -> None:
        async with self._turns.alone():
            if self._writers:
                await self.catalog.refresh(self._writers[0])

    async def _resume_clock(self, db: Connection) -> None:
        """Start the clock. While no server was running, a change of the database's clock was not detected."""
        for _ in range(CLOCK_TRIES):
            asked_ms = self.clock.local_ms()
            now_ms, shift, term, mark = await db.fetchrow(_READ_CLOCK)
            count = now_ms + shift
            if not mark or mark - STEP_MS <= count <= mark + UNSEEN_MS or self.clock.counted_ms is None:
                self.clock.record_reading(Reading(now_ms, shift, term), asked_ms)
                return
            log.info("no server was running for some time: for leases, that time does not count", ms=count - mark)
            await db.execute(_CORRECT_CLOCK, mark - now_ms, term)
        raise StorageFailed

    def _correct_clock(self, shift: int, term: int) -> None:
        """Correct the shift for all servers, because the database's clock was set."""
        if self._correcting is None:
            log.warning("the clock of the database was set; leases do not use it", shift_ms=shift, shard=self.shard)
            self._correcting = asyncio.get_running_loop().create_task(self._correct(shift, term), name="penstock-clock")

    async def _correct(self, shift: int, term: int) -> None:
        try:
            with contextlib.suppress(ServerError):  # until it succeeds, every transaction tries it
                await self._ask(lambda db: db.execute(_CORRECT_CLOCK, shift, term))
        finally:
            self._correcting = None

    async def _write_layout(self, db: Connection) -> None:
        if self._new_layout is not None:
            await db.execute(_BEGIN_LAYOUT, *self._new_layout)
        found = await db.fetchrow(LAYOUT)
        if found is not None:
            self._layout.check(Layout(*found))

    async def stores_known(self) -> list[int]:
        found = await self._ask(lambda db: db.fetch(_STORES_KNOWN, self.clock.counted_ms))
        return [row[0] for row in found]

    async def _watched(self, *, writer: bool = False, quick: bool = False) -> Connection:
        """Open a connection whose end is detected at once, even while it is idle."""
        db = await connect(self._url, writer=writer, quick=quick, answer_ms=self._answer_ms)

        def ended(db: Any) -> None:
            if db in (*self._writers, self._listener, self._pulse):
                self.lost(StorageFailed("a connection was closed"))

        db.add_termination_listener(ended)
        return db

    async def _disconnect_all(self) -> None:
        await self.follower.stop()
        connections, readers = (*self._writers, self._listener, self._pulse), self._readers
        self._writers, self._idle = [], []
        self._listener = self._pulse = self._readers = None
        for connection in connections:
            if connection is not None:
                connection.terminate()
        if readers is not None:
            readers.terminate()
        self._quotas.disconnect()

    async def close(self) -> None:
        """Close the shard; committed data is durable already."""
        async with self._turns.alone():
            if self._idle:
                with contextlib.suppress(Exception):
                    await self._idle[0].execute("delete from nodes where server = $1", self.server)
            await self._disconnect_all()

    async def keep_node(self) -> None:
        """Acquire a number for this server's ids, or renew it. Raises TooMany."""
        known = self._layout.shards
        for _ in range(NODE_TRIES):
            taken = await self._ask(lambda db: self._take_node(db, known))
            if taken is not None:
                break
        else:
            raise TooMany(f"There are already {NODES_MAX} servers on this shard. Stop some of them.")
        self.node, self.servers, size = taken
        self._size_bytes = size or 0
        self.follower.catch_up()  # in case a notification was lost
        await self._extend_horizon()

    async def _take_node(self, db: Connection, known: int) -> Any:
        if self.clock.counted_ms is not None and self.clock.is_known:
            # An idle server would miss corrections, and could not distinguish them from a clock that was set since.
            asked_ms = self.clock.local_ms()
            self.clock.record_reading(Reading(*await db.fetchrow(_READ_CLOCK_SHIFT)), asked_ms)
        counted = self.clock.counted_ms
        if counted is not None:
            await db.execute("update lease_mark set counted = $1 where counted < $1", counted)
        return await db.fetchrow(_TAKE_NODE, self.server, NODE_LEASE_MS, NODES_MAX, known, counted)

    async def _extend_horizon(self) -> None:
        """Read due times that are earlier than the known ones: a server may have stopped before it handled them.

        Dead rows that cannot be vacuumed make this slow, see queue_heads.py; then it is done less often.
        """
        began = self.clock.stopwatch()
        if began >= self._extend_horizon_at:
            await self._ask(self._extend_horizon_now)
            ended = self.clock.stopwatch()
            self._extend_horizon_at = ended + (ended - began) * EXTEND_HORIZON_REST

    async def _extend_horizon_now(self, db: Connection) -> None:
        with contextlib.suppress(asyncpg.QueryCanceledError):  # it took too long
            await self.catalog.extend_horizon(db)

    async def _ask(self, ask: Callable[[Connection], Coroutine[Any, Any, Any]]) -> Any:
        """Run a query that is answered at once. If it is not, the database counts as lost, and waiting callers fail."""
        async with self._asking:
            if self._pulse is None:
                raise StorageFailed
            try:
                return await answered(ask(self._pulse), self._answer_ms)
            except Exception as error:
                if is_lost(error):
                    self.lost(StorageFailed("it does not answer") if isinstance(error, TimeoutError) else error)
                ours = translate(error)
                if ours is None:
                    raise
                raise ours from error

    async def refresh(self, db: Connection) -> None:
        """Read the changes of queues, while no transaction of this server changes them."""
        async with self._turns.alone():
            await self.catalog.refresh(db)

    async def lead(self, name: str, for_ms: int) -> int | None:
        counted = self.clock.counted_ms
        term: int | None = await self._ask(lambda db: db.fetchval(_LEAD, name, self.server, for_ms, counted))
        return term

    async def quota_take(self, takes: Sequence[QuotaCount]) -> list[int]:
        self.check_writable(grows=False)  # fail at once instead of waiting for a connection that cannot be opened
        return await self._quotas.take(takes)

    async def key_add(self, key: ApiKey, most: int) -> None:
        self.check_writable(grows=True)
        await self._change_keys(lambda db: api_keys.add(db, key, most))

    async def key_revoke(self, key_id: str) -> bool:
        self.check_writable(grows=False)
        known: bool = await self._change_keys(lambda db: api_keys.revoke(db, key_id, self.clock.now_ms()))
        return known

    async def _change_keys(self, change: Callable[[Connection], Awaitable[Any]]) -> Any:
        """Change keys, on a separate connection: it may have to wait for another server."""
        db = await connect(self._url)
        try:
            return await change(db)
        except Exception as error:
            ours = translate(as_lost(db, error))
            if isinstance(ours, StorageFailed):
                raise OutcomeUnknown(
                    "The database was lost meanwhile: it may or may not have happened. Look, and retry."
                ) from error
            if ours is None:
                raise
            raise ours from error
        finally:
            db.terminate()

    async def key_list(self) -> tuple[int, list[ApiKey]]:
        return await self._read(OWN, api_keys.read)  # type: ignore[no-any-return]

    async def key_revision(self) -> int:
        revision: int = await self._ask(lambda db: db.fetchval(api_keys.REVISION))
        return revision

    # Transactions and durability.

    @property
    def horizon(self) -> Horizon:
        return self.catalog.horizon

    def transaction(self, id_mark: Callable[[], int], *, alone: bool = True) -> PostgresTransaction:
        return PostgresTransaction(self, id_mark, alone=alone)

    async def begin(self, *, alone: bool) -> Connection:
        """Return a connection for writing. ``alone``: no other transaction is open until ``end`` or ``roll_back``."""
        self.check_writable(grows=False)  # fail at once instead of waiting until the database is reached
        await self._turns.take(alone=alone)
        if not self._idle or self._idle[-1].is_closed():
            self._turns.release()
            if self._idle:
                self.lost(StorageFailed("a connection was closed"))
            self.check_writable(grows=False)
            raise StorageFailed
        return self._idle.pop()

    def stay_alone(self) -> None:
        """Block new transactions until the current one ends. Raises RowChanged if others are already open."""
        if not self._turns.stay_alone():
            raise RowChanged("Another transaction of this server is open.")

    def end(self, db: Connection) -> None:
        """Return a connection to the store."""
        if db in self._writers:  # otherwise there are new connections meanwhile
            self._idle.append(db)
        self._turns.release()

    async def roll_back(self, db: Connection, error: BaseException) -> None:
        """Return the connection after a failure, ready for the next transaction."""
        try:
            if isinstance(error, asyncio.CancelledError) or is_lost(error):
                self.lost(error)
            else:
                await db.execute("rollback")
                await self.catalog.read_horizon(db)
        except Exception as failure:  # noqa: BLE001 - then the connection is of no use any more
            self.lost(failure)
        finally:
            self.end(db)

    async def was_committed(self, finished: Finished, error: BaseException) -> bool | None:
        """Find out, over a new connection, whether a commit with a lost answer happened; None if that fails, too."""
        if not is_lost(error):
            return False
        self.lost(error)
        give_up_at = self.clock.steady_ms() + DOUBT_MS
        while self.clock.steady_ms() < give_up_at:
            known = await self._is_there(finished)
            if known is not None:
                return known
            await pause(self.clock, DOUBT_PAUSE_MS)
        return None

    async def _is_there(self, finished: Finished) -> bool | None:
        """Return whether a finished transaction has left its block in the journal; None if it is not finished yet.

        The database's status "committed" of its number is not enough: a number that was lost in a crash is used again. The
        number of the block is not enough, either: if it was not committed, another transaction of this server may have that
        number.
        """
        try:
            db = await connect(self._url)
        except ServerError:
            return None
        try:
            try:
                status = await db.fetchval("select pg_xact_status($1::text::xid8)", finished.xid)
                if status in ("in progress", "aborted"):
                    return None if status == "in progress" else False
            except asyncpg.InvalidParameterValueError:  # not used yet: it was lost in a crash
                return False
            there: bool = await db.fetchval(
                "select exists (select from journal where block = $1 and server = $2 and body = $3)",
                finished.number, self.server, finished.body,
            )  # fmt: skip
            return there
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            return None
        finally:
            db.terminate()

    def follow(self, listener: contract.Follower) -> None:
        self.follower.listeners.append(listener)

    async def sync(self) -> None:
        """Nothing to do: a commit is durable."""

    # Failures.

    def failed(self, error: BaseException, *, unknown: bool = False) -> BaseException:
        """Convert an error of the database to a ServerError; other errors stay the same."""
        ours = translate(error)
        if ours is None:
            return error
        if isinstance(ours, StorageFull):
            return self._no_room()
        if isinstance(ours, StorageFailed) and unknown:
            return OutcomeUnknown("The database was lost while this was being committed: it may or may not have happened.")
        return ours

    def lost(self, error: BaseException) -> None:
        """Record that a connection is lost: nothing is written until ``recover`` has made new ones."""
        if self._status.error is None and not isinstance(error, ServerError):
            log.info("a connection to the database was lost", error=str(error) or type(error).__name__, shard=self.shard)
        self._trouble(f"the database cannot be reached: {reason_of(error)}", full=False)
        for writer in self._writers:
            writer.terminate()  # its callers have waited long enough

    def _no_room(self) -> StorageFull:
        """Record that a write found no disk space: for a new job or, if new jobs are already refused, for any write."""
        if self._status.full:
            self._status.writable = False
            self._status.error, self._status.refusal = _NO_ROOM_AT_ALL, _REFUSE_ALL
            return StorageFull(_REFUSE_ALL)
        self._trouble(_NO_ROOM, full=True)
        self._status.refusal = _REFUSE_JOBS
        return StorageFull(_REFUSE_JOBS)

    def worked(self) -> None:
        """Record a commit: if the database is full, the commit used free space in existing pages."""
        if self._status.full and not self._status.writable:
            self._status.writable = True
            self._status.error, self._status.refusal = _NO_ROOM, _REFUSE_JOBS

    def _trouble(self, reason: str, *, full: bool) -> None:
        if self._status.error is None or (self._status.full and not full):
            log.error("storage failed: writes are refused until it works again", reason=reason, shard=self.shard)
            self._status = StoreStatus(writable=full, full=full, error=reason, since_ms=self.clock.now_ms())

    async def recover(self) -> bool:
        if self._status.error is None:
            return True
        async with self._turns.alone():
            try:
                if self._status.full:
                    await self._writers[0].execute(_PROBE)
                    await self.keep_node()
                else:
                    await self._disconnect_all()
                    await self._connect_all()
                self._status = StoreStatus()
                log.info("storage works again", shard=self.shard)
            except asyncpg.DiskFullError:
                await self._writers[0].execute("rollback")
            except (ServerError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                log.warning("storage still fails", error=str(error), shard=self.shard)
        return self._status.error is None

    def status(self) -> StoreStatus:
        return self._status

    def size_bytes(self) -> int:
        return self._size_bytes

    def down(self) -> list[str]:
        return [] if self._status.writable or self._status.full else [self._status.error or "unknown"]

    @property
    def journals(self) -> Sequence[Store]:
        return (self,)


_BEGIN_LAYOUT = (
    "with made as (insert into layout (shard, shards, epoch, target) values ($1, $2, $3, $4) on conflict do nothing"
    " returning 1) update catalog set version = version + (select count(*) from made)"
)
_LAST_BLOCK = "select block, seq, count, total from journal order by block desc limit 1"
_ID_FLOOR = """
select greatest(coalesce((select max(id_mark) from (select id_mark from journal order by block desc limit 1000) as recent), 0),
                coalesce((select max(id) from jobs), 0))
"""
# The leader keeps its role by renewing it in time; a new leader begins a new term.
_LEAD = """
insert into leases as l (name, holder, term, until) values ($1, $2, 1, coalesce($4, clock_ms()) + $3)
on conflict (name) do update set holder = $2, until = excluded.until, term = l.term + (l.holder <> $2)::int
where l.holder = $2 or l.until < excluded.until - $3
returning term
"""
_STORES_KNOWN = "select stores from nodes where until > coalesce($1, clock_ms())"
_READ_CLOCK_SHIFT = "select clock_ms(), clock_shift, clock_term from catalog"
_READ_CLOCK = "select clock_ms(), clock_shift, clock_term, counted from catalog, lease_mark"
_CORRECT_CLOCK = "update catalog set clock_shift = $1, clock_term = clock_term + 1 where clock_term = $2"
# The number of a server that has not renewed it for long is free again.
_TAKE_NODE = """
insert into nodes as o (node, server, until, stores)
select f.node, $1, f.at + $2, $4 from (
  select t.at, coalesce((select node from nodes where server = $1),
                        (select min(n) from generate_series(0, $3 - 1) as n
                         where not exists (select from nodes where node = n and until > t.at))) as node
  from (select coalesce($5, clock_ms()) as at) as t) as f
where f.node is not null
on conflict (node) do update set server = excluded.server, until = excluded.until, stores = excluded.stores
where o.server = excluded.server or o.until <= excluded.until - $2
returning node,
          (select count(*) from nodes where until > coalesce($5, clock_ms()) and server <> $1) + 1,
          (select sum(pg_total_relation_size(c.oid))::bigint from pg_class c
           where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'r')
"""
