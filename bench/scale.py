"""Penstock on PostgreSQL against a client that does it by hand, with a long queue, and with a second server.

``python -m bench.scale`` starts a PostgreSQL from the wheel; PENSTOCK_TEST_POSTGRES names another one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import asyncpg
from tests.support import postgres
from tests.support.redis import OwnRedis

from bench.load import PAYLOAD
from bench.processes import free_port, load

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 32
WAITING = 1_000_000
_NAIVE = """
create table naive (id bigserial primary key, topic text, priority int, data bytea, taken boolean default false);
create index naive_ready on naive (topic, priority, id) where not taken;
"""


@contextmanager
def server_on(url: str, *more: str) -> Iterator[int]:
    """Run a server, with more flags; the value is its port."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "penstock",
        "serve",
        "--store",
        url,
        "--http",
        f"127.0.0.1:{port}",
        "--tcp",
        "off",
        "--resp",
        "off",
    ]
    quiet = ["--metrics", "off", "--log-level", "error"]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as data:
        process = subprocess.Popen([*command, *quiet, *more, "--data", data], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield port
        finally:
            process.terminate()
            process.wait()


async def naive(url: str, seconds: float) -> float:
    """One INSERT, one claim with SKIP LOCKED and one DELETE per message; return messages per second."""
    pool = await asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    await pool.execute(f"drop table if exists naive; {_NAIVE}")
    done, ends = 0, time.perf_counter() + seconds

    async def work() -> None:
        nonlocal done
        async with pool.acquire() as db:
            while time.perf_counter() < ends:
                await db.execute("insert into naive (topic, priority, data) values ('t', 0, $1)", PAYLOAD)
                taken = await db.fetchval(
                    "update naive set taken = true where id = (select id from naive where topic = 't' and not taken"
                    " order by priority, id limit 1 for update skip locked) returning id"
                )
                if taken is not None:
                    await db.execute("delete from naive where id = $1", taken)
                    done += 1

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
    took = time.perf_counter() - began
    await pool.close()
    return done / took


def against_naive(rounds: int, seconds: float) -> None:
    url = asyncio.run(postgres.make_database())
    rates: dict[str, list[float]] = {"naive": [], "batches": [], "batches_one_by_one": [], "cycle": []}
    with server_on(url) as port:
        for number in range(rounds):
            rates["naive"].append(asyncio.run(naive(url, seconds)))
            for script in ("batches", "batches_one_by_one", "cycle"):
                measured = load(port, script, connections=CONNECTIONS, seconds=seconds, queue=f"{script}{number}")
                rates[script].append(measured["rate"])
    asyncio.run(postgres.drop_database(url))
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(f"naive client, {CONNECTIONS} connections: {middle['naive']:.0f} messages a second")
    for script, text in (
        ("batches", "batches door, acknowledged in batches"),
        ("batches_one_by_one", "batches door, each acknowledged alone"),
        ("cycle", "jobs door, acknowledged in batches"),
    ):
        print(f"  {text}: {middle[script]:.0f}, {middle[script] / middle['naive']:.1f} x")


def hot_queue(rounds: int, seconds: float) -> None:
    """Dequeue from a long queue, with ready lists in Redis and without, by few and by many consumers."""
    url = asyncio.run(postgres.make_database())
    print("dequeue of a hot queue, with Redis / without:")
    with OwnRedis() as redis, server_on(url) as plain, server_on(url, "--redis", redis.url) as fast:
        for connections, size in ((1, 1), (1, 10), (8, 1), (8, 10), (32, 1), (32, 10)):
            rates: dict[int, list[float]] = {plain: [], fast: []}
            for number in range(rounds):
                for port, measured in rates.items():
                    queue = f"hot{connections}-{size}-{number}-{port}"
                    batches = max(10, connections * size * int(seconds * 1_000) // 1_500)
                    load(plain, "enqueue", connections=4, seconds=600, jobs_max=min(60, batches), queue=queue)
                    run = load(port, "dequeue", connections=connections, seconds=seconds, size=size, queue=queue)
                    measured.append(run["rate"])
            slow, quick = (statistics.median(rates[port]) for port in (plain, fast))
            print(
                f"  {connections:>2} consumers, {size:>2} at a time: {quick:.0f} / {slow:.0f} = {quick / slow:.1f} x",
                flush=True,
            )
    asyncio.run(postgres.drop_database(url))


def long_queue(rounds: int, seconds: float) -> None:
    url = asyncio.run(postgres.make_database())
    with server_on(url) as port:
        for queue, count in (("short", 1_000), ("long", WAITING)):
            print(f"  filling a queue with {count:,} jobs", flush=True)
            load(port, "bulk", connections=4, seconds=600, jobs_max=count // 100, queue=queue)
        p99: dict[str, list[float]] = {"short": [], "long": []}
        for _ in range(rounds):
            for queue, values in p99.items():
                values.append(load(port, "pull", connections=1, seconds=seconds, jobs_max=150, queue=queue)["p99_ms"])
    asyncio.run(postgres.drop_database(url))
    short, long = (statistics.median(p99[queue]) for queue in ("short", "long"))
    print(f"claim p99 with 1,000 waiting {short:.2f} ms, with {WAITING:,} waiting {long:.2f} ms: {long / short:.2f} x")


def two_servers(rounds: int, seconds: float) -> None:
    url = asyncio.run(postgres.make_database())
    with server_on(url) as first, server_on(url) as second, ThreadPoolExecutor(2) as threads:
        one: list[float] = []
        both: list[float] = []
        for number in range(rounds):
            one.append(load(first, "cycle", connections=CONNECTIONS, seconds=seconds, queue=f"one{number}")["rate"])
            running = [
                threads.submit(load, port, "cycle", connections=CONNECTIONS // 2, seconds=seconds, queue=f"two{number}")
                for port in (first, second)
            ]
            both.append(sum(each.result()["rate"] for each in running))
    asyncio.run(postgres.drop_database(url))
    alone, together = statistics.median(one), statistics.median(both)
    print(f"one server {alone:.0f} jobs a second, two on the same database {together:.0f}: {together / alone:.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parts = {"naive": against_naive, "servers": two_servers, "hot": hot_queue, "long": long_queue}
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="what to measure; all of it if nothing is named")
    options = parser.parse_args()
    for name, measure in parts.items():
        if name in options.parts or not options.parts:
            measure(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
