"""What goes in and out of the bulk endpoints."""

from __future__ import annotations

from typing import Final

import msgspec

#: An Arrow IPC stream; behind it ``PNSTROWS`` and the number of rows, eight bytes, lowest first.
ARROW: Final = "application/vnd.apache.arrow.stream"
#: Says the same as the trailer, before the first row.
ROWS_HEADER: Final = "x-penstock-rows"


class ShardPlace(msgspec.Struct):
    """How far the journal of a shard reaches."""

    shard: int
    journal_first: int  #: number of the oldest event that is kept
    journal_next: int  #: number that the next event will get
    vouched: int  #: number of the first event that is not durable yet: readers stop there
    history: str  #: which history these numbers are of: the identity of the store, and its epoch behind a colon


class BulkReply(msgspec.Struct):
    """What can be read in bulk."""

    shards: list[ShardPlace]
    server_time: int  #: wall clock, ms
    version: str


class SnapshotBody(msgspec.Struct):
    """Which jobs to take a snapshot of. Moments are wall-clock milliseconds; what is left out chooses everything."""

    table: str = "jobs"
    queues: list[str] | None = None
    states: list[str] | None = None
    created_from: int | None = None
    created_to: int | None = None  #: not including it
    include_payload: bool = True  #: with value, headers and result
    rows_per_part: int = 100_000


class PartReply(msgspec.Struct):
    """One file of a snapshot."""

    part: int
    shard: int
    rows: int
    bytes: int


class SnapshotReply(msgspec.Struct):
    """A snapshot: as long as it is used, or for some minutes after that, its parts can be fetched."""

    id: str
    rows: int
    parts: list[PartReply]
    taken_at: int  #: wall clock, ms
    expires_at: int  #: wall clock, ms; later if it is used
    damaged: int  #: jobs that were left out because their payloads are damaged


class JournalQuery(msgspec.Struct):
    """A stretch of a shard's journal. ``to`` is not included; left out: as far as is durable, or as may be asked for."""

    from_: int = msgspec.field(name="from")
    to: int | None = None
    shard: int = 0
    history: str = ""  #: of which ``from`` is, as ``GET /bulk`` had it; empty: whichever there is


class JournalAtQuery(msgspec.Struct):
    """A moment, wall clock in ms."""

    timestamp: int
    shard: int = 0


class JournalAtReply(msgspec.Struct):
    """Number of the first event at or after a moment; if there is none yet, the number the next one will get."""

    seq: int
