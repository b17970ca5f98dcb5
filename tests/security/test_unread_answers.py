"""Clients that ask for much and read nothing: what the server holds for them is bounded, and other clients get answers."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.settings
import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What the attacks may take, in MiB: the bound of one address, as often as it is copied on the way, and what the client is.
ALLOWED_MB = 4 * limits.answers_client_bytes_max / MB + 40
GET = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", env={"AUTH_TOKENS": "a-long-secret-token"}) as running:
        with running.client() as client:
            assert len(client.get("/openapi.json").content) > 100_000
        yield running


def unread_http2(port: int, requests: int) -> socket.socket:
    """Ask for the document again and again over one connection, with a window of 0."""
    link = socket.create_connection(("127.0.0.1", port), timeout=30)
    http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    http.local_settings[h2.settings.SettingCodes.INITIAL_WINDOW_SIZE] = 0
    http.initiate_connection()
    head = [(":method", "GET"), (":path", "/openapi.json"), (":authority", "localhost"), (":scheme", "http")]
    for number in range(requests):
        http.send_headers(2 * number + 1, head, end_stream=True)
    link.sendall(http.data_to_send())
    return link


def metric(server: ServerProcess, name: str) -> float:
    """Return one figure of the server's metrics."""
    with server.client(headers={"Authorization": "Bearer a-long-secret-token"}) as client:
        lines = client.get("/prometheus").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def until_steady(server: ServerProcess) -> float:
    """Wait until the server hands out no more answers, or cuts clients off; return how many bytes were unread at most."""
    seen: list[float] = []
    while not (len(seen) > 3 and seen[-1] and len(set(seen[-3:])) == 1):
        seen.append(metric(server, "penstock_http_unread_bytes"))
        if metric(server, 'penstock_http_connections_cut_total{reason="unread"}'):
            break
        time.sleep(0.01)
    return max(seen)


def test_answers_over_http2_that_nobody_reads_are_bounded(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        for _ in range(10):
            stack.enter_context(unread_http2(server.port, 200))
        unread = until_steady(server)
    assert unread <= 2 * limits.answers_client_bytes_max
    assert other.grown_mb < ALLOWED_MB
    assert (other.statuses, other.failures) == ({200}, [])


def test_answers_over_http1_that_nobody_reads_are_bounded(server: ServerProcess) -> None:
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        for _ in range(100):
            link = stack.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            link.connect(("127.0.0.1", server.port))
            link.sendall(GET * 20)
        unread = until_steady(server)
    assert unread <= 2 * limits.answers_client_bytes_max
    assert other.grown_mb < ALLOWED_MB
    assert (other.statuses, other.failures) == ({200}, [])


def test_a_client_that_reads_gets_all_of_many_large_answers(server: ServerProcess) -> None:
    with server.client() as client:
        whole = client.get("/openapi.json").content
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        link.sendall(GET * 100)
        received = 0
        while received < 100 * len(whole):
            part = link.recv(1 << 20)
            assert part
            received += len(part)
