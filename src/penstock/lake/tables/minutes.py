"""``gold/minutes``: the activity of each queue in each minute, in numbers.

Over all time, ``arrivals + revived + replayed - completions - dead - expired - removed`` is the number of unfinished jobs.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DAY, MINUTE, NAMESPACE, QUEUE, Table, count

MINUTES: Final = Table(
    "gold",
    "minutes",
    "the activity of a queue in a minute",
    (
        NAMESPACE,
        QUEUE,
        MINUTE,
        count("arrivals", "jobs pushed"),
        count("completions", "jobs completed"),
        count("failures", "attempts that failed, also those that are tried again"),
        count("retries", "failed attempts that are tried again"),
        count("stalls", "attempts whose worker sent no more heartbeats"),
        count("releases", "jobs that a worker released"),
        count("dead", "jobs that became dead letters"),
        count("revived", "dead letters brought back"),
        count("replayed", "completed jobs run again"),
        count("expired", "jobs whose time-to-live ran out before a worker had them"),
        count("removed", "jobs removed before they were finished"),
        count("forgotten", "completed jobs and dead letters that a client removed; retention is not counted"),
        count("bytes_in", "payloads of jobs pushed, in bytes"),
        count("bytes_done", "payloads of jobs completed, in bytes"),
        count("waits", "attempts that ended and of which it is known how long the job waited"),
        count("wait_ms", "how long these waited, together"),
        count("runs", "attempts that completed or failed and of which it is known how long they took"),
        count("run_ms", "how long these took, together"),
        DAY,
        BATCH,
    ),
)
