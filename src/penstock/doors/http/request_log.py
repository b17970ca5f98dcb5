"""One line in the log per request, at level debug. At other levels the class is not used, so it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from granian.rsgi import Scope

    from penstock.core.clock import Clock
    from penstock.doors.http.app import HttpApp
    from penstock.doors.http.route import HttpProtocol, StreamTransport

log = structlog.get_logger("penstock.requests")


class RequestLog:
    """Passes requests on to another application, and logs each of them.

    The line has the method, the path without its query string, the status, the duration in milliseconds and the address of
    the client. Bodies, headers and query strings are left out: they may contain tokens and data.
    """

    def __init__(self, app: HttpApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock

    async def __rsgi__(self, scope: Scope, proto: HttpProtocol) -> None:
        """Answer one request."""
        begun = self._clock.stopwatch()
        of = {
            "method": scope.method if scope.proto == "http" else "WEBSOCKET",
            "path": scope.path,
            "client": self._app.client_of(scope),
        }
        if scope.proto == "http":
            answer = _Answer(proto, lambda status: log.debug("stream begins", **of, status=status))
            proto = answer
        else:
            answer = None
            log.debug("stream begins", **of)
        try:
            await self._app.__rsgi__(scope, proto)
        finally:
            duration_ms = round((self._clock.stopwatch() - begun) * 1_000, 1)
            told = {"ms": duration_ms} if answer is None else {"status": answer.status, "ms": duration_ms}
            log.debug("request", **of, **told)


class _Answer:
    """The connection of one request, which passes everything on and records the status."""

    def __init__(self, proto: HttpProtocol, stream_begins: Callable[[int], None]) -> None:
        self._proto = proto
        self._stream_begins = stream_begins
        self.status: int | None = None  #: None: it was not answered

    def __call__(self) -> Awaitable[bytes]:
        return self._proto()

    def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self._proto.__aiter__()
        return chunks

    def client_disconnect(self) -> Awaitable[None]:
        return self._proto.client_disconnect()

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self._proto.response_bytes(status, headers, body)

    def response_empty(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self._proto.response_empty(status, headers)

    def response_file(self, status: int, headers: list[tuple[str, str]], file: str) -> None:
        self.status = status
        self._proto.response_file(status, headers, file)

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> StreamTransport:
        self.status = status
        self._stream_begins(status)
        return self._proto.response_stream(status, headers)
