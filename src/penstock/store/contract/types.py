"""The capabilities of a store, and the next due times of its work."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Capabilities(NamedTuple):
    """Differences that are allowed between stores. Each difference that the conformance suite can observe has a name here."""

    name: str
    commit_is_durable: bool  #: a commit needs no further ``sync`` to survive a power cut
    is_shared: bool = False  #: other servers write too: counts lag behind them, and ready jobs must be queried
    lanes: int = 1  #: transactions of one server that may be open at the same time


class Horizon(msgspec.Struct):
    """Lower bounds of the next due times; None = nothing is due. Cheap to read at any time."""

    due_ms: int | None = None  #: wall clock: the earliest delayed job
    job_expiry_ms: int | None = None  #: wall clock: the earliest end of a time-to-live
    lease_expiry_ms: int | None = None  #: steady clock: the earliest end of a lease
    cron_ms: int | None = None  #: wall clock: the earliest tick of a cron
    unfollowed: bool = False  #: there are ends (see ``end_add``), so there is work to do now
