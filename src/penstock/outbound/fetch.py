"""Fetches one small document by the rules of webhooks: only the checked address, no redirect, no proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.clock import within
from penstock.core.errors import InvalidInput
from penstock.outbound.sender import connect, head, status_and_headers

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.outbound.guard import Guard


class NotFetched(OSError):
    """The document could not be fetched; the text has the reason."""


class Fetcher:
    """Fetches ``url``, of at most ``bytes_max``. Plain HTTP is only for hosts that the operator allows in the guard."""

    def __init__(
        self, clock: Clock, guard: Guard, url: str, *, timeout_ms: int, bytes_max: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._url = url
        self._timeout_ms = timeout_ms
        self._bytes_max = bytes_max
        self._tls = tls

    async def __call__(self) -> bytes:
        """Return the document. Raises NotFetched."""
        try:
            return await within(self._clock, self._timeout_ms, self._get())
        except TimeoutError:
            raise NotFetched(f"{self._url}: no answer within {self._timeout_ms} ms") from None
        except InvalidInput as error:  # the text is about webhooks
            raise NotFetched(f"{self._url}: {str(error).replace('Webhook URL', 'it')}") from None
        except (OSError, ValueError, EOFError) as error:
            raise NotFetched(f"{self._url}: {error}") from None

    async def _get(self) -> bytes:
        target = self._guard.check(self._url)
        if not target.is_tls and not self._guard.vouches_for(target):
            raise ValueError("plain http can be changed on the network; use https, or add the host to webhook_allowed_hosts")
        reader, writer = await connect(target, await self._guard.addresses(target), self._tls)
        try:
            writer.write(head("GET", target, {"Accept": "application/json", "Connection": "close"}))
            await writer.drain()
            status, headers = await status_and_headers(reader)
            if status != 200:
                raise ValueError(f"the answer was {status}")
            return await self._body(reader, headers)
        finally:
            writer.transport.abort()

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks(reader)
        length = headers.get("content-length")
        if length is not None:
            self._check(int(length))
            return await reader.readexactly(int(length))
        body = b""
        while piece := await reader.read(self._bytes_max + 1):
            body += piece
            self._check(len(body))
        return body

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            self._check(len(body) + size)
            body += await reader.readexactly(size)
            await reader.readline()
        return body

    def _check(self, size: int) -> None:
        if not 0 <= size <= self._bytes_max:
            raise ValueError(f"the answer is too large (max {self._bytes_max} bytes)")
