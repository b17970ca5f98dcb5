"""A snapshot of the registered workers: ``gold/fleet``. The journal does not contain them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client._clock import fresh_name, now_ms
from penstock.client.errors import PenstockError
from penstock.lake.tables import FLEET, TENANTS
from penstock.lake.writer import PartWriter, commit
from penstock.spark.http_client import BulkClient

if TYPE_CHECKING:
    from penstock.lake.location import Lake
    from penstock.spark.options import Options

#: Namespaces that are requested at most: those that had jobs on the last day.
NAMESPACES_MAX: Final = 100
_MINUTE_MS: Final = 60_000
#: For how long a request is retried if the server does not answer, in ms.
_PATIENCE_MS: Final = 1_000
_MILLIS: Final = pa.timestamp("ms", tz="UTC")


def look(options: Options, lake: Lake, batch: int) -> int:
    """Record the registered workers, and return their number. An error of the server is ignored, because this is a sample."""
    minute = now_ms() // _MINUTE_MS * _MINUTE_MS
    moment = pa.scalar(minute, pa.int64()).cast(_MILLIS)
    found: list[dict[str, Any]] = []
    own = options.namespace or "default"
    for each in [own] if own != "*" else _namespaces(lake, minute):
        try:
            with BulkClient(replace(options, namespace=each, retry_for=_PATIENCE_MS)) as wire:
                workers = wire.get("/workers")["data"]["workers"]
        except (PenstockError, LookupError, TypeError):
            continue
        found += [
            {
                "namespace": each,
                "minute": moment.as_py(),
                "worker": worker["id"],
                "name": worker.get("name"),
                "queues": ",".join(worker.get("queues") or ()),
                "concurrency": worker.get("concurrency"),
                "active": worker.get("activeJobs"),
                "date": pc.cast(moment, pa.date32()).as_py(),
                "batch": batch,
            }
            for worker in workers
            if worker.get("status") == "active"
        ]
    if found:
        writer = PartWriter(lake, FLEET, fresh_name())
        writer.write(pa.Table.from_pylist(found, schema=FLEET.schema))
        commit(lake, FLEET, writer.close(), marks={}, now_ms=now_ms())
    return len(found)


def _namespaces(lake: Lake, at_ms: int) -> list[str]:
    day = pc.cast(pa.scalar(at_ms - 86_400_000, pa.int64()).cast(_MILLIS), pa.date32()).as_py()
    rows = lake.read(TENANTS, columns=["namespace"], partitions=[("date", ">=", day)], folded=False)
    return sorted(pc.unique(rows.column("namespace")).to_pylist())[:NAMESPACES_MAX]
