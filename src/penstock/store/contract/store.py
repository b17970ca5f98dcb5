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
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from penstock.core.clock import Clock
    from penstock.core.pool_shares import Shares
    from penstock.store.contract.journal import JournalBlock
    from penstock.store.contract.ready_lists import FastTransaction
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
    """Reads and writes that happen together or not at all. Left with an exception, it is rolled back.

    ``now_ms`` and ``steady_ms`` are its time: read once, when it could begin.
    """

    now_ms: int
    steady_ms: int

    @property
    def freed(self) -> set[int]:
        """Numbers of the queues in which a damaged job was put aside: somebody else may have its place now."""

    @property
    def wrote(self) -> bool:
        """Tell, once it is over, whether anything was written."""

    @property
    def block(self) -> JournalBlock | None:
        """What it put into the journal, once it is over."""

    async def clock_mark(self) -> None:
        """Write down how much time has been counted for leases, where only this server counts it."""

    # Ready lists, which only some stores have.

    @property
    def fast(self) -> FastTransaction | None:
        """The operations for ready lists and logs of enqueue buffers; None: the store has none of them."""

    @property
    def generation(self) -> int:
        """Which generation of ready lists this is."""

    @property
    def hot(self) -> Mapping[int, int]:
        """Numbers of the queues that had a ready list when it began, each with its epoch."""

    @property
    def lost(self) -> Collection[int]:
        """Numbers of the queues whose ready list was lost when it began, and of which nothing may be handed out."""

    @property
    def heated(self) -> Sequence[int]:
        """Numbers of those of its queues that have a ready list, or have lost theirs, once it is over."""

    @property
    def lists_generation(self) -> int:
        """Which generation of ready lists ``heated`` is about."""


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
    """A place where jobs are safe."""

    capabilities: Capabilities
    shard: int  #: its number among the shards, part of every id
    shares: Shares  #: how many queues one namespace may have

    @property
    def clock(self) -> Clock:
        """What everything in it is timed by."""

    @property
    def source(self) -> str:
        """Where another process finds it, to read from it in bulk: ``sqlite:`` and a file, or a database. May hold a secret."""

    @property
    def horizon(self) -> Horizon:
        """When something falls due next."""

    @property
    def id_floor(self) -> int:
        """The highest id this store has ever seen: new ones must be above it."""

    def transaction(self, id_mark: Callable[[], int], *, alone: bool = True) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction. ``id_mark`` tells at its end the highest id handed out so far, kept for the next start.

        ``alone``: no other transaction of this server is under way meanwhile. Without it, changes of queues and webhooks may be
        refused with RowChanged.
        """

    @property
    def journals(self) -> Sequence[Store]:
        """The parts that have a journal each."""
