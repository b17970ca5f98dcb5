"""Connections that ask for nothing: they are closed after a while, and sooner when there are too many."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import pytest

from tests.security.measure import Bystander
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST = 40
LONG_POLL = b"GET /queues/nothing/jobs?timeout=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"PENSTOCK_HTTP_CONNECTIONS_MAX": str(MOST), "PENSTOCK_HTTP_IDLE_TIMEOUT_MS": "1500"}
    with ServerProcess(tmp_path_factory.mktemp("silent") / "data", env=settings) as running:
        yield running


def connected(server: ServerProcess, sent: bytes = b"") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    link.sendall(sent)
    return link


def until_closed(link: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        received = True
        while received:
            received = bool(link.recv(65_536))


def idle_http2() -> bytes:
    http = h2.connection.H2Connection(h2.config.H2Configuration())
    http.initiate_connection()
    return http.data_to_send()


def cut(server: ServerProcess) -> dict[str, int]:
    name = "penstock_http_connections_cut_total"
    with server.client() as client:
        lines = [line for line in client.get("/prometheus").text.splitlines() if line.startswith(name)]
    return {line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines}


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, idle_http2()], ids=["nothing", "half", "preface", "http2"])
def test_a_connection_without_a_request_is_closed(server: ServerProcess, sent: bytes) -> None:
    before = cut(server)["idle"]
    with connected(server, sent) as link:
        until_closed(link)
    assert cut(server)["idle"] > before


def test_a_connection_whose_request_waits_stays_open(server: ServerProcess) -> None:
    with connected(server, LONG_POLL) as waiting, connected(server) as silent:
        until_closed(silent)
        with server.client() as client:
            client.post("/queues/nothing/jobs", json={"data": 1}).raise_for_status()
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_too_many_silent_connections_keep_no_client_out(tmp_path: Path) -> None:
    settings = {"PENSTOCK_HTTP_CONNECTIONS_MAX": str(MOST)}
    with ServerProcess(tmp_path / "data", env=settings) as server, contextlib.ExitStack() as stack:
        waiting = stack.enter_context(connected(server, LONG_POLL))
        silent = [stack.enter_context(connected(server)) for _ in range(2 * MOST)]
        with Bystander(server) as other:
            until_closed(silent[0])
            with server.client() as client:
                client.post("/queues/nothing/jobs", json={"data": 1}).raise_for_status()
        assert (other.statuses, other.failures) == ({200}, [])
        assert waiting.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert cut(server)["crowded"] > 0


def test_connections_leave_descriptors_to_the_rest_of_the_server(tmp_path: Path) -> None:
    """With 256 descriptors: others are kept for the store, and clients are answered while silent connections come in."""
    limited = (
        "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
        "runpy.run_module('penstock', run_name='__main__')"
    )
    launcher = ("-c", limited)
    with ServerProcess(tmp_path / "data", launcher=launcher) as server, contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(server))
        with server.client() as client:
            client.post("/queues/q/jobs", json={"data": 1}).raise_for_status()
