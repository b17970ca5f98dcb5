"""Queues that move from one shard to another, and the number of shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.dependencies import Dependency
    from penstock.core.job import JobRecord, Payload
    from penstock.core.queue import Move, MoveStep, Queue, QueueKey, QueueSettings, StateCounts
    from penstock.core.sharding import Layout
    from penstock.store.contract.job_data import LogEntry


class JobPlace(NamedTuple):
    """The queue of a job, and the state of that queue's move here."""

    step: MoveStep
    queue: QueueKey


class MovedJob(NamedTuple):
    """A job with all its data, moving to another shard."""

    job: JobRecord
    payload: Payload
    result: bytes | None
    logs: Sequence[LogEntry]
    needs: Sequence[Dependency]


class QueueMoveTransaction(Protocol):
    """Moves of queues, inside of a transaction."""

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues that jobs here may belong to, but that are not served here: they are moving, or were moved. Usually empty."""

    @property
    def layout(self) -> Layout | None:
        """The number of this shard, and the number of shards; None if that is not stored yet."""

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is stored here and not served here."""

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        """Create a queue that is moving here."""

    async def queue_move(self, queue: Queue, move: Move) -> None:
        """Write the step of a queue's move. Raises RowChanged if the stored step is not the one that was read."""

    async def queue_count(self, queue: Queue) -> StateCounts:
        """Count the jobs of a queue, one by one."""

    async def queue_tied(self, queue: Queue) -> bool:
        """Return whether a job of a queue needs an unfinished job of another queue, or the other way round."""

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        """Delete up to ``limit`` jobs of a queue with all their data, without events. Returns their number."""

    async def queues_forget(self) -> None:
        """Delete all queues that were moved to other shards."""

    async def layout_save(self, layout: Layout) -> None:
        """Write the number of this shard, and the number of shards. Raises RowChanged if it is not what was read."""

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        """Return which of some jobs are in this store, also if their queues are moving."""


class QueueMoveReads(Protocol):
    """Moves of queues, outside of transactions."""

    when_moved: list[Callable[[], None]]  #: called after a queue or the layout has changed: see ``MoveStep``

    @property
    def layout(self) -> Layout | None:
        """The number of this shard, and the number of shards, as last read; None if it is new, or was never reached."""

    @property
    def away(self) -> Mapping[int, Queue]:
        """Queues that are stored here and not served here, by number."""

    def queue_away(self, key: QueueKey) -> Queue | None:
        """Return a queue that is stored here and not served here."""

    async def layout_begin(self, layout: Layout) -> None:
        """Write the number of a new shard, and the number of shards, now or once it can be reached.

        Raises StoreIncompatible.
        """

    async def layout_refresh(self) -> None:
        """Read whether another server has meanwhile written the number of a new shard."""

    async def stores_known(self) -> list[int]:
        """Return the number of stores that each running server of this store uses."""

    async def job_export(self, ids: Sequence[int]) -> list[MovedJob]:
        """Read jobs with all their data, in the order of the ids, on its own connection.

        Unknown and damaged ones are left out. Jobs beyond ``claim_batch_bytes_max`` are left out, too.
        """

    async def job_places(self, ids: Sequence[int]) -> dict[int, JobPlace]:
        """Find which of some jobs are in this store, in which queues, and the state of the moves of these queues."""
