"""The tables of the lake, one documented file each. docs/lake.md is generated from them (``make docs``)."""

from __future__ import annotations

from typing import Final

from penstock.lake.tables.attempts import ATTEMPTS
from penstock.lake.tables.backlog import BACKLOG
from penstock.lake.tables.base import Column, Fold, Table
from penstock.lake.tables.events import EVENTS
from penstock.lake.tables.failures import FAILURES
from penstock.lake.tables.fleet import FLEET
from penstock.lake.tables.forecast import FORECAST
from penstock.lake.tables.jobs import JOBS
from penstock.lake.tables.latency import LATENCY
from penstock.lake.tables.minutes import MINUTES
from penstock.lake.tables.quarantine import QUARANTINE
from penstock.lake.tables.slo import SLO
from penstock.lake.tables.tenants import TENANTS
from penstock.lake.tables.workers import WORKERS

__all__ = [
    "ATTEMPTS", "BACKLOG", "EVENTS", "FAILURES", "FLEET", "FORECAST", "JOBS", "LATENCY", "MINUTES", "QUARANTINE", "SLO",
    "TABLES", "TENANTS", "WORKERS", "Column", "Fold", "Table",
]  # fmt: skip

#: All tables, by their paths: ``TABLES["gold/minutes"]``.
TABLES: Final[dict[str, Table]] = {
    each.path: each
    for each in (
        EVENTS,
        QUARANTINE,
        ATTEMPTS,
        JOBS,
        MINUTES,
        LATENCY,
        FAILURES,
        BACKLOG,
        WORKERS,
        FLEET,
        TENANTS,
        SLO,
        FORECAST,
    )
}
