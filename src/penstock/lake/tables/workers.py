"""``gold/workers``: how busy the workers of each queue were in each minute.

``busy_ms / 60000`` is the average number of jobs that ran at the same time; divided by the capacity (``gold/fleet``), it is
the utilisation. An attempt that spans several minutes is spread over them; the journal does not contain the worker of an
attempt.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DAY, MINUTE, NAMESPACE, QUEUE, Table, count

WORKERS: Final = Table(
    "gold",
    "workers",
    "how busy the workers of a queue were in a minute",
    (
        NAMESPACE,
        QUEUE,
        MINUTE,
        count("busy_ms", "time of workers spent on jobs of the queue in this minute, of attempts that ended"),
        count("attempts", "attempts that ended in this minute and had begun"),
        DAY,
        BATCH,
    ),
)
