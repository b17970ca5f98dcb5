"""The load over HTTP/2: many streams on one connection, of frames that are made beforehand.

``python -m bench.http2 '{"port": 6790, "script": "consume", "topic": "t", "streams": 12, "seconds": 2}'`` prints one JSON
object with what it measured. This is no client for other purposes: it grants the server windows that outlast any run, and sends
so little at a time that it need not count the windows it is granted.
"""

from __future__ import annotations

import asyncio
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, cast

from bench.load import PAYLOAD, Counter, command_line, play

if TYPE_CHECKING:
    from collections.abc import Callable

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
#: Two bytes and one of length, kind, flags, stream.
_HEAD = struct.Struct(">HBBBL")
_WINDOW_MAX = 2**31 - 1
#: A server that is silent for so many seconds after the end has lost something, or the topic had too few messages.
_PATIENCE = 10.0
_TABLE_SIZE_UPDATES = bytes(range(0x20, 0x40))


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def _text(value: bytes) -> bytes:
    assert len(value) < 0x7F, "a longer one needs a longer length"
    return bytes((len(value),)) + value


def header_block(path: str, content_length: int | None = None) -> bytes:
    """Return the headers of a POST as HPACK, without Huffman codes and without anything the server need remember."""
    block = b"\x83\x86\x04" + _text(path.encode()) + b"\x01" + _text(b"localhost")  # POST, http, :path, :authority
    if content_length is not None:
        block += b"\x0f\x0d" + _text(str(content_length).encode())
    return block


#: No push, no table of headers (so that a status is always spelt out), and all the windows there can be.
GREETING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0, struct.pack(">HLHLHL", 1, 0, 2, 0, 4, _WINDOW_MAX))
    + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", _WINDOW_MAX - 65_535))
)


def is_status(block: bytes, status: int) -> bool:
    """Tell whether a header block begins with this status, 200 or 201; others are not needed."""
    start = block.lstrip(_TABLE_SIZE_UPDATES)
    if status == 200:
        return start[:1] == b"\x88"
    # Its name is number 8 of the static table, to be remembered or not; its value is plain or in Huffman codes.
    return start[:1] in b"\x08\x18\x48" and start[1:].startswith((b"\x03201", b"\x82\x10\x03"))


