"""What the parts of an engine use of it: commands, timers, maintenance services, waiters, and the optional stages.

``Engine`` is made of these parts and imports them, so they must not import it. They import these protocols instead; that
keeps the modules of the engine free of cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.engine.api import BufferApi, EngineApi, ReadyListsApi, ShardApi

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.core.ids import IdSource
    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey
    from penstock.core.retention import Retention
    from penstock.engine.command import AnyCommand
    from penstock.engine.jobs.claim import Claim
    from penstock.engine.jobs.loss_alerts import LossAlerts
    from penstock.engine.jobs.queue_limits import QueueLimits
    from penstock.engine.prefetch.unconfirmed_leases import UnconfirmedLeases
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.sharded import ShardedStore


class WaitingClaims(Protocol):
    """Claims that wait for a job: see ``ClaimWaiters``."""

    @property
    def size(self) -> int:
        """Number of claims that wait."""

    def line(self, queue: QueueKey, /) -> Iterable[Claim]:
        """Return the claims that wait at a queue, in order."""

    def waiting(self, queue: QueueKey, /) -> int:
        """Return the number of claims that wait at a queue."""

    def enter(self, claim: Claim, /) -> None:
        """Add a claim to the line of its queue."""

    def leave(self, claim: Claim, /) -> bool:
        """Remove a claim from the line of its queue; False: it was not in it."""

    def nudge_at(self, queue: QueueKey, steady_ms: int, /) -> None:
        """Serve the line of a queue again at a moment of the steady clock."""

    def nudge_ready(self, work: UnitOfWork, /) -> None:
        """Serve the lines of the queues in which a transaction has made jobs ready."""

    def nudge_all(self) -> None:
        """Serve all lines again."""


class LeaseTimer(Protocol):
    """When leases may be ended: see ``Timer``."""

    def arm(self) -> None:
        """Sleep until the next moment at which a job, lease or cron is due."""

    def set_grace(self, steady_ms: int, /) -> None:
        """Begin the grace period for late heartbeats if the server was paused for long."""

    def may_expire_leases(self, steady_ms: int, /) -> bool:
        """Return whether leases may be ended now."""

    def end_grace(self) -> None:
        """End the grace period for late heartbeats: all expired leases were ended."""


class ReadyListServer(ReadyListsApi, Protocol):
    """Serves claims at hot queues from ready lists: see ``ReadyCache``."""

    def serves(self, work: UnitOfWork, queue: Queue, /) -> bool:
        """Return whether a queue has a ready list, or has lost it."""

    def serve(self, work: UnitOfWork, queue: Queue, newcomers: Sequence[Claim], /) -> None:
        """Take over the claims at a queue once the work is committed."""

    def count_claimed(self, work: UnitOfWork, queue: Queue, claimed: int, /) -> None:
        """Count jobs that were claimed from the store, and that could be on a list."""

    async def begin_lists(self, generation: int, /) -> bool:
        """Prepare Redis for the first list of a generation; False if that fails."""

    async def pull_out(self, generation: int, queue: int, jobs: Sequence[JobRecord], /) -> set[int]:
        """Take some jobs off a ready list; return the ids of those that were on it."""


class EngineContext(ShardApi, Protocol):
    """The engine of one shard, as its parts use it."""

    unconfirmed_leases: UnconfirmedLeases  #: jobs from ready lists whose leases are not in the store yet
    hot: Mapping[int, int]  #: queues with a ready list, as of this server's latest transaction, by number

    @property
    def engines(self) -> Sequence[EngineContext]:
        """All engines: this one."""

    def of(self, queue: QueueKey, /) -> EngineContext:
        """Return the engine of a queue."""

    @property
    def ids(self) -> IdSource:
        """Makes ids of jobs."""

    @property
    def queue_limits(self) -> QueueLimits:
        """Rate limits and concurrency limits of queues."""

    @property
    def claim_waiters(self) -> WaitingClaims:
        """Claims that wait for a job."""

    @property
    def timer(self) -> LeaseTimer:
        """When leases may be ended."""

    @property
    def ready_cache(self) -> ReadyListServer | None:
        """Ready lists; None: there is no Redis."""

    @property
    def buffer(self) -> BufferApi | None:
        """The enqueue buffer; None: there is none."""

    @property
    def began_at(self) -> int:
        """Start of this engine (steady ms); earlier due times of crons count as missed."""

    @property
    def loss_alerts(self) -> LossAlerts:
        """Alerts for jobs that may not be held any more."""

    @property
    def retention(self) -> Retention:
        """How much of the past is kept."""

    def put_back(self, command: AnyCommand, /) -> None:
        """Queue a command again that was run already; its future stays."""

    def send_on(self, command: AnyCommand, error: Exception, /) -> None:
        """Run a command on the shard its queue is on now; without one, it is refused with the error."""

    def end_serial(self, work: UnitOfWork, /) -> int:
        """Return a serial for the end of a job that is above the ids of all jobs that were pushed before it."""

    def take_lead(self, term: int | None, until_ms: int = 0) -> None:
        """Record a leadership change. None: this server does not lead. ``until_ms``: end of the lead, by the steady clock."""

    def handle_recovery(self) -> None:
        """Handle recovery of the store: what was not committed is discarded."""


class ServerContext(EngineApi, Protocol):
    """The engine of a server with any number of shards, as its parts use it."""

    @property
    def engines(self) -> Sequence[EngineContext]:
        """The engines of the shards, by their numbers."""

    def of(self, queue: QueueKey, /) -> EngineContext:
        """Return the engine of the shard that has a queue."""


class ShardedContext(ServerContext, Protocol):
    """The engine of several shards, as its parts use it."""

    @property
    def store(self) -> ShardedStore:
        """For reading on all shards."""
