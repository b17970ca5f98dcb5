"""The HTTP application: passes a request to its handler, and turns the answer or the error into the response.

It uses RSGI, the interface of the HTTP server below it (Granian). RSGI is twice as fast as ASGI, and supports HTTP/1.1,
HTTP/2, streams and WebSockets; see docs/adr/0001.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, Never, Protocol, cast

import msgspec
import structlog

from penstock.access.authenticator import shown_in
from penstock.access.identity import ANYWHERE, Right
from penstock.core import limits
from penstock.core.addresses import network_of
from penstock.core.clock import yield_to_loop
from penstock.core.errors import HeadRefused, RateLimited, RouteNotFound, ServerError, TargetTooLong, TooMany, Unauthorized
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.core.time_slices import in_slices
from penstock.doors.http.errors import CODE_HEADER, body_of, headers_of, status_of
from penstock.doors.http.field_check import WARNING_HEADER
from penstock.doors.http.request import Bodies, Request, check_repeats, head_bytes
from penstock.doors.http.route import JSON, PLAIN, File, Plain, Route, Stream
from penstock.doors.http.router import Router
from penstock.doors.json_parts import is_long, long_fields, part_steps
from penstock.doors.net.raw_sockets import connection_key

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from granian._granian import RSGIWebsocketProtocol
    from granian.rsgi import Scope

    from penstock.access.authenticator import Authenticator
    from penstock.access.cross_origin import Origins
    from penstock.access.rate_limit import ClientAddress, SlidingWindow
    from penstock.core.clock import Clock
    from penstock.doors.http.route import AnswerWriter, Handler, HttpProtocol
    from penstock.doors.net.raw_sockets import RawSockets
    from penstock.doors.net.unread_answers import UnreadAnswers
    from penstock.engine.fair_share import FairShare

log = structlog.get_logger("penstock.http")

Headers = list[tuple[str, str]]
#: The methods of probes.
_PROBING: Final = ("GET", "HEAD")
_PREFLIGHT: Final = [
    ("access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"),
    ("access-control-allow-headers", "Content-Type, Authorization, Authorisation, X-Api-Key, X-Namespace, Idempotency-Key"),
    ("access-control-max-age", "86400"),
]


class Traffic(Protocol):
    """A connection whose traffic is counted."""

    def count_other(self, size: int) -> None:
        """Count the bytes of an answer."""


async def not_found(_req: Request, **_params: str) -> Never:
    """Answer a request that has no route."""
    raise RouteNotFound


async def _head_refused(_req: Request, **_params: str) -> Never:
    raise HeadRefused


class Heads(NamedTuple):
    """The headers of answers, by kind. ``origin``: for browsers, in every answer; ``preflight``: more for preflights."""

    origin: Headers
    preflight: Headers
    json: Headers
    error: Headers
    plain_error: Headers


def _heads(allow_origin: str) -> Heads:
    origin = [("access-control-allow-origin", allow_origin)] if allow_origin else []
    expose = [("access-control-expose-headers", f"{CODE_HEADER}, retry-after")] if allow_origin else []
    plain = [("content-type", PLAIN), ("x-content-type-options", "nosniff")]
    json: Headers = [("content-type", JSON), *origin]
    return Heads(origin, [*origin, *_PREFLIGHT] if allow_origin else [], json, [*json, *expose], [*plain, *origin, *expose])


def _warned(heads: Heads, warning: str) -> Headers:
    expose = [("access-control-expose-headers", WARNING_HEADER)] if heads.origin else []
    return [*heads.json, (WARNING_HEADER, warning), *expose]


class HttpApp:
    """Serves the given routes.

    ``authenticator`` authenticates clients and checks their rights, ``rate_limit`` limits how often a client may send requests
    (None: no limit), ``origins`` decides which web pages may call from a browser. ``websocket`` serves WebSockets (None: there
    are none). An error that it raises before it accepts the connection is the answer to the handshake, sent through
    ``raw_sockets``. ``plain_errors``: a request without a route is answered with a line of text. ``stray`` replaces the handler
    for such requests. ``error_body`` encodes errors as JSON. ``fair_share`` decides when a request of a namespace begins.
    ``flows`` are the connections that streams use; they count the other answers sent on them. ``answers`` bounds the large
    answers that clients have not read (None: they are not counted).
    """

    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        *,
        clock: Clock,
        origins: Origins,
        rate_limit: SlidingWindow | None,
        address: ClientAddress,
        raw_sockets: RawSockets,
        fair_share: FairShare,
        websocket: Callable[[Scope, RSGIWebsocketProtocol, str], Awaitable[None]] | None = None,
        plain_errors: bool = False,
        stray: Handler = not_found,
        error_body: Callable[[ServerError], bytes] = body_of,
        flows: Mapping[str, Traffic] | None = None,
        answers: UnreadAnswers | None = None,
    ) -> None:
        self._router = Router(routes)
        replies = {each for route in routes for each in route.replies if long_fields(each)}
        self._may_be_long = frozenset(
            (Stream, File, list, *replies)
        )  #: types of answers that are not always sent in one step
        self._probes = frozenset(route.path for route in routes if route.probe)
        self._authenticator = authenticator
        self._clock = clock
        self._rate_limit = rate_limit
        self._address = address
        self._raw_sockets = raw_sockets
        self._websocket = websocket
        #: For requests without a route: any client with a valid token is admitted, and the handler decides.
        self._no_route = Route("", "", stray, "", "", asks=True, plain_errors=plain_errors)
        self._error_body = error_body
        self._flows = flows if flows is not None else {}
        self._origins = origins
        asking, is_open = origins.allowed
        self._heads = (_heads(asking), _heads(is_open))  #: by whether the authenticator is open, which may change
        self._answers = answers
        self._watched = {} if answers is None else answers.http2  #: connections over HTTP/2 with unread answers
        self._under_way: set[Request] = set()  #: requests that have not ended
        self._sockets: set[Scope] = set()  #: WebSockets that have not ended
        self._fair_share = fair_share
        self.bodies = Bodies(clock, self._network_of, fair_share, answers)
        self._encode = msgspec.json.Encoder().encode

    async def __rsgi__(self, scope: Scope, proto: HttpProtocol) -> None:
        """Answer one request."""
        if scope.proto != "http":
            await self._serve_websocket(scope, cast("RSGIWebsocketProtocol", proto))
            return
        request = Request(scope, proto, self.bodies, self._authenticator)
        heads, route = self._heads[self._authenticator.is_open], self._no_route
        writer: AnswerWriter = proto
        self._under_way.add(request)
        if self._watched:
            self._count_head(scope)
        try:
            try:
                method = scope.method
                self._origins.check(scope, request.headers)
                check_repeats(request.headers)
                if method == "OPTIONS":
                    proto.response_empty(204, heads.preflight)
                    return
                # Every other request is counted against the limit of its client before further work. Finding the route comes
                # next, because the route decides the form of an error. That takes no longer than one pass over the path.
                refused = None if self._rate_limit is None else self._pace(scope, self._rate_limit)
                # A HEAD request is answered by the handler of GET; the server omits the body.
                found, params = self._router.find("GET" if method == "HEAD" else method, scope.path)
                route = route if found is None else found
                if route.meter is not None:
                    writer = route.meter.watch(proto)
                if refused is not None or not self._authenticator.is_open:
                    await self._check(route, request, refused)
                if (place := self._turn_of(request, route, params)) is not None:
                    await place
                handler = _head_refused if method == "HEAD" and route.right is Right.TAKE else route.handler
                answer = await handler(request, **params)
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the client gets an answer
                self._answer_error(writer, error, plain=route.plain_errors)
                request.free()
                await request.drain(self._clock)
                return
            finally:
                if request.held or self._fair_share.shared or request.has_turn:
                    request.free()
                    self._fair_share.leave()
            if type(answer) in self._may_be_long and await self._answer_in_parts(request, proto, writer, route, answer):
                return
            status, headers, body = self._render(request, heads, answer)
            if (not self._watched and len(body) <= limits.answer_counted_bytes) or await self._reserve_answer(
                request, writer, route, len(body)
            ):
                writer.response_bytes(status, headers, body)
        finally:
            self._under_way.discard(request)

    def _count_head(self, scope: Scope) -> None:
        """Count the head of a request when it arrives: a request that waits would look like PING frames until it ends."""
        if self._answers is not None:
            self._answers.count_request(connection_key(scope), head_bytes(scope))

    def _render(self, request: Request, heads: Heads, answer: object) -> tuple[int, Headers, bytes]:
        """Return an answer that is sent at once: its status, headers and body."""
        if type(answer) is Plain:
            status, headers, body = answer.status, [("content-type", answer.content_type), *heads.origin], answer.body
        else:
            status, headers = 200, heads.json if not request.warning else _warned(heads, request.warning)
            body = self._encode(answer)
        if self._flows and (flow := self._flows.get(connection_key(request.scope))) is not None:
            flow.count_other(len(body))
        return status, headers, body

    async def _answer_in_parts(
        self, request: Request, proto: HttpProtocol, writer: AnswerWriter, route: Route, answer: object
    ) -> bool:
        """Send an answer that is a stream, or too long for one step of the event loop. Return False if it is neither."""
        scope = request.scope
        if type(answer) is Stream or type(answer) is File:
            await self._send_stream(scope.method, proto, answer)
            return True
        if scope.method == "HEAD" or not is_long(answer):
            return False
        parts = await in_slices(part_steps(answer))
        size = sum(map(len, parts))
        if self._flows and (flow := self._flows.get(connection_key(scope))) is not None:
            flow.count_other(size)
        if not await self._reserve_answer(request, writer, route, size):
            return True
        heads = self._heads[self._authenticator.is_open]
        headers = heads.json if not request.warning else _warned(heads, request.warning)
        if route.meter is not None:
            writer.response_bytes(200, headers, b"".join(parts))
            return True
        with contextlib.suppress(RuntimeError):  # the client has disconnected
            transport = proto.response_stream(200, [*headers, ("content-length", str(size))])
            for part in parts:
                await transport.send_bytes(part)
                await yield_to_loop(1)
        return True

    async def _reserve_answer(self, request: Request, writer: AnswerWriter, route: Route, size: int) -> bool:
        """Wait until there is room for this answer among the unread ones. If that takes too long, send an error.

        Return whether there is room.
        """
        scope = request.scope
        if self._answers is None or scope.method == "HEAD":
            return True
        if size <= limits.answer_counted_bytes:
            self._answers.count_small(connection_key(scope), size)
            return True
        try:
            is_http2 = scope.http_version.startswith("2")
            await self._answers.reserve(connection_key(scope), self._who(scope, request), size, is_http2=is_http2)
        except TooMany as error:
            self._answer_error(writer, error, plain=route.plain_errors)
            return False
        return True

    def _turn_of(self, request: Request, route: Route, params: dict[str, str]) -> asyncio.Future[None] | None:
        """Return what a request must wait for before it begins: its namespace may have enough requests in progress."""
        if "ns" in params:
            tenant = params["ns"]
        elif not route.namespaced:
            if not (route.asks and request.identity.is_restricted):
                return None
            tenant = (
                DEFAULT_NAMESPACE  # the body names namespaces: the request counts for one in which the client has rights
            )
        elif "x-namespace" in request.headers:
            tenant = request.header("x-namespace", DEFAULT_NAMESPACE)
        else:
            tenant = DEFAULT_NAMESPACE
        # Some handlers check rights later; no request may wait in the queue of another namespace.
        if not self._authenticator.is_open:
            tenant = request.identity.tenant(tenant)
        request.tenant = tenant
        fair_share = self._fair_share
        if tenant == fair_share.only:
            return None
        place = fair_share.begin(tenant)
        if place is None and fair_share.shared:
            fair_share.enter(tenant)
        return place

    async def _send_stream(self, method: str, proto: HttpProtocol, answer: Stream | File) -> None:
        """Send an answer that is a stream, or a file that the HTTP server sends."""
        headers = [
            ("content-type", answer.content_type),
            ("cache-control", "no-cache"),
            *self._heads[self._authenticator.is_open].origin,
        ]
        headers += answer.headers
        if isinstance(answer, File):
            headers.append(("content-length", str(answer.size)))
            if method == "HEAD":
                proto.response_empty(200, headers)
            else:
                proto.response_file(200, headers, answer.path)
            return
        try:
            if method == "HEAD":
                proto.response_empty(answer.status, headers)
            else:
                await answer.run(proto.response_stream(answer.status, headers))
        finally:
            answer.done()

    async def _serve_websocket(self, scope: Scope, proto: RSGIWebsocketProtocol) -> None:
        self._sockets.add(scope)
        try:
            if self._websocket is None:
                await self._refuse(scope, proto, RouteNotFound())
                return
            self._origins.check_handshake(scope)
            check_repeats(scope.headers)
            self._check_handshake(scope)
            await self._websocket(scope, proto, self.client_of(scope))
        except ServerError as error:
            await self._refuse(scope, proto, error)
        except Exception:
            log.exception("a WebSocket failed unexpectedly")
        finally:
            self._sockets.discard(scope)

    async def _refuse(self, scope: Scope, proto: RSGIWebsocketProtocol, error: ServerError) -> None:
        """Answer a handshake with an error.

        The HTTP server sends only the status, so the rest is written to the socket before.
        """
        status, body = status_of(error), self._error_body(error)
        if self._raw_sockets.reach(scope):
            headers = [
                *self._heads[self._authenticator.is_open].error,
                *headers_of(error),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers)]
            head = "\r\n".join(lines) + "\r\n\r\n"
            await self._raw_sockets.say(connection_key(scope), head.encode() + body, over=True)
        proto.close(status)

    def _check_handshake(self, scope: Scope) -> None:
        refused = None if self._rate_limit is None else self._pace(scope, self._rate_limit)
        if refused is not None:
            raise refused
        if len(scope.path) > limits.path_chars_max or len(scope.query_string) > limits.query_chars_max:
            raise TargetTooLong

    async def _check(self, route: Route, request: Request, refused: RateLimited | None) -> None:
        if refused is not None:
            raise refused
        if route.probe or (route.public and not (route.of_all and self._authenticator.separates_namespaces)):
            return
        shown = shown_in(request.headers)
        try:
            request.identity = identity = await self._authenticator.identify(shown)
        except Unauthorized:
            if route.plain_errors and route is not self._no_route:  # the format of mqueue
                raise Unauthorized("Invalid token" if shown else "Missing token") from None
            raise
        if not route.asks:
            identity.check(request.header("x-namespace", DEFAULT_NAMESPACE) if route.namespaced else ANYWHERE, route.right)

    def _pace(self, scope: Scope, rate_limit: SlidingWindow) -> RateLimited | None:
        """Count a request of a client. Return the error if the client is over its limit. Probes are not counted."""
        if scope.path in self._probes and scope.method in _PROBING:
            return None
        wait_ms = rate_limit.count(self.client_of(scope))
        return RateLimited(retry_after_ms=wait_ms) if wait_ms else None

    def _who(self, scope: Scope, request: Request) -> str:
        """Return the name of a client for counting its unread answers."""
        return request.identity.holder(request.tenant, self._network_of(scope))

    def in_use(self) -> dict[str, str]:
        """Return the connections with a request in progress, by their ends, each with its holder.

        See ``Identity.holder``.
        """
        used = {connection_key(scope): self._network_of(scope) for scope in self._sockets}
        used |= {connection_key(request.scope): self._who(request.scope, request) for request in self._under_way}
        return used

    def receiving(self) -> set[str]:
        """Return the ends of connections over which the body of a request is expected."""
        return {connection_key(scope) for scope in self.bodies.arriving.values()}

    def _network_of(self, scope: Scope) -> str:
        """Return the network of a client: what all its addresses have in common.

        An IPv6 client has a whole network of addresses.
        """
        return network_of(self.client_of(scope))

    def client_of(self, scope: Scope) -> str:
        """Return the address of the client itself, also behind a proxy."""
        return self._address.behind(scope)

    def _answer_error(self, writer: AnswerWriter, error: Exception, *, plain: bool) -> None:
        if not isinstance(error, ServerError):
            log.error("a request failed unexpectedly", exc_info=error)
            error = ServerError("Internal server error")
        heads = self._heads[self._authenticator.is_open]
        if plain:
            writer.response_bytes(status_of(error), [*heads.plain_error, *headers_of(error)], f"{error}\n".encode())
        else:
            writer.response_bytes(status_of(error), [*heads.error, *headers_of(error)], self._error_body(error))
