"""``gold/failures``: kinds of failures. Errors that differ only in ids, numbers and quoted words are one kind.

Counts attempts that failed or stalled.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, COUNT, DATE, MOMENT, NAMESPACE, QUEUE, SMALL, TEXT, Column, Table, count, key

FAILURES: Final = Table(
    "gold",
    "failures",
    "kinds of failures: how many a day, and an example",
    (
        NAMESPACE,
        QUEUE,
        key("fingerprint", TEXT, "16 digits that identify the pattern"),
        Column(
            "pattern", TEXT, "first", "the error with `<id>`, `<n>` and `<text>` for what differs; at most 300 characters"
        ),
        Column("first_seen", MOMENT, "min", "when the first of the day was"),
        Column("last_seen", MOMENT, "max", "when the last of the day was"),
        count("n", "how many attempts failed with it"),
        Column("example", TEXT, "first", "the error of the first, as it was; at most 1000 characters"),
        Column("example_job", TEXT, "first", "the job of the first"),
        Column("example_shard", SMALL, "first", "where the event of the first is"),
        Column("example_seq", COUNT, "first", "where the event of the first is"),
        key("date", DATE, "the day (UTC); a directory each"),
        BATCH,
    ),
    order=("first_seen", "example_shard", "example_seq"),
)
