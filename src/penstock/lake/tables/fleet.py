"""``gold/fleet``: the registered workers, as the server lists them when a batch is built.

A sample, so it is not rebuilt from bronze.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DATE, MINUTE, SMALL, TEXT, Column, Table, key

FLEET: Final = Table(
    "gold",
    "fleet",
    "registered workers, by the minute of a sample",
    (
        key("namespace", TEXT, "the namespace"),
        MINUTE,
        key("worker", TEXT, "its id"),
        Column("name", TEXT, "max", "its name"),
        Column("queues", TEXT, "max", "its queues, with commas in between"),
        Column("concurrency", SMALL, "max", "how many jobs it takes at once"),
        Column("active", SMALL, "max", "how many it had"),
        key("date", DATE, "the day of the minute (UTC); a directory each"),
        BATCH,
    ),
)
