"""``bronze/events``: every event of the journal as the server wrote it. Everything else can be built from it again."""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import COUNT, DATE, MOMENT, SMALL, TEXT, Table, rows

EVENTS: Final = Table(
    "bronze",
    "events",
    "every event of the journal, as it is",
    tuple(
        rows(
            ("shard", SMALL, "the shard whose journal it is from"),
            ("seq", COUNT, "its number in that journal; with the shard, its key"),
            ("at", MOMENT, "when it was committed"),
            ("kind", TEXT, "the kind of event: `job:completed`, see [events](events.md)"),
            ("namespace", TEXT, "the namespace of the queue"),
            ("queue", TEXT, "the queue; null if the event is not about one"),
            ("job_id", TEXT, "the job; null if the event is not about one"),
            ("custom_id", TEXT, "the job's own id, if its producer gave one"),
            ("attempt", SMALL, "failed attempts so far; with `job:failed` and `job:stalled`, this one included"),
            ("priority", SMALL, "of the job, if the event has it"),
            ("created_at", MOMENT, "when the job was pushed; on events that end an attempt"),
            (
                "run_at",
                MOMENT,
                "when the job is due; on events that end an attempt, when the next one is due, if there is one",
            ),
            ("started_at", MOMENT, "when the attempt that ended began"),
            (
                "due_at",
                MOMENT,
                "when the attempt that ended was due; none for failed attempts in journals of earlier servers",
            ),
            ("size", COUNT, "of the job's payload, in bytes"),
            ("error", TEXT, "why it failed, or the reason for a removal"),
            ("payload", TEXT, "other data of the event, as JSON"),
            ("extra", TEXT, "columns of a newer server that are unknown to this version, as JSON"),
            ("date", DATE, "the day it was committed (UTC); a directory each"),
            ("batch", COUNT, "the number of the batch that wrote the row"),
        )
    ),
)
