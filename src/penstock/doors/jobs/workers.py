"""Handlers about workers: registration, activity and heartbeats."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from penstock.core import limits
from penstock.core.errors import ServerError, WorkerNotFound
from penstock.doors.http.body import BodyReader
from penstock.doors.http.errors import ErrorReply
from penstock.doors.http.route import Route
from penstock.doors.jobs.base import JobsDoor, check_queue_name
from penstock.doors.jobs.wire.fields import Key
from penstock.doors.jobs.wire.replies import Out
from penstock.doors.jobs.wire.requests import RequestModel

if TYPE_CHECKING:
    from penstock.doors.http.request import ApiRequest
    from penstock.engine.api import EngineApi
    from penstock.engine.bulk.consumer_groups import ConsumerGroups
    from penstock.engine.worker_registry import RegisteredWorker, WorkerRegistry

Number = Annotated[int, Meta(ge=0, le=2**53)]


class WorkerBody(RequestModel):
    """A worker that registers. ``startedAt`` in ms since 1970."""

    name: Key
    queues: Annotated[list[str], Meta(max_length=limits.worker_queues_max)]
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    worker_id: Key | None = None
    hostname: Key | None = None
    pid: Number | None = None
    started_at: Number | None = None


class WorkerHeartbeatBody(RequestModel):
    """The active jobs of a worker, and its totals since it started."""

    active_jobs: Number | None = None
    processed: Number | None = None
    failed: Number | None = None


class WorkerRegisteredView(Out):
    """A worker that was registered."""

    worker_id: str
    name: str
    queues: list[str]
    concurrency: int
    status: str
    registered_at: int


class WorkerView(Out):
    """A worker. ``status`` is active or disconnected; times in ms since 1970."""

    id: str
    name: str
    queues: list[str]
    concurrency: int
    status: str
    last_seen: int
    active_jobs: int
    processed_jobs: int
    failed_jobs: int
    registered_at: int
    hostname: str | None
    pid: int | None
    started_at: int | None


class WorkerStats(Out):
    """How many workers there are, and how many sent a heartbeat recently."""

    total: int
    active: int


class ConsumerGroupView(Out):
    """A consumer group, which claims jobs in bulk (see docs/bulk-writing.md). ``lag``: jobs that wait in its queues."""

    group: str
    queues: list[str]
    in_flight: int
    lag: int
    last_seen: int


class WorkersView(Out):
    """Workers and their number, and consumer groups, if there are any."""

    workers: list[WorkerView]
    stats: WorkerStats
    groups: list[ConsumerGroupView] | msgspec.UnsetType = msgspec.UNSET


class WorkerRemovedView(Out):
    """The result of the removal."""

    removed: bool = True


class WorkerHeardView(Out):
    """The result of the heartbeat."""

    ok: bool = True


class WorkerRegisteredReply(Out):
    """A worker was registered."""

    data: WorkerRegisteredView
    ok: bool = True


class WorkersReply(Out):
    """Workers."""

    data: WorkersView
    ok: bool = True


class WorkerRemovedReply(Out):
    """A worker was unregistered."""

    data: WorkerRemovedView = msgspec.field(default_factory=WorkerRemovedView)
    ok: bool = True


class WorkerHeardReply(Out):
    """A worker's heartbeat was received."""

    data: WorkerHeardView = msgspec.field(default_factory=WorkerHeardView)
    ok: bool = True


REGISTER = BodyReader(WorkerBody)
HEARTBEAT = BodyReader(WorkerHeartbeatBody)


def register(workers: WorkerRegistry, namespace: str, body: WorkerBody) -> WorkerRegisteredView:
    """Register a worker: for the route, and for the command RegisterWorker."""
    for queue in body.queues:
        check_queue_name(queue)
    worker = workers.register(
        namespace,
        body.name,
        body.queues,
        concurrency=body.concurrency,
        worker_id=body.worker_id,
        hostname=body.hostname,
        pid=body.pid,
        started_at=body.started_at,
    )
    return WorkerRegisteredView(worker.id, worker.name, worker.queues, worker.concurrency, "active", worker.registered_at)


