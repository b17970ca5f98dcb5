"""``silver/jobs``: one row for each job, with its state.

Partials: a batch adds a row for each job of its events.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, COUNT, DATE, MOMENT, SMALL, TEXT, Column, Table, count, key

JOBS: Final = Table(
    "silver",
    "jobs",
    "one row for each job, with its state",
    (
        key("namespace", TEXT, "the namespace of the queue"),
        key("job_id", TEXT, "the job"),
        Column("queue", TEXT, "last", "the queue"),
        Column("custom_id", TEXT, "max", "the job's own id, if its producer gave one"),
        Column("pushed_at", MOMENT, "min", "when it was pushed, if the lake has seen that or an attempt that ended"),
        Column("first_started_at", MOMENT, "min", "when a worker first got it, of attempts that ended"),
        Column("last_started_at", MOMENT, "max", "when a worker last got it, of attempts that ended"),
        Column("ended_at", MOMENT, "max", "when it last completed, died, expired or was removed"),
        count("attempts", "attempts that ended; released ones do not count"),
        count("failures", "attempts that failed or stalled"),
        count("run_ms", "all its attempts took, together"),
        Column("size", COUNT, "max", "of its payload, in bytes"),
        Column("priority", SMALL, "max", "its highest priority"),
        Column(
            "state",
            TEXT,
            "last",
            "`waiting`, `delayed`, `active`, `completed`, `dead`, `expired`, `removed`, by the last event that changed it",
        ),
        Column("last_at", MOMENT, "max", "when the last event that changed its state was"),
        Column("last_shard", SMALL, "last", "where that event is"),
        Column("last_seq", COUNT, "last", "where that event is"),
        key("date", DATE, "the day it was made, from its id (UTC); one directory per day"),
        BATCH,
    ),
    order=("last_at", "last_shard", "last_seq"),
)
