"""The request as a handler receives it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qsl

from penstock.core import limits
from penstock.core.errors import BodyTooLarge, BodyTooSlow, InvalidInput, ShuttingDown, TargetTooLong, TooMany
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.doors.http.namespace import namespace_in
from penstock.doors.net.raw_sockets import connection_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from granian.rsgi import Scope

    from penstock.access.authenticator import Authenticator
    from penstock.access.identity import Identity, Right
    from penstock.core.clock import Alarm, Clock
    from penstock.core.errors import ServerError
    from penstock.doors.http.route import HttpProtocol
    from penstock.doors.net.unread_answers import UnreadAnswers
    from penstock.engine.fair_share import FairShare


_INCOMPLETE: Final = "The request body is incomplete"
_EMPTY_MAX: Final = 16


class Bodies:
    """The memory that the large bodies of requests in progress take. Small ones are bounded by the number of requests.

    Only bytes that have arrived are counted, because announced bytes may never arrive. One sender is what ``Identity.holder``
    names: a namespace, an identity, or an address (``client_of``). Each sender has a share of the memory, so that the others
    always have some left. ``fair_share`` lets large bodies continue once they have arrived. ``answers`` counts what was
    received over connections with unread answers.
    """

    def __init__(
        self, clock: Clock, client_of: Callable[[Scope], str], fair_share: FairShare, answers: UnreadAnswers | None = None
    ) -> None:
        self.clock = clock
        self.client_of = client_of
        self.fair_share = fair_share
        self._bytes = 0
        self._shares: dict[str, int] = {}
        self._answers = answers
        self.watched: Mapping[str, object] = {} if answers is None else answers.http2
        self.arriving: dict[int, Scope] = {}  #: requests whose bodies are being read
        self.stopping = False  #: bodies that have not arrived are refused, because the server stops

    @property
    def incomplete(self) -> ServerError:
        """The reason for refusing a truncated body."""
        return ShuttingDown() if self.stopping else InvalidInput(_INCOMPLETE)

    def hold(self, size: int, sender: str) -> None:
        """Reserve memory for a received part of a body.

        Raises TooMany if there is none, or the sender has used its share.
        """
        share = self._shares.get(sender, 0) + size
        if self._bytes + size > limits.bodies_bytes_max or share > limits.bodies_share_bytes_max:
            raise TooMany("Too many large requests at once. Retry in a moment.")
        self._bytes += size
        self._shares[sender] = share

    def count(self, scope: Scope, size: int) -> None:
        """Count a received part of a body."""
        if self.watched and self._answers is not None:
            self._answers.count_request(connection_key(scope), size)

    def release(self, size: int, sender: str) -> None:
        """Give memory back."""
        self._bytes -= size
        left = self._shares[sender] - size
        if left:
            self._shares[sender] = left
        else:
            del self._shares[sender]


class ApiRequest(Protocol):
    """A request for handlers that serve both HTTP and commands: a ``Request``, or a command over TCP or a WebSocket."""

    @property
    def warns(self) -> bool:
        """Whether the answer can carry a warning."""

    @property
    def identity(self) -> Identity | None:
        """The identity of the client. None: no token was shown."""

    @property
    def header(self) -> Callable[..., str | None]:
        """Return a header: ``header(name, default)``, the name in lower case."""

    def namespace(self) -> str:
        """Return the namespace that the headers choose. Raises InvalidInput for one that cannot be a name."""

    def query(self) -> dict[str, str]:
        """Return the parameters of the query string."""

    def allow(self, namespace: str, right: Right) -> None:
        """Raise Forbidden unless the client has a right in a namespace."""

    def warn(self, text: str) -> None:
        """Add a warning to the answer."""

    async def body(self) -> bytes:
        """Return the whole body. One above ``limits.small_body_bytes`` makes the request a large one."""

    async def become_large(self) -> None:
        """Count the request as a large one of its namespace from now on, until it is answered.

        Waits while the namespace has the maximum number of them in progress (``limits.share_large_requests``).
        """

    async def disconnected(self) -> None:
        """Return when the client has disconnected."""


def head_bytes(scope: Scope) -> int:
    """Return an upper bound for the bytes of a request's head over HTTP/2; at most ``limits.answer_counted_bytes``.

    Heads are compressed: a client can send a long one again in a few bytes.
    """
    size = len(scope.path) + len(scope.query_string) + _FRAME_BYTES
    for name, value in scope.headers.items():
        size += len(name) + len(value) + _FIELD_BYTES
    return min(size, limits.answer_counted_bytes)


#: Headers that a request may have once. Of two values, a proxy might check the one that this server does not use.
_SINGLE: Final = ("x-namespace", "authorization", "authorisation", "x-api-key", "idempotency-key")


def check_repeats(headers: Any) -> None:
    """Raise InvalidInput if a header that a request may have once is repeated, or a body has a coding besides chunks.

    A body with Content-Length and Transfer-Encoding cannot be refused here: the HTTP server removes Content-Length.
    """
    if len(headers.get_all("host")) > 1:
        raise InvalidInput("The header Host is sent more than once. Send it once.")
    for name in _SINGLE:
        if name in headers and len(headers.get_all(name)) > 1:
            raise InvalidInput(f"The header {name.title()} is sent more than once. Send it once.")
    if "transfer-encoding" in headers:
        codings = headers.get_all("transfer-encoding")
        if len(codings) != 1 or codings[0].lower() != "chunked":
            raise InvalidInput("Transfer-Encoding must be chunked, and sent once. Send the body without another coding.")


#: Size of a frame header, and of a field beyond its name and value.
_FRAME_BYTES: Final = 32
_FIELD_BYTES: Final = 4


class Request:
    """A request and its client. The body is read when a handler needs it."""

    __slots__ = (
        "_authenticator",
        "_bodies",
        "_identity",
        "_proto",
        "_sender",
        "has_turn",
        "header",
        "headers",
        "held",
        "scope",
        "tenant",
        "unsure",
        "warning",
    )
    warns = True  #: the answer can carry a warning

    def __init__(self, scope: Scope, proto: HttpProtocol, bodies: Bodies, authenticator: Authenticator) -> None:
        self.scope = scope
        self._authenticator = authenticator
        self.warning = ""  #: what was ignored; the answer reports it
        self.unsure = False  #: the body may be truncated by a client that sends NO_ERROR: see docs/adr/0015
        self.held = 0  #: bytes of memory to give back to ``bodies`` at the end
        self.tenant = DEFAULT_NAMESPACE  #: the namespace whose share of the event loop the request uses
        self.has_turn = False  #: whether it is one of the large requests of its namespace in progress
        self._proto = proto
        self._bodies = bodies
        self.headers: Any = scope.headers  #: kept, because each access to the headers of the scope copies them
        self.header: Any = self.headers.get  #: ``header(name, default)``, the name in lower case

    async def body(self, most: int = limits.body_bytes_max) -> bytes:
        """Read the whole body. Raises BodyTooLarge before, or as soon as, it is over ``most`` bytes.

        A truncated body is never taken for a shorter one: raises InvalidInput.
        """
        length = self.header("content-length")
        if length is None:
            return await self._chunks(most)
        if not length.isdigit():
            raise InvalidInput("Content-Length must be a number")
        size = int(length)
        if size > limits.small_body_bytes:
            self._check_size(size, most)
            body = await self._large(size)
            await self._begin_large()
            return body
        arriving, me = self._bodies.arriving, id(self)
        arriving[me] = self.scope
        try:
            body = await self._proto()
        except RuntimeError:  # the connection is lost
            raise self._bodies.incomplete from None
        finally:
            del arriving[me]
        if len(body) != size:
            raise self._bodies.incomplete
        if self._bodies.watched:
            self._bodies.count(self.scope, size)
        return body

    async def _large(self, size: int) -> bytes:
        """Read a large body of a known length as it arrives. Raises BodyTooSlow if no more of it arrives."""
        chunks: list[bytes] = []
        left, ends = size, 0
        arriving, me = self._bodies.arriving, id(self)
        arriving[me] = self.scope
        try:
            async for chunk in self._in_time():
                self._hold(len(chunk))
                chunks.append(bytes(chunk))
                left -= len(chunk)
                ends = 0 if chunk else ends + 1
                if left <= 0 or ends > _EMPTY_MAX:
                    break
        except RuntimeError:  # the connection is lost
            raise self._bodies.incomplete from None
        finally:
            del arriving[me]
        if left:
            raise self._bodies.incomplete
        return b"".join(chunks)

    async def _in_time(self) -> AsyncIterator[bytes]:
        """Return the next part of a body. Raises BodyTooSlow if none arrives within ``limits.body_idle_ms_max``."""
        clock, chunks = self._bodies.clock, aiter(self._proto)
        received_at = clock.steady_ms()
        next_chunk: asyncio.Future[bytes] | None = None
        late = False
        alarm: Alarm

        def look() -> None:
            nonlocal alarm, late
            silent_ms = clock.steady_ms() - received_at
            if silent_ms < limits.body_idle_ms_max:
                alarm = clock.call_at(received_at + limits.body_idle_ms_max, look)
            elif next_chunk is not None:
                late = True
                next_chunk.cancel()

        alarm = clock.call_at(received_at + limits.body_idle_ms_max, look)
        try:
            while True:
                if self._bodies.fair_share.shared and (
                    place := self._bodies.fair_share.begin(self.tenant, limits.share_body_chunk_requests)
                ):
                    await place
                    received_at = clock.steady_ms()
                try:
                    next_chunk = asyncio.ensure_future(anext(chunks))
                    chunk = await next_chunk
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if late:
                        raise BodyTooSlow from None
                    raise
                received_at = clock.steady_ms()
                yield chunk
        finally:
            alarm.cancel()
            if next_chunk is not None:
                next_chunk.cancel()

    async def _chunks(self, most: int) -> bytes:
        """Read a body whose length was not announced."""
        is_second = self.scope.http_version.startswith("2")
        if not is_second and "transfer-encoding" not in self.headers:
            return b""
        chunks: list[bytes] = []
        size = ends = 0
        arriving, me = self._bodies.arriving, id(self)
        arriving[me] = self.scope
        try:
            async for chunk in self._in_time():
                size += len(chunk)
                self._check_size(size, most)
                self._hold(len(chunk))
                chunks.append(bytes(chunk))
                ends = 0 if chunk else ends + 1
                if ends > _EMPTY_MAX:
                    break
        finally:
            del arriving[me]
        # The HTTP server ends a complete body with one empty chunk, and over HTTP/2 each empty DATA frame adds one. For a
        # broken body it returns empty chunks repeatedly; over HTTP/1, two.
        if ends > _EMPTY_MAX or (ends != 1 and not is_second):
            raise self._bodies.incomplete
        self.unsure = is_second
        if size > limits.small_body_bytes:
            await self._begin_large()
        return b"".join(chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read the body as it arrives, without a known length. It ends when the client ends it, or disconnects.

        Raises InvalidInput if it was truncated over HTTP/1. Over HTTP/2 that looks like the end, which does no harm to
        commands.
        """
        empty = 0
        async for chunk in self._proto:
            if chunk:
                empty = 0
                if self._bodies.watched:
                    self._bodies.count(self.scope, len(chunk))
                yield bytes(chunk)
            elif (empty := empty + 1) > _EMPTY_MAX:  # a lost connection returns empty chunks repeatedly
                break
        if empty != 1 and self.scope.http_version.startswith("1"):  # see _chunks
            raise InvalidInput(_INCOMPLETE)

    async def drain(self, clock: Clock) -> None:
        """Over HTTP/2, read and discard the rest of a body that was answered with an error.

        Without this the stream is reset right after the answer, and clients that are still sending (curl 7, or a client that
        reads only after it has sent everything) report the reset instead of the answer. Stops after
        ``limits.drain_bytes_max`` bytes or ``limits.drain_ms_max``; then the stream is ended with NO_ERROR (RFC 9113, 8.1).
        Over HTTP/1 the HTTP server closes the connection, and clients read the answer that was sent before.
        """
        if not self.scope.http_version.startswith("2"):
            return
        arriving, me = self._bodies.arriving, id(self)
        arriving[me] = self.scope
        reading = asyncio.ensure_future(self._drop(limits.drain_bytes_max))

        def stop() -> None:
            reading.cancel()

        alarm = clock.call_at(clock.steady_ms() + limits.drain_ms_max, stop)
        try:
            await asyncio.wait([reading])
        finally:
            alarm.cancel()
            reading.cancel()
            del arriving[me]

    async def _drop(self, left: int) -> None:
        chunks: Any = self._proto
        with contextlib.suppress(RuntimeError):  # part of the body has been read
            aiter(chunks)
        with contextlib.suppress(RuntimeError, StopAsyncIteration):  # the connection is lost; or everything was read
            while left > 0 and (chunk := await anext(chunks)):
                left -= len(chunk)
                self._bodies.count(self.scope, len(chunk))

    @staticmethod
    def _check_size(size: int, most: int) -> None:
        if size > most:
            if most == limits.body_bytes_max:
                raise BodyTooLarge
            raise BodyTooLarge(f"Request body too large (max {most // limits.MEBIBYTE}MB). Send it in smaller parts.")

    def _hold(self, size: int) -> None:
        if not size:
            return
        self._bodies.count(self.scope, size)
        if not self.held:
            self._sender = self.identity.holder(self.tenant, self._bodies.client_of(self.scope))
        self._bodies.hold(size, self._sender)
        self.held += size

    async def _begin_large(self) -> None:
        """Wait until this large body may be parsed.

        A body that is still arriving costs little, and its client may be slow.
        """
        await self._bodies.fair_share.begin_large(self.tenant)
        self.has_turn = True
        await self._bodies.fair_share.give_way()

    async def become_large(self) -> None:
        if not self.has_turn:
            await self._begin_large()

    def free(self) -> None:
        """Give back the memory of the body, and let the next large request of the namespace continue."""
        if self.held:
            self._bodies.release(self.held, self._sender)
        self.held = 0
        if self.has_turn:
            self.has_turn = False
            self._bodies.fair_share.end_large(self.tenant)

    @property
    def identity(self) -> Identity:
        """The identity of the client. It is not stored, because most requests do not need it."""
        return getattr(self, "_identity", self._authenticator.open_identity)

    @identity.setter
    def identity(self, identity: Identity) -> None:
        self._identity = identity

    def namespace(self) -> str:
        """Return the namespace that the headers choose. Raises InvalidInput."""
        return namespace_in(self.headers) if "x-namespace" in self.headers else DEFAULT_NAMESPACE

    def allow(self, namespace: str, right: Right) -> None:
        """Raise Forbidden unless the client has a right in a namespace."""
        self.identity.check(namespace, right)

    def warn(self, text: str) -> None:
        """Add a warning to the answer."""
        self.warning = text

    def query(self) -> dict[str, str]:
        """Return the parameters of the query string. If a name is given twice, the last value counts.

        Raises TargetTooLong above ``limits.query_chars_max``, InvalidInput above ``limits.query_fields_max``.
        """
        text = self.scope.query_string
        if not text:
            return {}
        if len(text) > limits.query_chars_max:
            raise TargetTooLong
        try:
            return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=limits.query_fields_max))
        except ValueError:
            raise InvalidInput(f"The query string has too many parameters (max {limits.query_fields_max})") from None

    async def disconnected(self) -> None:
        """Return when the client has disconnected."""
        await self._proto.client_disconnect()
