"""Requests and replies of the messages door. Fields are in snake_case, bodies in base64, times in ms since 1970."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from penstock.core import limits
from penstock.core.errors import InvalidInput, MethodRefused, RateLimited, RouteNotFound, Unauthorized
from penstock.core.time_slices import in_slices
from penstock.doors.http.body import item_shape, sound_steps
from penstock.doors.http.schemas import SENT_AS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.errors import ServerError
    from penstock.doors.http.request import Request

#: Names in create requests are strict. Names that are created by use may have almost any character.
_STRICT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_LOOSE: Final = re.compile(r"[^/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}\Z")

#: Errors for which clients of EpochQ expect this exact text.
_KNOWN: Final = {str(error()): str(error()).lower() for error in (Unauthorized, RateLimited, RouteNotFound, MethodRefused)}
_encode = msgspec.json.Encoder().encode


class StrictModel(msgspec.Struct, forbid_unknown_fields=True):
    """A body with strict parsing: an unknown field is an error."""


class NamespaceBody(StrictModel):
    """A request to create a namespace."""

    name: str = ""


class QueueBody(StrictModel):
    """A request to create a queue with its rules. For values of 0 and less, the server's default applies."""

    visibility_timeout_ms: Annotated[int, Meta(le=limits.lease_ms_max)] = 0
    max_messages: Annotated[int, Meta(le=limits.queue_messages_max)] = 0
    max_retries: Annotated[int, Meta(le=limits.attempts_max)] = 0
    max_batch_size: Annotated[int, Meta(le=limits.queue_messages_max)] = 0


class MessageBody(StrictModel):
    """A message. ``body``: base64, or plain text if it is not base64. ``deliver_at``: earliest delivery in ms since 1970."""

    body: str = ""
    deliver_at: int | None = None
    max_retries: int = 0
    metadata: dict[str, str] | None = None


class SubscriptionBody(StrictModel):
    """A push subscription: the URL, and the secret for signatures."""

    url: str = ""
    secret: str = ""


class SettleFrame(msgspec.Struct):
    """A frame from the client that settles a message: ``ack`` or ``nack``."""

    type: str
    receipt_handle: str = ""


class ErrorFrame(msgspec.Struct, omit_defaults=True, tag_field="type", tag="error"):
    """A frame to the client: its request failed. It has the error and the message's receipt handle."""

    error: str
    receipt_handle: str = ""


class SubscriptionView(msgspec.Struct):
    """A push subscription. ``signed``: it has a secret, which is never returned."""

    id: str
    url: str
    signed: bool
    created_at: int


class SubscriptionsReply(msgspec.Struct):
    """Push subscriptions of a queue, oldest first."""

    subscriptions: list[SubscriptionView]


class Created(msgspec.Struct):
    """The answer to a request that created something."""

    status: str = "created"
    name: str | msgspec.UnsetType = msgspec.UNSET


class NamespaceView(msgspec.Struct):
    """A namespace and its creation time."""

    name: str
    created_at: int


class NamespacesReply(msgspec.Struct):
    """Namespaces, sorted by name."""

    namespaces: list[NamespaceView]


class QueueNamesReply(msgspec.Struct):
    """Queues of a namespace as ``namespace/queue``, sorted by name."""

    queues: list[str]


class NewIdReply(msgspec.Struct):
    """The id of the new message or subscription."""

    id: str


class NewIdsReply(msgspec.Struct):
    """The ids of the new messages, in the order of the request."""

    ids: list[str]


class MessageView(msgspec.Struct, omit_defaults=True):
    """A consumed message. ``attempt``: 1 for the first delivery."""

    id: str
    body: bytes
    receipt_handle: str
    namespace: str
    queue: str
    attempt: int
    published_at: int
    metadata: msgspec.Raw | None = None


class MessagesReply(msgspec.Struct):
    """Messages, in the order of delivery."""

    messages: list[MessageView]


