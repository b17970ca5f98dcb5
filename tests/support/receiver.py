"""A real HTTP server that receives webhooks and behaves as badly as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

DEADLINE_S = 60
HANG = b"hang"
CLOSE = b""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {code} Whatever", *headers, "Content-Length: 0", "", "")).encode()


class Received(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Answers each request with the next reply of ``replies``, then always with the last."""

    def __init__(self, *replies: bytes, tls: ssl.SSLContext | None = None) -> None:
        self.replies = list(replies or (OK,))
        self.requests: list[Received] = []
        self._tls = tls
        self._news = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await until(lambda: not self._writers)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def until(self, count: int) -> list[Received]:
        """Wait until so many requests have come."""
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._answer(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._writers.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        line, *rest = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        async with self._news:
            self.requests.append(Received(line, headers, body))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            self._news.notify_all()
        if reply == HANG:
            await reader.read()  # until the other side gives up
            return
        writer.write(reply)
        await writer.drain()


async def until(condition: Any) -> None:
    """Wait until something that nobody announces has become true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)
