"""From events to every other table: whole columns at a time, with the kernels of Arrow.

All tables but bronze are partials that fold, so a heap of events needs to know of no other: whoever has some makes rows of
them, without a shuffle, a state or a join. Spark's tasks do so with what they have just fetched, a rebuild with bronze.
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

#: Everything that is made of events, in the order in which it is committed.
DERIVED = (QUARANTINE, ATTEMPTS, JOBS, MINUTES, LATENCY, FAILURES, BACKLOG, WORKERS, TENANTS)


def make(events: pa.Table, batch: int, wanted: frozenset[str]) -> Iterator[tuple[Table, pa.Table]]:
    """Return the rows of the tables that are wanted, by their paths, of some events of bronze/events."""
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
