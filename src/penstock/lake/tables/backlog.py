"""``gold/backlog``: what was added to each queue and taken away in each minute.

The sum of ``added - taken`` up to a minute is how many jobs were not finished at its end (waiting, delayed, being worked at
or waiting for others), from where the lake begins. How old the oldest was follows by first-in-first-out: it came in the
minute in which the sum of ``added`` passes the sum of ``taken``. With priorities, delays and retries, that is an estimate;
``silver/jobs`` has the truth.
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
