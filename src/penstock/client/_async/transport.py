"""Send calls over HTTP, retry them where that is safe and may help, and read the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import httpx2
import msgspec

from penstock.client._clock import pause
from penstock.client._retry import SHORTEST_CONNECT_S, Attempts
from penstock.client.errors import UnexpectedReply

if TYPE_CHECKING:
    from penstock.client._request import ApiCall
    from penstock.client._settings import Settings

T = TypeVar("T")


class AsyncTransport:
    """One pool of connections to one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.http = httpx2.AsyncClient(
            base_url=settings.url.rstrip("/"),
            headers=settings.headers(),
            timeout=settings.timeout,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            verify=settings.trust(),
        )

    async def send(self, call: ApiCall[T]) -> T:
        """Make a call. Raises ApiError if the server refuses it, ConnectionFailed if it does not answer."""
        settings = self.settings
        attempts = Attempts(call, settings.retry_for, settings.connect_timeout)
        connect = max(SHORTEST_CONNECT_S, min(settings.connect_timeout, settings.timeout))  # for one try
        timeout = httpx2.Timeout(settings.timeout, connect=connect, read=settings.timeout + call.wait_ms / 1000)
        while True:
            try:
                response = await self.http.request(
                    call.method, call.path, content=call.body, params=call.params, headers=call.headers, timeout=timeout
                )
            except httpx2.TransportError as error:
                wait: float | None = attempts.after_no_answer(error)
            else:
                if response.is_success:
                    return _read(call, response.content)
                wait = attempts.after_refusal(response)
            if wait is None:
                return call.decode(b"")
            await pause(wait)

    async def aclose(self) -> None:
        """Close all connections."""
        await self.http.aclose()


def _read(call: ApiCall[T], content: bytes) -> T:
    try:
        return call.decode(content)
    except msgspec.DecodeError as error:
        raise UnexpectedReply(f"{call.method} {call.path} was answered with something else: {error}") from error
