"""``gold/workers``: how busy the workers of each queue were in each minute.

``busy_ms / 60000`` is how many jobs were worked at at once, on average; divided by the places there were (``gold/fleet``), it
is how well they were used. An attempt that lasts longer is spread over its minutes; the journal does not say which worker had
it.
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
