"""The answer to a refused WebSocket handshake goes to the connection that asked, and to no other."""

from __future__ import annotations

import json
import re
import socket
import struct
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.receiver import until
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HANDSHAKE = (
    b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
LONG_POLL = b"GET /queues/nothing/jobs?timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def batches_port() -> int:
    return free_port()


@pytest.fixture
def server(tmp_path: Path, batches_port: int) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", "--batches", f"127.0.0.1:{batches_port}") as running:
        yield running


def connected(port: int, own_port: int) -> socket.socket:
    """Connect from a port of our own, which connections to other listeners may have too."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    link.bind(("127.0.0.1", own_port))
    link.settimeout(30)
    link.connect(("127.0.0.1", port))
    link.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")  # once it is answered, the server knows the connection
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += link.recv(65_536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(re.findall(rb"(?i)content-length: (\d+)", head)[0])
    while len(body) < length:
        body += link.recv(65_536)
    return link


def everything(link: socket.socket) -> bytes:
    """Read to the end."""
    received = b""
    while part := link.recv(65_536):
        received += part
    return received


@pytest.mark.parametrize("first", ["asking", "other"])
def test_a_refusal_is_not_sent_to_a_connection_to_another_listener(
    server: ServerProcess, batches_port: int, first: str
) -> None:
    own_port = free_port()
    ports = {"asking": batches_port, "other": server.port}
    order = [first, *(each for each in ports if each != first)]
    with ExitStack() as stack:
        links = {name: stack.enter_context(connected(ports[name], own_port)) for name in order}
        links["other"].sendall(LONG_POLL)
        links["asking"].sendall(HANDSHAKE)
        head, _, body = everything(links["asking"]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404 ")
        assert json.loads(body)["ok"] is False
        with server.client() as client:
            client.post("/queues/nothing/jobs", json={"data": 1}).raise_for_status()
        received = links["other"].recv(65_536)
    assert received.startswith(b"HTTP/1.1 200 "), received


@pytest.mark.anyio
async def test_a_client_that_leaves_during_the_handshake_is_no_error(server: ServerProcess) -> None:
    """Of 500 such clients, more than a hundred left a traceback in the log."""
    for _ in range(500):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
            link.sendall(HANDSHAKE.replace(b"/nowhere", b"/ws"))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
    with server.client() as client:
        await until(lambda: client.get("/health").json()["connections"]["ws"] == 0)
    assert "failed unexpectedly" not in server.log()
