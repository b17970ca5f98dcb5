"""Disks that break and disks that are full: new work is refused in clear words, nothing answered is lost, acks go on."""

from __future__ import annotations

import contextlib
import subprocess
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from penstock.core.durability import Durability
from penstock.core.errors import OutcomeUnknown, ServerError, StorageFull
from penstock.core.job import JobSpec
from penstock.core.lifecycle import State
from penstock.core.limits import MEBIBYTE
from penstock.engine.engine import Engine
from penstock.engine.jobs.push import Push
from penstock.store.sqlite import SqliteStore
from tests.doors.api import Api
from tests.support.engines import QUEUE, ack, claim_all, push, push_many, state
from tests.support.forgetful import ForgetfulDisk
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.core.clock import ManualClock


# A real process whose disk breaks.


def test_a_failed_fsync_refuses_everything_loses_nothing_and_heals(tmp_path: Path) -> None:
    fault = tmp_path / "broken"
    launcher = ("-m", "tests.support.faulty_server")
    with (
        ServerProcess(tmp_path / "data", launcher=launcher, env={"FAULT_FILE": str(fault)}) as server,
        server.client() as client,
    ):
        api = Api(client, "q")
        safe = [api.push(number) for number in range(5)]
        job_id, token = api.take()
        fault.touch()
        unknown = api.call("POST", "{q}/jobs", json={"data": "unlucky"})
        assert unknown.status_code == 500
        assert unknown.headers["penstock-error"] == "outcome_unknown"
        for _ in range(3):
            status, error = api.refused("POST", "{q}/jobs", {"data": "refused"})
            assert status == 503
            assert "nothing was stored" in error
        assert api.call("GET", "/health").json()["status"] == "degraded"
        assert api.call("GET", "/ready").status_code == 503
        assert "fsync failed" in api.ok("GET", "/storage")["error"]
        assert api.ok("GET", f"/jobs/{safe[2]}/state")["state"] == "waiting"  # reading goes on
        fault.unlink()
        while api.call("GET", "/ready").status_code != 200:
            time.sleep(0.01)
        api.ok("POST", f"/jobs/{job_id}/ack", {"token": token})
        assert api.push("again")
        data = [job["data"] for job in api.ok("GET", "{q}/jobs/list", params={"state": "waiting"})["jobs"]]
        assert data[:4] == [1, 2, 3, 4]
        assert data[-1] == "again"
        assert "refused" not in data
    assert "storage works again" in server.log()


ADVICE = {
    "push": "Push it again with the same jobId or Idempotency-Key",
    "pull": "jobs that were leased without an answer are ready again when their leases end",
    "ack": "Send it again with the same token",
    "pause": "Check whether the change was made",
}


@pytest.mark.parametrize("verb", ADVICE)
def test_what_to_do_about_an_unknown_outcome_fits_what_was_asked_for(tmp_path: Path, verb: str) -> None:
    fault = tmp_path / "broken"
    launcher = ("-m", "tests.support.faulty_server")
    with (
        ServerProcess(tmp_path / "data", launcher=launcher, env={"FAULT_FILE": str(fault)}) as server,
        server.client() as client,
    ):
        api = Api(client, "q")
        api.push(1)
        api.push(2)
        job_id, token = api.take()
        fault.touch()
        answer = {
            "push": lambda: api.call("POST", "{q}/jobs", json={"data": 1}),
            "pull": lambda: api.call("GET", "{q}/jobs"),
            "ack": lambda: api.call("POST", f"/jobs/{job_id}/ack", json={"token": token}),
            "pause": lambda: api.call("POST", "{q}/pause"),
        }[verb]()
        assert (answer.status_code, answer.headers["penstock-error"]) == (500, "outcome_unknown")
        assert f"it may or may not have happened. {ADVICE[verb]}" in answer.json()["error"].replace("Pull again: ", "")
        fault.unlink()


