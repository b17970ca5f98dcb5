"""The two protocols of a store as a whole: a transaction, and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.store.contract.api_keys import ApiKeyStore
from penstock.store.contract.bulk_records import BulkRecordReads, BulkRecordTransaction
from penstock.store.contract.cluster import ClusterStore
from penstock.store.contract.crons import CronReads, CronTransaction
from penstock.store.contract.dependencies import DependencyReads, DependencyTransaction
from penstock.store.contract.health import StoreHealth
from penstock.store.contract.job_data import JobDataReads, JobDataTransaction
from penstock.store.contract.job_groups import JobGroupReads, JobGroupTransaction
from penstock.store.contract.jobs import JobReads, JobTransaction
from penstock.store.contract.journal import JournalReads, JournalTransaction
from penstock.store.contract.queue_moves import QueueMoveReads, QueueMoveTransaction
from penstock.store.contract.queues import QueueReads, QueueTransaction
from penstock.store.contract.sharding import ShardingTransaction
from penstock.store.contract.webhooks import WebhookReads, WebhookTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from penstock.core.clock import Clock
    from penstock.core.pool_shares import Shares
    from penstock.store.contract.journal import JournalBlock
    from penstock.store.contract.ready_lists import BufferLogs, ReadyLists
    from penstock.store.contract.types import Capabilities, Horizon


class Transaction(
    QueueTransaction,
    QueueMoveTransaction,
    JobGroupTransaction,
    JobTransaction,
    JobDataTransaction,
    DependencyTransaction,
    ShardingTransaction,
    CronTransaction,
    WebhookTransaction,
    JournalTransaction,
    BulkRecordTransaction,
    Protocol,
):
    """Reads and writes that are committed together or not at all. An exception in the block rolls it back.

    ``now_ms`` and ``steady_ms`` are its time: read once, when it could start.
    """

    now_ms: int
    steady_ms: int

    @property
    def freed(self) -> set[int]:
        """Numbers of the queues in which a damaged job was quarantined, so that another job may be claimed."""

    @property
    def wrote(self) -> bool:
        """After the end: whether the transaction wrote."""

    @property
    def block(self) -> JournalBlock | None:
        """After the commit: its block in the journal."""

    async def pause(self) -> None:
        """Let other requests be served, if the transaction has occupied the event loop for long. Its changes stay unseen."""

    async def clock_mark(self) -> None:
        """Store the clock of the leases, if only this server uses it."""

    @property
    def ready_lists(self) -> ReadyLists | None:
        """The ready lists of its shard; None if the store has no ready lists."""

    @property
    def buffer_logs(self) -> BufferLogs | None:
        """The stored positions of enqueue buffers' logs; None if the store does not record them."""


class Store(
    QueueReads,
    QueueMoveReads,
    JobGroupReads,
    JobReads,
    JobDataReads,
    DependencyReads,
    CronReads,
    WebhookReads,
    JournalReads,
    BulkRecordReads,
    ApiKeyStore,
    ClusterStore,
    StoreHealth,
    Protocol,
):
    """Stores jobs durably.

    Reads outside of transactions that need a thread or a connection wait for one in the line of their namespace, see
    ``store/read_turns.py``. Reads by number have the argument ``namespace`` for that; default: the line of the server itself.
    Listings of jobs and counts of a queue raise TooMany if too many of them wait, or if they wait too long.
    """

    capabilities: Capabilities
    shard: int  #: its number among the shards, a part of every id
    pool_shares: Shares  #: the maximum number of queues of one namespace

    @property
    def clock(self) -> Clock:
        """The clock of all times in the store."""

    @property
    def source(self) -> str:
        """Address for other processes that read it in bulk: ``sqlite:`` and a file, or a database URL. May contain a secret."""

    @property
    def horizon(self) -> Horizon:
        """The next moments at which something is due."""

    @property
    def id_floor(self) -> int:
        """The highest id ever used in this store: new ids must be above it."""

    def transaction(self, id_mark: Callable[[], int], *, alone: bool = True) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction. ``id_mark`` returns the highest id used so far; it is stored at the commit, for the next start.

        ``alone``: this server has no other open transaction meanwhile. Without it, changes of queues and webhooks may be
        refused with RowChanged.
        """

    @property
    def journals(self) -> Sequence[Store]:
        """The stores that have a journal each: this store, or all shards."""
