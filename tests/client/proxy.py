"""Things between a client and a server: a proxy that loses answers, and a server that answers what it is told to."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class _Listener:
    """Accepts connections in a thread, each in a thread of its own."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # Closing a socket does not wake who waits in accept(); a connection does.
        address = self._socket.getsockname()
        self._ended = True
        socket.create_connection(address).close()
        self._thread.join()
        self._socket.close()

    _ended = False

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if self._ended:
                connection.close()
                return
            threading.Thread(target=self._safely, args=(connection,), daemon=True).start()

    def _safely(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


def read_message(connection: socket.socket) -> bytes:
    """Read one HTTP message that says how long it is."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = int(lengths[0]) - len(rest) if lengths else 0
    while missing > 0:
        more = connection.recv(65536)
        data, missing = data + more, missing - len(more)
    return data


def first(count: int, text: bytes) -> Callable[[bytes], bool]:
    """Pick the first requests that begin like this."""
    left = [count]

    def picks(request: bytes) -> bool:
        if not request.startswith(text) or not left[0]:
            return False
        left[0] -= 1
        return True

    return picks


class ForgetfulProxy(_Listener):
    """Passes requests on, and keeps the answers to those that ``lose`` picks to itself: it hangs up instead."""

    def __init__(self, port: int, lose: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._port = port
        self._lose = lose
        self.lost = 0

    def serve(self, connection: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as upstream:
            while request := read_message(connection):
                upstream.sendall(request)
                answer = read_message(upstream)
                if self._lose(request):
                    self.lost += 1
                    return
                connection.sendall(answer)


class Answer(NamedTuple):
    """What a stub answers."""

    status: int
    body: bytes = b"{}"
    headers: str = ""


class Request(NamedTuple):
    """What a stub was asked."""

    method: str
    path: str
    head: str
    body: bytes


class StubServer(_Listener):
    """Answers each request with the next of ``answers``, the last one for ever, and keeps what it was asked.

    ``port``: 0 for a free one.
    """

    def __init__(self, *answers: Answer, port: int = 0) -> None:
        super().__init__(port)
        self.answers = list(answers)
        self.requests: list[Request] = []

    def serve(self, connection: socket.socket) -> None:
        while message := read_message(connection):
            head, _, body = message.partition(b"\r\n\r\n")
            method, path, _ = head.decode().split(" ", 2)
            self.requests.append(Request(method, path, head.decode(), body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            text = f"HTTP/1.1 {answer.status} X\r\n{answer.headers}Content-Length: {len(answer.body)}\r\n\r\n"
            connection.sendall(text.encode() + answer.body)
