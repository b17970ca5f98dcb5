"""The log of the enqueue buffer is cut short while the server is down: what was answered is not forgotten without a word."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.doors.api import Api
from tests.support.own_postgres import OwnPostgres
from tests.support.server import ServerProcess, serve_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.redis import OwnRedis

pytestmark = pytest.mark.slow

PUSHES = 10


@pytest.fixture(scope="module")
def database() -> Iterator[OwnPostgres]:
    """A database that can be stopped, so that what is answered stays in the log."""
    with OwnPostgres("shared_buffers=64MB", "max_wal_size=256MB") as own:
        yield own


@pytest.fixture
def killed(database: OwnPostgres, redis: OwnRedis, tmp_path: Path) -> ServerProcess:
    """A server that was killed with ten answered pushes that are in its log only (and in the copy in Redis)."""
    server = ServerProcess(tmp_path / "data", env={"PENSTOCK_STORES": database.url, "PENSTOCK_REDIS": redis.url})
    with server.start().client() as client:
        api = Api(client, tmp_path.name)
        api.ok("PUT", f"/queues/{api.queue}/mode", {"mode": "buffered"})
        database.stop()
        for number in range(PUSHES):
            api.push(number)
    server.kill()
    database.start()
    return server


def log_of(server: ServerProcess) -> Path:
    """Return the file that has the records."""
    return max((server.data / "wal-0").glob("*.wal"), key=lambda path: path.stat().st_size)


def waiting(server: ServerProcess, queue: str) -> int:
    """Wait until the flusher has stored what is in the log; return how many jobs there are."""
    with server.client() as client:
        give_up_at = time.monotonic() + 60
        while any(
            line.startswith("penstock_buffer_jobs") and not line.endswith(" 0.0")
            for line in client.get("/prometheus").text.splitlines()
        ):
            assert time.monotonic() < give_up_at, "the flusher does not store the log"
        return int(Api(client, queue).counts()["waiting"])


def refusal(server: ServerProcess) -> str:
    """Start a server that must refuse, and must not change anything; return its error."""
    files = {path: path.read_bytes() for path in (server.data / "wal-0").iterdir() if path.suffix in (".wal", ".mark")}
    ended = subprocess.run(
        serve_command(server.data), env=server.env, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    for path, content in files.items():
        assert path.read_bytes() == content, path
    return ended.stderr


@pytest.mark.parametrize("kept", [0.0, 0.5], ids=["emptied", "half"])
def test_a_log_cut_short_is_refused_and_accept_loss_goes_on_without(
    killed: ServerProcess, redis: OwnRedis, tmp_path: Path, kept: float
) -> None:
    redis.client().flushall()
    path = log_of(killed)
    os.truncate(path, int(path.stat().st_size * kept))
    for _ in range(2):  # a service manager tries again
        text = refusal(killed)
        assert "The log of the enqueue buffer is behind what was answered: records " in text
        assert f" to {PUSHES} are missing, which is " in text
        assert "The log was cut short or removed" in text
        assert "--accept-loss" in text
    killed.args = ("--accept-loss",)
    with killed as server:
        left = waiting(server, tmp_path.name)
        assert left < PUSHES
        assert (kept == 0.0) == (left == 0)
        with server.client() as client:
            Api(client, tmp_path.name).push("next")
    assert "started with --accept-loss" in killed.log()
    assert f" to {PUSHES} are missing" in killed.log()
    killed.args = ()
    with killed as server:  # what was accepted once is not asked again
        assert waiting(server, tmp_path.name) == left + 1


def test_a_log_cut_short_is_completed_from_the_copy_in_redis(killed: ServerProcess, tmp_path: Path) -> None:
    path = log_of(killed)
    os.truncate(path, path.stat().st_size // 2)
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES
        with server.client() as client:
            Api(client, tmp_path.name).push("next")
        server.kill()
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES + 1


def test_a_torn_end_that_was_never_answered_and_a_log_that_is_stored_start(
    killed: ServerProcess, redis: OwnRedis, tmp_path: Path
) -> None:
    redis.client().flushall()
    path = log_of(killed)
    content = path.read_bytes()
    path.write_bytes(content + content[59:100])  # the beginning of a record
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES
        server.kill()
    assert "the end of the log is incomplete" in killed.log()
    for path in (killed.data / "wal-0").glob("*.wal"):  # all of it is in the database
        path.unlink()
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES


def test_a_server_without_redis_stores_what_was_answered_and_takes_nothing_new_into_the_log(
    killed: ServerProcess, redis: OwnRedis, tmp_path: Path
) -> None:
    redis.client().flushall()
    del killed.env["PENSTOCK_REDIS"]
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES
        with server.client() as client:
            api = Api(client, tmp_path.name)
            api.push("next")
            assert api.counts()["waiting"] == PUSHES + 1  # stored before it was answered
            status, error = api.refused("PUT", f"/queues/{api.queue}/mode", {"mode": "buffered"})
            assert (status, "--redis" in error) == (400, True)
    assert not list((killed.data / "wal-0").glob("*.wal"))
    with killed as server:
        assert waiting(server, tmp_path.name) == PUSHES + 1


def test_a_server_without_redis_refuses_a_log_cut_short_too(killed: ServerProcess, redis: OwnRedis) -> None:
    redis.client().flushall()
    del killed.env["PENSTOCK_REDIS"]
    path = log_of(killed)
    os.truncate(path, path.stat().st_size // 2)
    assert "The log of the enqueue buffer is behind what was answered: records " in refusal(killed)
