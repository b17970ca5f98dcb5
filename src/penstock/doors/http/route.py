"""Routes as data: path, handler, request and reply shapes. The app and the API documentation are derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.access.identity import Right

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import msgspec

    Handler = Callable[..., Awaitable[Any]]


class StreamTransport(Protocol):
    """The writer of a streamed answer. Raises RuntimeError when the client has disconnected."""

    async def send_bytes(self, data: bytes) -> None:
        """Send more bytes."""


class AnswerWriter(Protocol):
    """The writer of a complete answer."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Send an answer."""


class HttpProtocol(AnswerWriter, Protocol):
    """The HTTP server's side of one request: it provides the body and sends the answer."""

    def __call__(self) -> Awaitable[bytes]:
        """Return the whole body."""

    def __aiter__(self) -> Any:
        """Return the body in chunks."""

    def client_disconnect(self) -> Awaitable[None]:
        """Return when the client has disconnected."""

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        """Send an answer without a body."""

    def response_file(self, status: int, headers: list[tuple[str, str]], file: str) -> None:
        """Send a file."""

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> StreamTransport:
        """Begin an answer that is sent in parts."""


class Shaped(Protocol):
    """A reader of bodies, or query strings, of one shape."""

    @property
    def shape(self) -> Any:
        """A struct, or a list of structs."""


class RequestObserver(Protocol):
    """Observes the status and the duration of a route's answers."""

    def watch(self, proto: AnswerWriter) -> AnswerWriter:
        """Return the writer for the answer of a request, and start measuring. The answer is not a stream."""


JSON: Final = "application/json"
PLAIN: Final = "text/plain; charset=utf-8"


class Route(NamedTuple):
    """One operation of the API.

    ``handler`` takes the request and the parameters of the path, and returns what ``reply`` describes: a struct to be sent
    as JSON, or a ``Plain``.
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
    probe: bool = False  #: always answered: needs no token and counts against no limit
    public: bool = False  #: needs no token
    of_all: bool = False  #: covers all namespaces: public only as long as no key is limited to some namespaces
    namespaced: bool = False  #: the header X-Namespace chooses the namespace of queues and jobs
    anywhere: bool = False  #: ``X-Namespace: *`` means all namespaces
    right: Right = Right.ADMIN  #: the right it needs, in its namespace if it is namespaced, else for the whole server
    asks: bool = False  #: the handler checks the right itself, with ``request.allow``, because it determines the namespace
    media: str = "text/plain"  #: the media type of an answer without a shape
    listed: Any = None  #: a successful answer is a JSON array of these instead
    listed_too: Any = None  #: a successful answer may also be a JSON array of these
    arrow_too: bool = False  #: a successful answer is an Arrow stream for clients that accept that
    text_too: str = ""  #: the description of the text that clients that accept plain text get; empty: no such text
    plain_errors: bool = False  #: errors are answered as a line of text instead of JSON
    repeatable: bool = False  #: the header Idempotency-Key identifies repeated requests
    resumable: bool = False  #: the header Last-Event-ID gives the place where a stream continues
    status: int = 200  #: of a successful answer
    warned: bool = False  #: a successful answer may name ignored fields in the header penstock-warning
    takes: str = ""  #: the media type of a body that is taken unchanged
    meter: RequestObserver | None = None
    also: tuple[tuple[int, type[msgspec.Struct | str]], ...] = ()  #: other statuses, and their shapes; str: text

    @property
    def replies(self) -> tuple[type[msgspec.Struct], ...]:
        """All shapes of a successful answer."""
        if self.reply is None:
            return ()
        return self.reply if isinstance(self.reply, tuple) else (self.reply,)


class Plain(NamedTuple):
    """An answer that is not JSON, or has its own status."""

    body: bytes
    content_type: str = PLAIN
    status: int = 200


class File(NamedTuple):
    """An answer that is a file. The HTTP server sends it directly, so the file must exist until it is opened."""

    path: str
    content_type: str
    size: int  #: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """A streamed answer: ``run`` writes it until it ends. Then ``done`` is called, also if ``run`` never began."""

    content_type: str
    run: Callable[[StreamTransport], Awaitable[None]]
    done: Callable[[], None]
    headers: tuple[tuple[str, str], ...] = ()
    status: int = 200
