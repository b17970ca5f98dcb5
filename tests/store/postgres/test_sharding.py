"""Names and flows over several shards: servers that are killed between two steps, shards that are down, two servers at once."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import httpx2
import pytest

from penstock.core import limits
from penstock.core.clock import SystemClock, pause
from penstock.core.errors import InvalidInput, NameContested
from penstock.core.job import JobFlag, JobSpec
from penstock.core.queue import QueueKey
from penstock.core.sharding import Layout, home_of, shard_for
from penstock.engine.engine import Engine
from penstock.engine.event_feed import EventFeed
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.push import Push
from penstock.engine.jobs.settle import Ack, LeaseRef
from penstock.engine.sharding.engine import ShardedEngine
from penstock.engine.stats import EngineStats
from penstock.engine.worker_registry import WorkerRegistry
from penstock.store.postgres import PostgresStore
from tests.doors.api import Api
from tests.support.shards import run, server_on, set_down

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.support.server import ServerProcess

#: The shards of these are 1 and 0 of two.
CHILDREN, PARENTS = "a", "b"
STEPS = ("Reserve", "WatchJobs", "Push", "Ack", "DueRelays", "ApplyRemoteEnds", "RecordDelivered")
#: Longer than a lease: the server may be killed after a waiting pull has claimed the job, and before it is answered.
PATIENCE_MS = 90_000


class Insistent:
    """A client that starts its server again when that has died, and asks again."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def ask(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        while True:
            try:
                with self._server.client() as client:
                    return client.request(method, path, json=body)
            except httpx2.TransportError:
                if self._server.process is not None:
                    self._server.kill()
                self._server.start()

    def job_of(self, queue: str) -> Any:
        """Wait for a job, for as long as it takes."""
        for _ in range(PATIENCE_MS // 500):
            job = self.ask("GET", f"/queues/{queue}/jobs?timeout=500&owner=w").json()
            if job["job"] is not None:
                return job
        raise AssertionError("the job does not come")


@pytest.mark.parametrize("moment", [f"{step}:{moment}" for step in STEPS for moment in ("before", "after")])
def test_a_flow_goes_on_where_a_server_was_killed(tmp_path: Path, moment: str) -> None:
    flow_with_a_death(tmp_path, [f"sqlite:{tmp_path / name}" for name in ("one", "two")], moment)


@pytest.mark.parametrize("moment", ["Reserve:after", "WatchJobs:after", "Ack:after", "ApplyRemoteEnds:after"])
def test_and_so_it_does_on_postgresql(tmp_path: Path, databases: list[str], moment: str) -> None:
    flow_with_a_death(tmp_path, databases, moment)


def flow_with_a_death(tmp_path: Path, addresses: list[str], moment: str) -> None:
    died = tmp_path / "died"
    env = {"DIE_AT": moment, "DIED_FILE": str(died)}
    server = server_on(tmp_path, addresses, env=env, launcher=("-m", "tests.support.dying_server"))
    with server:
        client = Insistent(server)
        # The child is gone as soon as it is done: what it answered must not be lost with it.
        child = {"data": 1, "jobId": "child", "removeOnComplete": True}
        assert client.ask("POST", f"/queues/{CHILDREN}/jobs", child).json()["id"] == "child"
        parent = {"data": 2, "jobId": "parent", "dependsOn": ["child"]}
        assert client.ask("POST", f"/queues/{PARENTS}/jobs", parent).json()["id"] == "parent"
        held = client.job_of(CHILDREN)
        client.ask("POST", "/jobs/child/ack", {"token": held["token"], "result": 7})
        found = client.job_of(PARENTS)
        assert found["job"]["id"] == "parent"
        values = client.ask("GET", "/jobs/parent/children").json()["values"]
        assert list(values.values()) == [7]
        client.ask("POST", "/jobs/parent/ack", {"token": found["token"]})
        for queue in (CHILDREN, PARENTS):
            assert client.ask("GET", f"/queues/{queue}/jobs").json()["job"] is None
    assert died.exists()


def test_a_flow_waits_for_a_shard_that_is_down_and_goes_on(tmp_path: Path, databases: list[str]) -> None:
    down = databases[shard_for(QueueKey("default", PARENTS), 2)]
    with server_on(tmp_path, databases) as server, server.client() as client:
        children, parents = Api(client, CHILDREN), Api(client, PARENTS)
        needed = [children.push(n) for n in range(3)]
        parent = parents.push(dependsOn=needed)
        held = [children.take() for _ in needed]
        run(set_down(down, down=True))
        for job, token in held:
            children.ok("POST", f"/jobs/{job}/ack", {"token": token, "result": 1})
        while client.post(f"/queues/{PARENTS}/jobs", json={"data": 1}).status_code == 200:
            time.sleep(0.01)
        refused = client.post(f"/queues/{CHILDREN}/jobs", json={"data": 1, "dependsOn": [parent]})
        assert (refused.status_code, "which has a needed job" in refused.text) == (503, True)
        run(set_down(down, down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        while (job := parents.pull(timeout=1_000)) is None or job["id"] != parent:
            time.sleep(0.01)


def test_the_home_of_a_name_is_needed_for_that_name_only(tmp_path: Path, databases: list[str]) -> None:
    names = {home_of("default", f"n{number}", 2): f"n{number}" for number in range(50)}
    number = shard_for(QueueKey("default", PARENTS), 2)
    with server_on(tmp_path, databases) as server, server.client() as client:
        run(set_down(databases[number], down=True))
        while client.post(f"/queues/{PARENTS}/jobs", json={"data": 1}).status_code == 200:
            time.sleep(0.01)
        refused = client.post(f"/queues/{CHILDREN}/jobs", json={"data": 1, "jobId": names[number]})
        assert (refused.status_code, f"Shard {number} has the reservation of" in refused.text) == (503, True)
        children = Api(client, CHILDREN)
        assert children.push(jobId=names[1 - number]) == names[1 - number]
        assert children.push()
        run(set_down(databases[number], down=False))
        while client.get("/health").json()["status"] != "healthy":
            time.sleep(0.01)
        assert children.push(jobId=names[number]) == names[number]


@pytest.mark.anyio
async def test_two_servers_give_every_key_once(tmp_path: Path, databases: list[str]) -> None:
    """The same keys come to two servers for queues on two shards at the same moment."""
    rand = random.Random(7)
    servers = [server_on(tmp_path / str(number), databases) for number in range(2)]
    for server in servers:
        await asyncio.to_thread(server.start)
    try:
        async with servers[0].async_client() as one, servers[1].async_client() as other:

            async def push(client: httpx2.AsyncClient, queue: str, keys: list[str]) -> list[int]:
                items = [{"namespace": "default", "topic": queue, "payload": "AA==", "idempotency_key": key} for key in keys]
                reply = await client.post("/enqueue", json=items)
                assert reply.status_code == 200, reply.text
                ids: list[int] = reply.json()
                return ids

            for round_ in range(20):
                keys = [f"{round_}-{number}" for number in range(10)]
                orders = [rand.sample(keys, len(keys)) for _ in range(4)]
                places = [(one, CHILDREN), (other, PARENTS), (one, PARENTS), (other, CHILDREN)]
                answers = await asyncio.gather(
                    *(push(client, queue, order) for (client, queue), order in zip(places, orders, strict=True))
                )
                given: dict[str, set[int]] = {}
                for order, ids in zip(orders, answers, strict=True):
                    for key, job in zip(order, ids, strict=True):
                        given.setdefault(key, set()).add(job)
                assert all(len(ids) == 1 for ids in given.values()), given
            counts = [(await one.get(f"/queues/{queue}/counts")).json()["counts"] for queue in (CHILDREN, PARENTS)]
            assert sum(each["waiting"] for each in counts) == 200
    finally:
        for server in servers:
            await asyncio.to_thread(server.stop)


@asynccontextmanager
async def fleet_of(databases: list[str]) -> AsyncIterator[ShardedEngine]:
    """The engines of a server of its own."""
    clock = SystemClock()
    stores = [await PostgresStore.open(url, clock, layout=Layout(number, 2)) for number, url in enumerate(databases)]
    feed, stats = EventFeed(), EngineStats()
    workers = WorkerRegistry(clock, feed, timeout_ms=30_000, overload_ms=30_000)
    fleet = ShardedEngine(
        [Engine(store, store.clock, feed=feed, stats=stats, workers=workers) for store in stores],
        feed,
        stats,
        workers,
        clock,
    )
    fleet.start()
    yield fleet
    await fleet.close()
    for store in stores:
        await store.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_name_is_given_once_though_nobody_waits_for_anybody(
    databases: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody takes every name away from everybody else as soon as they see it: what was taken away is of no use."""
    monkeypatch.setattr(limits, "name_wait_ms", 1)
    monkeypatch.setattr(limits, "name_look_ms", 1)
    contested = 0
    rand = random.Random(7)

    def slow(engine: Engine) -> None:
        """Let time pass between the reservation and the push that goes by it."""
        run = engine.run

        async def later(command: Push) -> Any:
            await pause(engine.clock, rand.randrange(40))
            return await run(command)

        monkeypatch.setattr(
            engine, "run", lambda each: asyncio.ensure_future(later(each)) if isinstance(each, Push) else run(each)
        )

    async def push(fleet: ShardedEngine, queue: str, names: list[str]) -> list[int]:
        nonlocal contested
        while True:
            try:
                command = Push(QueueKey("default", queue), [JobSpec(b"1", job_id=name) for name in names])
                return [job.id for job in await fleet.run(command)]
            except NameContested:
                contested += 1

    async with fleet_of(databases) as one, fleet_of(databases) as other:
        for engine in (*one.engines, *other.engines):
            slow(engine)
        for round_ in range(6):
            names = [f"{round_}-{number}" for number in range(4)]
            places = [(fleet, queue) for fleet in (one, other) for queue in (CHILDREN, PARENTS)]
            answers = await asyncio.gather(*(push(fleet, queue, names) for fleet, queue in places))
            assert all(answer == answers[0] for answer in answers)
        db = [await asyncpg.connect(url, server_settings={"search_path": "penstock"}) for url in databases]
        assert sum([await each.fetchval("select count(*) from jobs") for each in db]) == 24
        assert sum([await each.fetchval("select count(*) from withdrawn") for each in db]) > 0, "nothing was taken away"
        for each in db:
            await each.close()


@pytest.mark.anyio
async def test_two_servers_run_each_parent_once_after_its_children(databases: list[str]) -> None:
    """Children end at any server while parents that need them are pushed at another; all of it at the same moment."""
    rand = random.Random(7)
    flows = 80
    done: set[bytes] = set()
    ran: list[bytes] = []
    needs: dict[bytes, list[bytes]] = {}
    keys = [QueueKey("default", name) for name in (CHILDREN, PARENTS)]

    async with fleet_of(databases) as one, fleet_of(databases) as other:
        fleets = (one, other)

        async def push(data: bytes, needed: Sequence[int] = ()) -> int:
            flags = JobFlag.REMOVE_ON_COMPLETE * rand.randrange(2)
            new = JobSpec(data, needs=tuple(needed), flags=flags, delay=0 if needed else rand.randrange(60))
            (job,) = await rand.choice(fleets).run(Push(rand.choice(keys), [new]))
            return job.id

        async def produce(first: int) -> None:
            for number in range(first, flows, 4):
                children = [f"{number}-{each}".encode() for each in range(rand.randrange(1, 4))]
                parents = [f"parent-{number}-{each}".encode() for each in range(2)]
                needs.update(dict.fromkeys(parents, children))
                ids = [await push(child) for child in children]
                pushed = await asyncio.gather(*(push(parent, ids) for parent in parents), return_exceptions=True)
                for parent, job in zip(parents, pushed, strict=True):
                    if isinstance(job, InvalidInput):  # a child was done and removed before anybody needed it
                        needs.pop(parent)

        async def work(fleet: ShardedEngine, key: QueueKey) -> None:
            while len(ran) < len(needs) or not all(task.done() for task in producers):
                for job, payload in await fleet.run(Claim(key, 3, wait_ms=100)):
                    if payload.data in needs:
                        assert set(needs[payload.data]) <= done
                        assert payload.data not in ran
                        ran.append(payload.data)
                    done.add(payload.data)
                    await rand.choice(fleets).run(Ack("default", [LeaseRef(job.id, job.token)], [b"1"]))

        producers = [asyncio.ensure_future(produce(first)) for first in range(4)]
        async with asyncio.timeout(120):
            await asyncio.gather(*producers, *(work(fleet, key) for fleet in fleets for key in keys))
        assert sorted(ran) == sorted(needs)
        assert len(ran) > flows