class Connection(asyncio.Protocol):
    """Takes frames apart and answers what every HTTP/2 client must answer; what streams are for, its subclasses know."""

    def __init__(self, counter: Counter, streams: int, topic: str, done: asyncio.Future[None]) -> None:
        self.counter = counter
        self.topic = topic
        self.done = done
        self.open = streams
        self.rest = b""
        self.out: list[bytes] = [GREETING]
        self.sent_at: dict[int, float] = {}
        self.overdue = asyncio.get_running_loop().call_later(counter.ends - time.perf_counter() + _PATIENCE, self.fail)

    def begin(self) -> None:
        raise NotImplementedError

    def headers_received(self, stream: int, block: bytes) -> None:
        raise NotImplementedError

    def line_received(self, stream: int, data: bytes) -> None:
        raise NotImplementedError

    def stream_ended(self, stream: int) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is not a subclass
        self.begin()
        self.flush()

    def data_received(self, data: bytes) -> None:
        buffer = self.rest + data if self.rest else data
        at, size = 0, len(buffer)
        while size - at >= 9:
            high, low, kind, flags, stream = _HEAD.unpack_from(buffer, at)
            end = at + 9 + (high << 8 | low)
            if end > size:
                break
            if kind == DATA:
                if end > at + 9:
                    self.line_received(stream, buffer[at + 9 : end])
                if flags & END_STREAM:
                    self.stream_ended(stream)
            elif kind == HEADERS:
                self.headers_received(stream, buffer[at + 9 : end])
                if flags & END_STREAM:
                    self.stream_ended(stream)
            else:
                self.control(kind, flags, buffer[at + 9 : end])
            at = end
        self.rest = buffer[at:]
        self.flush()

    def control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in {SETTINGS, PING} and not flags & ACK:
            self.out.append(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == GOAWAY or (kind == RST_STREAM and any(payload)):
            self.fail()

    def flush(self) -> None:
        if self.out and not self.transport.is_closing():
            self.transport.write(b"".join(self.out))
            self.out.clear()
        if not self.open:
            self.transport.close()

    def settled(self, stream: int, *, ok: bool) -> None:
        """Count an answer."""
        self.counter.latencies.append(time.perf_counter() - self.sent_at.pop(stream))
        self.counter.jobs += 1
        self.counter.errors += not ok

    def fail(self) -> None:
        """Give up: the server has, or has nothing more to say."""
        self.counter.errors += 1
        self.open = 0
        self.transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        self.overdue.cancel()
        self.counter.errors += bool(self.open)
        if not self.done.done():
            self.done.set_result(None)


class Publish(Connection):
    """Publishes one message after the other; each is a stream of its own, and as many are under way as were asked for."""

    def begin(self) -> None:
        block = header_block(f"/publish/{self.topic}", len(PAYLOAD))
        # Without the four bytes of the stream's number, in which requests differ.
        self.head = frame(HEADERS, END_HEADERS, 0, block)[:5]
        self.middle = block + frame(DATA, END_STREAM, 0, PAYLOAD)[:5]
        self.stream = 1
        for _ in range(self.open):
            self.send()

    def send(self) -> None:
        if not self.counter.goes_on():
            self.open -= 1
            return
        number = self.stream.to_bytes(4, "big")
        self.out += (self.head, number, self.middle, number, PAYLOAD)
        self.sent_at[self.stream] = time.perf_counter()
        self.stream += 2

    def headers_received(self, stream: int, block: bytes) -> None:
        self.settled(stream, ok=is_status(block, 201))

    def line_received(self, _stream: int, _data: bytes) -> None:
        self.counter.errors += 1  # there is nothing to say about a message that was published

    def stream_ended(self, _stream: int) -> None:
        self.send()


class Consume(Connection):
    """Takes one message after the other on each stream. Counts those that are acknowledged and followed by another one."""

    def begin(self) -> None:
        head = header_block(f"/subscribe/{self.topic}")
        streams = range(1, 2 * self.open, 2)
        self.parts: dict[int, bytes] = {}
        self.ack = {stream: frame(DATA, 0, stream, b'"ACK"\n') for stream in streams}
        for stream in streams:
            self.out += (frame(HEADERS, END_HEADERS, stream, head), frame(DATA, 0, stream, b'"INIT"\n'))

    def headers_received(self, _stream: int, block: bytes) -> None:
        self.counter.errors += not is_status(block, 200)

    def line_received(self, stream: int, data: bytes) -> None:
        if self.parts:
            data = self.parts.pop(stream, b"") + data
        if not data.endswith(b"\n"):
            self.parts[stream] = data
            return
        if stream in self.sent_at:
            self.settled(stream, ok=data.startswith(b'{"msg":"'))
        if self.counter.goes_on():
            self.out.append(self.ack[stream])
            self.sent_at[stream] = time.perf_counter()
        else:
            self.open -= 1

    def stream_ended(self, _stream: int) -> None:
        self.fail()


SCRIPTS: dict[str, Callable[[Counter, int, str, asyncio.Future[None]], Connection]] = {
    "publish": Publish,
    "consume": Consume,
}


async def run(
    *, port: int, script: str, topic: str, streams: int, seconds: float, jobs_max: int | None = None
) -> dict[str, float]:
    """Run a script on many streams of one connection and return rates and latencies."""
    counter = Counter(seconds, jobs_max)
    return await play(port, counter, [partial(SCRIPTS[script], counter, streams, topic)])


if __name__ == "__main__":
    command_line(run)
