"""Makes the store of the current schema that later versions are tried with: ``python -m tests.store.sqlite.make_store``.

A real server is filled over HTTP with jobs in every state and with everything else a store keeps, and stopped. The file goes to
``tests/store/sqlite/stores/schema-N.db.gz``, what must be found in it to ``schema-N.json``. Both are made once, by the
change that raises the schema, and never again.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.store.sqlite import schema
from penstock.store.sqlite.store import FILE_NAME
from tests.doors.api import Api
from tests.support.server import ServerProcess

STORES = Path(__file__).parent / "stores"


def fill(api: Api) -> dict[str, Any]:
    """Put something of everything into a server; return what must be found: states by the ids of jobs, and the rest."""
    states = {api.push({"n": n, "text": "ä€😀"}, priority=n % 3): "waiting" for n in range(5)}
    parent = Api(api.http, "flows").push("parent", dependsOn=list(states)[:2])
    states |= {api.push("later", delay=10**9): "delayed", parent: "waiting-children"}
    states[api.push("named", jobId="order-1", uniqueKey="key-1", tags=["a", "b"])] = "waiting"
    held = {}
    for name in ("done", "broken", "held"):
        queue = Api(api.http, name)
        queue.push(name, maxAttempts=1)
        held[name] = queue.take()
    states |= {held["done"][0]: "completed", held["broken"][0]: "failed", held["held"][0]: "active"}
    api.ok("POST", f"/jobs/{held['done'][0]}/ack", {"token": held["done"][1], "result": {"sum": 42}})
    api.ok("POST", f"/jobs/{held['broken'][0]}/fail", {"token": held["broken"][1], "error": "no such address"})
    api.ok("POST", f"/jobs/{held['held'][0]}/logs", {"message": "half way", "level": "info"})
    api.ok("POST", "/queues/paused/pause")
    api.ok("POST", "/crons", {"name": "nightly", "queue": "q", "schedule": "0 3 * * *", "data": {"report": 1}})
    api.ok("POST", "/webhooks", {"url": "https://hooks.example/penstock", "events": ["job.completed"]})
    return {
        "states": states,
        "data": {job_id: api.job(job_id)["data"] for job_id in states},
        "done": held["done"][0],
        "held": held["held"][0],
    }


def make() -> Path:
    """Make the store of the current schema; return where it is."""
    target = STORES / f"schema-{schema.SCHEMA_VERSION}.db.gz"
    if target.exists():
        raise SystemExit(f"{target.name} is there already. A store that was made is never changed.")
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "data"
        with ServerProcess(data) as server, server.client() as client:
            expected = fill(Api(client, "q")) | {"at_ms": time.time_ns() // 1_000_000}
        target.write_bytes(gzip.compress((data / FILE_NAME).read_bytes(), 9, mtime=0))
    target.with_name(f"schema-{schema.SCHEMA_VERSION}.json").write_text(json.dumps(expected, indent=1) + "\n")
    return target


if __name__ == "__main__":
    print(f"made {make()}")
