"""The workers that have registered themselves: kept in memory only, because they register again.

A worker without a heartbeat for ``timeout_ms`` counts as disconnected, and is removed after three times that. Its leases are
not touched: they end by time.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.events import EventKind
from penstock.core.ids import IdSource, to_uuid
from penstock.core.pool_shares import Shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Alarm, Clock
    from penstock.engine.event_feed import EventFeed

#: Numbers of failed jobs at which a worker is reported.
FAILURE_MARKS: Final = (5, 10, 25, 50, 100)
FORGET_AFTER_TIMEOUTS: Final = 3


class RegisteredWorker(msgspec.Struct, eq=False):
    """What a worker has reported about itself. Times are wall clock, ms, except ``seen_at``."""

    id: str
    namespace: str
    name: str
    queues: list[str]
    concurrency: int
    hostname: str | None
    pid: int | None
    started_at: int | None
    registered_at: int
    last_seen: int
    seen_at: int  #: steady clock
    size: int = 0  #: bytes of its names
    active_jobs: int = 0
    processed_jobs: int = 0
    failed_jobs: int = 0
    busy_since: int | None = None  #: steady clock: since when it has as many jobs as it can take
    overload_reported: bool = False


class WorkerRegistry:
    """The registry. ``overload_ms``: a worker that is full for this long is reported."""

    def __init__(self, clock: Clock, feed: EventFeed, *, timeout_ms: int = 30_000, overload_ms: int = 30_000) -> None:
        self._clock = clock
        self._feed = feed
        self._timeout_ms = timeout_ms
        self._overload_ms = overload_ms
        self._ids = IdSource()
        # Both in the order of the last heartbeats, so that the next worker to time out is always the first.
        self._active: dict[tuple[str, str], RegisteredWorker] = {}
        self._silent: dict[tuple[str, str], RegisteredWorker] = {}
        self._held: dict[str, int] = {}  #: number of workers of each namespace
        self._bytes: dict[str, int] = {}  #: bytes of their names
        self._all_bytes = 0
        self.pool_shares = Shares()
        self._alarm: Alarm | None = None
        self.processed = 0  #: jobs that workers reported since the server started
        self.failed = 0

    def __len__(self) -> int:
        return len(self._active) + len(self._silent)

    @property
    def active(self) -> int:
        """Number of workers that sent a heartbeat lately."""
        return len(self._active)

    def is_active(self, worker: RegisteredWorker) -> bool:
        """Return whether a worker sent a heartbeat lately."""
        return (worker.namespace, worker.id) in self._active

    def register(
        self,
        namespace: str,
        name: str,
        queues: Sequence[str],
        *,
        concurrency: int = 1,
        worker_id: str | None = None,
        hostname: str | None = None,
        pid: int | None = None,
        started_at: int | None = None,
    ) -> RegisteredWorker:
        """Register a worker. If it registers again under its id, it is replaced. Raises TooMany."""
        now, steady = self._clock.now_ms(), self._clock.steady_ms()
        key = (namespace, worker_id or to_uuid(self._ids.next(now)))
        size = sum(map(getsizeof, (key[1], name, hostname or "", *queues)))
        self._check_room(namespace, size, self.find(*key))
        self._take(key)
        worker = RegisteredWorker(
            key[1], namespace, name, list(queues), concurrency, hostname, pid, started_at, now, now, steady, size
        )  # fmt: skip
        self._active[key] = worker
        self._count(worker, 1)
        self._publish(EventKind.WORKER_CONNECTED, worker, name=name, queues=worker.queues)
        self._set_alarm()
        return worker

    def heartbeat(
        self,
        namespace: str,
        worker_id: str,
        *,
        active_jobs: int | None = None,
        processed: int | None = None,
        failed: int | None = None,
    ) -> RegisteredWorker | None:
        """Record a heartbeat; None if the worker is unknown. ``processed`` and ``failed`` count since the worker started."""
        key = (namespace, worker_id)
        was_silent = key in self._silent
        worker = self._take(key)
        if worker is None:
            return None
        self._active[key] = worker
        self._count(worker, 1)
        worker.last_seen, worker.seen_at = self._clock.now_ms(), self._clock.steady_ms()
        if was_silent:
            self._publish(EventKind.WORKER_CONNECTED, worker, name=worker.name, queues=worker.queues)
        self._publish(EventKind.WORKER_HEARTBEAT, worker)
        if processed is not None:
            self.processed += max(0, processed - worker.processed_jobs)
            worker.processed_jobs = processed
        if failed is not None:
            self._count_failures(worker, failed)
        if active_jobs is not None:
            worker.active_jobs = active_jobs
            self._watch_load(worker)
        self._set_alarm()
        return worker

    def unregister(self, namespace: str, worker_id: str) -> bool:
        """Remove a worker; False if it was unknown."""
        was_active = (namespace, worker_id) in self._active
        worker = self._take((namespace, worker_id))
        if worker is not None and was_active:
            self._publish(EventKind.WORKER_DISCONNECTED, worker)
        return worker is not None

    def serve(self, namespace: str, queue: str) -> bool:
        """Return whether a worker of a queue sent a heartbeat lately."""
        return any(queue in worker.queues for worker in self._active.values() if worker.namespace == namespace)

    def find(self, namespace: str, worker_id: str) -> RegisteredWorker | None:
        """Return a worker as it registered last."""
        key = (namespace, worker_id)
        return self._active.get(key) or self._silent.get(key)

    def withdraw(self, worker: RegisteredWorker) -> None:
        """Remove a worker whose connection ended, unless another has registered under its id since."""
        if self.find(worker.namespace, worker.id) is worker:
            self.unregister(worker.namespace, worker.id)

    def listing(self, namespace: str, queue: str | None = None) -> list[RegisteredWorker]:
        """Return the workers of a namespace, or of one of its queues."""
        return [
            worker
            for workers in (self._active, self._silent)
            for worker in workers.values()
            if worker.namespace == namespace and (queue is None or queue in worker.queues)
        ]

    def close(self) -> None:
        """Stop the timer."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _check_room(self, namespace: str, size: int, before: RegisteredWorker | None) -> None:
        """Raise TooMany, or NamespaceLimit, if there is no room for a worker. ``before``: the one that it replaces."""
        if before is None:
            if len(self) >= limits.workers_max:
                raise TooMany(
                    f"Too many workers (max {limits.workers_max}). Unregister some, or wait until inactive ones are removed."
                )
            held = self._held.get(namespace, 0)
            self.pool_shares.check("workers", namespace, most=limits.workers_max, taken=len(self), held=held)
        more, most = size - (0 if before is None else before.size), limits.workers_bytes_max
        if more <= 0:
            return
        if self._all_bytes + more > most:
            raise TooMany(f"The names of all workers and their queues are too long (max {most} bytes). Unregister some.")
        taken, held = self._all_bytes + more - 1, self._bytes.get(namespace, 0) + more - 1
        self.pool_shares.check("bytes of names of workers", namespace, most=most, taken=taken, held=held)

    def _take(self, key: tuple[str, str]) -> RegisteredWorker | None:
        worker = self._active.pop(key, None) or self._silent.pop(key, None)
        if worker is not None:
            self._count(worker, -1)
        return worker

    def _count(self, worker: RegisteredWorker, change: int) -> None:
        held = self._held.get(worker.namespace, 0) + change
        if held:
            self._held[worker.namespace] = held
        else:
            del self._held[worker.namespace]
        self._all_bytes += change * worker.size
        size = self._bytes.get(worker.namespace, 0) + change * worker.size
        if size:
            self._bytes[worker.namespace] = size
        else:
            self._bytes.pop(worker.namespace, None)

    def _count_failures(self, worker: RegisteredWorker, failed: int) -> None:
        before, worker.failed_jobs = worker.failed_jobs, failed
        self.failed += max(0, failed - before)
        if any(before < mark <= failed for mark in FAILURE_MARKS):
            done = worker.processed_jobs + failed
            self._publish(
                EventKind.WORKER_ERROR,
                worker,
                name=worker.name,
                failedJobs=failed,
                processedJobs=worker.processed_jobs,
                failureRate=round(failed / done, 4),
            )

    def _watch_load(self, worker: RegisteredWorker) -> None:
        if worker.active_jobs < worker.concurrency:
            worker.busy_since, worker.overload_reported = None, False
            return
        if worker.busy_since is None:
            worker.busy_since = worker.seen_at
        busy_ms = worker.seen_at - worker.busy_since
        if busy_ms >= self._overload_ms and not worker.overload_reported:
            worker.overload_reported = True
            self._publish(
                EventKind.WORKER_OVERLOADED,
                worker,
                name=worker.name,
                activeJobs=worker.active_jobs,
                concurrency=worker.concurrency,
                overloadedSeconds=busy_ms // 1000,
            )

    def _publish(self, kind: EventKind, worker: RegisteredWorker, **more: object) -> None:
        payload = {"workerId": worker.id, **more}
        self._feed.publish_transient(kind, payload, self._clock.now_ms(), namespace=worker.namespace)

    def _set_alarm(self) -> None:
        """Set the alarm for the next moment at which a worker may time out."""
        moments = []
        if self._active:
            moments.append(next(iter(self._active.values())).seen_at + self._timeout_ms)
        if self._silent:
            moments.append(next(iter(self._silent.values())).seen_at + FORGET_AFTER_TIMEOUTS * self._timeout_ms)
        if moments and self._alarm is None:
            self._alarm = self._clock.call_at(min(moments), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm = None
        steady = self._clock.steady_ms()
        for key, worker in list(self._active.items()):
            if worker.seen_at + self._timeout_ms > steady:
                break
            self._silent[key] = self._active.pop(key)
            self._publish(EventKind.WORKER_DISCONNECTED, worker)
        for key, worker in list(self._silent.items()):
            if worker.seen_at + FORGET_AFTER_TIMEOUTS * self._timeout_ms > steady:
                break
            del self._silent[key]
            self._count(worker, -1)
        self._set_alarm()
