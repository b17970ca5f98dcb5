"""What a server and its bulk process say to each other: a length in four bytes, then MessagePack."""

from __future__ import annotations

from typing import Any, Final

import msgspec

LENGTH_BYTES: Final = 4
#: In the environment of a bulk process: how many bytes of memory it may use; 0: as many as there are.
MEMORY_VARIABLE: Final = "PENSTOCK_BULK_MEMORY_BYTES"


class BulkTask(msgspec.Struct):
    """What is to be done: the name of a task, and what it needs."""

    name: str
    given: dict[str, Any]


class TaskOutcome(msgspec.Struct, omit_defaults=True):
    """What came of it: an answer; or an error by its code, with its text and what else it carries."""

    answer: Any = None
    code: str = ""
    text: str = ""
    first: int = 0  #: of JournalGone
    is_last: bool = False  #: the process ends after this answer, because it has grown or is old


_encode = msgspec.msgpack.Encoder().encode
decode_task = msgspec.msgpack.Decoder(BulkTask).decode
decode_outcome = msgspec.msgpack.Decoder(TaskOutcome).decode


def frame(message: BulkTask | TaskOutcome) -> bytes:
    """Return a message as it is sent."""
    body = _encode(message)
    return len(body).to_bytes(LENGTH_BYTES) + body
