"""TLS on every listener, with a certificate made for the test; and clear words about files that cannot be used."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx2
import pytest
from websockets.asyncio.client import connect  # the other one reads and writes in two threads, which TLS here cannot bear
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import CloseCode

from penstock.config import load
from penstock.core import limits
from penstock.core.errors import ConfigInvalid
from penstock.server import listeners
from tests.support.issuer import certificate, ec_key, rsa_key
from tests.support.ports import free_port
from tests.support.resp import END, RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.issuer import PrivateKey


class Secured(ServerProcess):
    """A server whose certificate its clients trust."""

    def __init__(self, folder: Path, key: PrivateKey, form: str = "PKCS8") -> None:
        self.cert, private = certificate(folder, key=key, form=form)
        self.metrics_port = free_port()
        env = {"TLS_CERT_FILE": str(self.cert), "TLS_KEY_FILE": str(private)}
        super().__init__(folder / "data", "--metrics", f"127.0.0.1:{self.metrics_port}", env=env)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.cert))


@pytest.fixture(scope="module", params=["RSA", "EC"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    with Secured(folder, rsa_key() if request.param == "RSA" else ec_key()) as running:
        yield running


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_http_is_served_with_tls(secured: Secured, version: ssl.TLSVersion) -> None:
    trust = secured.trust()
    trust.minimum_version = trust.maximum_version = version
    with httpx2.Client(base_url=secured.url, verify=trust, trust_env=False) as client:
        pushed = client.post("/queues/tls/jobs", json={"data": "secret"})
        assert pushed.json()["ok"] is True
        assert client.get("/queues/tls/jobs").json()["job"]["data"] == "secret"


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_clients_choose_their_version_of_http(secured: Secured, protocol: str) -> None:
    trust = secured.trust()
    trust.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", secured.port), timeout=20) as plain,
        trust.wrap_socket(plain, server_hostname="localhost") as opened,
    ):
        assert opened.selected_alpn_protocol() == protocol


def test_metrics_are_served_with_tls(secured: Secured) -> None:
    with httpx2.Client(verify=secured.trust(), trust_env=False) as client:
        assert "penstock_" in client.get(f"https://localhost:{secured.metrics_port}/metrics").text


@pytest.mark.anyio
async def test_websockets_are_served_with_tls(secured: Secured) -> None:
    async with connect(f"wss://localhost:{secured.port}/ws", ssl=secured.trust()) as opened, asyncio.timeout(20):
        await opened.send(json.dumps({"cmd": "Ping", "reqId": 1}))
        assert json.loads(await opened.recv())["ok"] is True


@pytest.mark.anyio
async def test_nothing_is_written_past_the_encryption_when_a_websocket_is_closed_or_refused(secured: Secured) -> None:
    async with connect(f"wss://localhost:{secured.port}/ws", ssl=secured.trust()) as opened, asyncio.timeout(20):
        await opened.send("x" * (limits.message_bytes_max + 1))
        assert "too large" in json.loads(await opened.recv())["error"]
        with pytest.raises(ConnectionClosed) as closed:
            await opened.recv()
    assert closed.value.rcvd is not None, "a close frame arrived"
    assert closed.value.rcvd.code == CloseCode.NO_STATUS_RCVD, "without a code: that is how the server underneath closes"
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"wss://localhost:{secured.port}/nothing", ssl=secured.trust())
    assert refused.value.response.status_code == 404


def test_the_tcp_protocol_is_served_with_tls(secured: Secured) -> None:
    with TcpClient(secured.tcp_port) as client:
        client.socket = secured.trust().wrap_socket(client.socket, server_hostname="localhost")
        client.push("x" * 1_000_000)
        assert len(client.ok("PULL", queue=client.queue)["job"]["data"]) == 1_000_000


def test_the_redis_protocol_is_served_with_tls_and_without_at_the_same_time(tmp_path: Path) -> None:
    plain = free_port()
    cert, key = certificate(tmp_path)
    flags = ("--cert", str(cert), "--key", str(key), "--resp-plain", f"127.0.0.1:{plain}")
    running = ServerProcess(tmp_path / "data", *flags).start()
    assert running.process is not None
    assert running.process.stdout is not None
    with RespClient(running.resp_port) as secure, RespClient(plain, secure.topic) as other:
        trust = ssl.create_default_context(cafile=str(cert))
        secure.socket = trust.wrap_socket(secure.socket, server_hostname="localhost")
        secure.publish("over TLS")
        assert other.ok("RECEIVE", secure.topic) == b"over TLS"
        assert running.stop() == 0
        assert other.read() is END


def test_a_taken_port_of_the_second_listener_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AssertionError, match=f"Cannot listen on {address}.* with --resp-plain"):
            ServerProcess(tmp_path / "data", "--resp-plain", address).start()


def test_without_tls_nothing_is_answered(secured: Secured) -> None:
    for port in (secured.port, secured.tcp_port):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            try:
                answer = plain.recv(1_000)
            except ConnectionError:
                answer = b""
            assert b"HTTP" not in answer


def test_the_server_says_where_it_is(tmp_path: Path) -> None:
    running = Secured(tmp_path, ec_key()).start()
    assert running.process is not None
    assert running.process.stdout is not None
    assert f"https://127.0.0.1:{running.port}" in running.process.stdout.readline()
    assert running.stop() == 0


# Files that cannot be used.


def refused(cert: Path, key: Path) -> str:
    with pytest.raises(ConfigInvalid) as caught:
        listeners.check_tls(load({}, {"TLS_CERT_FILE": str(cert), "TLS_KEY_FILE": str(key)}))
    return str(caught.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other", ec_key(1))
    _, another = certificate(tmp_path, "another", rsa_key())
    rubbish, locked = tmp_path / "rubbish.pem", tmp_path / "locked.key"
    rubbish.write_bytes(b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
    locked.write_bytes(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    (tmp_path / "binary").write_bytes(b"\x30\x82")
    assert (
        refused(tmp_path / "nowhere", key)
        == f"tls_cert_file ({tmp_path}/nowhere) cannot be read: No such file or directory."
    )
    assert refused(cert, tmp_path) == f"tls_key_file ({tmp_path}) cannot be read: Is a directory."
    assert refused(cert, other) == f"tls_key_file ({other}) is not the key of the certificate in tls_cert_file ({cert})."
    assert "tls_key_file" in refused(cert, another)
    assert "cannot be used" in refused(rubbish, key)
    assert "cannot be used" in refused(cert, cert)
    assert "cannot be used" in refused(key, key)
    assert "passphrase" in refused(cert, locked)
    assert "not a PEM file" in refused(tmp_path / "binary", key)


def test_a_server_with_a_wrong_key_does_not_start(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    _, other = certificate(tmp_path, "other", ec_key(1))
    with pytest.raises(AssertionError, match="is not the key of the certificate"):
        ServerProcess(tmp_path / "data", env={"TLS_CERT_FILE": str(cert), "TLS_KEY_FILE": str(other)}).start()


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load({}, {"TLS_CERT_FILE": "x"})
    assert str(caught.value) == (
        "TLS needs both a certificate and its key, and there is only tls_cert_file (from $TLS_CERT_FILE). Set tls_key_file "
        "too, with --key or $TLS_KEY_FILE, or neither."
    )
    with pytest.raises(ConfigInvalid, match=r"only tls_key_file \(from --key\)\. Set tls_cert_file too, with --cert or"):
        load({"tls_key_file": "x"}, {})


def test_who_gave_the_files_by_flags_is_answered_in_flags(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)
    _, other = certificate(tmp_path, "other", ec_key(1))
    with pytest.raises(
        AssertionError, match=f"--key \\({other}\\) is not the key of the certificate in --cert \\({cert}\\)"
    ):
        ServerProcess(tmp_path / "data", "--cert", str(cert), "--key", str(other)).start()


def test_the_flags_are_the_settings(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with ServerProcess(tmp_path / "data", "--cert", str(cert), "--key", str(key)) as running:
        assert curl("--cacert", cert, f"https://localhost:{running.port}/ping").endswith(" 2")


@pytest.mark.parametrize(("version", "shown"), [("--http2", "2"), ("--http1.1", "1.1")])
def test_a_development_certificate_is_made_told_and_trusted(tmp_path: Path, version: str, shown: str) -> None:
    running = ServerProcess(tmp_path / "data", "--dev-cert").start()
    assert running.process is not None
    assert running.process.stdout is not None
    said = list(itertools.takewhile(lambda line: not line.startswith("  data"), running.process.stdout))
    (advice,) = (line.split() for line in said if "curl" in line)
    cert = running.data / "dev-cert.pem"
    assert advice == ["curl", "--cacert", str(cert), f"https://127.0.0.1:{running.port}/health"]
    for host in ("localhost", "127.0.0.1"):
        assert curl(version, "--cacert", cert, f"https://{host}:{running.port}/ping").endswith(f" {shown}")
    with TcpClient(running.tcp_port) as client:
        trust = ssl.create_default_context(cafile=str(cert))
        trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it
        client.socket = trust.wrap_socket(client.socket, server_hostname="localhost")
        client.push("secret")
    with pytest.raises(subprocess.CalledProcessError):
        curl(f"https://localhost:{running.port}/ping")  # it is not trusted by itself
    before = cert.read_bytes()
    assert running.stop() == 0
    assert "there was none" in running.log()
    with running:
        assert cert.read_bytes() == before, "the next start uses it again"


def curl(*args: object) -> str:
    """Return what curl got, and the version of HTTP it was spoken in."""
    command = ["curl", "--silent", "--fail", "--noproxy", "*", "--max-time", "20", "--write-out", " %{http_version}"]
    return subprocess.run([*command, *map(str, args)], capture_output=True, text=True, check=True, timeout=30).stdout


def test_a_key_in_the_older_form_works(tmp_path: Path) -> None:
    with (
        Secured(tmp_path, rsa_key(), "TraditionalOpenSSL") as running,
        httpx2.Client(base_url=running.url, verify=running.trust(), trust_env=False) as client,
    ):
        assert client.get("/health").status_code == 200
