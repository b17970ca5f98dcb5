"""The HTTP application: from a request to its handler, and from the answer, or the error, to the reply.

It speaks RSGI, the interface of the HTTP server underneath (Granian), because that is twice as fast as ASGI and still gives us
HTTP/1.1, HTTP/2, streams and WebSockets; see docs/adr/0001.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import msgspec
import structlog

from penstock.core.errors import PenstockError, RateLimited, RouteNotFound, Unauthorized
from penstock.doors.http.errors import body_of, headers_of, status_of
from penstock.doors.http.request import Request
from penstock.doors.http.route import JSON, Plain, Route
from penstock.doors.http.router import Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from granian._granian import RSGIHTTPProtocol as HTTPProtocol
    from granian.rsgi import Scope

    from penstock.access.rate_limit import ClientAddress, SlidingWindow
    from penstock.access.tokens import TokenGate

log = structlog.get_logger("penstock.http")

Headers = list[tuple[str, str]]
_PREFLIGHT: Final = [
    ("access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"),
    ("access-control-allow-headers", "Content-Type, Authorization, X-Namespace"),
    ("access-control-max-age", "86400"),
]


async def _not_found(_req: Request, **_params: str) -> Never:
    raise RouteNotFound


class HttpApp:
    """Answers the routes it is given.

    ``gate`` asks for tokens, ``window`` limits how often a client may ask (None: not at all), ``allow_origin`` is the web page
    that may call from a browser (empty: none).
    """

    def __init__(
        self,
        routes: Sequence[Route],
        gate: TokenGate,
        *,
        allow_origin: str,
        window: SlidingWindow | None,
        address: ClientAddress,
    ) -> None:
        self._router = Router(routes)
        self._gate = gate
        self._window = window
        self._address = address
        self._guarded = window is not None or not gate.is_open
        self._origin: Headers = [("access-control-allow-origin", allow_origin)] if allow_origin else []
        self._json: Headers = [("content-type", JSON), *self._origin]
        self._encode = msgspec.json.Encoder().encode

    async def __rsgi__(self, scope: Scope, proto: HTTPProtocol) -> None:
        """Answer one request."""
        try:
            if scope.method == "OPTIONS":
                proto.response_empty(204, [*self._origin, *_PREFLIGHT])
                return
            route, params = self._router.find(scope.method, scope.path)
            if self._guarded:
                self._check(scope, route)
            handler = _not_found if route is None else route.handler
            answer = await handler(Request(scope, proto), **params)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the client gets an answer
            self._answer_error(proto, error)
            return
        if type(answer) is Plain:
            headers = [("content-type", answer.content_type), *self._origin]
            proto.response_bytes(answer.status, headers, answer.body)
        else:
            proto.response_bytes(200, self._json, self._encode(answer))

    def _check(self, scope: Scope, route: Route | None) -> None:
        if route is not None and route.probe:
            return
        if self._window is not None:
            wait_ms = self._window.retry_after_ms(self._address.of(scope.client.rpartition(":")[0], scope.headers))
            if wait_ms:
                raise RateLimited(retry_after_ms=wait_ms)
        if (route is None or not route.public) and not self._gate.admits(scope.headers.get("authorization", "")):
            raise Unauthorized

    def _answer_error(self, proto: HTTPProtocol, error: Exception) -> None:
        if not isinstance(error, PenstockError):
            log.error("a request failed unexpectedly", exc_info=error)
            error = PenstockError("Internal server error")
        proto.response_bytes(status_of(error), [*self._json, *headers_of(error)], body_of(error))
