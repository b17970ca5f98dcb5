"""``bronze/quarantine``: events that could not be interpreted, or only in part, and the reason.

They are in ``bronze/events`` as well.

An event that cannot be interpreted at all (an unknown kind, no job or queue where one is required) is in no other table. An
event with impossible times is counted, but its times are not used.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import COUNT, DATE, MOMENT, SMALL, TEXT, Table, rows

QUARANTINE: Final = Table(
    "bronze",
    "quarantine",
    "events that could not be interpreted, and the reason",
    tuple(
        rows(
            ("shard", SMALL, "the shard whose journal it is from"),
            ("seq", COUNT, "its number in that journal"),
            ("at", MOMENT, "when it was committed"),
            ("kind", TEXT, "the kind that the event has"),
            ("reason", TEXT, "`unknown kind`, `no job`, `no queue`, `no time`, `ended before it started`"),
            ("row", TEXT, "the whole event, as JSON"),
            ("date", DATE, "the day it was built if the event has no time, else the day it was committed (UTC)"),
            ("batch", COUNT, "the number of the batch that wrote the row"),
        )
    ),
)
