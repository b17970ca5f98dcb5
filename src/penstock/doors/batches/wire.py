"""Requests and replies of the batches door. Fields are in snake_case, payloads in base64, times in RFC 3339."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.ids import ID_MAX
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import BodyReader, item_shape, sound_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import UnionType

    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest, Request

#: A message id: a number, or text, because JavaScript rounds numbers above 2^53.
Id = Annotated[int, Meta(ge=1, le=ID_MAX)] | Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,18}\Z")]
#: The largest number up to which JavaScript represents every integer.
SAFE_INTEGER_MAX: Final = 2**53 - 1
Namespace = Annotated[str, Meta(min_length=1, max_length=limits.namespace_chars_max, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
Topic = Annotated[str, Meta(min_length=1, max_length=limits.name_chars_max, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
#: The range is symmetric, so that a negated value is valid.
Priority = Annotated[int, Meta(ge=limits.priority_min, le=limits.priority_max)]
Key = Annotated[str, Meta(max_length=limits.idempotency_key_chars_max, pattern=r"^[^\x00]*\Z")]
Error = Annotated[str, Meta(max_length=limits.error_chars_max)]


class EnqueueItem(msgspec.Struct):
    """A message to enqueue. ``priority``: lower comes first. ``payload``: base64. ``deliver_after``: RFC 3339."""

    namespace: Namespace
    topic: Topic
    priority: Priority | None = None
    payload: bytes | None = None
    metadata: dict[str, Raw] | None = None
    deliver_after: str | None = None
    idempotency_key: Key | None = None
    max_retries: Annotated[int, Meta(ge=1, le=limits.attempts_max)] | None = None


class StrictItem(EnqueueItem, forbid_unknown_fields=True):
    """A message without unknown fields: see FieldCheck."""


class EnqueueQuery(msgspec.Struct):
    """Query of enqueue: ids in the answer as numbers, or as text."""

    ids: Literal["number", "text"] = "number"


class DequeueQuery(msgspec.Struct):
    """Query of dequeue: the topic, the number of messages, and the length of the leases."""

    namespace: Namespace
    topic: Topic
    limit: Annotated[int, Meta(ge=1)] = 10
    lease_ms: Annotated[int, Meta(ge=1, le=limits.lease_ms_max)] = 30_000
    #: The owner of the leases.
    consumer: Annotated[str, Meta(min_length=1, max_length=limits.name_chars_max)] | None = None


class DeadItemsQuery(msgspec.Struct):
    """Query of dead letters: the topic, and their number."""

    namespace: Namespace
    topic: Topic
    limit: Annotated[int, Meta(ge=1)] = 10


class TopicsQuery(msgspec.Struct):
    """Query of topics: the namespace."""

    namespace: Namespace


class ItemBody(msgspec.Struct):
    """A reference to a message."""

    id: Id
    namespace: Namespace
    topic: Topic

    @property
    def number(self) -> int:
        """Return the id as a number. Raises InvalidInput if it is text and too large."""
        number = self.id if isinstance(self.id, int) else int(self.id)
        if number > ID_MAX:
            raise InvalidInput(f"Invalid request body: there is no id above {ID_MAX} - at `$.id`: {number}")
        return number

    @property
    def is_rounded(self) -> bool:
        """Return whether JavaScript has rounded the id: it writes large numbers with a 0 at the end, which no id has."""
        return isinstance(self.id, int) and self.id > SAFE_INTEGER_MAX and self.id % 10 == 0


class NackBody(ItemBody):
    """A failed message, and the reason."""

    error: Error | None = None


class RenewItemBody(ItemBody):
    """A message that is in progress, and the new length of its lease from now; default: the length of its lease."""

    lease_ms: Annotated[int, Meta(ge=1, le=limits.lease_ms_max)] | None = None


#: One heartbeat, or several in one request.
Heartbeats = RenewItemBody | Annotated[list[RenewItemBody], Meta(max_length=limits.ids_max)]
Items = ItemBody | Annotated[list[ItemBody], Meta(max_length=limits.ids_max)]
Nacks = NackBody | Annotated[list[NackBody], Meta(max_length=limits.ids_max)]


class RefusalView(msgspec.Struct):
    """A refused message, with the reason. The list is empty if all succeeded."""

    id: int | str  #: the id as it was sent
    error: str
    code: str  #: stable; see the header penstock-error


class ItemView(msgspec.Struct):
    """A dequeued message. Messages are in the order of delivery."""

    id: int
    id_text: str  #: the same id as text, for JavaScript
    namespace: str
    topic: str
    priority: int
    payload: bytes
    metadata: Raw | None
    idempotency_key: str | None
    deliver_after: str
    lease_expires_at: str
    lease_owner: str | None
    ttl: int | None  #: ms after its creation when it is removed unless it was dequeued
    status: str
    retries: int
    max_retries: int
    first_failed_at: str | None
    last_error: str | None
    created_at: str
    updated_at: str


class DeadView(msgspec.Struct):
    """A dead letter. They are listed in the order in which they became dead letters."""

    id: int
    id_text: str  #: the same id as text, for JavaScript
    original_id: int
    namespace: str
    topic: str
    priority: int
    payload: bytes
    metadata: Raw | None
    idempotency_key: str | None
    lease_owner: str | None  #: the owner of its last lease
    ttl: int | None  #: ms after its creation when it would have been removed
    status: str
    retries: int
    max_retries: int
    first_failed_at: str | None
    last_error: str | None
    created_at: str
    updated_at: str
    moved_at: str


T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)


class Query(BodyReader[Q]):
    """Reads query strings. ``missing``: mqueue's error text for a missing topic or namespace."""

    def __init__(self, shape: type[Q], missing: str) -> None:
        super().__init__(shape)
        self._missing = missing

    def parse_query(self, req: ApiRequest) -> Q:
        """Parse a query string. Raises InvalidInput."""
        try:
            return super().parse_query(req)
        except InvalidInput as error:
            raise InvalidInput(self._missing) if str(error).endswith(" is required") else error from None


class StrictBodyReader(Generic[T]):
    """Reads bodies of one type with strict parsing, because a nearly right id may be the id of another message."""

    def __init__(self, shape: type[T] | UnionType) -> None:
        self.shape: Any = shape
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(shape).decode
        self._item = item_shape(shape)

    async def read(self, req: Request) -> T:
        """Read a body. Raises InvalidInput with the problem and its place."""
        return await in_slices(self.steps(await req.body()))

    def steps(self, body: bytes) -> Steps[T]:
        """Parse a body, in steps. Raises InvalidInput with the problem and its place."""
        try:
            if not body.isascii():
                body.decode()
            built: T = yield from sound_steps(body, self._decode, self._item)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"Invalid request body: {error}") from None
        return built