# A real file system that is full.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs more rights than we have")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def when_there_is_room(api: Api, path: str, body: dict[str, Any]) -> Any:
    """Send a request again while the reserve is used up: the thread that moves the log into the file may be late."""
    while (answer := api.call("POST", path, json=body)).status_code == 507:
        assert answer.json()["error"].endswith("Nothing was stored.")
        time.sleep(0.01)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow
def test_a_full_disk_refuses_new_jobs_takes_acks_and_recovers(small_disk: Path) -> None:
    filler = small_disk / "filler"
    data = small_disk / "data"
    server = ServerProcess(data)
    server.log_path = small_disk.parent / "server.log"
    with server, server.client() as client:
        api = Api(client, "q")
        pushed = 0
        while True:
            response = api.call("POST", "{q}/jobs/bulk", json={"jobs": [{"data": "x" * 300}] * 200})
            if response.status_code != 200:
                break
            pushed += 200
        assert response.status_code == 507
        assert response.json()["error"].startswith("Disk is full: new jobs are refused")
        assert api.counts()["waiting"] == pushed > 5_000
        assert api.ok("GET", "/storage")["diskFull"] is True
        assert 'penstock_shard_full{shard="0"} 1.0' in api.call("GET", "/prometheus").text
        assert api.call("GET", "/health").json()["status"] == "degraded"
        assert api.refused("POST", "{q}/jobs", {"data": 1})[0] == 507
        acked = 0
        while acked < 5_000:
            reply = when_there_is_room(api, "{q}/jobs/pull-batch", {"count": 100})
            ids = [job["id"] for job in reply["jobs"]]
            done = when_there_is_room(api, "/jobs/ack-batch", {"ids": ids, "tokens": reply["tokens"]})
            assert done["count"] == len(ids)
            acked += len(ids)
        counts = {state: count for state, count in api.counts().items() if count}
        assert counts == {"waiting": pushed - acked, "completed": acked}
        assert not filler.exists()
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        while api.ok("GET", "/storage")["diskFull"]:
            time.sleep(0.01)
        assert api.push("room again")
    with server, server.client() as client:
        assert Api(client, "q").counts()["waiting"] == pushed - acked + 1


# A real file system that is full, and a server that is started again on it.


class SmallDisk:
    """A server on a small disk that other programs fill."""

    def __init__(self, mount: Path) -> None:
        self.mount = mount
        self.server = ServerProcess(mount / "data")
        self.server.log_path = mount.parent / "server.log"
        self._fillers = 0

    def fill(self) -> None:
        """Take every byte that is left."""
        self._fillers += 1
        with (self.mount / f"filler{self._fillers}").open("wb", 0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4_096)

    def free(self) -> None:
        """Give everything back."""
        for path in self.mount.glob("filler*"):
            path.unlink()

    def held(self) -> int:
        return (self.mount / "data" / "ballast").stat().st_blocks * 512


@pytest.fixture
def disk(small_disk: Path) -> Iterator[SmallDisk]:
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    disk = SmallDisk(small_disk)
    yield disk
    disk.server.stop()


def work(api: Api, count: int) -> None:
    """Pull some jobs and acknowledge them."""
    reply = api.ok("POST", "{q}/jobs/pull-batch", {"count": count})
    ids = [job["id"] for job in reply["jobs"]]
    done = api.ok("POST", "/jobs/ack-batch", {"ids": ids, "tokens": reply["tokens"]})
    assert done["count"] == count, done