def heartbeat(workers: WorkerRegistry, namespace: str, worker_id: str, body: WorkerHeartbeatBody) -> None:
    """Record a heartbeat of a worker: for the route, and for the command Heartbeat. Raises WorkerNotFound."""
    heard = workers.heartbeat(
        namespace, worker_id, active_jobs=body.active_jobs, processed=body.processed, failed=body.failed
    )
    if heard is None:
        raise WorkerNotFound


def unregister(workers: WorkerRegistry, namespace: str, worker_id: str) -> None:
    """Remove a worker: for the route, and for the command UnregisterWorker. Raises WorkerNotFound."""
    if not workers.unregister(namespace, worker_id):
        raise WorkerNotFound


def listing(workers: WorkerRegistry, namespace: str, queue: str | None = None) -> WorkersView:
    """Return the workers of a namespace or queue: for the routes, and for the command ListWorkers."""
    shown = [_view(workers, worker) for worker in workers.listing(namespace, queue)]
    return WorkersView(shown, WorkerStats(len(shown), sum(view.status == "active" for view in shown)))


def _view(workers: WorkerRegistry, worker: RegisteredWorker) -> WorkerView:
    return WorkerView(
        worker.id,
        worker.name,
        worker.queues,
        worker.concurrency,
        "active" if workers.is_active(worker) else "disconnected",
        worker.last_seen,
        worker.active_jobs,
        worker.processed_jobs,
        worker.failed_jobs,
        worker.registered_at,
        worker.hostname,
        worker.pid,
        worker.started_at,
    )


class WorkerHandlers(JobsDoor):
    """One method per route."""

    def __init__(self, engine: EngineApi, workers: WorkerRegistry, groups: ConsumerGroups) -> None:
        super().__init__(engine)
        self.workers = workers
        self._groups = groups

    async def list_workers(self, req: ApiRequest) -> WorkersReply:
        namespace = self.namespace(req)
        return WorkersReply(await self._with_groups(listing(self.workers, namespace), namespace))

    async def list_of_queue(self, req: ApiRequest, queue: str) -> WorkersReply:
        key = self.queue_key(req, queue)
        return WorkersReply(await self._with_groups(listing(self.workers, key.namespace, key.name), key.namespace, key.name))

    async def _with_groups(self, view: WorkersView, namespace: str, queue: str | None = None) -> WorkersView:
        """Add consumer groups to a list of workers.

        Workers are listed even if the store, which has the groups, is not available.
        """
        with contextlib.suppress(ServerError):
            statuses = await self._groups.statuses(namespace)
            groups = [
                ConsumerGroupView(each.group, each.queues, each.in_flight, each.lag, each.last_seen)
                for each in statuses
                if queue is None or queue in each.queues
            ]
            view.groups = groups or msgspec.UNSET
        return view

    async def register(self, req: ApiRequest) -> WorkerRegisteredReply:
        namespace = self.namespace(req)
        return WorkerRegisteredReply(register(self.workers, namespace, await REGISTER.read(req)))

    async def unregister(self, req: ApiRequest, id: str) -> WorkerRemovedReply:
        unregister(self.workers, self.namespace(req), id)
        return WorkerRemovedReply()

    async def heartbeat(self, req: ApiRequest, id: str) -> WorkerHeardReply | ErrorReply:
        namespace = self.namespace(req)
        try:
            heartbeat(self.workers, namespace, id, await HEARTBEAT.read_optional(req))
        except WorkerNotFound as error:
            return ErrorReply(ok=False, error=str(error))  # the contract answers this error with 200
        return WorkerHeardReply()

    def routes(self) -> list[Route]:
        """Return the routes of this part of the contract."""
        tag = "Workers"
        heard = (WorkerHeardReply, ErrorReply)
        required: dict[str, Any] = {"body_required": True}
        return self.namespaced(
            Route("GET", "/workers", self.list_workers, "List workers", tag, WorkersReply),
            Route(
                "POST", "/workers", self.register, "Register worker", tag, WorkerRegisteredReply, body=REGISTER, **required
            ),
            Route("DELETE", "/workers/{id}", self.unregister, "Unregister worker", tag, WorkerRemovedReply),
            Route("POST", "/workers/{id}/heartbeat", self.heartbeat, "Worker heartbeat", tag, heard, body=HEARTBEAT),
            Route("GET", "/queues/{queue}/workers", self.list_of_queue, "Workers of a queue", tag, WorkersReply),
        )
