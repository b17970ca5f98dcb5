"""The development certificate: when it is made, when it is made anew, who may read it, and where it is refused."""

from __future__ import annotations

import socket
import stat
import threading
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.config import load
from penstock.core import limits
from penstock.core.errors import ConfigInvalid
from penstock.core.timestamps import from_moment
from penstock.server import dev_cert
from penstock.server.listeners import check_tls
from tests.support.issuer import certificate, ec_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.config import Config
    from penstock.core.clock import ManualClock


def wish(folder: Path) -> Config:
    return load({"data": str(folder), "dev_cert": "yes"}, {})


def made(folder: Path, clock: ManualClock) -> tuple[bytes, bytes]:
    """Start with a development certificate, and return it and its key."""
    config = dev_cert.with_dev_cert(wish(folder), clock)
    assert (config.tls_cert_file, config.tls_key_file) == (folder / "dev-cert.pem", folder / "dev-cert-key.pem")
    assert check_tls(config) is not None, "it can be used"
    assert sorted(each.name for each in folder.iterdir()) == ["dev-cert-key.pem", "dev-cert.pem"], "nothing else is left"
    return (folder / "dev-cert.pem").read_bytes(), (folder / "dev-cert-key.pem").read_bytes()


def test_nobody_gets_one_who_did_not_ask(tmp_path: Path, clock: ManualClock) -> None:
    config = load({"data": str(tmp_path / "data")}, {})
    assert dev_cert.with_dev_cert(config, clock) is config
    assert not (tmp_path / "data").exists()


def test_what_is_in_it(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "My-Laptop.home")
    found = x509.load_pem_x509_certificate(made(tmp_path, clock)[0])
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "my-laptop.home"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False, "it cannot sign others"
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert from_moment(found.not_valid_before_utc) == clock.now_ms() - limits.HOUR_MS
    assert from_moment(found.not_valid_after_utc) == clock.now_ms() + limits.YEAR_MS
    found.verify_directly_issued_by(found)


@pytest.mark.parametrize("host", ["localhost", "ein gerät", "a b", "a..b", ""])
def test_a_host_name_that_no_certificate_can_have_is_left_out(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    found = x509.load_pem_x509_certificate(made(tmp_path, clock)[0])
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert names == ["localhost"]


def test_its_key_is_for_its_owner_only(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "a" / "new" / "directory"
    made(folder, clock)
    assert stat.S_IMODE((folder / "dev-cert-key.pem").stat().st_mode) == 0o600


@pytest.mark.anyio
async def test_it_is_used_again_until_a_week_before_its_end(tmp_path: Path, clock: ManualClock) -> None:
    first = made(tmp_path, clock)
    await clock.advance(limits.YEAR_MS - 7 * limits.DAY_MS)
    assert made(tmp_path, clock) == first
    await clock.advance(1)
    second = made(tmp_path, clock)
    assert second[0] != first[0]
    assert second[1] != first[1]
    assert made(tmp_path, clock) == second


def _cut(folder: Path) -> None:
    file = folder / "dev-cert.pem"
    file.write_bytes(file.read_bytes()[:200])


def _other_key(folder: Path) -> None:
    _, key = certificate(folder.parent, "other", ec_key(1))
    key.replace(folder / "dev-cert-key.pem")
    (folder / "dev-cert-key.pem").chmod(0o600)


def _locked_key(folder: Path) -> None:
    (folder / "dev-cert-key.pem").write_bytes(
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"
    )


def _died(folder: Path) -> None:
    (folder / "dev-cert.pem").unlink()
    for name in ("dev-cert.pem.new", "dev-cert-key.pem.new"):
        (folder / name).write_bytes(b"-----BEGIN")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut off": _cut,
    "empty": lambda folder: (folder / "dev-cert.pem").write_bytes(b""),
    "key cut off": lambda folder: (folder / "dev-cert-key.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\n"),
    "key with a passphrase": _locked_key,
    "no certificate": lambda folder: (folder / "dev-cert.pem").unlink(),
    "no key": lambda folder: (folder / "dev-cert-key.pem").unlink(),
    "key of another one": _other_key,
    "key for everybody": lambda folder: (folder / "dev-cert-key.pem").chmod(0o644),
    "half written by somebody who died": _died,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_that_cannot_be_used_is_made_anew(tmp_path: Path, clock: ManualClock, damage: str) -> None:
    folder = tmp_path / "data"
    first = made(folder, clock)
    DAMAGE[damage](folder)
    second = made(folder, clock)
    assert second[0] != first[0]
    assert stat.S_IMODE((folder / "dev-cert-key.pem").stat().st_mode) == 0o600
    assert made(folder, clock) == second


def test_one_of_tomorrow_is_made_anew(tmp_path: Path, clock: ManualClock) -> None:
    first = made(tmp_path, clock)
    clock.jump_wall(-limits.DAY_MS)
    assert made(tmp_path, clock) != first


def test_servers_that_start_together_agree(tmp_path: Path, clock: ManualClock) -> None:
    found: list[Config] = []
    starts = [threading.Thread(target=lambda: found.append(dev_cert.with_dev_cert(wish(tmp_path), clock))) for _ in range(8)]
    for each in starts:
        each.start()
    for each in starts:
        each.join()
    assert len(found) == 8
    assert check_tls(found[0]) is not None


def test_what_cannot_be_read_or_written_is_explained(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "dev-cert.pem").mkdir()
    with pytest.raises(ConfigInvalid, match=r"dev-cert.pem cannot be read: Is a directory. Remove it"):
        dev_cert.with_dev_cert(wish(tmp_path), clock)
    (tmp_path / "dev-cert.pem").rmdir()
    (tmp_path / "dev-cert-key.pem.new").mkdir()
    with pytest.raises(ConfigInvalid, match=r"dev-cert-key.pem cannot be written: .*with --cert and --key"):
        dev_cert.with_dev_cert(wish(tmp_path), clock)


@pytest.mark.parametrize("listener", ["http", "tcp", "metrics", "batches", "topics"])
def test_it_is_refused_where_other_machines_come_in(listener: str) -> None:
    flags = {listener: "0.0.0.0:1234", "dev_cert": "yes"}
    with pytest.raises(
        ConfigInvalid, match=r"0\.0\.0\.0:1234 with a development certificate.* --cert and --key, or listen on"
    ):
        load(flags, {"AUTH_TOKENS": "secret"})
    assert load({**flags, "insecure": "yes"}, {}).dev_cert, "unless somebody insists"


def test_it_is_refused_next_to_another_certificate() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        load({"dev_cert": "yes", "tls_cert_file": "a.pem"}, {"TLS_KEY_FILE": "b.pem"})
    assert str(caught.value) == (
        "There is a certificate in tls_cert_file (from --cert) and tls_key_file (from $TLS_KEY_FILE), and dev_cert (from "
        "--dev-cert) creates another one. Remove one of the two settings."
    )
