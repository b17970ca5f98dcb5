"""The keys that check tokens. A key fixes its own algorithm; the header of a token never does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from penstock.core import limits
from penstock.core.errors import KeysUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.core.clock import Clock

    #: Fetches a JWKS document. Raises OSError.
    Fetch = Callable[[], Awaitable[bytes]]

log = structlog.get_logger("penstock.access")

SHARED_ALGORITHM: Final = "HS256"
PUBLIC_ALGORITHMS: Final = frozenset(("RS256", "ES256"))


class Key(NamedTuple):
    """A key, its name (None: no name), and its only algorithm."""

    kid: str | None
    algorithm: str
    value: Any


def secret_key(secret: str) -> Key:
    """Return the key for a shared secret. Raises ValueError if it is too short, or is not a secret."""
    if "-----BEGIN " in secret or secret.startswith(("ssh-rsa", "ecdsa-sha2-")):
        raise ValueError("this is a public key, not a secret; set jwt_key_file for a public key")
    if len(secret.encode()) < limits.secret_bytes_min:
        raise ValueError(f"expected at least {limits.secret_bytes_min} bytes, for example from: openssl rand -base64 32")
    return Key(None, SHARED_ALGORITHM, secret.encode())


def pem_key(pem: bytes) -> Key:
    """Return the key in a PEM file: a public key, or a certificate. Raises ValueError with the problem."""
    if b"PRIVATE KEY-----" in pem:
        raise ValueError("it has a private key, which only the issuer of tokens may have. Use its public key")
    try:
        if b"BEGIN CERTIFICATE" in pem:
            value: object = x509.load_pem_x509_certificate(pem).public_key()
        else:
            value = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("it has no public key in PEM form") from None
    return Key(None, _algorithm_of(value), value)


def jwks_keys(document: bytes) -> list[Key]:
    """Return the usable keys of a JWKS document. Raises ValueError if there is none.

    Keys that are not for signatures by RS256 or ES256 are left out: other algorithms, encryption, and above all shared
    secrets, because a secret in a public document is not secret.
    """
    if len(document) > limits.jwks_bytes_max:
        raise ValueError(f"the key set is too large (max {limits.jwks_bytes_max} bytes)")
    try:
        listed = msgspec.json.decode(document, type=dict[str, Any]).get("keys")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("the key set is not JSON") from None
    if not isinstance(listed, list):
        raise ValueError("the key set has no list of keys")  # noqa: TRY004 - it is the document that is wrong
    keys = [key for each in listed[: limits.jwks_keys_max] if (key := _jwk(each)) is not None]
    if not keys:
        raise ValueError("the key set has no public key for RS256 or ES256")
    return keys


def _jwk(given: object) -> Key | None:
    if not isinstance(given, dict) or "d" in given or given.get("use", "sig") != "sig":
        return None
    algorithm = {"RSA": "RS256", "EC": "ES256"}.get(str(given.get("kty")))
    operations = given.get("key_ops")
    if algorithm is None or given.get("alg", algorithm) != algorithm:
        return None
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    kid = given.get("kid")
    try:
        value = PyJWK(given, algorithm=algorithm).key
        if not isinstance(kid, str | None) or _algorithm_of(value) != algorithm:
            return None
    except (PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return Key(kid, algorithm, value)


def _algorithm_of(value: object) -> str:
    if isinstance(value, RSAPublicKey):
        if value.key_size < limits.rsa_bits_min:
            raise ValueError(f"its RSA key has {value.key_size} bits; expected at least {limits.rsa_bits_min}")
        return "RS256"
    if isinstance(value, EllipticCurvePublicKey) and isinstance(value.curve, SECP256R1):
        return "ES256"
    raise ValueError("expected an RSA key (RS256) or an elliptic-curve key on P-256 (ES256)")


class KeyRing:
    """All keys. ``fixed`` keys stay. ``fetch`` gets more, and again when they are old or a token names an unknown key.

    Fetches are at least ``jwks_pause_ms`` apart, however many tokens cause them. If one fails, the keys stay unchanged.
    """

    def __init__(self, clock: Clock, fixed: Sequence[Key] = (), fetch: Fetch | None = None) -> None:
        self.version = 0  #: increased when keys change
        self._clock = clock
        self._fixed = list(fixed)
        self._fetch = fetch
        self._fetched: list[Key] = []
        self._asked_at: int | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, algorithm: str, kid: str | None) -> list[Key]:
        """Return the keys that may have signed a token. Raises KeysUnavailable while none could be fetched."""
        found = self._among(algorithm, kid)
        if found or self._fetch is None or algorithm not in PUBLIC_ALGORITHMS:
            return found
        self._begin()
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        if not self._fetched:
            raise KeysUnavailable
        return self._among(algorithm, kid)

    def tend(self) -> None:
        """Fetch keys again if they are old. The old ones are used meanwhile."""
        old = self._asked_at is None or self._clock.steady_ms() - self._asked_at >= limits.jwks_age_ms
        if old and self._fetch is not None:
            self._begin()

    async def close(self) -> None:
        """Stop fetching."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _among(self, algorithm: str, kid: str | None) -> list[Key]:
        """Return matching keys. A named key matches its name, or no name if it is the only key of its algorithm."""
        keys = [key for key in (*self._fixed, *self._fetched) if key.algorithm == algorithm]
        if kid is None:
            return keys if len(keys) == 1 else [key for key in keys if key.kid is None]
        return [key for key in keys if key.kid == kid or key.kid is None]

    def _begin(self) -> None:
        now = self._clock.steady_ms()
        if self._fetching is None and (self._asked_at is None or now - self._asked_at >= limits.jwks_pause_ms):
            self._asked_at = now
            self._fetching = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        assert self._fetch is not None
        try:
            self._fetched = jwks_keys(await self._fetch())
            self.version += 1
        except (OSError, ValueError) as error:
            log.warning("the keys for JSON Web Tokens could not be fetched", reason=str(error))
        finally:
            self._fetching = None
