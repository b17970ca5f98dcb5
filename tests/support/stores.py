"""Which store the servers of a test run on: PENSTOCK_TEST_STORE, which ``make test`` sets to each in turn.

A server is told by its data directory; two servers on one directory, or one that is started again, share the database.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from tests.support import postgres, redis

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "PENSTOCK_TEST_STORE"


def chosen() -> str:
    """Return the name of the store: sqlite, postgres, shards (two databases), or redis (these with the fast path)."""
    return os.environ.get(VARIABLE, "sqlite")


@cache
def environment(data: Path) -> dict[str, str]:
    """Return the variables that make a server use the chosen store."""
    if chosen() == "sqlite":
        return {}
    with ThreadPoolExecutor(1) as thread:  # a test may have an event loop of its own
        count = {"postgres": 1, "shards": 2, "redis": 2}[chosen()]
        urls = [thread.submit(lambda: asyncio.run(postgres.make_database())).result() for _ in range(count)]
        fast = {"PENSTOCK_REDIS": redis.server_url(), "PENSTOCK_REDIS_HOT_JOBS": "1"} if chosen() == "redis" else {}
        # What is tested is the doors: a machine that stops for seconds must not be taken for a database that is away.
        patient = {"PENSTOCK_DATABASE_ANSWER_MS": "15s"}
        return {"PENSTOCK_STORES": ",".join(urls)} | patient | fast
