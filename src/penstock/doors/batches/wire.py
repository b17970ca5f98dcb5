"""What goes in and out of the batches door. Fields are in snake_case, payloads in base64, moments in RFC 3339."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Raw

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.ids import ID_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import UnionType

    from penstock.doors.http.request import Request

Id = Annotated[int, Meta(ge=1, le=ID_MAX)]
Namespace = Annotated[str, Meta(min_length=1, max_length=limits.namespace_chars_max, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
Topic = Annotated[str, Meta(min_length=1, max_length=limits.name_chars_max, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
#: Symmetric, so that it fits when it is negated.
Priority = Annotated[int, Meta(ge=limits.priority_min, le=limits.priority_max)]
Key = Annotated[str, Meta(max_length=limits.idempotency_key_chars_max, pattern=r"^[^\x00]*\Z")]
Error = Annotated[str, Meta(max_length=limits.error_chars_max)]


class EnqueueItem(msgspec.Struct):
    """A message to be enqueued. ``priority``: lower goes first. ``payload``: base64. ``deliver_after``: RFC 3339."""

    namespace: Namespace
    topic: Topic
    priority: Priority | None = None
    payload: bytes | None = None
    metadata: dict[str, Raw] | None = None
    deliver_after: str | None = None
    idempotency_key: Key | None = None


class DequeueQuery(msgspec.Struct):
    """From where to take how many messages, and how long they are the caller's."""

    namespace: Namespace
    topic: Topic
    limit: Annotated[int, Meta(ge=1)] = 10
    lease_ms: Annotated[int, Meta(ge=1, le=limits.lease_ms_max)] = 30_000


class DeadQuery(msgspec.Struct):
    """Whose dead letters to list, and how many."""

    namespace: Namespace
    topic: Topic
    limit: Annotated[int, Meta(ge=1)] = 10


class TopicsQuery(msgspec.Struct):
    """Whose topics to list."""

    namespace: Namespace


class ItemBody(msgspec.Struct):
    """Which message is meant."""

    id: Id
    namespace: Namespace
    topic: Topic


class NackBody(ItemBody):
    """Which message failed, and why."""

    error: Error | None = None


#: One or, in one request, many.
Items = ItemBody | Annotated[list[ItemBody], Meta(max_length=limits.ids_max)]
Nacks = NackBody | Annotated[list[NackBody], Meta(max_length=limits.ids_max)]


class RefusalView(msgspec.Struct):
    """Of several messages, those about which nothing was done, and why: none if all went well."""

    id: int
    error: str
    code: str  #: stable, see the header penstock-error


class ItemView(msgspec.Struct):
    """Messages, in the order in which they are to be worked on."""

    id: int
    namespace: str
    topic: str
    priority: int
    payload: bytes
    metadata: Raw | None
    idempotency_key: str | None
    deliver_after: str
    lease_expires_at: str
    retries: int
    last_error: str | None
    created_at: str


class DeadView(msgspec.Struct):
    """Dead letters, the one that died first in front."""

    id: int
    original_id: int
    namespace: str
    topic: str
    priority: int
    payload: bytes
    metadata: Raw | None
    idempotency_key: str | None
    retries: int
    last_error: str | None
    created_at: str
    moved_at: str


T = TypeVar("T")


class Body(Generic[T]):
    """Reads bodies of one shape, strictly: an id that is almost right names somebody else's message."""

    def __init__(self, shape: type[T] | UnionType) -> None:
        self.shape: Any = shape
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(shape).decode

    async def read(self, req: Request) -> T:
        """Read a body. Raises InvalidInput, which says what is wrong and where."""
        body = await req.body()
        try:
            if not body.isascii():
                body.decode()
            return self._decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"Invalid request body: {error}") from None
