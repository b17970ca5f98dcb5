"""Computes how large an Arrow stream becomes when it is read, without reading it.

A compressed buffer begins with its uncompressed length, and Arrow reserves that many bytes before it decompresses the first
one: 33 kB may request gigabytes. So the descriptions of all batches are checked first. They are flatbuffers, which Arrow has
verified when it returns a message, so every offset in them is valid.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

# Numbers of fields, from Arrow's Message.fbs.
_MESSAGE_HEADER: Final = 2
_BATCH_ROWS: Final = 0
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3
#: Arrow before 1.0 marks compressed streams with this text in their metadata. Arrow still reads them.
_OLD_COMPRESSION: Final = b"ARROW:experimental_compression"
_BUFFER: Final = struct.Struct("<qq")  # its offset in the body, and its bytes there
_NUMBER: Final = struct.Struct("<q")
_IS_PLAIN: Final = -1  # as an uncompressed length: this buffer is not compressed

_REMEDY: Final = "Send the rows in more parts."


class Sizes(NamedTuple):
    """The size of a stream: its rows, and the bytes of all uncompressed buffers."""

    rows: int
    bytes: int


def check_sizes(source: pa.BufferReader) -> Sizes:
    """Return the size of a stream, and reset ``source`` to its start. Raises InvalidInput if it exceeds the limits.

    Dictionaries are refused, because no column of staged rows has one. Raises ArrowException and OSError if it is not Arrow.
    """
    beginning = source.tell()
    rows = unpacked = batches = 0
    for message in _messages(source):
        if message.type == "schema":
            if message.metadata.size > limits.stage_schema_bytes_max:
                raise InvalidInput(
                    f"The description of the columns has {message.metadata.size} bytes, "
                    f"at most {limits.stage_schema_bytes_max} are accepted. Leave out columns and their metadata."
                )
            continue
        if message.type != "record batch":
            raise InvalidInput(f"The stream has a {message.type}, and only record batches are accepted. Send plain columns.")
        batches += 1
        if batches > limits.stage_batches_max:
            raise InvalidInput(f"More than {limits.stage_batches_max} record batches. Send fewer, larger ones.")
        found = _of_batch(memoryview(message.metadata), message)
        rows += found.rows
        unpacked += found.bytes
        if rows > limits.stage_rows_max:
            raise InvalidInput(f"More than {limits.stage_rows_max} rows. {_REMEDY}")
        if unpacked > limits.stage_unpacked_bytes_max:
            raise InvalidInput(f"The rows have more than {limits.stage_unpacked_bytes_max} bytes when unpacked. {_REMEDY}")
    source.seek(beginning)
    return Sizes(rows, unpacked)


def _messages(source: pa.BufferReader) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(source)
    try:
        while True:
            yield reader.read_next_message()
    except StopIteration:
        return


def _of_batch(metadata: memoryview, message: pa.Message) -> Sizes:
    try:
        return _add_up(metadata, message)
    except (struct.error, IndexError):
        raise InvalidInput("The body is not an Arrow IPC stream or file: a record batch is damaged") from None


def _add_up(metadata: memoryview, message: pa.Message) -> Sizes:
    root = _table_at(metadata, 0)
    place = _field(metadata, root, _MESSAGE_HEADER)
    batch = _table_at(metadata, place)
    place = _field(metadata, batch, _BATCH_ROWS)
    rows = _NUMBER.unpack_from(metadata, place)[0] if place else 0
    if rows < 0:
        raise IndexError
    compressed = bool(_field(metadata, batch, _BATCH_COMPRESSION)) or _OLD_COMPRESSION in metadata.tobytes()
    place = _field(metadata, batch, _BATCH_BUFFERS)
    if not place:
        return Sizes(rows, 0)
    vector = _table_at(metadata, place)
    body = b"" if message.body is None else memoryview(message.body)
    total = 0
    for number in range(_unsigned(metadata, vector)):
        begin, size = _BUFFER.unpack_from(metadata, vector + 4 + number * _BUFFER.size)
        if begin < 0 or size < 0:
            raise IndexError
        if compressed and size:
            length = _NUMBER.unpack_from(body, begin)[0]
            size = size if length == _IS_PLAIN else length
            if size < 0:
                raise IndexError
        total += size
    return Sizes(rows, total)


def _unsigned(data: memoryview, place: int) -> int:
    return int.from_bytes(data[place : place + 4], "little")


def _table_at(data: memoryview, place: int) -> int:
    """Return the table that the offset at ``place`` refers to."""
    return place + _unsigned(data, place)


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the table does not have it."""
    fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    slot = 4 + 2 * number
    if slot >= int.from_bytes(data[fields : fields + 2], "little"):
        return 0
    offset = int.from_bytes(data[fields + slot : fields + slot + 2], "little")
    return table + offset if offset else 0
