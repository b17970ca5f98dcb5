"""A client of HTTP/2 that reads only when it is told to, over a library that we did not write."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING, Self

import h2.config
import h2.connection
import h2.events

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

PATIENCE_S = 30


class Http2Client:
    """One connection. ``events`` of the library are kept per stream, until somebody asks for them."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._http.initiate_connection()
        self.data: dict[int, bytes] = {}
        self.answered: set[int] = set()  #: streams whose status has come
        self.ended: set[int] = set()
        self.status: dict[int, int] = {}
        self.resets: dict[int, int] = {}  #: streams that the server has reset, with the code
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def flush(self) -> None:
        self._socket.sendall(self._http.data_to_send())

    def post(self, path: str, *, length: int | None = None) -> int:
        """Begin a request that has no end yet, and announce its length, if there is one; return its stream."""
        stream = self._http.get_next_available_stream_id()
        head = [(":method", "POST"), (":path", path), (":authority", "localhost"), (":scheme", "http")]
        head += [("content-length", str(length))] if length is not None else []
        self._http.send_headers(stream, head)
        self.data[stream] = b""
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        self._http.send_data(stream, data, end_stream=end)
        self.flush()

    def send_all(self, stream: int, data: bytes | Iterable[bytes]) -> int:
        """Send a whole body as fast as the server takes it, and the end; return how many bytes were sent.

        Reads only what says how much may be sent. Stops when the server resets the stream.
        """
        sent = 0
        pieces = (data[at : at + (1 << 14)] for at in range(0, len(data), 1 << 14)) if isinstance(data, bytes) else data
        for piece in pieces:
            while stream not in self.resets and self._http.local_flow_control_window(stream) < len(piece):
                assert self.read()
            if stream in self.resets:
                return sent
            self.send(stream, piece)
            sent += len(piece)
        self.send(stream, b"", end=True)
        return sent

    def reset(self, stream: int, code: int = 0) -> None:
        self._http.reset_stream(stream, code)
        self.flush()

    def read(self, *, grant: bool = True) -> bool:
        """Read once from the socket; False if it is over. ``grant``: let the server send as much again."""
        received = self._socket.recv(65_536)
        for event in self._http.receive_data(received):
            if isinstance(event, h2.events.DataReceived):
                self.data[event.stream_id] += event.data
                if grant and event.flow_controlled_length:
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.ResponseReceived):
                self.answered.add(event.stream_id)
                self.status[event.stream_id] = next(int(value) for name, value in event.headers if str(name) == ":status")
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = int(event.error_code)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
        self.flush()
        return bool(received)

    def read_what_is_there(self) -> bool:
        """The same, if there is anything to be read by now."""
        there, _, _ = select.select([self._socket], [], [], 0)
        return self.read() if there else True

    def grant(self, stream: int, size: int) -> None:
        """Let the server send so many bytes more."""
        self._http.increment_flow_control_window(size)
        self._http.increment_flow_control_window(size, stream)
        self.flush()

    def lines(self, stream: int, count: int) -> list[bytes]:
        """Read until so many lines have come in all."""
        while self.data[stream].count(b"\n") < count:
            assert self.read()
        return self.data[stream].split(b"\n")[:count]
