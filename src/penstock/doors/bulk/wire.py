"""Requests and replies of the bulk endpoints."""

from __future__ import annotations

from typing import Final

import msgspec

#: An Arrow IPC stream, then ``PNSTROWS`` and the number of rows in eight bytes, lowest first.
ARROW: Final = "application/vnd.apache.arrow.stream"
#: The same number as in the trailer, sent before the first row.
ROWS_HEADER: Final = "x-penstock-rows"


class ShardPlace(msgspec.Struct):
    """The range of the journal of a shard."""

    shard: int
    journal_first: int  #: number of the oldest stored event
    journal_next: int  #: number that the next event will get
    vouched: int  #: number of the first event that is not durable yet: readers stop there
    history: str  #: the history of these numbers: the identity of the store, a colon, and its epoch


class BulkReply(msgspec.Struct):
    """The contents that can be read in bulk."""

    shards: list[ShardPlace]
    server_time: int  #: wall clock, ms
    version: str


class SnapshotBody(msgspec.Struct):
    """A request for a snapshot of jobs. Times are wall-clock ms. A missing field selects everything."""

    table: str = "jobs"
    queues: list[str] | None = None
    states: list[str] | None = None
    created_from: int | None = None
    created_to: int | None = None  #: exclusive
    include_payload: bool = True  #: with payload, headers and result
    rows_per_part: int = 100_000


class PartReply(msgspec.Struct):
    """One file of a snapshot."""

    part: int
    shard: int
    rows: int
    bytes: int


class SnapshotReply(msgspec.Struct):
    """A snapshot. Its parts can be fetched until some minutes after its last use."""

    id: str
    rows: int
    parts: list[PartReply]
    taken_at: int  #: wall clock, ms
    expires_at: int  #: wall clock, ms; extended by each use
    damaged: int  #: jobs that were left out because their payloads are damaged


class JournalQuery(msgspec.Struct):
    """A range of a shard's journal. ``to`` is exclusive; default: the end of the durable events, or the most per read."""

    from_: int = msgspec.field(name="from")
    to: int | None = None
    shard: int = 0
    history: str = ""  #: the history of ``from``, from ``GET /bulk``; empty: any


class JournalAtQuery(msgspec.Struct):
    """A time, wall clock in ms."""

    timestamp: int
    shard: int = 0


class JournalAtReply(msgspec.Struct):
    """The number of the first event at or after a time; if there is none yet, the number of the next event."""

    seq: int
