"""Sends one POST and reads only the status of the answer.

It uses plain streams instead of an HTTP client: the connection must go to the address that was checked, with no redirect, no
proxy of the environment, no decompression and no cookies. What remains of HTTP is one request, a status line, and the end of
the headers. All other features of a client would have to be disabled.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.core import limits
from penstock.core.clock import within
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.outbound.guard import Guard, LookUp, Target

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n\Z")
_CONTINUING: Final = range(100, 200)


class NotDelivered(Exception):
    """There was no answer; the text has the reason."""


class Sender:
    """Sends requests. ``tls``: trusted certificates, by default the system's. ``timeout_ms``: for one whole attempt."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        *,
        timeout_ms: int = limits.webhook_attempt_ms_max,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._timeout_ms = timeout_ms
        self._tls = tls

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, namespace: str = "") -> int:
        """Send a body for a namespace, and return the status of the answer. Raises NotDelivered if there is none.

        The attempt and its timeout start when the URL may be looked up; see ``Guard.turn``.
        """
        try:
            target = self._guard.check(url)
            async with self._guard.turn(target, namespace) as look_up:
                return await within(self._clock, self._timeout_ms, self._post(target, look_up, headers, body))
        except TimeoutError:
            raise NotDelivered(f"No answer within {self._timeout_ms} ms") from None
        except InvalidInput as error:
            raise NotDelivered(str(error)) from None
        except (OSError, ValueError, EOFError) as error:  # a failed connection, a line without end, a partial answer
            raise NotDelivered(f"{type(error).__name__}: {error}"[: limits.progress_message_chars_max]) from None

    async def _post(self, target: Target, look_up: LookUp, headers: Mapping[str, str], body: bytes) -> int:
        reader, writer = await connect(target, await look_up(), self._tls)
        try:
            writer.write(_request(target, headers, body))
            await writer.drain()
            status, _ = await status_and_headers(reader)
            return status
        finally:
            writer.transport.abort()  # the rest of the answer is not read


async def connect(
    target: Target, addresses: list[str], tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers. No name is looked up again."""
    failure: OSError | None = None
    trust = (tls or _system_trust()) if target.is_tls else None
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address,
                target.port,
                ssl=trust,
                server_hostname=target.host if target.is_tls else None,
                limit=limits.webhook_reply_line_bytes_max,
            )
        except OSError as error:
            failure = error
    raise failure or OSError("no address")


def _request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    fixed = {"Accept": "*/*", "Connection": "close", "Content-Length": str(len(body))}
    return head("POST", target, {**fixed, **headers}) + body


def head(method: str, target: Target, headers: Mapping[str, str]) -> bytes:
    """Encode the head of a request. The URL is printable ASCII here, and the values of the headers are our own."""
    lines = {"Host": target.authority, "User-Agent": f"penstock/{__version__}", **headers}
    spelled = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {target.path} HTTP/1.1\r\n{spelled}\r\n".encode("ascii")


async def status_and_headers(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the status and the headers, with lower-case names. Raises ValueError if they are not HTTP or too long."""
    status = 0
    headers: dict[str, str] = {}
    for _ in range(limits.webhook_reply_lines_max):
        line = await reader.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection was closed before the answer was complete")
        if status == 0:
            found = _STATUS.match(line)
            if found is None:
                raise ValueError("the answer is not HTTP/1.1")
            status = int(found[1])
        elif line in (b"\r\n", b"\n"):
            if status not in _CONTINUING:
                return status, headers
            status = 0  # an interim answer: the final one follows
            headers.clear()
        else:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
    raise ValueError("the answer has too many headers")


@cache
def _system_trust() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
