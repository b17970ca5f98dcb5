"""Small records of bulk work: consumer groups and their epochs, staged writes and their commits.

A store keeps them as entries and does not read their bodies. A body is a struct of this module. Staged rows are stored in
chunks, each with as many jobs as one transaction publishes.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import msgspec

from penstock.core.errors import ServerError
from penstock.core.job import JobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet


class EntryKind:
    """The kind of an entry, and what its name and number mean.

    All but DRAFT, DUE, CARRIED, SLICE and KNOWN are on the first shard.
    """

    GROUP: Final = 1  #: a consumer group (ConsumerGroup); its name, 0
    EPOCH: Final = 2  #: jobs that a group has claimed (Epoch); its name, the epoch
    STAGE: Final = 3  #: a part of a staged write (Stage); the transaction's name, the part
    DRAFT: Final = 4  #: an attempt to stage a part that is not committed; "", its id, which owns chunks
    DUE: Final = 5  #: a committed draft that is not published yet; the key of the commit, its id
    COMMIT: Final = 6  #: a commit (Commit); its key, 0
    OPEN: Final = 7  #: a commit whose rows are not all published; its key, 0
    CARRIED: Final = 8  #: a chunk that was moved here with its queue; the id of the draft, the chunk's number
    SLICE: Final = 9  #: jobs that were claimed together for an epoch (EpochSlice); see ``slice_name``, its id
    KNOWN: Final = 10  #: rows of a draft that created no jobs, counted as its weight; the key of the commit, the draft's id


class BulkRecord(NamedTuple):
    """A record under a kind, namespace, name and number."""

    kind: int
    namespace: str
    name: str
    number: int
    at: int  #: wall clock, ms
    body: bytes = b""
    weight: int = 0  #: the amount that counts against a limit: rows of an epoch, bytes of a stage
    version: int = 0  #: number of times it was written; 0: it is new


class Chunk(NamedTuple):
    """Rows for one queue that are staged together, in order of their numbers."""

    owner: int  #: the draft they belong to
    number: int
    queue: str
    rows: int
    body: bytes  #: see ``pack``


class ConsumerGroup(msgspec.Struct, array_like=True):
    """A consumer group."""

    queues: list[str]  #: queues of its latest claim
    acked: int = 0  #: the highest acknowledged epoch


class SliceRef(NamedTuple):
    """The entry of a slice of an epoch, and its number of jobs."""

    shard: int
    number: int
    rows: int


class Epoch(msgspec.Struct, array_like=True):
    """The jobs that a group has claimed under one number: slices, in order."""

    slices: list[SliceRef]
    acking: bool = False  #: acknowledging has begun, so some of its jobs may be completed and deleted

    @property
    def rows(self) -> int:
        """Number of jobs in the epoch."""
        return sum(each.rows for each in self.slices)


class EpochSlice(msgspec.Struct, array_like=True):
    """Jobs that were claimed in one transaction, and their leases, in order. Written by that transaction."""

    jobs: bytes
    tokens: bytes

    @classmethod
    def of(cls, jobs: Sequence[int], tokens: Sequence[int]) -> EpochSlice:
        """Make one from ids and lease tokens."""
        form = f"<{len(jobs)}q"
        return cls(struct.pack(form, *jobs), struct.pack(form, *tokens))

    def leases(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return ids, and lease tokens."""
        form = f"<{len(self.jobs) // 8}q"
        return struct.unpack(form, self.jobs), struct.unpack(form, self.tokens)


def slice_name(group: str, epoch: int) -> str:
    """Return the name of the entries that hold slices of an epoch. Names of groups have no spaces."""
    return f"{group} {epoch}"


class Stage(msgspec.Struct, array_like=True, frozen=True):
    """A part of a staged write."""

    draft: int
    rows: int
    bytes: int
    shards: list[int]  #: shards that have rows of it


class Commit(msgspec.Struct, array_like=True):
    """Staged writes that are to be published."""

    rows: int
    drafts: list[tuple[int, int]]  #: the drafts, and the shards that have rows of them
    untold: list[int]  #: shards that do not have a record of the commit yet
    published: bool = False


encode: Final = msgspec.msgpack.Encoder().encode
decode_group: Final = msgspec.msgpack.Decoder(ConsumerGroup).decode
decode_epoch: Final = msgspec.msgpack.Decoder(Epoch).decode
decode_slice: Final = msgspec.msgpack.Decoder(EpochSlice).decode
decode_stage: Final = msgspec.msgpack.Decoder(Stage).decode
decode_commit: Final = msgspec.msgpack.Decoder(Commit).decode

# Chunks.


class ChunkDamaged(ServerError):
    """Staged rows are damaged on disk."""

    code = "chunk_damaged"


_FIELDS: Final = JobSpec.__struct_fields__
_DEFAULTS: Final[dict[str, Any]] = {
    each.name: each.default for each in msgspec.structs.fields(JobSpec) if each.default is not msgspec.NODEFAULT
}
_unpack: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode
_CHECK_BYTES: Final = 4


def pack(columns: Mapping[str, Any]) -> bytes:
    """Return the body of a chunk, from fields of ``JobSpec``.

    Each field is a list with a value per row, or one value for all rows.
    """
    body = encode(columns)
    return crc32(body).to_bytes(_CHECK_BYTES, "little") + body


def unpack(body: bytes) -> tuple[list[JobSpec], AbstractSet[str]]:
    """Return the jobs of a chunk's body, and which of their fields the body contains. Raises ChunkDamaged."""
    content = memoryview(body)[_CHECK_BYTES:]
    if crc32(content) != int.from_bytes(body[:_CHECK_BYTES], "little"):
        raise ChunkDamaged
    columns = _unpack(content)
    if len(columns) == 1:
        return [JobSpec(data) for data in columns["data"]], columns.keys()
    # Fields in their order, up to the last given one: passing each of them by name would be slower than all other steps.
    last = max(_FIELDS.index(name) for name in columns)
    values = [columns[name] if name in columns else _DEFAULTS[name] for name in _FIELDS[: last + 1]]
    every = zip(*(value if type(value) is list else repeat(value) for value in values), strict=False)
    return [JobSpec(*row) for row in every], columns.keys()
