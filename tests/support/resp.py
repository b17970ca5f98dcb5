"""A small client of the Redis protocol, on a parser the server does not use."""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING, Any, Self

import hiredis

if TYPE_CHECKING:
    from types import TracebackType

Word = bytes | str | int
_numbers = itertools.count()
END = object()  #: what is read when the server has closed the connection


def unique(prefix: str = "r") -> str:
    """Return a name that no other test uses."""
    return f"{prefix}{os.getpid()}-{next(_numbers)}"


def wire(*words: Word) -> bytes:
    """Spell a command."""
    spelled = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(spelled) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in spelled)


class Refused(str):
    """An error that was answered."""

    __slots__ = ()


class RespClient:
    """One connection, and a topic of its own. ``ok`` insists on success; ``refused`` on an error, and returns its text."""

    def __init__(self, port: int, topic: str | None = None) -> None:
        self.topic = topic or unique()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, *words: Word) -> None:
        self.socket.sendall(wire(*words))

    def send_last(self, *words: Word) -> None:
        """Send a command and the end of the stream in one packet, so that the server cannot see one without the other."""
        self.socket.send(wire(*words), socket.MSG_MORE)
        self.socket.shutdown(socket.SHUT_WR)

    def line(self, text: str) -> None:
        self.socket.sendall(text.encode() + b"\r\n")

    def read(self) -> Any:
        """Return the next reply; ``END`` at the end."""
        while (reply := self._reader.gets()) is False:
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                return END
            if not chunk:
                return END
            self._reader.feed(chunk)
        return Refused(reply.args[0]) if isinstance(reply, hiredis.ReplyError) else reply

    def many(self, count: int) -> list[Any]:
        return [self.read() for _ in range(count)]

    def rest(self) -> bytes:
        """Return what comes until the server closes, byte for byte."""
        received = b""
        while chunk := self.socket.recv(65_536):
            received += chunk
        return received

    def call(self, *words: Word) -> Any:
        self.send(*words)
        return self.read()

    def ok(self, *words: Word) -> Any:
        reply = self.call(*words)
        assert not isinstance(reply, Refused), reply
        assert reply is not END
        return reply

    def refused(self, *words: Word) -> str:
        reply = self.call(*words)
        assert isinstance(reply, Refused), reply
        return str(reply)

    # Topics and jobs.

    def publish(self, *messages: Word) -> None:
        self.socket.sendall(b"".join(wire("PUBLISH", self.topic, message) for message in messages))
        assert self.many(len(messages)) == [b"OK"] * len(messages)

    def subscribe(self) -> bytes:
        """Subscribe, and return the first message."""
        message: bytes = self.ok("SUBSCRIBE", self.topic)
        return message

    def settle(self, *words: Word) -> bytes:
        """Say what became of the message, and return the next."""
        assert self.call(*words) == b"OK"
        message: bytes = self.read()
        return message

    def push(self, payload: Word, *options: Word) -> str:
        job_id: bytes = self.ok("PUSH", self.topic, payload, *options)
        return job_id.decode()

    def pull(self, *options: Word) -> list[list[str]]:
        """Return the id, token and payload of each job."""
        return [[part.decode() for part in job] for job in self.ok("PULL", self.topic, *options)]
