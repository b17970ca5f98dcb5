"""A bulk push on PostgreSQL costs a fixed number of statements: the names of its jobs cost none for each job.

The database counts: it writes each statement that it executes into its log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.own_postgres import OwnPostgres
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx2

COUNT = 300
#: What a push may need in addition to a push of plain jobs: statements about all its names at once, and what a server does
#: from time to time.
MORE_MAX = COUNT // 3

#: Rows of live jobs that were read, and those that were inserted, since the database was made.
_READ = "select seq_tup_read + coalesce(idx_tup_fetch, 0), n_tup_ins from pg_stat_user_tables where relname = 'jobs_live'"
REPLACE = {"replace": True}
JOBS: dict[str, Callable[[int], dict[str, Any]]] = {
    "one key, replaced": lambda _: {"uniqueKey": "k", "dedup": REPLACE},
    "one key, replaced and extended": lambda _: {"debounceId": "k", "debounceTtl": 60_000},
    "one key, extended": lambda _: {"uniqueKey": "k", "dedup": {"ttl": 60_000, "extend": True}},
    "two jobs for each key": lambda n: {"uniqueKey": f"k{n // 2}", "dedup": REPLACE},
    "unique keys": lambda n: {"uniqueKey": f"k{n}"},
    "keys held for a moment": lambda n: {"uniqueKey": f"k{n}", "dedup": {"ttl": 1}},
    "keys to be replaced": lambda n: {"uniqueKey": f"k{n}", "dedup": REPLACE},
    "own ids": lambda n: {"jobId": f"own-{n}"},
    "a chain": lambda n: {"jobId": f"chain-{n}", **({"dependsOn": [f"chain-{n - 1}"]} if n else {})},
    "groups": lambda n: {"groupId": f"g{n}"},
    "removed when completed": lambda _: {"removeOnComplete": True},
}


class Counted:
    """A server, and the number of statements that its database has executed."""

    def __init__(self, database: OwnPostgres, http: httpx2.Client) -> None:
        self.database = database
        self._log = database.home / "log"
        self.http = http

    def statements(self, work: Callable[[], object]) -> int:
        """Return how many statements are executed during some work."""
        before = self._executed()
        work()
        return self._executed() - before

    def _executed(self) -> int:
        return self._log.read_text(encoding="utf-8", errors="replace").count("LOG:  execute ")

    def push(self, queue: str, job: Callable[[int], dict[str, Any]], first: int = 0, count: int = COUNT) -> None:
        """Push many jobs to a queue."""
        jobs = [{"data": n, **job(n)} for n in range(first, first + count)]
        answer = self.http.post(f"/queues/{queue}/jobs/bulk", json={"jobs": jobs})
        assert answer.is_success, answer.text


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    home = tmp_path_factory.mktemp("counted")
    with (
        OwnPostgres("log_statement=all", "shared_buffers=64MB") as database,
        ServerProcess(home / "data", env={"PENSTOCK_STORES": database.url}) as server,
        server.client() as http,
    ):
        yield Counted(database, http)


@pytest.mark.parametrize("kind", JOBS)
def test_names_cost_no_statement_for_each_job(counted: Counted, kind: str) -> None:
    queue = kind.replace(" ", "-").replace(",", "")
    plain = counted.statements(lambda: counted.push(f"plain-{queue}", lambda _: {}))
    first = counted.statements(lambda: counted.push(queue, JOBS[kind]))
    again = counted.statements(lambda: counted.push(queue, JOBS[kind]))
    assert max(first, again) < plain + MORE_MAX


def test_idempotency_keys_of_a_new_namespace_cost_no_statement_for_each_message(counted: Counted) -> None:
    items = [{"namespace": "new", "topic": "t", "payload": "e30=", "idempotency_key": f"k{n}"} for n in range(COUNT)]

    def enqueue() -> None:
        assert counted.http.post("/enqueue", json=items).is_success

    plain = counted.statements(lambda: counted.push("plain-messages", lambda _: {}))
    assert counted.statements(enqueue) < plain + MORE_MAX
    assert counted.statements(enqueue) < plain + MORE_MAX


def test_the_last_of_a_bulk_push_is_what_is_delivered(counted: Counted) -> None:
    def pushed(n: int) -> dict[str, Any]:
        return {"uniqueKey": f"k{n % 3}", "dedup": REPLACE, "priority": n % 7}

    counted.push("last", pushed)
    counted.push("last", pushed, first=1_000)
    found = [counted.http.get("/queues/last/jobs").json()["job"] for _ in range(3)]
    last = range(1_000 + COUNT - 3, 1_000 + COUNT)
    assert {(job["data"], job["priority"]) for job in found} == {(n, n % 7) for n in last}


@pytest.mark.anyio
async def test_the_rows_read_for_a_group_do_not_grow_with_the_number_of_groups(counted: Counted) -> None:
    count = 2_000
    db = await counted.database.connect()
    try:
        _, inserted = await db.fetchrow(_READ)
        counted.push("many-groups", JOBS["groups"], count=count)
        found = (0, 0)
        async with asyncio.timeout(60):  # a connection reports its figures when it has rested for a while
            while found[1] < inserted + count:
                found = await db.fetchrow(_READ)
    finally:
        await db.close()
    assert found[0] < 100 * (inserted + count)
