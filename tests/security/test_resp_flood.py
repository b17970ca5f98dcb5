"""A flood of commands whose sender leaves: what was not begun is dropped, and other clients are answered meanwhile."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core import limits
from tests.security.measure import Bystander, cpu_s, settled
from tests.support.resp import RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONNECTIONS = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        yield running


def flood(port: int, data: bytes) -> list[socket.socket]:
    """Send as much as connections take at once, and read nothing."""
    opened = []
    for _ in range(CONNECTIONS):
        one = socket.create_connection(("127.0.0.1", port), timeout=30)
        one.setblocking(False)
        sent = 0
        try:
            while sent < 2_000_000:
                sent += one.send(data)
        except BlockingIOError:
            pass
        opened.append(one)
    return opened


def reset(opened: list[socket.socket]) -> None:
    """Leave at once, so that the server notices it with its next write."""
    for one in opened:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()


@pytest.mark.parametrize("command", ["COMMAND", "COMMAND DOCS", "INFO", "PING", "TOPICS"])
def test_a_resp_flood_ends_with_its_sender(server: ServerProcess, command: str) -> None:
    before = cpu_s(server.pid)
    with RespClient(server.resp_port) as client:
        client.socket.sendall(f"{command}\r\n".encode() * limits.resp_turn_commands)
        client.many(limits.resp_turn_commands)
    turn_s = cpu_s(server.pid) - before
    with Bystander(server) as other:
        opened = flood(server.resp_port, f"{command}\r\n".encode() * 5_000)
        reset(opened)
        cost_s = settled(server)
    assert other.statuses <= {200}
    assert other.failures == []
    assert other.grown_mb < 150
    # Each connection has left 64 KiB of commands, which is several turns. One turn is begun at most.
    assert cost_s < CONNECTIONS * turn_s * 1.5 + 1
    with RespClient(server.resp_port) as client:
        client.send("PING")
        assert client.read() == b"pong"


def test_a_tcp_flood_ends_with_its_sender(server: ServerProcess) -> None:
    frame = msgspec.msgpack.encode({"cmd": "ListQueues"})
    before = cpu_s(server.pid)
    with TcpClient(server.tcp_port) as client:
        for _ in range(limits.connection_commands_max):
            assert client.ok("ListQueues")
    begun_s = cpu_s(server.pid) - before
    with Bystander(server) as other:
        opened = flood(server.tcp_port, (len(frame).to_bytes(4, "big") + frame) * 2_000)
        reset(opened)
        cost_s = settled(server)
    assert other.statuses <= {200}
    assert other.failures == []
    assert cost_s < CONNECTIONS * begun_s * 1.5 + 1
