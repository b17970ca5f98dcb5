"""What the engine may ask of a store. It speaks of jobs and queues, never of SQL.

A store decides nothing: which state comes next, when to retry, who is dead are pure functions in ``core`` and ``engine``.
A store reads and writes batches, keeps them through a crash, and guards every write with the state and lease token that
were read (``tests/store/conformance`` is the proof, and runs against every store).

All calls are ``async`` in signature. A transaction of the SQLite store never suspends between its first call and its
commit, which is what makes it cheap; nothing above may rely on that.

Each topic has a module here, under the name that it has in ``store/sqlite`` and ``store/postgres``: one protocol for what a
transaction does, one for reads outside of transactions. ``store.py`` composes ``Transaction`` and ``Store`` of them. Import
from this package, not from its modules, which import from each other.
"""

from penstock.store.contract.bulk_records import Search
from penstock.store.contract.cluster import Take
from penstock.store.contract.health import StoreStatus
from penstock.store.contract.job_data import LogEntry
from penstock.store.contract.jobs import FinishedMinutes, Page, Place, Selection
from penstock.store.contract.journal import Follower, JournalBlock, JournalPage
from penstock.store.contract.queue_moves import Parcel, Whereabouts
from penstock.store.contract.ready_lists import FastTransaction
from penstock.store.contract.store import Store, Transaction
from penstock.store.contract.types import Capabilities, Horizon

__all__ = [
    "Capabilities",
    "FastTransaction",
    "FinishedMinutes",
    "Follower",
    "Horizon",
    "JournalBlock",
    "JournalPage",
    "LogEntry",
    "Page",
    "Parcel",
    "Place",
    "Search",
    "Selection",
    "Store",
    "StoreStatus",
    "Take",
    "Transaction",
    "Whereabouts",
]
