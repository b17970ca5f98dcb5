"""What goes in and out of the messages door. Fields are in snake_case, bodies in base64, moments in milliseconds."""

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

    from penstock.core.errors import PenstockError
    from penstock.doors.http.request import Request

#: What is made on purpose has a plain name; what is made by using it may have nearly any.
_STRICT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")
_LOOSE: Final = re.compile(r"[^/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,128}\Z")

#: Errors that clients of the original know in these very words.
_KNOWN: Final = {str(error()): str(error()).lower() for error in (Unauthorized, RateLimited, RouteNotFound, MethodRefused)}
_encode = msgspec.json.Encoder().encode


class StrictModel(msgspec.Struct, forbid_unknown_fields=True):
    """A body that is read strictly: a field that is misspelt is not just left out."""


class NamespaceBody(StrictModel):
    """A namespace to be made."""

    name: str = ""


class QueueBody(StrictModel):
    """How a queue to be made treats its messages. 0 and less: as the server does."""

    visibility_timeout_ms: Annotated[int, Meta(le=limits.lease_ms_max)] = 0
    max_messages: Annotated[int, Meta(le=limits.queue_messages_max)] = 0
    max_retries: Annotated[int, Meta(le=limits.attempts_max)] = 0
    max_batch_size: Annotated[int, Meta(le=limits.queue_messages_max)] = 0


class MessageBody(StrictModel):
    """A message. ``body``: base64, or else taken as the text it is. ``deliver_at``: ms since 1970; not before that."""

    body: str = ""
    deliver_at: int | None = None
    max_retries: int = 0
    metadata: dict[str, str] | None = None


class SubscriptionBody(StrictModel):
    """Where messages are pushed to, and what they are signed with."""

    url: str = ""
    secret: str = ""


class SettleFrame(msgspec.Struct):
    """What a WebSocket says of a message it got: ``ack`` or ``nack``."""

    type: str
    receipt_handle: str = ""


class ErrorFrame(msgspec.Struct, omit_defaults=True, tag_field="type", tag="error"):
    """What a WebSocket is told when its words were in vain, and about which message."""

    error: str
    receipt_handle: str = ""


class SubscriptionView(msgspec.Struct):
    """A subscription. ``signed``: it has a secret, which is never shown."""

    id: str
    url: str
    signed: bool
    created_at: int


class SubscriptionsReply(msgspec.Struct):
    """Subscriptions of a queue, oldest first."""

    subscriptions: list[SubscriptionView]


class Created(msgspec.Struct):
    """It was made."""

    status: str = "created"
    name: str | msgspec.UnsetType = msgspec.UNSET


class NamespaceView(msgspec.Struct):
    """A namespace, and when it was made."""

    name: str
    created_at: int


class NamespacesReply(msgspec.Struct):
    """Namespaces, by name."""

    namespaces: list[NamespaceView]


class QueueNamesReply(msgspec.Struct):
    """Queues of a namespace, as namespace/queue, by name."""

    queues: list[str]


class NewIdReply(msgspec.Struct):
    """What the message, or the subscription, is called."""

    id: str


class NewIdsReply(msgspec.Struct):
    """What the messages are called, in their order."""

    ids: list[str]


class MessageView(msgspec.Struct, omit_defaults=True):
    """A message in the hands of a consumer. ``attempt``: 1 for the first delivery."""

    id: str
    body: bytes
    receipt_handle: str
    namespace: str
    queue: str
    attempt: int
    published_at: int
    metadata: msgspec.Raw | None = None


class MessagesReply(msgspec.Struct):
    """Messages, in the order in which they are to be dealt with."""

    messages: list[MessageView]


class PurgedReply(msgspec.Struct):
    """How many messages were removed."""

    purged: int


class ReplayedReply(msgspec.Struct):
    """How many dead letters are messages again."""

    replayed: int


class QueueStats(msgspec.Struct):
    """How many messages of a queue are where. ``depth``: ready and in flight together."""

    namespace: str
    name: str
    key: str
    ready: int
    in_flight: int
    scheduled: int
    depth: int
    dlq_depth: int


class StatsPageReply(msgspec.Struct):
    """A page of queues, by name."""

    queues: list[QueueStats]
    total: int
    page: int
    limit: int
    total_pages: int


class SummaryReply(msgspec.Struct):
    """All queues together. ``dlq_alerts``: those with dead letters."""

    total_queues: int
    namespaces: int
    total_depth: int
    total_scheduled: int
    dlq_alerts: int


class NodeHealthReply(msgspec.Struct):
    """The server is fine."""

    status: str
    node_id: str
    queues: int
    uptime: str
    uptime_ms: int
    version: str
    data_dir: str = ""


#: A number in a query string; see number_in for what is none.
Number = Annotated[str, Meta(extra_json_schema={SENT_AS: "integer", "minimum": 1})]


class ConsumeQuery(msgspec.Struct):
    """How many messages, how long they are the caller's, and how long to wait for the first.

    ``wait_ms`` is not of EpochQ, so a wrong one is refused.
    """

    n: Number = ""
    visibility_timeout_ms: Number = ""
    wait_ms: Annotated[int, Meta(ge=0)] = 0


class DeadLettersQuery(msgspec.Struct):
    """How many dead letters."""

    limit: Number = ""


class StatsQuery(msgspec.Struct):
    """Which page, counted from 1, and how many queues are on one."""

    page: Number = ""
    limit: Number = ""


T = TypeVar("T")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`")


class MessageBodyReader(Generic[T]):
    """Reads bodies of one shape, in the words that clients of the original know."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(shape).decode
        self._item = item_shape(shape)

    async def read(self, req: Request) -> T:
        """Read a body that must be there. Raises InvalidInput."""
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
    """Return what a body says: what its base64 stands for, or the text itself if it is none."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return text.encode()


def error_body(error: PenstockError) -> bytes:
    """Spell an error as the original does, at the listener of this door."""
    text = str(error)
    return _encode({"error": _KNOWN.get(text, text)})


def is_strict(name: str) -> bool:
    """Tell whether something may be made under a name on purpose."""
    return _STRICT.match(name) is not None


def check_strict(kind: str, name: str) -> str:
    """Return a name as it is, if something may be made under it on purpose. Raises InvalidInput."""
    if not is_strict(name):
        raise InvalidInput(f'{kind}: invalid name: "{name[:64]}"')
    return name


def check_names(*names: str) -> None:
    """Raise InvalidInput unless all may be names of namespaces and queues."""
    for name in names:
        if name in (".", "..") or _LOOSE.match(name) is None or len(name) > limits.namespace_chars_max:
            raise InvalidInput("invalid namespace or queue name")


def number_in(text: str, default: int, least: int, most: int) -> int:
    """Read a number of a query string as EpochQ does: none, or a small one, is the default; a large one is cut down."""
    try:
        value = int(text) if text.isascii() and len(text) < 20 else default
    except ValueError:
        return default
    return default if value < least else min(value, most)
