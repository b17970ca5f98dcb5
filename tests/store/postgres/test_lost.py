"""What a server does when it has lost the database for a moment, or another server has got in its way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import OutcomeUnknown, StorageFailed, TooMany
from penstock.core.ids import NODES_MAX
from penstock.core.webhook import DeliveryProgress
from penstock.engine.maintenance.store_recovery import StoreRecovery
from penstock.engine.queues.webhooks import AddWebhook, NoteDeliveries, RemoveWebhook
from penstock.store.contract import JournalBlock
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.transaction import Finished
from tests.store.postgres.conftest import engine_on
from tests.support.engines import ack, claim_all, push, push_many

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.engine.engine import Engine

pytestmark = pytest.mark.anyio

_PIDS = "select pid from pg_stat_activity where datname = current_database() and application_name = 'penstock'"
_CUT_AT_COMMIT = """
create function public.cut() returns trigger language plpgsql as
$$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
create constraint trigger cut after insert on journal deferrable initially deferred for each row execute function public.cut();
"""


@pytest.fixture
async def operator(shard: str) -> AsyncIterator[asyncpg.Connection]:
    db = await asyncpg.connect(shard, server_settings={"search_path": "penstock"})
    yield db
    await db.close()


class Cuttable:
    """An engine whose connections can be cut."""

    def __init__(self, engine: Engine, operator: asyncpg.Connection, pids: list[int]) -> None:
        self.engine = engine
        self._operator = operator
        self._pids = pids

    async def cut(self) -> None:
        """Cut them, and wait until the server has noticed."""
        await self._operator.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as u (pid)", self._pids)
        await until_lost(self.engine)

    async def recover(self) -> None:
        await StoreRecovery(self.engine).run_once()
        assert self.engine.store.status().error is None


async def until_lost(engine: Engine) -> None:
    async with asyncio.timeout(60):
        while engine.store.status().error is None:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def cuttable(shard: str, operator: asyncpg.Connection) -> AsyncIterator[Cuttable]:
    before = {row[0] for row in await operator.fetch(_PIDS)}
    async with engine_on(shard) as engine:
        yield Cuttable(engine, operator, [row[0] for row in await operator.fetch(_PIDS) if row[0] not in before])


@pytest.fixture(autouse=True)
def recovered_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreRecovery, "every_ms", 3_600_000)


async def test_an_idle_server_notices_that_its_connections_are_gone(shard: str, operator: asyncpg.Connection) -> None:
    async with cuttable(shard, operator) as one:
        await one.cut()
        with pytest.raises(StorageFailed, match="cannot be reached"):
            await push(one.engine)
        await one.recover()
        await push(one.engine)


async def test_what_may_have_happened_is_not_done_again(
    shard: str, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_knows(store: PostgresStore, _finished: Finished, error: BaseException) -> None:
        store.lost(error)
        await recover_now(store)

    async def recover_now(store: PostgresStore) -> None:
        await operator.execute("drop trigger cut on journal")
        recovering.append(asyncio.create_task(store.recover()))

    recovering: list[asyncio.Task[bool]] = []
    monkeypatch.setattr(PostgresStore, "was_committed", nobody_knows)
    async with engine_on(shard) as engine:
        await operator.execute(_CUT_AT_COMMIT)
        outcomes = await asyncio.gather(*(push(engine) for _ in range(3)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
        assert await recovering[0]
        assert await operator.fetchval("select count(*) from jobs") == 0


@pytest.mark.parametrize("count", [1, 500])
async def test_what_did_not_happen_is_told_so(shard: str, operator: asyncpg.Connection, count: int) -> None:
    async with engine_on(shard) as engine:
        await operator.execute(_CUT_AT_COMMIT)
        with pytest.raises(StorageFailed):
            await push_many(engine, count)
        await operator.execute("drop trigger cut on journal")
        assert await operator.fetchval("select count(*) from jobs") == 0


async def test_a_commit_is_found_by_its_block_not_by_its_number(shard: str, operator: asyncpg.Connection) -> None:
    lost = asyncpg.ConnectionDoesNotExistError("cut")
    async with engine_on(shard) as engine:
        await push(engine)
        store = engine.store
        assert isinstance(store, PostgresStore)
        block = JournalBlock(1, 0, [], {})
        mine, body = await operator.fetchrow(
            "select block, body from journal where server = $1 order by block desc limit 1", store.server
        )
        committed = await operator.fetchval("select pg_current_xact_id()::text")
        assert await store.was_committed(Finished(mine, committed, block, body), lost) is True
        # A crash has lost the transaction, and its number was given to another one, or not given again yet.
        assert await store.was_committed(Finished(mine + 1, committed, block, body), lost) is False
        assert await store.was_committed(Finished(mine + 1, str(int(committed) + 10_000), block, body), lost) is False
        # It was not committed, and another one of the same server has got the number of its block.
        assert await store.was_committed(Finished(mine, committed, block, b"another"), lost) is False
        await operator.execute("begin")
        aborted = await operator.fetchval("select pg_current_xact_id()::text")
        await operator.execute("rollback")
        assert await store.was_committed(Finished(mine, aborted, block, body), lost) is False


async def test_servers_that_start_at_once_have_numbers_of_their_own(shard: str) -> None:
    stores = [await PostgresStore.open(shard, SystemClock()) for _ in range(8)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(store.close() for store in stores))  # their numbers are free again
        stores = await asyncio.gather(*(PostgresStore.open(shard, SystemClock()) for _ in stores))
        await asyncio.gather(*(store.keep_node() for store in stores))
    assert len({store.node for store in stores}) == len(stores)
    await asyncio.gather(*(store.close() for store in stores))


async def test_servers_that_start_at_once_on_an_empty_database_all_start(shard: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(shard, SystemClock()) for _ in range(6)))
    await asyncio.gather(*(store.close() for store in stores))


async def test_one_server_too_many_is_told_so(shard: str, operator: asyncpg.Connection) -> None:
    store = await PostgresStore.open(shard, SystemClock())
    await operator.execute("delete from nodes")
    await operator.execute(
        "insert into nodes select n, -n - 1, clock_ms() + 60000 from generate_series(0, $1 - 1) as n", NODES_MAX
    )
    with pytest.raises(TooMany, match="Stop some"):
        await store.keep_node()
    await store.close()


async def test_a_webhook_removed_at_one_server_is_not_brought_back_by_the_other(
    shard: str, operator: asyncpg.Connection
) -> None:
    async with engine_on(shard) as a, engine_on(shard) as b:
        hook = await a.run(AddWebhook("default", "http://good.com/", ("pushed",), None, None))
        async with asyncio.timeout(60):
            while b.store.webhook_find(hook.id) is None:
                await asyncio.sleep(0.01)
        assert isinstance(b.store, PostgresStore)
        await b.store.follower.stop()  # it does not hear of anything any more
        await a.run(RemoveWebhook("default", hook.id))
        await b.run(NoteDeliveries([(hook.id, DeliveryProgress(5, successes=1))]))
        assert await operator.fetchval("select count(*) from webhooks") == 0


async def test_events_that_others_commit_while_a_server_is_cut_off_are_heard_afterwards(
    shard: str, operator: asyncpg.Connection
) -> None:
    async with engine_on(shard) as other, cuttable(shard, operator) as one:
        heard: list[int] = []
        one.engine.feed.listen(lambda block: heard.extend(range(block.seq, block.seq + len(block.events))))
        await push_many(other, 3)
        await one.cut()
        await push_many(other, 3)
        await one.recover()
        await push_many(other, 3)
        async with asyncio.timeout(60):
            while len(heard) < 10:
                await asyncio.sleep(0.01)
        assert heard == list(range(1, 11))  # the queue, and nine jobs


async def test_who_waits_for_an_end_is_told_although_the_server_was_cut_off_then(
    shard: str, operator: asyncpg.Connection
) -> None:
    async with engine_on(shard) as other, cuttable(shard, operator) as one:
        pushed = await push(other)
        waiting = asyncio.create_task(one.engine.result_waiters.wait("default", pushed.id, 30_000))
        async with asyncio.timeout(60):
            while not one.engine.result_waiters.size:
                await asyncio.sleep(0.01)
        await one.cut()
        (job,) = await claim_all(other)
        await ack(other, job, b'"done"')
        await one.recover()
        one.engine.handle_recovery()
        ending = await waiting
        assert ending is not None
        assert ending.completed


async def test_a_lead_ends_by_itself_if_it_is_not_renewed(shard: str) -> None:
    async with engine_on(shard) as engine:
        await engine.stop_services()
        changes: list[bool] = []
        engine.signals.leadership_changed.subscribe(lambda: changes.append(engine.leads))
        engine.take_lead(1, engine.clock.steady_ms() + 50)
        engine.take_lead(1, engine.clock.steady_ms() + 100)
        async with asyncio.timeout(60):
            while engine.leads:
                await asyncio.sleep(0.01)
        assert changes == [True, False]
