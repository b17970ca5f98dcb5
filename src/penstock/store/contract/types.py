"""What a store is able to do, and when it has work next."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Capabilities(NamedTuple):
    """Where stores may differ. A difference the conformance suite may see has a name here."""

    name: str
    commit_is_durable: bool  #: a commit needs no further ``sync`` to survive a power cut
    is_shared: bool = False  #: other servers write too: counts lag behind them, and what is ready must be asked for
    lanes: int = 1  #: transactions of one server that may be under way at the same time


class Horizon(msgspec.Struct):
    """Lower bounds of the next moments something falls due; None = nothing is booked. Cheap to read at any time."""

    due_ms: int | None = None  #: wall clock: the earliest delayed job
    job_expiry_ms: int | None = None  #: wall clock: the earliest end of a time-to-live
    lease_expiry_ms: int | None = None  #: steady clock: the earliest end of a lease
    cron_ms: int | None = None  #: wall clock: the earliest tick of a cron
    unfollowed: bool = False  #: there are ends (see ``end_add``), so there is something to do at once