class PurgedReply(msgspec.Struct):
    """The number of removed messages."""

    purged: int


class ReplayedReply(msgspec.Struct):
    """The number of replayed dead letters."""

    replayed: int


class QueueStatsReply(msgspec.Struct):
    """The numbers of messages of a queue by state. ``depth``: ready and leased together."""

    namespace: str
    name: str
    key: str
    ready: int
    in_flight: int
    scheduled: int
    depth: int
    dlq_depth: int


class StatsPageReply(msgspec.Struct):
    """A page of queues, sorted by name."""

    queues: list[QueueStatsReply]
    total: int
    page: int
    limit: int
    total_pages: int


class SummaryReply(msgspec.Struct):
    """The sums over all queues. ``dlq_alerts``: queues with dead letters."""

    total_queues: int
    namespaces: int
    total_depth: int
    total_scheduled: int
    dlq_alerts: int


class NodeHealthReply(msgspec.Struct):
    """The answer of the health check: the server is healthy."""

    status: str
    node_id: str
    queues: int
    uptime: str
    uptime_ms: int
    version: str
    data_dir: str = ""


#: A number in a query string; see ``number_in`` for invalid values.
Number = Annotated[str, Meta(extra_json_schema={SENT_AS: "integer", "minimum": 1})]


class ConsumeQuery(msgspec.Struct):
    """Query of consume: the number of messages, the visibility timeout, and the time to wait for the first message.

    ``wait_ms`` is not part of EpochQ, so an invalid value is refused.
    """

    n: Number = ""
    visibility_timeout_ms: Number = ""
    wait_ms: Annotated[int, Meta(ge=0)] = 0


class DeadLettersQuery(msgspec.Struct):
    """Query of dead letters: their number."""

    limit: Number = ""


class StatsQuery(msgspec.Struct):
    """Query of statistics: the page, counted from 1, and the number of queues on a page."""

    page: Number = ""
    limit: Number = ""


T = TypeVar("T")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")


class MessageBodyReader(Generic[T]):
    """Reads bodies of one type, with the error texts that clients of EpochQ expect."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(shape).decode
        self._item = item_shape(shape)

    async def read(self, req: Request) -> T:
        """Read a required body. Raises InvalidInput."""
        body = await req.body()
        if not body.strip():
            raise InvalidInput("invalid json: EOF")
        try:
            return await in_slices(sound_steps(body, self._decode, self._item))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            unknown = _UNKNOWN.match(str(error))
            text = f'json: unknown field "{unknown[1]}"' if unknown else str(error)
            raise InvalidInput(f"invalid json: {text}") from None


def bytes_in(text: str) -> bytes:
    """Return the bytes of a body: decoded from base64, or the text itself if it is not base64."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()


def error_body(error: ServerError) -> bytes:
    """Return the body of an error as EpochQ writes it, for this door's own listener."""
    text = str(error)
    return _encode({"error": _KNOWN.get(text, text)})


def is_strict(name: str) -> bool:
    """Return whether a name is valid for a create request."""
    return _STRICT.match(name) is not None


def check_strict(kind: str, name: str) -> str:
    """Return a name unchanged if it is valid for a create request. Raises InvalidInput."""
    if not is_strict(name):
        raise InvalidInput(f'{kind}: invalid name: "{name[:64]}"')
    return name


def check_names(*names: str) -> None:
    """Raise InvalidInput unless all are valid names of namespaces and queues."""
    for name in names:
        if name in (".", "..") or _LOOSE.match(name) is None or len(name) > limits.namespace_chars_max:
            raise InvalidInput("invalid namespace or queue name")


def number_in(text: str, default: int, least: int, most: int) -> int:
    """Parse a number of a query string as EpochQ does: missing, invalid or small gives ``default``; large gives ``most``."""
    try:
        value = int(text) if text.isascii() and len(text) < 20 else default
    except ValueError:
        return default
    return default if value < least else min(value, most)
