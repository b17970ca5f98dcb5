"""The development certificate: created on request, self-signed, for names of this machine only.

It is not an authority. A client that trusts it trusts only this certificate, so a stolen key is useful against this server
only. It is created, checked and renewed when a server starts, never while it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import socket
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.core import limits
from penstock.core.errors import ConfigInvalid
from penstock.core.timestamps import from_moment, to_moment, to_rfc3339
from penstock.store.data_directory import prepare_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.config import Config
    from penstock.core.clock import Clock

log = structlog.get_logger("penstock")

CERT: Final = "dev-cert.pem"
KEY: Final = "dev-cert-key.pem"
#: How long it is valid. Some systems refuse more than 825 days, even for certificates that the user trusts.
VALID_MS: Final = limits.YEAR_MS
#: A certificate that expires within this time is renewed.
RENEW_MS: Final = 7 * limits.DAY_MS
#: It is valid from a moment in the past, for clients whose clock is behind.
EARLY_MS: Final = limits.HOUR_MS


def with_dev_cert(config: Config, clock: Clock) -> Config:
    """Return the configuration with the development certificate, if ``dev_cert`` is set; otherwise unchanged.

    The certificate is in the data directory. It is created there if there is none, and renewed if it expires within a week
    or cannot be used. Raises ConfigInvalid if it cannot be read or written.
    """
    if not config.dev_cert:
        return config
    prepare_directory(config.data)
    cert, key = config.data / CERT, config.data / KEY
    with _alone(config.data):  # two servers that start together must not mix their files
        reason = _why_anew(cert, key, clock.now_ms())
        if reason:
            ends = _make(cert, key, clock.now_ms())
            log.warning("made a development certificate", file=str(cert), reason=reason, ends=to_rfc3339(ends))
    return msgspec.structs.replace(config, tls_cert_file=cert, tls_key_file=key)


def _why_anew(cert: Path, key: Path, now_ms: int) -> str:
    """Return why the certificate has to be renewed, for the log; empty if it can be used."""
    cert_pem, key_pem = _read(cert), _read(key)
    if cert_pem is None and key_pem is None:
        return "there was none"
    if cert_pem is None or key_pem is None:
        return f"{CERT if cert_pem is None else KEY} was missing"
    try:
        found = x509.load_pem_x509_certificate(cert_pem)
        private = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # invalid data, with a passphrase, or of an unsupported kind
        return "it was damaged"
    if private.public_key() != found.public_key():
        return "the key did not match the certificate"
    about = key.stat()
    if about.st_mode & 0o077 or about.st_uid != os.geteuid():
        return "others could read its key"
    if from_moment(found.not_valid_before_utc) > now_ms:
        return "it was not valid yet"
    if from_moment(found.not_valid_after_utc) < now_ms + RENEW_MS:
        return "it ended within a week"
    return ""


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigInvalid(
            f"The development certificate {file} cannot be read: {error.strerror}. Remove it, and the server creates a new "
            "one, or do not set --dev-cert."
        ) from None


def _make(cert: Path, key: Path, now_ms: int) -> int:
    """Create a key and a self-signed certificate, and return the time when it expires."""
    private = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock development")])
    ends = now_ms + VALID_MS
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(to_moment(now_ms - EARLY_MS))
        .not_valid_after(to_moment(ends))
        .add_extension(x509.SubjectAlternativeName(_names()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(key, plain, 0o600)
    _write(cert, signed.public_bytes(pem), 0o644)
    return ends


def _names() -> list[x509.GeneralName]:
    """Return the names under which clients on this machine reach it."""
    names: list[x509.GeneralName] = [x509.DNSName("localhost")]
    host = socket.gethostname().lower()
    if host != "localhost" and re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", host):  # others are not valid in a certificate
        names.append(x509.DNSName(host))
    return [*names, *(x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1"))]


def _write(file: Path, content: bytes, mode: int) -> None:
    """Write a file completely or not at all. Other users cannot read it at any moment, unless ``mode`` allows it."""
    new = file.with_name(f"{file.name}.new")
    try:
        new.unlink(missing_ok=True)  # of a server that was killed while it wrote
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
            os.fchmod(opened.fileno(), mode)  # with any umask: clients of other users trust the certificate
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)
        sync_directory(file.parent)
    except OSError as error:
        raise ConfigInvalid(
            f"The development certificate {file} cannot be written: {error.strerror}. Choose another directory with --data, or "
            "set your own certificate with --cert and --key."
        ) from None


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Let other servers that start with the same directory wait."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
