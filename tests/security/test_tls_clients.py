"""TLS under attack: weak ciphers are not offered on any listener, and a client without a certificate gets no answer."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.client import Client
from penstock.config import load
from penstock.core.errors import ConfigInvalid
from penstock.server.listeners import check_tls
from tests.support.issuer import certificate, ec_key, private_pem, rsa_key
from tests.support.ports import free_port
from tests.support.resp import RespClient
from tests.support.server import ServerProcess
from tests.support.tcp import TcpClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LISTENERS = ("http", "tcp", "resp", "metrics", "batches", "topics", "messages")
each_listener = pytest.mark.parametrize("listener", LISTENERS)


class Files(NamedTuple):
    """What both sides need."""

    cert: Path  #: of the server, which its clients trust
    key: Path
    ca: Path  #: that certificates of clients are from
    client: Path  #: a certificate of a client, with its key in the same file
    stranger: Path  #: one that another authority has issued


class Running(NamedTuple):
    """A server, the ports of all its listeners, and the files of its clients."""

    server: ServerProcess
    ports: dict[str, int]
    files: Files

    def trust(self, cert: Path | None = None) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.files.cert))
        if cert is not None:
            made.load_cert_chain(cert)
        return made

    def get(self, listener: str, trust: ssl.SSLContext) -> bytes:
        """Send a request, and return what comes: nothing, or an error of TLS, if the server refuses the client."""
        asked = {"tcp": b"\0\0\0\1x", "resp": b"PING\r\n"}.get(listener, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with (
            socket.create_connection(("127.0.0.1", self.ports[listener]), timeout=20) as plain,
            trust.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            opened.sendall(asked)
            return opened.recv(1_000)


def issue(folder: Path, name: str, number: int) -> tuple[Path, Path]:
    """Write an authority, and a certificate with its key that it issued to a client."""
    ca, ca_key = certificate(folder, f"{name}-ca", ec_key(number))
    authority = x509.load_pem_x509_certificate(ca.read_bytes())
    own = ec_key(number + 100)
    signed = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.subject)
        .public_key(own.public_key())
        .serial_number(number)
        .not_valid_before(authority.not_valid_before_utc)
        .not_valid_after(authority.not_valid_before_utc + dt.timedelta(days=36_000))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ec_key(number), hashes.SHA256())
    )
    ca_key.unlink()
    both = folder / f"{name}.pem"
    both.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + private_pem(own))
    return ca, both


def started(folder: Path, *more: str, files: Files) -> Running:
    ports = {name: free_port() for name in LISTENERS[3:]}
    flags = [text for name, port in ports.items() for text in (f"--{name}", f"127.0.0.1:{port}")]
    server = ServerProcess(folder / "data", "--cert", str(files.cert), "--key", str(files.key), *more, *flags).start()
    return Running(server, {"http": server.port, "tcp": server.tcp_port, "resp": server.resp_port, **ports}, files)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    cert, key = certificate(folder, key=rsa_key())  # most of the weak ciphers are for these
    (ca, client), (_, stranger) = issue(folder, "worker", 1), issue(folder, "stranger", 2)
    return Files(cert, key, ca, client, stranger)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Running]:
    """A server that asks clients for no certificate."""
    found = started(tmp_path_factory.mktemp("tls"), files=files)
    yield found
    found.server.stop()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Iterator[Running]:
    """A server that asks every client for a certificate."""
    found = started(tmp_path_factory.mktemp("mutual"), "--client-ca", str(files.ca), files=files)
    yield found
    found.server.stop()


# Ciphers.


def with_cipher(running: Running, listener: str, cipher: str) -> str | None:
    """Return the cipher of a connection whose client offers one only; None if the server refuses."""
    trust = running.trust()
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    trust.set_ciphers(f"{cipher}:@SECLEVEL=0")
    try:
        with (
            socket.create_connection(("127.0.0.1", running.ports[listener]), timeout=20) as plain,
            trust.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            used = opened.cipher()
            return None if used is None else used[0]
    except (ssl.SSLError, ConnectionError):
        return None


@each_listener
def test_only_authenticated_encryption_with_forward_secrecy_is_offered(plain: Running, listener: str) -> None:
    everything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    everything.set_ciphers("ALL:@SECLEVEL=0")
    old = [each["name"] for each in everything.get_ciphers() if each["protocol"] != "TLSv1.3" and each["auth"] == "auth-rsa"]
    assert "ECDHE-RSA-AES256-SHA384" in old
    assert "AES128-GCM-SHA256" in old, "no forward secrecy"
    taken = {each for each in old if with_cipher(plain, listener, each) is not None}
    good = {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-CHACHA20-POLY1305"}
    assert taken == good


@each_listener
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(plain: Running, listener: str, version: ssl.TLSVersion) -> None:
    trust = plain.trust()
    trust.set_ciphers("ALL:@SECLEVEL=0")
    trust.minimum_version = trust.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)):
        plain.get(listener, trust)


# Certificates of clients.


@each_listener
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_gets_no_answer(mutual: Running, listener: str, version: ssl.TLSVersion) -> None:
    for cert in (None, mutual.files.stranger):
        trust = mutual.trust(cert)
        trust.minimum_version = trust.maximum_version = version
        try:
            answer = mutual.get(listener, trust)
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b"", cert
    trust = mutual.trust(mutual.files.client)
    trust.minimum_version = trust.maximum_version = version
    assert mutual.get(listener, trust) != b""


def test_a_client_with_a_certificate_is_served_on_all_protocols(mutual: Running) -> None:
    trust = mutual.trust(mutual.files.client)
    with httpx2.Client(base_url=f"https://localhost:{mutual.server.port}", verify=trust, trust_env=False) as http:
        assert http.post("/queues/mutual/jobs", json={"data": "x"}).json()["ok"] is True
    with TcpClient(mutual.server.tcp_port) as tcp:
        tcp.socket = trust.wrap_socket(tcp.socket, server_hostname="localhost")
        tcp.push("secret")
    with RespClient(mutual.server.resp_port) as resp:
        resp.socket = trust.wrap_socket(resp.socket, server_hostname="localhost")
        assert resp.ok("PING") == b"pong"


def test_a_certificate_is_no_key(tmp_path: Path, files: Files) -> None:
    flags = ("--cert", str(files.cert), "--key", str(files.key), "--client-ca", str(files.ca))
    secret = "a token of enough characters".replace(" ", "-")
    with (
        ServerProcess(tmp_path / "data", *flags, env={"AUTH_TOKENS": secret}) as running,
        Client(f"https://localhost:{running.port}", ca=files.cert, cert=files.client, token=secret) as client,
    ):
        client.jobs.push("mutual", 1)
        trust = ssl.create_default_context(cafile=str(files.cert))
        trust.load_cert_chain(files.client)
        with httpx2.Client(base_url=f"https://localhost:{running.port}", verify=trust, trust_env=False) as http:
            assert http.post("/queues/mutual/jobs", json={"data": "x"}).status_code == 401


def test_the_sdk_shows_its_certificate(mutual: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"https://localhost:{mutual.server.port}"
    with Client(url, ca=mutual.files.cert, cert=mutual.files.client) as client:
        assert client.jobs.push("sdk", {"n": 1})
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.setenv("PENSTOCK_TLS_CA_FILE", str(mutual.files.cert))
    monkeypatch.setenv("PENSTOCK_TLS_CERT_FILE", str(mutual.files.client))
    with Client.from_env() as client:
        assert client.jobs.push("sdk", {"n": 2})
    with (
        pytest.raises(Exception, match=r"(?i)certificate|ssl|closed|reset|eof|disconnected"),
        Client(url, ca=mutual.files.cert, retry_for=0) as client,
    ):
        client.jobs.push("sdk", {"n": 3})


def test_the_command_line_shows_its_certificate(mutual: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"https://localhost:{mutual.server.port}")
    monkeypatch.setenv("PENSTOCK_TLS_CA_FILE", str(mutual.files.cert))
    command = [sys.executable, "-m", "penstock", "shards", "status"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    monkeypatch.setenv("PENSTOCK_TLS_CERT_FILE", str(mutual.files.client))
    subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_files_of_the_sdk_that_cannot_be_used_are_named(files: Files, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.pem"
    with pytest.raises(ValueError, match=r"ca \(.*nowhere.pem\) cannot be used: No such file"):
        Client("https://localhost:1", ca=nowhere)
    with pytest.raises(ValueError, match=r"cert \(.*nowhere.pem\) cannot be used: No such file"):
        Client("https://localhost:1", cert=nowhere)
    with pytest.raises(ValueError, match="verify cannot be given together with ca or cert"):
        Client("https://localhost:1", verify=False, ca=files.cert)


# Settings.


def test_authorities_that_cannot_be_used_are_named(tmp_path: Path, files: Files) -> None:
    server = {"TLS_CERT_FILE": str(files.cert), "TLS_KEY_FILE": str(files.key)}
    for text, reason in (
        (None, "cannot be read: No such file"),
        ("rubbish", "cannot be used"),
        ("", "cannot be used|has no"),
    ):
        file = tmp_path / "ca.pem"
        if text is not None:
            file.write_text(text)
        with pytest.raises(ConfigInvalid, match=rf"tls_client_ca_file \({file}\) ({reason})"):
            check_tls(load({}, server | {"TLS_CLIENT_CA_FILE": str(file)}))
    with pytest.raises(
        ConfigInvalid, match=r"tls_client_ca_file \(from --client-ca\) requires certificates of clients, .* --cert and --key"
    ):
        load({"tls_client_ca_file": str(files.ca)}, {})
    noted = load({"tls_client_ca_file": "x", "dev_cert": "yes", "resp_plain": "127.0.0.1:1"}, {}).notes
    assert noted == ("resp_plain never uses TLS, so its clients need no certificate, although tls_client_ca_file is set.",)
