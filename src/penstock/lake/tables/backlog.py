"""``gold/backlog``: the number of jobs added to each queue and taken away in each minute.

The sum of ``added - taken`` up to a minute is the number of unfinished jobs at its end (waiting, delayed, active, or waiting
for others), counted from the beginning of the lake. In first-in-first-out order, the oldest of them was added in the minute
in which the sum of ``added`` exceeds the sum of ``taken``. With priorities, delays and retries, that is an estimate;
``silver/jobs`` has the exact times.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DAY, MINUTE, NAMESPACE, QUEUE, Table, count

BACKLOG: Final = Table(
    "gold",
    "backlog",
    "jobs added to a queue and taken away in a minute",
    (
        NAMESPACE,
        QUEUE,
        MINUTE,
        count("added", "jobs pushed, brought back from the dead, or run again"),
        count("taken", "jobs that completed, died, expired or were removed before they were finished"),
        DAY,
        BATCH,
    ),
)
