"""Reading in bulk, over a real socket, with pyarrow as the client."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.core import ids
from tests.doors.api import Api
from tests.support import stores
from tests.support.bulk import Bulk, Truncated, table_of
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

_numbers = itertools.count()

MOMENT = pa.timestamp("us", tz="UTC")
JOBS = {
    "namespace": pa.string(), "queue": pa.string(), "id": pa.string(), "shard": pa.int32(), "state": pa.string(),
    "priority": pa.int32(), "attempts": pa.int32(), "max_attempts": pa.int32(), "custom_id": pa.string(),
    "unique_key": pa.string(), "group_id": pa.string(), "created_at": MOMENT, "run_at": MOMENT, "started_at": MOMENT,
    "finished_at": MOMENT, "expires_at": MOMENT, "progress": pa.int32(), "size": pa.int64(), "error": pa.string(),
    "value": pa.binary(), "headers": pa.string(), "result": pa.binary(),
}  # fmt: skip
EVENTS = {
    "shard": pa.int32(), "seq": pa.int64(), "at": MOMENT, "kind": pa.string(), "namespace": pa.string(), "queue": pa.string(),
    "job_id": pa.string(), "custom_id": pa.string(), "attempt": pa.int32(), "priority": pa.int32(), "created_at": MOMENT,
    "run_at": MOMENT, "started_at": MOMENT, "size": pa.int64(), "error": pa.string(), "payload": pa.string(),
    "due_at": MOMENT,
}  # fmt: skip


@pytest.fixture
def namespace() -> str:
    return f"bulk{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def jobs(server: ServerProcess, namespace: str) -> Iterator[Api]:
    """A queue in a namespace that nobody else uses."""
    with server.client(headers={"X-Namespace": namespace}) as client:
        yield Api(client, "q")


@pytest.fixture
def bulk(server: ServerProcess, namespace: str) -> Iterator[Bulk]:
    with server.client() as client:
        yield Bulk(client, namespace)


def ms(moment: Any) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


# Snapshots.


def test_a_snapshot_has_every_job_with_all_that_is_known_of_it(jobs: Api, bulk: Bulk) -> None:
    done = jobs.completed({"is": "done"}, data={"a": 1})
    dead = jobs.dead(data="dead", priority=3)
    active = jobs.active(data=[1, 2], groupId="group")
    delayed = jobs.push("later", delay=60_000, jobId="own", priority=-2, maxAttempts=7)
    waiting = jobs.push(None, uniqueKey="key", ttl=90_000)
    parent = jobs.push("parent", dependsOn=[waiting])
    # With ready lists, the store learns a moment later that a job was begun.
    while next(row for row in bulk.jobs() if row["id"] == active)["started_at"] is None:
        time.sleep(0.01)
    snapshot = bulk.take()
    assert snapshot["rows"] == 6
    table = pa.concat_tables([bulk.part(snapshot, each["part"]) for each in snapshot["parts"]])
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == JOBS
    rows = {row["custom_id"] or row["id"]: row for row in table.to_pylist()}
    assert {name: row["state"] for name, row in rows.items()} == {
        done: "completed", dead: "failed", active: "active", delayed: "delayed", waiting: "waiting",
        parent: "waiting-children",
    }  # fmt: skip
    for name, row in rows.items():
        shown = jobs.job(name)
        assert (row["namespace"], row["queue"]) == (bulk._headers["X-Namespace"], "q")
        assert json.loads(row["value"]) == shown["data"]
        assert row["size"] == len(row["value"])
        for field, spelled in (
            ("priority", "priority"), ("attempts", "attempts"), ("max_attempts", "maxAttempts"), ("custom_id", "customId"),
            ("unique_key", "uniqueKey"), ("group_id", "groupId"), ("progress", "progress"),
        ):  # fmt: skip
            assert row[field] == shown.get(spelled), f"{name} {field}"
        assert ms(row["created_at"]) == shown["createdAt"]
        assert ms(row["run_at"]) == shown["runAt"]
        assert ms(row["started_at"]) == shown.get("startedAt")
    assert rows[done]["result"] == b'{"is":"done"}'
    assert rows[dead]["error"] == "broken"
    assert rows[waiting]["expires_at"] is not None
    assert rows[waiting]["finished_at"] is None
    assert ms(rows[done]["finished_at"]) == jobs.job(done)["completedAt"]
    assert rows[delayed]["id"] != "own"
    assert ids.from_uuid(rows[delayed]["id"]) is not None


def test_payloads_come_out_as_they_went_in(jobs: Api, bulk: Bulk, namespace: str) -> None:
    given = [b"\xff\x00\xfe", b"plain text", b'"json"', b"", b"[1, 2]"]
    for each in given:
        assert jobs.http.post("/publish/bytes", content=each).status_code == 201
    body = {"body": "hello", "metadata": {"trace": "ü"}}
    assert jobs.http.post(f"/namespaces/{namespace}/queues/letters/messages", json=body).status_code == 201
    rows = bulk.jobs()
    assert sorted(row["value"] for row in rows if row["queue"] == "bytes") == sorted(given)
    (letter,) = [row for row in rows if row["queue"] == "letters"]
    assert (letter["value"], json.loads(letter["headers"])) == (b"hello", {"trace": "ü"})
    assert {row["headers"] for row in rows if row["queue"] == "bytes"} == {None}


def test_a_snapshot_can_be_of_some_jobs_only(jobs: Api, bulk: Bulk) -> None:
    early, active = jobs.push(1), jobs.push(2)
    other = Api(jobs.http, "other")
    elsewhere = other.push(3)
    assert jobs.pull()["id"] == early
    early, active = active, early
    assert {row["id"] for row in bulk.jobs(queues=["q"])} == {early, active}
    assert {row["id"] for row in bulk.jobs(queues=["other", "no-such"])} == {elsewhere}
    assert {row["id"] for row in bulk.jobs(states=["active"])} == {active}
    assert {row["id"] for row in bulk.jobs(states=["waiting", "active"], queues=["q"])} == {early, active}
    assert bulk.jobs(queues=[]) == bulk.jobs(states=[]) == []
    moments = sorted({jobs.job(each)["createdAt"] for each in (early, active, elsewhere)})
    assert len(bulk.jobs(created_from=moments[0])) == 3
    assert bulk.jobs(created_to=moments[0]) == []
    assert len(bulk.jobs(created_from=moments[0], created_to=moments[-1] + 1)) == 3


def test_without_payloads_the_rest_is_there(jobs: Api, bulk: Bulk) -> None:
    jobs.completed({"is": "done"}, data="x" * 100)
    (row,) = bulk.jobs(include_payload=False)
    assert (row["value"], row["headers"], row["result"]) == (None, None, None)
    assert (row["size"], row["state"]) == (102, "completed")


def test_a_snapshot_comes_in_parts(jobs: Api, bulk: Bulk) -> None:
    jobs.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": number} for number in range(25)]})
    snapshot = bulk.take(rows_per_part=10)
    by_shard: dict[int, list[int]] = {}
    for each in snapshot["parts"]:
        by_shard.setdefault(each["shard"], []).append(each["rows"])
    assert list(by_shard.values()) == [[10, 10, 5]]
    assert [each["part"] for each in snapshot["parts"]] == [0, 1, 2]
    found = [row["value"] for each in snapshot["parts"] for row in bulk.part(snapshot, each["part"]).to_pylist()]
    assert sorted(map(int, found)) == list(range(25))
    assert bulk.part(snapshot, 1) == bulk.part(snapshot, 1)
    assert snapshot["taken_at"] <= snapshot["expires_at"] - 600_000


def test_the_head_of_a_part_says_how_much_it_is(jobs: Api, bulk: Bulk) -> None:
    jobs.push(1)
    snapshot = bulk.take()
    path = f"/bulk/snapshots/{snapshot['id']}/parts/0"
    head, whole = bulk.ask("HEAD", path), bulk.ask("GET", path)
    for name in ("content-type", "content-length", "x-penstock-rows"):
        assert head.headers[name] == whole.headers[name]
    assert (head.status_code, head.content) == (200, b"")
    assert len(whole.content) == snapshot["parts"][0]["bytes"]


def test_a_snapshot_that_is_not_there(jobs: Api, bulk: Bulk) -> None:
    jobs.push(1)
    snapshot = bulk.take()
    path = f"/bulk/snapshots/{snapshot['id']}"
    for part in ("1", "-1", "x", "99999999999999999999", "٣"):
        reply = bulk.ask("GET", f"{path}/parts/{part}")
        assert (reply.status_code, reply.headers["penstock-error"]) == (404, "snapshot_not_found")
    assert bulk.ask("DELETE", path).status_code == 204
    assert bulk.ask("DELETE", path).status_code == 404
    reply = bulk.ask("GET", f"{path}/parts/0")
    assert reply.status_code == 404
    assert "POST /bulk/snapshots" in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"table": "journal"}, "table"),
        ({"states": ["dead"]}, "waiting-children"),
        ({"rows_per_part": 0}, "rows_per_part"),
        ({"rows_per_part": 10**7}, "rows_per_part"),
        ({"queues": ["q"] * 1_001}, "1000"),
        ({"queues": "q"}, "queues"),
        ({"created_from": -1}, "created_from"),
        ({"created_to": 10**15}, "created_to"),
        ({"include_payload": "yes"}, "include_payload"),
    ],
)
def test_snapshots_that_cannot_be(bulk: Bulk, body: Any, word: str) -> None:
    reply = bulk.ask("POST", "/bulk/snapshots", json=body)
    assert reply.status_code == 400
    assert word in reply.json()["error"]


def test_a_body_that_was_cut_off_is_noticed(jobs: Api, bulk: Bulk) -> None:
    """Arrow alone takes what was cut off between two batches for the whole; the number at the end does not."""
    jobs.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": number} for number in range(20)]})
    snapshot = bulk.take()
    body = bulk.ask("GET", f"/bulk/snapshots/{snapshot['id']}/parts/0").content
    assert table_of(body).num_rows == 20
    for size in range(len(body)):
        with pytest.raises((Truncated, pa.ArrowInvalid, OSError)):
            table_of(body[:size])
    reader = pa.ipc.open_stream(pa.BufferReader(body))
    schema_only = pa.BufferOutputStream()
    with pa.ipc.new_stream(schema_only, reader.schema):
        pass
    short = schema_only.getvalue().to_pybytes()
    assert pa.ipc.open_stream(pa.BufferReader(short)).read_all().num_rows == 0
    with pytest.raises(Truncated):
        table_of(short + body[-16:])


def test_a_snapshot_is_of_one_moment(jobs: Api, bulk: Bulk) -> None:
    """Jobs go round and round, from waiting to active and back; every snapshot has each of them once."""
    pushed = set(jobs.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": number} for number in range(200)]})["ids"])
    over = threading.Event()

    def work() -> int:
        rounds = 0
        while not over.is_set():
            taken = jobs.ok("POST", "{q}/jobs/pull-batch", {"count": 50})
            held = [each["id"] for each in taken["jobs"]]
            if held:
                jobs.ok("POST", "/jobs/release-batch", {"ids": held, "tokens": taken["tokens"]})
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            for _ in range(10):
                rows = bulk.jobs(rows_per_part=37)
                assert len(rows) == 200
                assert {row["id"] for row in rows} == pushed
                assert {row["state"] for row in rows} <= {"waiting", "active"}
        finally:
            over.set()
        assert working.result() > 0


# The journal.


def test_the_journal_tells_every_event_in_order(jobs: Api, bulk: Bulk, namespace: str) -> None:
    before = {each["shard"]: each["vouched"] for each in bulk.overview()["shards"]}
    done = jobs.completed(data="x" * 10)
    dead = jobs.dead(jobId="own", priority=4)
    jobs.push(1, delay=60_000)
    tables = [
        bulk.read("/bulk/journal", **{"shard": each["shard"], "from": before[each["shard"]], "to": each["vouched"]})
        for each in bulk.overview()["shards"]
    ]
    for table in tables:
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == EVENTS
        assert table["seq"].to_pylist() == sorted(table["seq"].to_pylist())
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["kind"], row["custom_id"] or row["job_id"]) for row in rows if row["job_id"]][:7] == [
        ("job:pushed", done), ("job:active", done), ("job:completed", done),
        ("job:pushed", "own"), ("job:active", "own"), ("job:failed", "own"), ("dlq:added", "own"),
    ]  # fmt: skip
    assert dead == "own"
    assert {(row["namespace"], row["queue"]) for row in rows} == {(namespace, "q")}
    completed = next(row for row in rows if row["kind"] == "job:completed")
    shown = jobs.job(done)
    assert ms(completed["created_at"]) == shown["createdAt"]
    assert ms(completed["started_at"]) == shown["startedAt"]
    assert ms(completed["at"]) == shown["completedAt"]
    assert (completed["size"], completed["attempt"], completed["error"]) == (12, 0, None)
    failed = next(row for row in rows if row["kind"] == "job:failed")
    assert (failed["attempt"], failed["error"]) == (1, "broken")
    assert failed["created_at"] <= failed["due_at"] <= failed["started_at"]
    assert completed["due_at"] == completed["run_at"]
    pushed = next(row for row in rows if row["custom_id"] == "own")
    assert (pushed["priority"], pushed["kind"]) == (4, "job:pushed")
    added = next(row for row in rows if row["kind"] == "dlq:added")
    assert added["error"] == "max_attempts_exceeded"
    (active, _) = [row for row in rows if row["kind"] == "job:active"]
    assert active["payload"] is None, "a lease token is nobody's business"


def test_what_has_no_column_is_json(jobs: Api, bulk: Bulk) -> None:
    job_id, token = jobs.push(1), ""
    _, token = jobs.take()
    jobs.ok("POST", f"/jobs/{job_id}/progress", {"progress": 30, "message": "on it", "token": token})
    jobs.ok("PUT", "{q}/rate-limit", {"limit": 1_000})
    jobs.ok("POST", "/crons", {"name": "nightly", "queue": "q", "data": 1, "schedule": "0 0 1 1 *"})
    told = {row["kind"]: row for row in bulk.events()}
    assert json.loads(told["job:progress"]["payload"]) == {"progress": 30, "message": "on it"}
    assert json.loads(told["ratelimit:set"]["payload"]) == {"max": 1_000}
    cron = told["cron:created"]
    assert (cron["job_id"], cron["custom_id"], cron["queue"]) == (None, None, "q")
    assert json.loads(cron["payload"])["name"] == "nightly"


def test_the_journal_is_the_same_however_it_is_cut(server: ServerProcess, jobs: Api) -> None:
    with server.client() as client:
        everybody = Bulk(client, "*")
        begin = {each["shard"]: each["vouched"] for each in everybody.overview()["shards"]}
        jobs.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": number} for number in range(30)]})
        for _ in range(3):
            taken = jobs.ok("POST", "{q}/jobs/pull-batch", {"count": 7})
            jobs.ok("POST", "/jobs/ack-batch", {"ids": [each["id"] for each in taken["jobs"]], "tokens": taken["tokens"]})
        read = 0
        for each in everybody.overview()["shards"]:
            shard, first, end = each["shard"], begin[each["shard"]], each["vouched"]
            whole = everybody.journal(shard, first, end)
            assert [row["seq"] for row in whole] == list(range(first, end))
            assert {row["shard"] for row in whole} <= {shard}
            for step in (1, 4, 17):
                cuts = [*range(first, end, step), end]
                assert [row for a, b in itertools.pairwise(cuts) for row in everybody.journal(shard, a, b)] == whole
            assert everybody.journal(shard, end, end) == []
            read += len(whole)
        assert read >= 30 + 2 * 21


def test_what_is_not_kept_any_more_is_gone(bulk: Bulk, jobs: Api) -> None:
    jobs.push(1)
    reply = bulk.ask("GET", "/bulk/journal", params={"from": 0})
    assert (reply.status_code, reply.headers["penstock-error"]) == (410, "journal_gone")
    assert reply.json()["journal_first"] == bulk.overview()["shards"][0]["journal_first"] == 1


def test_what_cannot_be_asked_of_the_journal(bulk: Bulk, jobs: Api) -> None:
    jobs.push(1)
    end = bulk.overview()["shards"][0]["vouched"]
    for query, word in (
        ({}, "from"),
        ({"from": "x"}, "from"),
        ({"from": -1}, "GET /bulk"),
        ({"from": 2**63}, "GET /bulk"),
        ({"from": 2**70, "to": 2**70}, "GET /bulk"),
        ({"from": end, "to": end - 1}, "to"),
        ({"from": 1, "to": 1_000_002}, "1000000"),
        ({"from": 1, "shard": 64}, "shard"),
        ({"from": 1, "shard": -1}, "shard"),
    ):
        reply = bulk.ask("GET", "/bulk/journal", params=query)
        assert reply.status_code == 400, query
        assert word in reply.json()["error"]


def test_nobody_reads_what_may_not_be_there_yet(bulk: Bulk, jobs: Api) -> None:
    jobs.push(1)
    end = bulk.overview()["shards"][0]["vouched"]
    reply = bulk.ask("GET", "/bulk/journal", params={"from": end, "to": end + 1_000})
    assert reply.status_code == 400
    assert bulk.ask("GET", "/bulk/journal", params={"from": end}).status_code == 200


def test_a_place_in_the_journal_by_time(bulk: Bulk, jobs: Api) -> None:
    job = jobs.push(1)
    moment = jobs.job(job)["createdAt"]
    overview = bulk.overview()["shards"]
    for each in overview:
        query = {"shard": each["shard"], "timestamp": 0}
        assert bulk.ask("GET", "/bulk/journal/at", params=query).json()["seq"] == each["journal_first"]
        late = bulk.ask("GET", "/bulk/journal/at", params={**query, "timestamp": moment + 10**9}).json()["seq"]
        assert late >= each["vouched"]
    told = [row for row in bulk.events() if row["job_id"] == job]
    shard, seq = told[0]["shard"], told[0]["seq"]
    found = bulk.ask("GET", "/bulk/journal/at", params={"shard": shard, "timestamp": ms(told[0]["at"])}).json()["seq"]
    assert found <= seq
    assert bulk.ask("GET", "/bulk/journal/at", params={"timestamp": -1}).status_code == 400


# Whose it is.


def test_a_namespace_sees_nothing_of_another(server: ServerProcess, jobs: Api, bulk: Bulk, namespace: str) -> None:
    mine = jobs.push("mine")
    with server.client() as client:
        theirs = Bulk(client, f"{namespace}-not")
        other = client.post("/queues/q/jobs", json={"data": "theirs"}, headers={"X-Namespace": f"{namespace}-not"}).json()[
            "id"
        ]
        assert {row["id"] for row in bulk.jobs()} == {mine}
        assert {row["id"] for row in theirs.jobs()} == {other}
        assert {row["id"] for row in theirs.jobs(queues=["q"])} == {other}
        assert {row["namespace"] for row in bulk.events()} == {namespace}
        assert mine not in {row["job_id"] for row in theirs.events()}
        everybody = Bulk(client, "*")
        assert {mine, other} <= {row["id"] for row in everybody.jobs(queues=["q"])}
        assert {mine, other} <= {row["job_id"] for row in everybody.events()}
        snapshot = bulk.take()
        for reader in (theirs, everybody):
            assert reader.ask("GET", f"/bulk/snapshots/{snapshot['id']}/parts/0").status_code == 404
            assert reader.ask("DELETE", f"/bulk/snapshots/{snapshot['id']}").status_code == 404
        assert bulk.part(snapshot, 0).num_rows == 1


def test_all_namespaces_need_a_right_for_the_whole_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env={"EPOCHQ_AUTH_API_KEY": "root-key"}) as running, running.client() as client:

        def key(namespace: str) -> dict[str, str]:
            body = {"namespaces": [namespace], "roles": ["consume"]}
            made = client.post("/keys", json=body, headers={"X-Api-Key": "root-key"}).json()["secret"]
            return {"X-Api-Key": made}

        some, every = key("some"), key("*")
        for path in ("/bulk", "/bulk/journal?from=1", "/bulk/journal/at?timestamp=1"):
            assert client.get(path, headers={**some, "X-Namespace": "*"}).status_code == 403
            assert client.get(path, headers={**every, "X-Namespace": "*"}).status_code == 200
            assert client.get(path, headers={**some, "X-Namespace": "some"}).status_code == 200
            assert client.get(path).status_code == 401
        assert client.post("/bulk/snapshots", headers={**some, "X-Namespace": "*"}).status_code == 403


# The process, and the spool.


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose bulk process may be treated badly."""
    with ServerProcess(tmp_path / "data", env={"PENSTOCK_BULK_PROCESSES": "1", "TMPDIR": str(tmp_path)}) as running:
        yield running


