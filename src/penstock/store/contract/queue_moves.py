"""Queues that move from one shard to another, and the number of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.dependencies import Dependency
    from penstock.core.job import Job, Payload
    from penstock.core.queue import Move, Queue, QueueKey, QueueSettings, Standing, StateCounts
    from penstock.core.sharding import Layout
    from penstock.store.contract.job_data import LogEntry


class Whereabouts(NamedTuple):
    """Where a job is: in which queue, and how that stands here."""

    standing: Standing
    queue: QueueKey


class Parcel(NamedTuple):
    """A job with all that belongs to it, on its way to another shard."""

    job: Job
    payload: Payload
    result: bytes | None
    logs: Sequence[LogEntry]
    needs: Sequence[Dependency]


class QueueMoveTransaction(Protocol):
    """Moves of queues, inside of a transaction."""

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues whose numbers jobs here may have, but that are not served here: on their way, or gone. Usually none."""

    @property
    def layout(self) -> Layout | None:
        """Which of how many shards this is; None if nobody has said yet."""

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is known here and not served here."""

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        """Make a queue that is not here yet."""

    async def queue_move(self, queue: Queue, move: Move) -> None:
        """Write where a queue stands in its way. Raises RowChanged if it does not stand where it was read any more."""

    async def queue_count(self, queue: Queue) -> StateCounts:
        """Count the jobs of a queue, one by one."""

    async def queue_tied(self, queue: Queue) -> bool:
        """Tell whether a job of a queue needs one of another queue that lives, or the other way round."""

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        """Delete up to ``limit`` jobs of a queue with all that belongs to them, telling nobody; return how many."""

    async def queues_forget(self) -> None:
        """Forget all queues that are gone."""

    async def layout_save(self, layout: Layout) -> None:
        """Write which of how many shards this is. Raises RowChanged if it is not what was read any more."""

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        """Return which of some jobs are here, whatever the standing of their queues."""


class QueueMoveReads(Protocol):
    """Moves of queues, outside of transactions."""

    when_moved: list[Callable[[], None]]  #: called when a queue, or the layout, is not what it was: see ``Standing``

    @property
    def layout(self) -> Layout | None:
        """Which of how many shards it is, as far as is known here; None if it is new, or was never reached."""

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues that are known here and not served here, by number."""

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is known here and not served here."""

    async def layout_begin(self, layout: Layout) -> None:
        """Say which of how many shards a new store is, now or once it can be reached. Raises StoreIncompatible."""

    async def layout_look(self) -> None:
        """Look whether another server has said by now which of how many shards a new store is."""

    async def stores_known(self) -> list[int]:
        """Return how many stores each server knows that uses this one and lives."""

    async def job_export(self, ids: Sequence[int]) -> list[Parcel]:
        """Read jobs with all that belongs to them, in the order of the ids, on its own connection.

        Unknown and damaged ones are left out. What comes after ``claim_batch_bytes_max`` is left out, too.
        """

    async def job_places(self, ids: Sequence[int]) -> dict[int, Whereabouts]:
        """Find out which of some jobs are here, in which queues, and how it stands with those."""
