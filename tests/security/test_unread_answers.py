"""Clients that ask for much and read nothing: what the server holds for them is bounded, and other clients get answers."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import ssl
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.settings
import pytest

from penstock.core import limits
from tests.security.measure import MB, Bystander, settled
from tests.support.issuer import certificate
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


def unread_http1(port: int, requests: int) -> socket.socket:
    """Ask for the document again and again over one connection, with little room for answers."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    link.connect(("127.0.0.1", port))
    link.sendall(GET * requests)
    return link


@pytest.mark.parametrize(
    ("connections", "ask"),
    [(10, lambda port: unread_http2(port, 200)), (100, lambda port: unread_http1(port, 20))],
    ids=["http2", "http1"],
)
def test_answers_that_nobody_reads_are_bounded(
    server: ServerProcess, connections: int, ask: Callable[[int], socket.socket]
) -> None:
    with contextlib.ExitStack() as stack, Bystander(server) as other:
        for _ in range(connections):
            stack.enter_context(ask(server.port))
        settled(server)
        unread = metric(server, "penstock_http_unread_bytes")
    assert other.grown_mb < ALLOWED_MB
    assert unread <= 2 * limits.answers_client_bytes_max
    assert (other.statuses, other.failures) == ({200}, [])


@pytest.mark.parametrize("protocol", ["http1", "http2", "tls"])
def test_a_client_that_takes_nothing_of_its_answers_is_cut_off(tmp_path: Path, protocol: str) -> None:
    """With a deadline of half a second instead of thirty."""
    env = {"AUTH_TOKENS": "a-long-secret-token", "LIMITS": json.dumps({"answer_stall_ms_max": 500})}
    flags = ("--cert", str(cert[0]), "--key", str(cert[1])) if (cert := protocol == "tls" and certificate(tmp_path)) else ()
    launcher = ("-m", "tests.support.limits_server")
    with ServerProcess(tmp_path / "data", *flags, env=env, launcher=launcher) as server, contextlib.ExitStack() as stack:
        link = unread_http2(server.port, 50) if protocol == "http2" else unread_http1(server.port, 0)
        stack.callback(link.close)
        if protocol == "tls":
            link = ssl._create_unverified_context().wrap_socket(link)
            stack.callback(link.close)
        if protocol != "http2":
            link.sendall(GET * 50)
        ended = select.poll()
        ended.register(link, 0)  # errors and hang-ups only: nothing is read
        assert ended.poll(15_000), "it is still connected"


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
