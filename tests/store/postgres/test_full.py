"""A database whose disk is full: what the server says of it is what it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import subprocess
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from tests.doors.api import Api
from tests.support.own_postgres import OwnPostgres
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Room for the tables of an empty database and some thousand jobs.
DISK = "size=48m"


@pytest.fixture
def database() -> Iterator[OwnPostgres]:
    with OwnPostgres("shared_buffers=64MB", "autovacuum=off") as server:
        yield server


@pytest.fixture
def small_disk(database: OwnPostgres) -> Iterator[Path]:
    """A small disk on which the database keeps its tables; its log is elsewhere, as without it there is no database."""
    mount = database.home / "small"
    mount.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(mount)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs more rights than we have")
    if database.user is not None:
        owner = pwd.getpwnam(database.user)
        os.chown(mount, owner.pw_uid, owner.pw_gid)
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def on_small_disk(database: OwnPostgres, disk: Path) -> str:
    """Make a database on the small disk and return its address."""

    async def make() -> None:
        db = await asyncpg.connect(database.url)
        await db.execute(f"create tablespace small location '{disk}'")
        await db.execute("create database small tablespace small")
        await db.close()

    asyncio.run(make())
    return database.url.replace("/postgres?", "/small?")


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4_096)


def test_a_full_database_says_what_works_and_recovers(database: OwnPostgres, small_disk: Path, tmp_path: Path) -> None:
    env = {"PENSTOCK_STORES": on_small_disk(database, small_disk), "PENSTOCK_DATABASE_ANSWER_MS": "15s"}
    with ServerProcess(tmp_path / "data", env=env) as server, server.client() as client:
        api = Api(client, "q")
        api.ok("POST", "{q}/jobs/bulk", {"jobs": [{"data": "x" * 300}] * 3_000})
        fill(small_disk)
        while (reply := api.call("POST", "{q}/jobs/bulk", json={"jobs": [{"data": "x" * 300}] * 100})).status_code == 200:
            time.sleep(0.01)
        assert reply.status_code == 507
        assert reply.json()["error"].startswith("The database has no room left: new jobs are refused")
        assert "still work" not in reply.json()["error"]
        while True:  # in pages that the database had before, there is some room
            pulled = api.call("POST", "{q}/jobs/pull-batch", json={"count": 100})
            if pulled.status_code != 200:
                break
        assert pulled.status_code == 507
        assert pulled.json()["error"].startswith("The database has no room left, and no reserve for pulls")
        for _ in range(3):  # it stays so, however often it is looked at
            health = api.call("GET", "/health").json()
            assert (health["ok"], health["status"]) == (False, "degraded")
            assert health["reason"] == "the database has no room left, not even for pulls and acknowledgements"
            assert api.call("GET", "/ready").status_code == 503
            assert api.refused("POST", "{q}/jobs", {"data": 1})[0] == 507
            assert api.call("POST", "{q}/jobs/pull-batch", json={"count": 100}).status_code == 507
        (small_disk / "filler").unlink()
        while api.call("GET", "/ready").status_code != 200:
            time.sleep(0.01)
        assert api.call("GET", "/health").json()["status"] == "healthy"
        assert api.push("room again")
        job_id, token = api.take()
        api.ok("POST", f"/jobs/{job_id}/ack", {"token": token})
