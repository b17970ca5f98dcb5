"""Requests that a proxy and the server could read differently: headers that are sent twice, and bodies with two lengths."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
CHUNKS = b'a\r\n{"data":1}\r\n0\r\n\r\n'


def ask(server: ServerProcess, line: str, headers: str, body: bytes = b"") -> tuple[int, Any]:
    """Send a request as it is; return its status and answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(f"{line} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() + body)
        answer = b""
        while part := link.recv(65_536):
            answer += part
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(text)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ("Host: localhost\r\n", "Host"),
        ("Host: 127.0.0.1\r\n", "Host"),
        ("X-Namespace: a\r\nX-Namespace: b\r\n", "X-Namespace"),
        ("X-Namespace: a\r\nx-namespace: a\r\n", "X-Namespace"),
        ("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n", "Authorization"),
        ("X-Api-Key: a\r\nX-Api-Key: b\r\n", "X-Api-Key"),
        ("Idempotency-Key: a\r\nIdempotency-Key: b\r\n", "Idempotency-Key"),
    ],
)
@pytest.mark.parametrize("line", ["GET /queues", "GET /nowhere", "GET /ws"])
def test_a_header_that_decides_is_sent_once(server: ServerProcess, line: str, headers: str, named: str) -> None:
    status, answer = ask(server, line, headers + (HANDSHAKE if line == "GET /ws" else "Connection: close\r\n"))
    assert (status, answer["ok"]) == (400, False)
    assert answer["error"] == f"The header {named} is sent more than once. Send it once."


@pytest.mark.parametrize("codings", ["gzip, chunked", "chunked\r\nTransfer-Encoding: chunked"])
def test_a_body_has_no_coding_but_chunks(server: ServerProcess, codings: str) -> None:
    status, answer = ask(
        server, "POST /queues/codings/jobs", f"Connection: close\r\nTransfer-Encoding: {codings}\r\n", CHUNKS
    )
    assert status == 400
    assert "Transfer-Encoding must be chunked" in answer["error"]


@pytest.mark.parametrize("order", ["first", "last"])
def test_of_two_lengths_the_chunks_count_and_the_connection_ends(server: ServerProcess, order: str) -> None:
    """The HTTP server removes Content-Length (docs/security.md). What follows the body is never taken for a request."""
    length, chunked = "Content-Length: 4\r\n", "Transfer-Encoding: chunked\r\n"
    headers = length + chunked if order == "first" else chunked + length
    hidden = b"POST /queues/hidden/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n" + b'{"data":2}'
    status, answer = ask(server, f"POST /queues/lengths-{order}/jobs", headers, CHUNKS + hidden)
    assert (status, answer["ok"]) == (200, True)
    with server.client() as client:
        assert client.get("/queues/hidden/count").json()["count"] == 0
