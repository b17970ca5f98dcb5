"""The contract between the engine and a store. It uses jobs and queues, and no SQL.

A store decides nothing: the next state, the time of a retry, and whether a job is dead are pure functions in ``core`` and
``engine``. A store reads and writes batches, keeps them through a crash, and guards every write with the state and lease
token that were read (``tests/store/conformance`` tests this for every store).

All calls are ``async`` in signature. A transaction of the SQLite store never suspends between its first call and its commit,
which makes it fast; code above the store must not rely on that.

Each topic has a module here, with the same name as in ``store/sqlite`` and ``store/postgres``. It has one protocol for a
transaction, and one for reads outside of transactions. ``store.py`` composes ``Transaction`` and ``Store`` of them. Import
from this package, not from its modules, which import from each other.
"""

from penstock.store.contract.bulk_records import Search
from penstock.store.contract.cluster import QuotaCount
from penstock.store.contract.health import StoreStatus
from penstock.store.contract.job_data import LogEntry
from penstock.store.contract.jobs import FinishedMinutes, Page, Place, Selection
from penstock.store.contract.journal import Follower, JournalBlock, JournalPage
from penstock.store.contract.queue_moves import JobPlace, MovedJob
from penstock.store.contract.ready_lists import BufferLogs, ReadyLists
from penstock.store.contract.store import Store, Transaction
from penstock.store.contract.types import Capabilities, Horizon

__all__ = [
    "BufferLogs",
    "Capabilities",
    "FinishedMinutes",
    "Follower",
    "Horizon",
    "JobPlace",
    "JournalBlock",
    "JournalPage",
    "LogEntry",
    "MovedJob",
    "Page",
    "Place",
    "QuotaCount",
    "ReadyLists",
    "Search",
    "Selection",
    "Store",
    "StoreStatus",
    "Transaction",
]