def test_restarts_on_a_full_disk_keep_the_reserve_and_say_that_it_is_full(disk: SmallDisk) -> None:
    with disk.server, disk.server.client() as client:
        api = Api(client, "q")
        api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": "x" * 300}] * 1_000})
        whole = api.ok("GET", "/storage")["reserveBytes"]
        assert whole > 4 * MEBIBYTE
        disk.fill()
        while not api.ok("GET", "/storage")["diskFull"]:  # the log has some room from before
            work(api, 10)
    held = [disk.held()]
    for stop in (disk.server.stop, disk.server.kill, disk.server.stop, disk.server.kill):
        disk.fill()
        disk.server.start()
        with disk.server.client() as client:
            api = Api(client, "q")
            assert api.ok("GET", "/storage")["diskFull"] is True
            assert api.call("GET", "/health").json()["reason"] == "disk full"
            assert api.call("GET", "/ready").json() == {"ok": True, "ready": True, "reason": "disk full"}
            status, error = api.refused("POST", "{q}/jobs", {"data": 1})
            assert (status, "acknowledgements still work" in error) == (507, True)
            work(api, 20)
            held.append(disk.held())
        stop()
    assert held[-1] > whole * 3 // 5, held
    assert all(after >= before - whole // 8 for before, after in pairwise(held)), held
    with disk.server, disk.server.client() as client:
        disk.free()
        api = Api(client, "q")
        while api.ok("GET", "/storage")["diskFull"]:
            time.sleep(0.01)
        assert api.ok("GET", "/storage")["reserveBytes"] >= whole
        assert disk.held() >= whole
        assert api.push("room again")


def test_a_start_uses_the_reserve_where_there_is_no_room_for_the_files_of_a_start(disk: SmallDisk) -> None:
    with disk.server, disk.server.client() as client:
        api = Api(client, "q")
        api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": "x"}] * 100})
    assert not (disk.mount / "data" / "penstock.db-shm").exists()
    disk.fill()
    with disk.server, disk.server.client() as client:
        api = Api(client, "q")
        assert api.ok("GET", "/storage")["diskFull"] is True
        work(api, 100)
        assert disk.held() > 0


def test_a_reserve_that_is_used_up_is_told_everywhere_and_so_is_its_return(disk: SmallDisk) -> None:
    with disk.server, disk.server.client() as client:
        api = Api(client, "q")
        api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": "x" * 300}] * 200})
        held = api.ok("POST", "{q}/jobs/pull-batch", {"count": 100})
        for job, token in zip(held["jobs"], held["tokens"], strict=True):
            disk.fill()  # whatever is given back, other programs take
            reply = api.call("POST", f"/jobs/{job['id']}/ack", json={"token": token, "result": "x" * 300_000})
            if reply.status_code != 200:
                break
        assert reply.status_code == 507
        assert reply.json()["error"].startswith("Disk is full, and the reserve for acknowledgements is used up")
        assert api.call("GET", "/ready").status_code == 503
        health = api.call("GET", "/health").json()
        assert (health["ok"], health["reason"]) == (False, "disk full, and the reserve for acknowledgements is used up")
        assert api.ok("GET", "/storage")["reserveBytes"] == 0
        status, error = api.refused("POST", "{q}/jobs", {"data": 1})
        assert (status, "acknowledgements still work" in error) == (507, False)
    disk.server.start()
    with disk.server.client() as client:
        api = Api(client, "q")
        assert api.call("GET", "/ready").status_code == 503
        assert "the reserve for acknowledgements is used up" in disk.server.log()
        (disk.mount / "filler1").unlink()
        while api.call("GET", "/ready").status_code != 200:
            time.sleep(0.01)
        work(api, 50)
        disk.free()
        while api.ok("GET", "/storage")["diskFull"]:
            time.sleep(0.01)
        assert api.push("room again")


def test_a_start_without_any_room_says_what_to_do(disk: SmallDisk) -> None:
    with disk.server:
        pass
    (disk.mount / "data" / "ballast").unlink()
    disk.fill()
    with pytest.raises(AssertionError, match="is full, and there is no reserve left to open the data"):
        disk.server.start()
    disk.server.process = None


def test_a_reserve_that_was_small_grows_with_the_disk(disk: SmallDisk) -> None:
    with disk.server, disk.server.client() as client:
        api = Api(client, "q")
        small = api.ok("GET", "/storage")["reserveBytes"]
        assert 0 < small < 64 * MEBIBYTE
        subprocess.run(["mount", "-o", "remount,size=512m", str(disk.mount)], check=True)
        while api.ok("GET", "/storage")["reserveBytes"] < 64 * MEBIBYTE:
            time.sleep(0.01)
        assert disk.held() >= 64 * MEBIBYTE
        assert api.call("GET", "/health").json()["status"] == "healthy"


# Faults at every single call.


class FaultyVfs(apsw.VFS):
    """Fails the n-th write, truncation or sync from the moment it is armed."""

    def __init__(self, name: str, error: type[apsw.Error]) -> None:
        super().__init__(name, "unix")
        self.name = name
        self.error = error
        self.calls_left: int | None = None

    def fault(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise self.error("injected")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the name is SQLite's
        return _FaultyFile(name, flags, self)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], vfs: FaultyVfs) -> None:
        self.vfs = vfs
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self.vfs.fault()
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self.vfs.fault()
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.vfs.fault()
        super().xSync(flags)


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
async def test_a_fault_at_any_call_loses_nothing_answered_and_stores_nothing_refused(
    tmp_path: Path, clock: ManualClock, error: type[apsw.Error]
) -> None:
    for call in range(120):
        vfs = FaultyVfs(f"faulty-{error.__name__}-{call}", error)
        directory = tmp_path / str(call)
        store = await SqliteStore.open(directory, clock, vfs=vfs.name, ballast_bytes=0)
        store.checkpointer.every(40)
        engine = Engine(store, clock, durability=Durability.ALWAYS)
        answered, refused = [await push(engine, data=b"before")], []
        vfs.calls_left = call
        for number in range(30):
            data = f"{call}-{number}".encode()
            try:
                answered.append(await push(engine, data=data, job_id=data.decode()))
            except OutcomeUnknown:
                pass
            except ServerError:
                refused.append(data.decode())
        vfs.calls_left = None
        assert await store.recover(), store.status()
        for job in answered:
            assert await state(engine, job) is State.WAITING
        for name in refused:
            assert await store.job_get("default", name) is None
        await push(engine, data=b"after")
        await engine.close()
        await store.close()
        sound = apsw.Connection(str(directory / "penstock.db"))
        assert list(sound.execute("pragma integrity_check")) == [("ok",)]
        sound.close()


