"""A proxy between a driver and a server, so that a test can do something at an exact moment: kill, lose an answer."""

from __future__ import annotations

import contextlib
import http.client
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

#: Headers that belong to one connection.
_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade", "proxy-connection"})


@dataclass
class Moment:
    """The ``nth`` request whose path has ``part`` in it (empty: any), before it is passed on or after it was answered."""

    part: str
    after: bool
    nth: int
    do: Callable[[], None]
    last: bool  #: nothing gets through from then on


class Tap:
    """Passes everything on to a server, and what it answers back. A moment comes once; its answer is never given."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._moments: list[Moment] = []
        self._is_shut = False
        self.paths: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def at(self, part: str, *, after: bool, nth: int = 1, do: Callable[[], None] = lambda: None, last: bool = False) -> None:
        """Do something at a moment to come, and drop its connection; if it is the ``last``, all others as well."""
        with self._lock:
            self._moments.append(Moment(part, after, nth, do, last))

    def clear(self) -> None:
        with self._lock:
            self._moments.clear()
            self._is_shut = False

    def came(self, path: str) -> Moment | None:
        """Return the moment that a request is. Raises ConnectionError if nothing gets through any more."""
        with self._lock:
            if self._is_shut:
                raise ConnectionResetError
            self.paths.append(path)
            for each in self._moments:
                if each.part in path:
                    each.nth -= 1
                    if each.nth == 0:
                        self._moments.remove(each)
                        self._is_shut = each.last
                        return each
            return None

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


def _handler_of(tap: Tap) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOPS}
            moment = tap.came(self.path)
            if moment is not None and not moment.after:
                moment.do()
                self.close_connection = True
                return
            try:
                status, answered, content = tap.forward(self.command, self.path, headers, body)
            except OSError:  # the server is away
                self.close_connection = True
                return
            finally:
                if moment is not None:
                    moment.do()
                    self.close_connection = True
            if moment is not None:
                return
            self.send_response_only(status)
            for name, value in answered.items():
                if name.lower() not in _HOPS:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815

        def handle(self) -> None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the driver was killed
                super().handle()

    return Handler