def bulk_pids(server: ServerProcess) -> list[int]:
    """Return the bulk processes of a server."""
    tasks = Path(f"/proc/{server.pid}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text(encoding="ascii").split()]
    return [pid for pid in children if b"penstock.bulkwork" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def spooled(tmp_path: Path) -> list[Path]:
    return [each for each in tmp_path.rglob("*.arrow") if "spool" in str(each)]


def push(client: httpx2.Client, count: int = 1, data: Any = 1) -> None:
    assert client.post("/queues/q/jobs/bulk", json={"jobs": [{"data": data}] * count}).status_code == 200


def test_a_process_that_dies_in_the_middle_is_a_503_and_the_next_request_works(own: ServerProcess) -> None:
    with own.client() as client, closing(HTTPConnection("127.0.0.1", own.port, timeout=30)) as other:
        bulk = Bulk(client)
        push(client, 10)
        assert bulk_pids(own) == []  # nobody has asked yet
        assert len(bulk.jobs()) == 10
        (pid,) = bulk_pids(own)
        for method, path in (
            ("POST", "/bulk/snapshots"),
            ("GET", "/bulk/journal?from=1"),
            ("GET", "/bulk/journal/at?timestamp=1"),
        ):
            os.kill(pid, signal.SIGSTOP)
            # It is sent when this returns, so that the server reads it before what is sent next.
            other.request(method, path, b"{}" if method == "POST" else None, {"content-type": "application/json"})
            # Nothing else waits for it: the server does what it always does.
            push(client)
            assert client.get("/queues/q/jobs").json()["job"] is not None
            assert select.select([other.sock], [], [], 0)[0] == []
            os.kill(pid, signal.SIGKILL)
            reply = other.getresponse()
            assert (reply.status, reply.headers["penstock-error"]) == (503, "bulk_failed")
            assert reply.headers["retry-after"] == "1"
            reply.read()
            assert len(bulk.jobs()) >= 10
            (pid,) = bulk_pids(own)


def test_a_process_that_was_idle_when_it_died_is_not_missed(own: ServerProcess) -> None:
    with own.client() as client:
        push(client)
        assert len(Bulk(client).jobs()) == 1
        (pid,) = bulk_pids(own)
        os.kill(pid, signal.SIGKILL)
        statuses = {client.post("/bulk/snapshots", json={}).status_code for _ in range(3)}
        assert statuses <= {201, 503}
        assert client.post("/bulk/snapshots", json={}).status_code == 201


@pytest.mark.skipif(stores.chosen() != "sqlite", reason="there is no file")
def test_the_server_keeps_its_locks_on_the_file_that_others_read(own: ServerProcess) -> None:
    """Whoever closes a copy of a file loses the locks on it; another process would then cut off what SQLite has mapped."""
    with own.client() as client:
        for _ in range(2):
            push(client)
            assert Bulk(client).jobs()
            for name, byte in (("penstock.db", 0x40000002), ("penstock.db-shm", 128)):
                with (own.data / name).open("r+b") as file, pytest.raises(BlockingIOError):
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)


def test_the_process_ends_with_its_server_and_leaves_nothing_behind(tmp_path: Path, own: ServerProcess) -> None:
    with own.client() as client:
        push(client)
        Bulk(client).take()
    (pid,) = bulk_pids(own)
    assert len(spooled(tmp_path)) == 1
    assert own.stop() == 0
    assert not Path(f"/proc/{pid}").exists()
    assert spooled(tmp_path) == []


def test_what_a_server_left_behind_goes_when_the_next_one_starts(tmp_path: Path, own: ServerProcess) -> None:
    with own.client() as client:
        push(client)
        Bulk(client).take()
    own.kill()
    assert len(spooled(tmp_path)) == 1
    own.start()
    assert spooled(tmp_path) == []
    with own.client() as client:
        assert len(Bulk(client).jobs()) == 1


def test_the_spool_is_bounded(tmp_path: Path) -> None:
    env = {"PENSTOCK_BULK_SPOOL_BYTES": str(2**20), "PENSTOCK_BULK_PROCESSES": "1", "TMPDIR": str(tmp_path)}
    with ServerProcess(tmp_path / "data", env=env) as running, running.client() as client:
        bulk = Bulk(client)
        push(client, 30, "x" * 20_000)
        first = bulk.take()
        reply = bulk.ask("POST", "/bulk/snapshots", json={})
        assert (reply.status_code, reply.headers["penstock-error"]) == (507, "spool_full")
        assert "PENSTOCK_BULK_SPOOL_BYTES" in reply.json()["error"]
        assert bulk.part(first, 0).num_rows == 30
        assert len(spooled(tmp_path)) == 1
        bulk.ask("DELETE", f"/bulk/snapshots/{first['id']}")
        assert spooled(tmp_path) == []
        assert len(bulk.jobs()) == 30


def test_a_namespace_keeps_a_few_snapshots_only(jobs: Api, bulk: Bulk) -> None:
    jobs.push(1)
    kept = [bulk.take() for _ in range(16)]
    reply = bulk.ask("POST", "/bulk/snapshots", json={})
    assert reply.status_code == 503
    assert "DELETE /bulk/snapshots/{id}" in reply.json()["error"]
    for each in kept:
        assert bulk.ask("DELETE", f"/bulk/snapshots/{each['id']}").status_code == 204
    assert len(bulk.jobs()) == 1
