"""``gold/tenants``: the use of each namespace in each minute, for the comparison of shares.

Shares and Jain's index are computed from it.
"""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.base import BATCH, DAY, MINUTE, NAMESPACE, Table, count

TENANTS: Final = Table(
    "gold",
    "tenants",
    "the use by a namespace in a minute",
    (
        NAMESPACE,
        MINUTE,
        count("arrivals", "jobs pushed"),
        count("completions", "jobs completed"),
        count("busy_ms", "time of workers spent on its jobs in this minute"),
        count("waits", "attempts of which it is known how long the job waited"),
        count("wait_ms", "how long these waited, together"),
        DAY,
        BATCH,
    ),
)
