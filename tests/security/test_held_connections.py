"""Connections with requests that never end: the tenant that has them keeps no other client out."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from tests.security.measure import Bystander
from tests.support.issuer import SECRET, token
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

MOST = 40


def asked(namespace: str, line: str, more: str = "") -> bytes:
    shown = f"Authorization: Bearer {token(scopes=[f'{namespace}:admin'], sub=namespace)}\r\nX-Namespace: {namespace}\r\n"
    return f"{line} HTTP/1.1\r\nHost: localhost\r\n{shown}{more}\r\n".encode()


POST = "POST /queues/q/jobs"
HELD = {
    "long poll": asked("evil", "GET /queues/q/jobs?timeout=60000"),
    "body": asked("evil", POST, "Content-Type: application/json\r\nContent-Length: 100\r\n"),
    "chunks": asked("evil", POST, "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n") + b"1\r\n{\r\n",
}


def connected(server: ServerProcess, sent: bytes) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    link.sendall(sent)
    return link


@pytest.mark.parametrize("held", HELD)
def test_requests_of_one_tenant_keep_no_other_out(tmp_path: Path, held: str) -> None:
    settings = {"PENSTOCK_HTTP_CONNECTIONS_MAX": str(MOST), "JWT_SECRET": SECRET}
    with ServerProcess(tmp_path / "data", env=settings) as server, contextlib.ExitStack() as stack:
        waiting = stack.enter_context(connected(server, asked("good", "GET /queues/q/jobs?timeout=60000")))
        for _ in range(MOST + 10):
            stack.enter_context(connected(server, HELD[held]))
        with Bystander(server) as other, server.client(headers=shown("good")) as client:
            client.post("/queues/q/jobs", json={"data": 1}).raise_for_status()
        assert (other.statuses, other.failures) == ({200}, [])
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")


def shown(namespace: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(scopes=[f'{namespace}:admin'], sub=namespace)}", "X-Namespace": namespace}


def test_a_small_body_that_does_not_arrive_ends_its_connection(tmp_path: Path) -> None:
    impatient = (
        "import runpy; from penstock.core import limits; limits.body_idle_ms_max = 0; "
        "runpy.run_module('penstock', run_name='__main__')"
    )
    with (
        ServerProcess(tmp_path / "data", env={"JWT_SECRET": SECRET}, launcher=("-c", impatient)) as server,
        connected(server, HELD["body"]) as link,
        connected(server, asked("good", "GET /queues/q/jobs?timeout=60000")) as waiting,
    ):
        with contextlib.suppress(ConnectionResetError):
            assert not link.recv(65_536) or not link.recv(65_536)  # an error, if there is time for it, and the end
        with server.client(headers=shown("good")) as client:
            client.post("/queues/q/jobs", json={"data": 1}).raise_for_status()
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")
