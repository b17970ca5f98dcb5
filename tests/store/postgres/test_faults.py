"""Databases and servers that crash, stand still or are cut off, under load: nothing answered is lost, nothing comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from penstock.store.postgres.schema import LOCK_COMMIT
from tests.support.history import History
from tests.support.own_postgres import OwnPostgres
from tests.support.pair import Pair, PairLoad
from tests.support.receiver import Receiver, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import asyncpg
    import httpx2

    from tests.support.history import Verdict
    from tests.support.server import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261115"))
CRASHES, KILLS, CUTS, CUTS_AT_COMMIT, HANGS, WAKE_UPS = 5, 5, 15, 8, 2, 200
LEADS = "this server leads now"
#: How long a server that stands still may hold up the others: the database throws it out after 5 s.
HELD_S = 8
#: How long anybody may have to wait for an answer while the database hangs: until that is noticed, and until it is given up to
#: find out what has become of a commit.
ANSWERED_S = 25


@pytest.fixture
def database() -> Iterator[OwnPostgres]:
    with OwnPostgres("shared_buffers=64MB", "max_wal_size=256MB") as server:
        yield server


def report(what: str, load: PairLoad, verdict: Verdict) -> None:
    print(
        f"seed {SEED}, {what}: {verdict}; {load.failed} failed on purpose, {len(load.parents)} flows, {len(load.ticks)} ticks, "
        f"slowest answer {max(load.slowest_s):.2f} s, refusals {load.codes}"
    )
    for item in verdict.two_holders | verdict.resurrected | verdict.lost | verdict.failed_seen | verdict.stale_ok:
        print(item, load.history.acknowledged.get(item), load.history.deliveries.get(item), load.history.acks.get(item))
    assert verdict.is_clean, verdict
    assert verdict.acknowledged > 300
    assert not load.internal


async def test_a_database_that_crashes_again_and_again(database: OwnPostgres, tmp_path: Path) -> None:
    async with Pair(tmp_path, database.url) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        tasks = load.start()
        for _ in range(CRASHES):
            await load.after(load.random.randrange(100, 600))
            await asyncio.to_thread(database.stop)
            await asyncio.to_thread(database.start)
            await load.surely("GET", "/queues/load/counts")
        await load.after(300)
        report(f"{CRASHES} crashes of the database", load, await load.finish(tasks))


async def test_a_server_that_is_killed_while_another_goes_on(database: OwnPostgres, tmp_path: Path) -> None:
    async with Pair(tmp_path, database.url) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        tasks = load.start()
        for number in range(KILLS):
            await load.after(load.random.randrange(100, 600))
            server = pair.servers[number % 2]
            server.kill()
            await load.after(20)
            await asyncio.to_thread(server.start)
        await load.after(300)
        report(f"{KILLS} kills of a server", load, await load.finish(tasks))


async def test_the_writers_connection_is_cut_at_any_moment(database: OwnPostgres, tmp_path: Path) -> None:
    async with Pair(tmp_path, database.url) as pair:
        operator = await database.connect()
        load = PairLoad(pair, SEED)
        await load.prepare()
        tasks = load.start()
        cut = 0
        for _ in range(CUTS):
            await load.after(load.random.randrange(1, 100))
            cut += await operator.fetchval(_CUT)
        cut_after = 0
        for _ in range(CUTS_AT_COMMIT):
            await load.after(load.random.randrange(1, 100))
            cut_after += await cut_after_commit(operator)
        await operator.execute(_CUT_BEFORE_COMMIT)
        await load.after(1_000)
        cut_before = await operator.fetchval("select last_value / 50 from public.cuts")
        await operator.execute("drop trigger cut on journal")
        await load.after(300)
        await operator.close()
        what = f"{cut} connections cut, {cut_before} more right before a commit, {cut_after} right after one"
        report(what, load, await load.finish(tasks))
        assert cut_before >= 3
        assert cut_after >= CUTS_AT_COMMIT


_BUSY = "from pg_stat_activity where application_name = 'penstock' and backend_type = 'client backend'"
_CUT = f"select count(pg_terminate_backend(pid)) {_BUSY} and state <> 'idle'"
_CUT_WAITING = f"select count(pg_terminate_backend(pid)) {_BUSY} and wait_event = 'SyncRep'"
# Every 50th transaction ends its own connection as the last thing it does.
_CUT_BEFORE_COMMIT = """
create sequence public.cuts;
create function public.cut() returns trigger language plpgsql as $$
begin
  if nextval('public.cuts') % 50 = 0 then
    perform pg_terminate_backend(pg_backend_pid());
  end if;
  return null;
