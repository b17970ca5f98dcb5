"""Routes as data: what there is, who answers it, what goes in and out. The app and its documentation follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.access.identity import Right

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import msgspec

    Handler = Callable[..., Awaitable[Any]]


class StreamTransport(Protocol):
    """What an answer that goes on is written to. Raises RuntimeError when the client is gone."""

    async def send_bytes(self, data: bytes) -> None:
        """Send some more."""


class AnswerWriter(Protocol):
    """What an answer that is complete is written to."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer."""


class HttpProtocol(AnswerWriter, Protocol):
    """The HTTP server's side of one request: its body comes from here, and its answer goes here."""

    def __call__(self) -> Awaitable[bytes]:
        """Return the whole body."""

    def __aiter__(self) -> Any:
        """Return the body in pieces."""

    def client_disconnect(self) -> Awaitable[None]:
        """Return when the client has disconnected."""

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send an answer without a body."""

    def response_file(self, status: int, headers: list[tuple[str, str]], file: str) -> None:
        """Send a file."""

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> StreamTransport:
        """Begin an answer that is sent in parts."""


class Shaped(Protocol):
    """What reads a body, or a query string, of one shape."""

    @property
    def shape(self) -> Any:
        """A struct, or a list of structs."""


class RequestObserver(Protocol):
    """Wants to know how the requests of a route are answered, and how soon."""

    def watch(self, proto: AnswerWriter) -> AnswerWriter:
        """Return what a request is answered through, from this moment on. Its answer is not a stream."""


JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"


class Route(NamedTuple):
    """One thing that can be asked for.

    ``handler`` takes the request and the parameters of the path, and returns what ``reply`` describes: a struct to be sent as
    JSON, or a ``Plain``.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    reply: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None  #: one of several; None: plain text
    body: Shaped | None = None
    query: Shaped | None = None
    body_required: bool = False
    probe: bool = False  #: answered to everybody, always: needs no token and counts against no limit
    public: bool = False  #: needs no token
    of_all: bool = False  #: tells of all namespaces: public only as long as nobody is let in for some of them only
    namespaced: bool = False  #: the header X-Namespace says whose queues and jobs are meant
    anywhere: bool = False  #: ``X-Namespace: *`` means all namespaces
    right: Right = Right.ADMIN  #: what it needs, in its namespace if it is namespaced, else for the whole server
    asks: bool = False  #: the handler asks for the right itself, with ``request.allow``, because it finds out the namespace
    media: str = "text/plain"  #: what an answer without a shape is
    listed: Any = None  #: a good answer is a JSON array of these instead
    listed_too: Any = None  #: a good answer may also be a JSON array of these
    arrow_too: bool = False  #: a good answer is an Arrow stream for those who accept that
    text_too: str = ""  #: what a good answer is for those who accept plain text; empty: nothing else
    plain_errors: bool = False  #: errors are answered as a line of text instead of JSON
    repeatable: bool = False  #: the header Idempotency-Key says which requests are the same one
    resumable: bool = False  #: the header Last-Event-ID says where a stream goes on
    status: int = 200  #: of a good answer
    warned: bool = False  #: a good answer may name fields that were ignored, in the header penstock-warning
    takes: str = ""  #: the media type of a body that is taken as it is
    meter: RequestObserver | None = None
    also: tuple[tuple[int, type[msgspec.Struct | str]], ...] = ()  #: other statuses, and the shapes they have; str: text

    @property
    def replies(self) -> tuple[type[msgspec.Struct], ...]:
        """All shapes a good answer can have."""
        if self.reply is None:
            return ()
        return self.reply if isinstance(self.reply, tuple) else (self.reply,)


class Plain(NamedTuple):
    """An answer that is not JSON, or has a status of its own."""

    body: bytes
    content_type: str = PLAIN
    status: int = 200


class File(NamedTuple):
    """An answer that is a file, which is sent without passing through here. It has to be there until it is opened."""

    path: str
    content_type: str
    size: int  #: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """An answer that goes on: ``run`` writes it until it ends, then ``done`` is called, also if it never began."""

    content_type: str
    run: Callable[[StreamTransport], Awaitable[None]]
    done: Callable[[], None]
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200
