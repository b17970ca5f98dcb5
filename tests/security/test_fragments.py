"""WebSocket messages in fragments without end: the server reads little more than a message may have."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander
from tests.support.issuer import certificate
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-long-secret-token"
CONNECTIONS = 20
#: Much more than a message may have: before, the server kept 60 MB of each connection.
SENT = 60 * MB
ALLOWED_MB = 150
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture(params=["asking", "open", "tls"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    env = {} if request.param == "open" else {"AUTH_TOKENS": TOKEN}
    flags: tuple[str, ...] = ()
    if request.param == "tls":
        cert, key = certificate(tmp_path)
        flags = ("--cert", str(cert), "--key", str(key))
    with ServerProcess(tmp_path / "data", *flags, env=env) as running:
        yield running


def websocket(server: ServerProcess, headers: bytes = b"") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    if "--cert" in server.args:
        link = ssl._create_unverified_context().wrap_socket(link)
    link.sendall(HANDSHAKE + headers + b"\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += link.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 ")
    return link


def frame(data: bytes, opcode: int, *, last: bool) -> bytes:
    """Return a frame of 64 KiB or more, masked with zeros."""
    return struct.pack("!BBQ", opcode | (0x80 if last else 0), 0x80 | 127, len(data)) + bytes(4) + data


def flood(link: socket.socket) -> None:
    part = bytes(256 * 1024)
    with contextlib.suppress(OSError):
        link.sendall(frame(part, 2, last=False))
        for _ in range(SENT // len(part)):
            link.sendall(frame(part, 0, last=False))
        received = True
        while received:
            received = bool(link.recv(65_536))


def test_fragments_without_end_are_not_kept(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        links = [stack.enter_context(websocket(server)) for _ in range(CONNECTIONS)]
        threads = [threading.Thread(target=flood, args=(link,)) for link in links]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert other.grown_mb < ALLOWED_MB
    assert (other.statuses, other.failures) == ({200}, [])


def test_the_largest_message_is_taken_in_fragments(server: ServerProcess) -> None:
    """It may be as large as ever, come in parts, and be followed by others at once."""
    text = b'{"cmd":"Ping","reqId":"1"}'
    message = text.ljust(limits.message_bytes_max)
    with websocket(server, f"Authorization: Bearer {TOKEN}\r\n".encode()) as link:
        for _ in range(5):
            half = len(message) // 2
            link.sendall(frame(message[:half], 1, last=False) + frame(message[half:], 0, last=True))
        received = b""
        while received.count(b'"reqId"') < 5:
            part = link.recv(65_536)
            assert part, received
            received += part


def test_strangers_wait_and_come_in_when_others_leave(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": TOKEN}) as server, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(websocket(server)) for _ in range(limits.strangers_address_max)]
        known = stack.enter_context(websocket(server, f"Authorization: Bearer {TOKEN}\r\n".encode()))  # is let in at once
        waiting = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        waiting.sendall(HANDSHAKE + b"\r\n")
        known.settimeout(0.3)
        waiting.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        strangers[0].close()
        waiting.settimeout(30)
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 101 ")
