"""What the parts of a ready cache use of it.

``ReadyCache`` is made of them and imports them, so they must not import it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

    from penstock.core.clock import Clock
    from penstock.core.job import JobRecord
    from penstock.core.queue import QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.claim import Claim
    from penstock.engine.prefetch.unconfirmed_leases import UnconfirmedLeases
    from penstock.store.redis.ready_lists import RedisReadyLists


class HotQueue(Protocol):
    """A queue with a ready list: see ``ClaimQueue``."""

    @property
    def key(self) -> QueueKey:
        """The queue."""


class CacheContext(Protocol):
    """The ready cache of one engine: see ``ReadyCache``."""

    @property
    def engine(self) -> EngineContext:
        """The engine that it serves claims for."""

    @property
    def clock(self) -> Clock:
        """The clock of the engine."""

    @property
    def lists(self) -> RedisReadyLists:
        """The lists in Redis."""

    @property
    def unconfirmed_leases(self) -> UnconfirmedLeases:
        """Jobs from lists whose leases are not in the store yet."""

    @property
    def generation(self) -> int:
        """Generation of the lists; when lists are given up, the next one begins."""

    @property
    def lost(self) -> Collection[int]:
        """Numbers of the queues whose list was lost."""

    def start(self, work: Coroutine[Any, Any, None], name: str, /) -> None:
        """Run a task that ``close`` waits for."""

    def put_back(self, claim: Claim, /) -> None:
        """Let the store serve a claim."""

    def leave_list(self, line: HotQueue, claims: list[Claim], /) -> None:
        """Let the store serve claims of a queue, without its list."""

    def forget(self, line: HotQueue, /) -> None:
        """Record that a queue is not hot any more."""

    def lease_of(self, key: QueueKey, asked_ms: int, job: JobRecord, /) -> int:
        """Return the length of the lease (ms) of a job for a claim that requested ``asked_ms``."""

    def count(self, given: int, /) -> None:
        """Count jobs that were handed out."""

    def new_holder(self) -> str:
        """Return a name for the holder of a lock."""

    def worked(self) -> None:
        """Record that a list was filled and used without an error."""

    def failed(self) -> None:
        """Give up the lists, because Redis fails or has lost data."""

    def room_for_bytes(self, namespace: str, /) -> int:
        """Return how many bytes of jobs a namespace may add to its lists."""

    def out_of_memory(self) -> None:
        """Give up one list, because Redis is out of memory."""

    async def take_back_idle(self) -> None:
        """Take back the lists that are not used any more."""
