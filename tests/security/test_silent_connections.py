"""Connections that ask for nothing: they are closed after a while, and sooner when there are too many."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import h2.config
import h2.connection
import pytest

from tests.security.measure import Bystander
from tests.support.issuer import certificate
from tests.support.ports import free_port
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


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = certificate(folder)
    flags = ("--cert", str(cert), "--key", str(key))
    with ServerProcess(folder / "data", *flags, env={"PENSTOCK_HTTP_IDLE_TIMEOUT_MS": "1500"}) as running:
        yield running


class Hasty(NamedTuple):
    """The ports of a server whose deadline for the first bytes is short."""

    ports: dict[str, int]
    is_tls: bool


def connected(server: ServerProcess, sent: bytes = b"") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    link.sendall(sent)
    return link


def until_closed(link: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        received = True
        while received:
            received = bool(link.recv(65_536))


def idle_http2() -> bytes:
    http = h2.connection.H2Connection(h2.config.H2Configuration())
    http.initiate_connection()
    return http.data_to_send()


def cut(server: ServerProcess) -> Counter[str]:
    name = "penstock_http_connections_cut_total"
    with server.client() as client:
        lines = [line for line in client.get("/prometheus").text.splitlines() if line.startswith(name)]
    return Counter({line.split('"')[1]: int(float(line.rpartition(" ")[2])) for line in lines})


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, idle_http2()], ids=["nothing", "half", "preface", "http2"])
def test_a_connection_without_a_request_is_closed(server: ServerProcess, sent: bytes) -> None:
    before = cut(server)["idle"]
    with connected(server, sent) as link:
        until_closed(link)
    assert cut(server)["idle"] > before


LISTENERS = ("http", "metrics", "batches", "topics", "messages")


@pytest.fixture(scope="module", params=["plain", "tls"])
def hasty(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Hasty]:
    """A server with all its HTTP listeners that waits one second for the first bytes, instead of ten."""
    folder = tmp_path_factory.mktemp("hasty")
    ports = {name: free_port() for name in LISTENERS}
    flags = [word for name, port in ports.items() for word in (f"--{name}", f"127.0.0.1:{port}")]
    if request.param == "tls":
        cert, key = certificate(folder)
        flags += ["--cert", str(cert), "--key", str(key)]
    env = {"LIMITS": json.dumps({"first_bytes_ms_max": 1_000, "connection_scan_ms": 100})}
    launcher = ("-m", "tests.support.limits_server")
    with ServerProcess(folder / "data", *flags, env=env, launcher=launcher, port=ports["http"]):
        yield Hasty(ports, is_tls=request.param == "tls")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP", PREFACE[:12], b"\x16\x03\x01\x02\x00\x01\x00"], ids=repr)
def test_every_listener_closes_a_connection_that_begins_no_request(hasty: Hasty, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        opened = {}
        for name, port in hasty.ports.items():
            opened[name] = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=15))
            opened[name].sendall(sent)
        for link in opened.values():
            until_closed(link)


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
@pytest.mark.parametrize("sent", [b"", PREFACE[:12]], ids=["nothing", "half a preface"])
def test_a_silent_connection_over_tls_is_closed(tls_server: ServerProcess, protocol: str, sent: bytes) -> None:
    """Its handshake is complete, so that it has sent more than a few bytes: the idle timeout ends it."""
    context = ssl._create_unverified_context()
    context.set_alpn_protocols([protocol])
    with socket.create_connection(("127.0.0.1", tls_server.port), timeout=15) as link, context.wrap_socket(link) as secured:
        secured.sendall(sent)
        until_closed(secured)


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
        for _ in range(280):
            stack.enter_context(connected(server))
        with server.client() as client:
            client.post("/queues/q/jobs", json={"data": 1}).raise_for_status()