@pytest.mark.anyio
async def test_a_disk_that_forgets_what_it_could_not_write_takes_nothing_else_with_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = ForgetfulDisk(tmp_path)
    store = await SqliteStore.open(tmp_path, clock, fdatasync=disk.fdatasync, ballast_bytes=0)
    engine = Engine(store, clock, durability=Durability.ALWAYS)
    answered = [await push(engine) for _ in range(5)]
    disk.broken = True
    with pytest.raises(OutcomeUnknown):
        await push(engine, job_id="lost")
    disk.forget()
    disk.broken = False
    assert await store.recover(), store.status()
    assert await store.job_get("default", "lost") is None
    answered.append(await push(engine))
    for job in answered:
        assert await state(engine, job) is State.WAITING
    await engine.close()
    await store.close()
    sound = apsw.Connection(str(tmp_path / "penstock.db"))
    assert list(sound.execute("pragma integrity_check")) == [("ok",)]
    sound.close()


@pytest.mark.anyio
async def test_on_a_full_disk_pushes_of_a_batch_are_refused_and_its_acks_are_not(tmp_path: Path, clock: ManualClock) -> None:
    vfs = FaultyVfs("faulty-full", apsw.FullError)
    store = await SqliteStore.open(tmp_path, clock, vfs=vfs.name, ballast_bytes=0)
    engine = Engine(store, clock, durability=Durability.NEVER)
    await push_many(engine, 3)
    held = await claim_all(engine)
    vfs.calls_left = 0
    refused = engine.run(Push(QUEUE, [JobSpec(b"1")]))
    acks = [ack(engine, job) for job in held]
    with pytest.raises(StorageFull, match="Disk is full: new jobs are refused"):
        await refused
    vfs.calls_left = None  # what the ballast gave back is enough for the acks
    for each in acks:
        assert await each is None
    with pytest.raises(StorageFull):
        await push(engine)
    assert store.status().full
    assert await store.recover()
    await push(engine)
    await engine.close()
    await store.close()
