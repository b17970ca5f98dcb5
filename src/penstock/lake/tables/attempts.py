"""``silver/attempts``: one row for each attempt that ended, with all its times.

The event that ends an attempt has all timestamps of the attempt, so a row needs no other event: no state, no join, no wait.
A job that was reserved for a worker and never delivered has no attempt; a job that was removed while it ran has no attempt
that ended.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import COUNT, DATE, MOMENT, SMALL, TEXT, Table, rows

ATTEMPTS: Final = Table(
    "silver",
    "attempts",
    "one row for each attempt that ended, with its times",
    tuple(
        rows(
            ("namespace", TEXT, "the namespace of the queue"),
            ("queue", TEXT, "the queue"),
            ("job_id", TEXT, "the job"),
            ("custom_id", TEXT, "the job's own id, if its producer gave one"),
            ("shard", SMALL, "where the event is that ended it"),
            ("seq", COUNT, "where the event is that ended it; with the shard, the key of the row"),
            ("attempt", SMALL, "which attempt it was: 1 is the first"),
            (
                "outcome",
                TEXT,
                "`completed`, `failed`, `stalled` (its worker sent no more heartbeats), `released`",
            ),
            ("created_at", MOMENT, "when the job was pushed"),
            ("run_at", MOMENT, "when this attempt was due; none if an earlier server did not say"),
            ("started_at", MOMENT, "when a worker got it; null for a job that failed because of its dependencies"),
            ("ended_at", MOMENT, "when it ended"),
            (
                "wait_ms",
                COUNT,
                "from when this attempt was due, or the job was pushed if that was later, until a worker got it",
            ),
            ("run_ms", COUNT, "from when a worker got it until it ended"),
            ("total_ms", COUNT, "from when the job was pushed until this attempt ended"),
            ("size", COUNT, "of the job's payload, in bytes"),
            ("error", TEXT, "why it failed"),
            ("fingerprint", TEXT, "errors that differ in ids and numbers only have the same one; see `gold/failures`"),
            ("date", DATE, "the day it ended (UTC); a directory each"),
            ("batch", COUNT, "the number of the batch that wrote the row"),
        )
    ),
)
