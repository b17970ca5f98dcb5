"""Subscribers that we did not write: curl with an upload that never ends, reading while it writes."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

if TYPE_CHECKING:
    from types import TracebackType

PATIENCE_S = 30
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")


class Ended(Exception):
    """The stream is over."""


class CurlStream:
    """One full-duplex request. ``options``: more options of curl."""

    all: ClassVar[list[CurlStream]] = []

    def __init__(self, url: str, *options: str, http: str = "--http2-prior-knowledge", body: str | None = None) -> None:
        given = ("-T", ".") if body is None else ("--data-raw", body)
        command = ["curl", "-sS", "-N", "-i", http, "-H", "Expect:", "-X", "POST", *given, *options, url]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._read = b""
        self.head: list[str] = []
        self.all.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def send(self, text: str) -> None:
        """Send some text, as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def say(self, command: str) -> None:
        """Send a command."""
        self.send(json.dumps(command) + "\n")

    def ask(self, command: str) -> Any:
        """Send a command, and return the next line."""
        self.say(command)
        return self.line()

    def line(self) -> Any:
        """Return the next line of the answer, decoded. Raises Ended."""
        if not self.head:
            while (text := self._line()) != "":
                self.head.append(text)
        return json.loads(self._line())

    def message(self) -> bytes:
        """Return the next message, which must be the next line."""
        return base64.b64decode(self.line()["msg"])

    def get(self, command: str) -> bytes:
        """Send a command, and return the message that comes."""
        self.say(command)
        return self.message()

    @property
    def status(self) -> int:
        return int(self.head[0].split()[1])

    def finish(self) -> None:
        """End the request, as a client does that has nothing more to say."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def rest(self) -> list[Any]:
        """End the request, and return all lines up to the end of the answer, which must come.

        The request is ended because curl does not look at the end of an answer while it has something to send.
        """
        self.finish()
        lines = []
        while True:
            try:
                lines.append(self.line())
            except Ended:
                return lines

    @classmethod
    def kill_all(cls) -> None:
        """Leave none behind."""
        while cls.all:
            cls.all[-1].kill()
            cls.all.pop()

    def kill(self) -> None:
        """Go without a word."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _line(self) -> str:
        assert self.process.stdout is not None
        while b"\n" not in self._read:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            assert ready, f"nothing came; so far: {self._read!r}"
            chunk = os.read(self.process.stdout.fileno(), 65_536)
            if not chunk:
                raise Ended
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        return line.decode().rstrip("\r")
