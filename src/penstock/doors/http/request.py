"""The request a handler gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from penstock.core import limits
from penstock.core.errors import BodyTooLarge, InvalidInput

if TYPE_CHECKING:
    from granian._granian import RSGIHTTPProtocol as HTTPProtocol
    from granian.rsgi import Scope


class Request:
    """What was asked, and by whom. The body is read when a handler wants it."""

    __slots__ = ("_proto", "header", "scope")

    def __init__(self, scope: Scope, proto: HTTPProtocol) -> None:
        self.scope = scope
        self._proto = proto
        self.header: Any = scope.headers.get  #: ``header(name, default)``, the name in lower case

    async def body(self) -> bytes:
        """Read the whole body. Raises BodyTooLarge before, or as soon as, it is over the limit."""
        length = self.header("content-length")
        if length is not None:
            if not length.isdigit():
                raise InvalidInput("Content-Length must be a number")
            if int(length) > limits.body_bytes_max:
                raise BodyTooLarge
            return await self._proto()
        chunks: list[bytes] = []
        size = 0
        async for chunk in self._proto:
            size += len(chunk)
            if size > limits.body_bytes_max:
                raise BodyTooLarge
            chunks.append(bytes(chunk))
        return b"".join(chunks)

    def query(self) -> dict[str, str]:
        """Return the parameters of the query string; of one that is given twice, the last."""
        text = self.scope.query_string
        return dict(parse_qsl(text, keep_blank_values=True)) if text else {}

    async def disconnected(self) -> None:
        """Return when the client has hung up."""
        await self._proto.client_disconnect()