end $$;
create constraint trigger cut after insert on journal deferrable initially deferred for each row execute function public.cut();
"""


async def cut_after_commit(operator: asyncpg.Connection) -> int:
    """Cut connections after their commit is written and before it is answered: while they wait for a replica."""
    await operator.execute("alter system set synchronous_standby_names = 'nobody'")
    await operator.execute("select pg_reload_conf()")
    cut = 0
    async with asyncio.timeout(60):
        while not cut:
            cut = await operator.fetchval(_CUT_WAITING)
    await operator.execute("alter system reset synchronous_standby_names")
    await operator.execute("select pg_reload_conf()")
    return cut


async def test_a_leader_that_stands_still_in_the_middle_of_a_commit(database: OwnPostgres, tmp_path: Path) -> None:
    async with (
        Receiver() as receiver,
        Pair(tmp_path, database.url, env={"WEBHOOK_ALLOWED_HOSTS": "127.0.0.1"}) as pair,
    ):
        operator = await database.connect()
        load = PairLoad(pair, SEED)
        await load.prepare()
        hook = {"url": receiver.url, "events": ["job.completed"], "queue": "load"}
        await load.surely("POST", "/webhooks", hook)
        await until(lambda: any(LEADS in server.log() for server in pair.servers))
        leader = 0 if LEADS in pair.servers[0].log() else 1
        other = 1 - leader
        tasks = load.start()
        await load.after(200)
        load.avoided = leader
        await stop_in_the_middle(pair.servers[leader], operator)
        await load.after(20)  # nobody else can commit until the database has thrown it out
        stood = load.slowest_s[other]
        await until(lambda: LEADS in pair.servers[other].log())
        await load.after(300)
        os.kill(pair.servers[leader].pid, signal.SIGCONT)
        load.avoided = None
        await load.after(300)
        await operator.close()
        what = f"a leader that stood still, the other one answered after {stood:.2f} s at most"
        report(what, load, await load.finish(tasks))
        assert 2 < stood < HELD_S
        done = {ack.job for acks in load.history.acks.values() for ack in acks if ack.outcome == "ok"}
        await until(lambda: done <= {request.json["jobId"] for request in receiver.requests})
        print(f"{len(done)} completed, {len(receiver.requests)} webhooks delivered")


async def test_a_server_that_stands_still_in_the_middle_of_several_commits(database: OwnPostgres, tmp_path: Path) -> None:
    async with Pair(tmp_path, database.url) as pair:
        operator = await database.connect()
        load = PairLoad(pair, SEED)
        await load.prepare()  # a server that stands still lets leases end, and a child that died of that holds up its parent
        load.avoided = 1
        tasks = load.start()
        await load.after(200)
        await stop_in_several(pair.servers[0], pair.servers[1], operator)
        load.avoided = 0
        begun = History.now()
        await load.surely("POST", "/queues/other/jobs", {"data": 1})
        stood = History.now() - begun
        os.kill(pair.servers[0].pid, signal.SIGCONT)
        load.avoided = None
        await load.after(300)
        await operator.close()
        what = f"one that stood still in several commits, the other one answered after {stood:.2f} s at most"
        report(what, load, await load.finish(tasks))
        assert stood < HELD_S


async def stop_in_the_middle(server: ServerProcess, operator: asyncpg.Connection) -> None:
    """Stop a server while it holds what every commit needs."""
    async with asyncio.timeout(60):
        while True:
            os.kill(server.pid, signal.SIGSTOP)
            if await is_held(operator):
                return
            os.kill(server.pid, signal.SIGCONT)
            await asyncio.sleep(0.01)


async def stop_in_several(server: ServerProcess, other: ServerProcess, operator: asyncpg.Connection) -> None:
    """Stop a server while it holds what every commit needs, and another of its transactions waits for that."""
    async with asyncio.timeout(60):
        while True:
            os.kill(other.pid, signal.SIGSTOP)  # so that none of those who wait are its
            async with operator.transaction():  # they come and wait for us, so that the first gets it when we let go
                await operator.execute(f"select pg_advisory_xact_lock({LOCK_COMMIT}, 0)")
                for _ in range(100):  # not for ever: one of them may want to be alone
                    if await operator.fetchval(_WAIT_FOR_COMMIT) > 1:
                        break
                    await asyncio.sleep(0.01)
                os.kill(server.pid, signal.SIGSTOP)
            while await operator.fetchval(_HOLDS_COMMIT) is None and await operator.fetchval(_WAIT_FOR_COMMIT):
                await asyncio.sleep(0.01)
            is_stuck = await is_held(operator) and await operator.fetchval(_WAIT_FOR_COMMIT)
            os.kill(other.pid, signal.SIGCONT)
            if is_stuck:
                return
            os.kill(server.pid, signal.SIGCONT)
            await asyncio.sleep(0.01)


async def is_held(operator: asyncpg.Connection) -> bool:
    """Tell whether somebody who stands still holds what every commit needs.

    What it has asked for is still answered, and the other server goes on, if slowly on a busy machine: it must be one and the
    same for longer than that one takes.
    """
    holders = set()
    for _ in range(50):
        holders.add(await operator.fetchval(_HOLDS_COMMIT))
        if len(holders) > 1 or None in holders:
            return False
        await asyncio.sleep(0.01)
    return True


_HOLDS_COMMIT = (
    "select a.backend_xid::text from pg_locks l join pg_stat_activity a using (pid)"
    f" where l.locktype = 'advisory' and l.classid = {LOCK_COMMIT} and l.granted and a.state = 'idle in transaction'"
)
_WAIT_FOR_COMMIT = f"select count(*) from pg_locks where locktype = 'advisory' and classid = {LOCK_COMMIT} and not granted"


async def test_a_database_that_hangs(database: OwnPostgres, tmp_path: Path) -> None:
    async with Pair(tmp_path, database.url) as pair:
        load = PairLoad(pair, SEED)
        await load.prepare()
        tasks = load.start()
        for _ in range(HANGS):
            await load.after(300)
            database.freeze()
            frozen_at = History.now()
            for client in pair.clients:
                await degraded(client)
            noticed = History.now() - frozen_at
            answers = [
                await client.request(method, path, json=body)
                for client in pair.clients
                for method, path, body in (
                    ("POST", "/queues/load/jobs", {"data": "never"}),
                    ("POST", "/queues/load/jobs/pull-batch", {"count": 1}),
                    ("GET", "/jobs/0199a000-0000-7000-8000-000000000000", None),
                )
            ]
            refused = History.now() - frozen_at - noticed
            print([(each.status_code, each.text[:100]) for each in answers])
            database.thaw()
            await load.surely("GET", "/queues/load/counts")
            print(f"noticed after {noticed:.1f} s, six requests refused in {refused:.2f} s, back by itself")
            assert {each.status_code for each in answers} <= {503, 404}
            assert all("cannot be reached" in each.text for each in answers if each.status_code == 503)
        await load.after(300)
        report(f"{HANGS} times a database that hangs", load, await load.finish(tasks))
        assert max(load.slowest_s) < ANSWERED_S


async def degraded(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while (await client.get("/health")).json()["status"] != "degraded":
            await asyncio.sleep(0.01)


async def test_who_waits_at_one_server_is_woken_soon_after_a_push_at_the_other(
    database: OwnPostgres, tmp_path: Path
) -> None:
    took: list[float] = []
    async with Pair(tmp_path, database.url) as pair:
        pusher, puller = pair.clients
        for _ in range(WAKE_UPS):
            waiting = asyncio.create_task(puller.get("/queues/q/jobs", params={"timeout": 10_000}))
            await asyncio.sleep(0)
            await puller.get("/queues/other/jobs")  # done after the first one has lined up
            begun = History.now()
            assert (await pusher.post("/queues/q/jobs", json={"data": 1})).status_code == 200
            pushed = History.now()
            assert (await waiting).json()["job"] is not None
            took.append(History.now() - min(pushed, History.now()))
            assert History.now() - begun < 5
    took.sort()
    p50, p99 = (took[int(WAKE_UPS * share)] * 1_000 for share in (0.5, 0.99))
    print(f"woken {p50:.1f} ms (p50), {p99:.1f} ms (p99) after the answer to the push, {WAKE_UPS} times")
    assert p50 < 50
