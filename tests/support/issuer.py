"""Somebody who issues tokens and certificates, as an identity provider or an attacker would."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import ipaddress
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

    PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

SECRET = "fYXSb6rYIpxCKOvIv5hKWKph+2B//Wie9kV7sj6Ot44="
FAR = 9_999_999_999


def rsa_key(number: int = 0, bits: int = 2_048) -> rsa.RSAPrivateKey:
    return _rsa_key(number, bits)


def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return _ec_key(number)


@cache
def _rsa_key(_number: int, bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, bits)


@cache
def _ec_key(_number: int) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: PrivateKey) -> bytes:
    spelled = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, spelled)


def private_pem(key: PrivateKey, form: str = "PKCS8") -> bytes:
    spelled = getattr(serialization.PrivateFormat, form)
    return key.private_bytes(serialization.Encoding.PEM, spelled, serialization.NoEncryption())


def jwk(key: PrivateKey, kid: str | None, **more: Any) -> dict[str, Any]:
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        made = jwt.algorithms.RSAAlgorithm.to_jwk(public, as_dict=True)
    else:
        made = jwt.algorithms.ECAlgorithm.to_jwk(public, as_dict=True)
    return {name: value for name, value in made.items() if name != "key_ops"} | ({} if kid is None else {"kid": kid}) | more


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def token(
    key: Any = SECRET, algorithm: str = "HS256", *, kid: str | None = None, header: Any = None, exp: Any = FAR, **claims: Any
) -> str:
    """Sign a token that may do everything, unless ``scopes`` says what (None: it does not say)."""
    headers = ({} if kid is None else {"kid": kid}) | (header or {})
    given = {"exp": exp, "scopes": ["*:admin"], **claims}
    given = {name: value for name, value in given.items() if value is not None or name not in ("exp", "scopes")}
    return jwt.encode({"sub": "test-user", **given}, key, algorithm=algorithm, headers=headers)


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def forged(header: Any, claims: Any, signature: bytes = b"") -> str:
    """A token that no library would make."""
    head, body = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, claims))
    return f"{encoded(head)}.{encoded(body)}.{encoded(signature)}"


def confused(public: bytes, claims: dict[str, Any]) -> str:
    """A token signed by HS256 with a public key as the secret."""
    unsigned = forged({"alg": "HS256", "typ": "JWT"}, claims).rpartition(".")[0]
    return f"{unsigned}.{encoded(hmac.new(public, unsigned.encode(), hashlib.sha256).digest())}"


def certificate(folder: Path, name: str = "server", key: PrivateKey | None = None, form: str = "PKCS8") -> tuple[Path, Path]:
    """Write a certificate for localhost that it signed itself, and its key."""
    made = key or ec_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(made.public_key())
        .serial_number(7)
        .not_valid_before(day)
        .not_valid_after(day + dt.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(made, hashes.SHA256())
    )
    cert, private = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(private_pem(made, form))
    return cert, private
