"""Build all other tables from events: whole columns at a time, with Arrow's kernels.

All tables except bronze are partials that are folded, so a set of events is independent of all others: each process builds
rows from its events, without a shuffle, a state or a join. Spark's tasks use the events that they fetched, a rebuild those
of bronze.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.lake.tables import ATTEMPTS, BACKLOG, FAILURES, JOBS, LATENCY, MINUTES, QUARANTINE, TENANTS, WORKERS
from penstock.lake.transform.gold import backlog, failures, latency, minutes, summary, tenants, workers
from penstock.lake.transform.rows import EventRows
from penstock.lake.transform.silver import attempts, jobs, quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from penstock.lake.tables import Table

__all__ = ["DERIVED", "make"]

#: The tables that are built from events, in the order in which they are committed.
DERIVED = (QUARANTINE, ATTEMPTS, JOBS, MINUTES, LATENCY, FAILURES, BACKLOG, WORKERS, TENANTS)


def make(events: pa.Table, batch: int, wanted: frozenset[str]) -> Iterator[tuple[Table, pa.Table]]:
    """Yield the rows of the wanted tables, by their paths, for some events of bronze/events."""
    if QUARANTINE.path in wanted:
        yield QUARANTINE, quarantine(events, batch)
    rows = EventRows(events, batch)
    if rows.count == 0:
        return
    made = summary(rows)
    makers: dict[Table, Callable[[], pa.Table]] = {
        ATTEMPTS: lambda: attempts(rows),
        JOBS: lambda: jobs(rows),
        MINUTES: lambda: minutes(rows, made),
        LATENCY: lambda: latency(rows),
        FAILURES: lambda: failures(rows),
        BACKLOG: lambda: backlog(rows, made),
        WORKERS: lambda: workers(rows, made),
        TENANTS: lambda: tenants(rows, made),
    }
    for table, maker in makers.items():
        if table.path in wanted:
            yield table, maker()
