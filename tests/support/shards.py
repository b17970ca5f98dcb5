"""Servers on several shards, and shards that are down for a while."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from tests.support import postgres
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path


def run(coroutine: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def server_on(tmp_path: Path, addresses: list[str], *options: str, **more: Any) -> ServerProcess:
    stores = (each for url in addresses for each in ("--store", url))
    return ServerProcess(tmp_path / "unused", *stores, *options, **more)


async def set_down(url: str, *, down: bool) -> None:
    """Have nobody connected to a database, and let nobody in; or let them in again."""
    name = urlsplit(url).path.lstrip("/")
    db = await asyncpg.connect(postgres.server_url())
    await db.execute(f"alter database {name} with allow_connections {str(not down).lower()}")
    if down:
        await db.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name)
    await db.close()
