# Made from _async/workers.py by make sdk. Change that one.
"""Registered workers, for people and crons to see. ``Worker`` registers itself automatically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.client import _replies as replies
from penstock.client._names import queue_path
from penstock.client._request import ApiCall, body, nothing, path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client._sync.transport import Transport
    from penstock.client.models import WorkerInfo


class Workers:
    """Registered workers of a namespace. An attribute of the client: ``client.workers``."""

    def __init__(self, transport: Transport) -> None:
        self._send = transport.send

    def all(self, queue: str | None = None) -> list[WorkerInfo]:
        """Return all workers of the namespace, or those of a queue."""
        where = "/workers" if queue is None else queue_path("/queues/{}/workers", queue)
        return self._send(ApiCall("GET", where, replies.WORKERS))

    def register(
        self,
        name: str,
        queues: Sequence[str],
        *,
        concurrency: int = 1,
        worker_id: str | None = None,
        hostname: str | None = None,
        pid: int | None = None,
    ) -> str:
        """Register a worker and return its id. With a ``worker_id`` it can be repeated."""
        fields = body(
            name=name, queues=list(queues), concurrency=concurrency, workerId=worker_id, hostname=hostname, pid=pid
        )
        call = ApiCall("POST", "/workers", replies.WORKER_ID, fields, repeatable=worker_id is not None)
        return self._send(call)

    def heartbeat(
        self, worker_id: str, *, active_jobs: int | None = None, processed: int | None = None, failed: int | None = None
    ) -> bool:
        """Report that a worker is alive, and its counts. False: the worker is not registered; register it again."""
        fields = body(activeJobs=active_jobs, processed=processed, failed=failed)
        return self._send(ApiCall("POST", path("/workers/{}/heartbeat", worker_id), replies.HEARTBEAT, fields))

    def unregister(self, worker_id: str) -> None:
        """Remove a worker from the list. Raises NotFound."""
        self._send(ApiCall("DELETE", path("/workers/{}", worker_id), nothing, already=(404,)))
