"""The interfaces of an engine. Doors use these protocols, and not the classes that implement them.

``Engine`` (one shard) and ``ShardedEngine`` (several) are an ``EngineApi``; an ``Engine`` is a ``ShardApi``, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.engine.jobs.claim import ClaimShard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.core.job import JobSpec
    from penstock.core.pool_shares import Shares, Slots
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.command import JobRef, Submit
    from penstock.engine.event_feed import EventFeed
    from penstock.engine.fair_share import FairShare
    from penstock.engine.quota_check import QuotaCheck
    from penstock.engine.signals import EngineSignals
    from penstock.engine.stats import EngineStats
    from penstock.engine.worker_registry import WorkerRegistry
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore


class JobOutcome(NamedTuple):
    """How a job ended: completed, with the result of its worker, or dead or removed."""

    completed: bool
    result: bytes | None = None


class ReadyListsApi(Protocol):
    """The ready lists of a shard."""

    @property
    def jobs_handed_out(self) -> int:
        """Number of jobs that were handed out from lists since the start."""

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered last."""

    def depth(self, key: QueueKey, /) -> int:
        """Return the number of jobs on the ready list of a queue, as far as this server knows."""

    async def clear(self, key: QueueKey, *, soon: bool = False, then: Callable[[], None] | None = None) -> None:
        """Take all jobs back from the ready list of a queue."""


class BufferApi(Protocol):
    """The enqueue buffer of a shard."""

    @property
    def has_copies(self) -> bool:
        """Whether there is a Redis for copies of the log; without one, no new pushes are buffered."""

    @property
    def is_open(self) -> bool:
        """Whether the log is open."""

    @property
    def jobs(self) -> int:
        """Number of jobs that are answered and not stored."""

    def depth(self, queue: QueueKey, /) -> int:
        """Return the number of jobs of a queue that are answered and not stored."""

    def takes(self, parts: Sequence[tuple[QueueKey, Sequence[JobSpec]]], /) -> bool:
        """Return whether pushes to some queues may be answered before they are stored."""


class EngineApi(Protocol):
    """The engine of a server, with any number of shards."""

    @property
    def run(self) -> Submit:
        """Runs a command; awaiting it gives the answer, or raises why there is none."""

    @property
    def engines(self) -> Sequence[ShardApi]:
        """The engines of the shards, by their numbers."""

    def of(self, queue: QueueKey, /) -> ShardApi:
        """Return the engine of the shard that has a queue."""

    @property
    def store(self) -> Store | ShardedStore:
        """For reading; only commands write."""

    @property
    def clock(self) -> Clock:
        """The clock for leases and schedules."""

    @property
    def stats(self) -> EngineStats:
        """Counters and histograms of this server."""

    @property
    def feed(self) -> EventFeed:
        """The events of all queues, as they are committed."""

    @property
    def workers(self) -> WorkerRegistry:
        """The workers that have registered with this server."""

    @property
    def fair_share(self) -> FairShare:
        """Shares of the event loop, for each namespace."""

    @property
    def pool_shares(self) -> Shares:
        """Shares of each pool, for each namespace."""

    @property
    def quotas(self) -> QuotaCheck | None:
        """Quotas of namespaces; None: there are none."""

    async def wait(self, namespace: str, ref: JobRef, timeout_ms: int) -> JobOutcome | None:
        """Wait up to ``timeout_ms`` until a job ends, and return how; None: it has not ended.

        Raises JobNotFound, TooMany.
        """

    @property
    def waiting_callers(self) -> int:
        """Number of claims that wait for a job."""

    @property
    def waiting_for_ends(self) -> int:
        """Number of callers that wait for a job to end."""

    def highest_id(self) -> int:
        """Return an id that is not below the id of any stored job, of any server."""

    def limit_namespaces(self, pool_shares: Shares) -> None:
        """Set the shares of each pool, for each namespace."""

    def start(self) -> None:
        """Start the timers and the maintenance services."""

    def stop_waiting(self) -> None:
        """Answer all callers that wait, because the server is closing."""

    async def close(self) -> None:
        """Answer all callers that wait, finish what was submitted, stop. The stores stay open."""


class ShardApi(EngineApi, ClaimShard, Protocol):
    """The engine of one shard."""

    @property
    def store(self) -> Store:
        """For reading; only commands write."""

    @property
    def signals(self) -> EngineSignals:
        """What the engine announces inside the server."""

    @property
    def leads(self) -> bool:
        """Whether this server does the tasks of the shard that only one server at a time may do."""

    @property
    def replays(self) -> Slots:
        """Turns of readers of the journal, for each namespace."""

    @property
    def durable_up_to(self) -> int:
        """Number of the first event of the journal that is not yet as durable as an answer promises."""

    @property
    def ready_cache(self) -> ReadyListsApi | None:
        """Ready lists; None: there is no Redis."""

    @property
    def buffer(self) -> BufferApi | None:
        """The enqueue buffer; None: there is none."""

    def may_have_waiting(self, queue: Queue, /) -> bool:
        """Return whether, as far as this server knows, a queue has a job to claim."""
