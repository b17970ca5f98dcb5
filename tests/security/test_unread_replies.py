"""Clients that send commands whose replies are large, and read none: what the server holds for them is bounded."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from typing import TYPE_CHECKING

import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander, settled
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The bound of one address, as often as a reply is copied on the way, the replies that wait, and what the client is, in MiB.
ALLOWED_MB = 5 * limits.answers_client_bytes_max / MB + 60
CONNECTIONS = 20
COMMANDS = 10
#: The size of each reply.
REPLY_MB = 4
LIST: dict[str, object] = {"cmd": "GetJobs", "queue": "large"}
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def connected(port: int) -> socket.socket:
    """Connect with little room for what comes back."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    link.settimeout(30)
    link.connect(("127.0.0.1", port))
    return link


def over_tcp(server: ServerProcess) -> socket.socket:
    link = connected(server.tcp_port)
    link.sendall(frame(LIST) * COMMANDS)
    return link


def over_websocket(server: ServerProcess, command: dict[str, object] = LIST) -> socket.socket:
    link = connected(server.port)
    link.sendall(HANDSHAKE)
    assert link.recv(4_096).startswith(b"HTTP/1.1 101")
    text = json.dumps(command).encode()
    link.sendall((bytes((0x81, 0x80 | len(text))) + bytes(4) + text) * COMMANDS)
    return link


def fill(server: ServerProcess) -> None:
    """Have a queue whose listing is large."""
    with server.client() as client:
        for _ in range(REPLY_MB):
            jobs = [{"data": "x" * (MB // 8)} for _ in range(8)]
            assert client.post("/queues/large/jobs/bulk", json={"jobs": jobs}).status_code == 200


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as running:
        fill(running)
        yield running


@pytest.mark.parametrize("ask", [over_tcp, over_websocket])
def test_replies_that_are_not_read_are_bounded(server: ServerProcess, ask: Callable[[ServerProcess], socket.socket]) -> None:
    assert CONNECTIONS * COMMANDS * REPLY_MB > 3 * ALLOWED_MB
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        for _ in range(CONNECTIONS):
            stack.enter_context(ask(server))
        settled(server)
    assert other.grown_mb < ALLOWED_MB
    assert (other.statuses, other.failures) == ({200}, [])


def test_single_jobs_that_are_not_read_are_bounded(server: ServerProcess) -> None:
    """Replies that are refused are freed at once, and few are made at a time while others are unread."""
    with server.client() as client:
        answer = client.post("/queues/large/jobs", json={"data": "x" * (limits.payload_bytes_max - 1_000)})
    command: dict[str, object] = {"cmd": "GetJob", "id": answer.json()["id"]}
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        for _ in range(CONNECTIONS):
            stack.enter_context(over_websocket(server, command))
        settled(server)
    assert other.grown_mb < 2 * ALLOWED_MB
    assert (other.statuses, other.failures) == ({200}, [])


@pytest.mark.parametrize("ask", [over_tcp, over_websocket])
def test_a_client_that_takes_no_replies_is_cut_off(tmp_path: Path, ask: Callable[[ServerProcess], socket.socket]) -> None:
    """With a deadline of half a second instead of thirty."""
    env = {"LIMITS": json.dumps({"answer_stall_ms_max": 500})}
    launcher = ("-m", "tests.support.limits_server")
    with ServerProcess(tmp_path / "data", env=env, launcher=launcher) as server:
        fill(server)
        with ask(server) as link:
            ended = select.poll()
            ended.register(link, 0)  # errors and hang-ups only: nothing is read
            assert ended.poll(30_000), "it is still connected"


def test_a_client_that_reads_gets_all_of_many_large_replies(server: ServerProcess) -> None:
    with TcpClient(server.tcp_port) as client:
        client.socket.sendall(frame(LIST) * COMMANDS)
        for _ in range(COMMANDS):
            assert len(client.read()["jobs"]) == 8 * REPLY_MB
