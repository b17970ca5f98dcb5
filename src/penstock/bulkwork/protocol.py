"""The protocol between a server and its bulk processes: a length in four bytes, then MessagePack."""

from __future__ import annotations

from typing import Any, Final

import msgspec

LENGTH_BYTES: Final = 4
#: Environment variable of a bulk process: its memory limit in bytes; 0: no limit.
MEMORY_VARIABLE: Final = "PENSTOCK_BULK_MEMORY_BYTES"


class BulkTask(msgspec.Struct):
    """A task: its name and its arguments."""

    name: str
    given: dict[str, Any]


class TaskOutcome(msgspec.Struct, omit_defaults=True):
    """The outcome of a task: an answer, or an error by its code, with its text and other fields."""

    answer: Any = None
    code: str = ""
    text: str = ""
    first: int = 0  #: field of JournalGone
    is_last: bool = False  #: the process ends after this answer, because it has grown or is old


_encode = msgspec.msgpack.Encoder().encode
decode_task = msgspec.msgpack.Decoder(BulkTask).decode
decode_outcome = msgspec.msgpack.Decoder(TaskOutcome).decode


def frame(message: BulkTask | TaskOutcome) -> bytes:
    """Return a message as bytes with its length."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body
