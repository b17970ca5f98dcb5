"""JSON Web Tokens: checks them with our keys and our clock, and returns identities."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from jwt import PyJWS
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_decode, base64url_encode

from penstock.access.identity import Identity, grants_of
from penstock.access.jwt_keys import PUBLIC_ALGORITHMS, SHARED_ALGORITHM
from penstock.core import limits
from penstock.core.errors import Unauthorized

if TYPE_CHECKING:
    from penstock.access.jwt_keys import KeyRing
    from penstock.core.clock import Clock

#: Three parts in base64url without padding (RFC 7515, 2), of which the last two may be empty here.
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_FOREVER_MS: Final = 2**62
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


class TokenRules(NamedTuple):
    """The rules for a token, besides its signature and its times.

    ``leeway_ms``: the allowed difference of clocks. ``required``: claims that must be present. ``audience`` and ``issuer``:
    the required values (empty: not checked, but then a token with an audience is refused). ``default_scopes``: the rights of
    a token without scopes.
    """

    leeway_ms: int = 0
    required: tuple[str, ...] = ("exp",)
    audience: str = ""
    issuer: str = ""
    default_scopes: tuple[str, ...] = ()


class Verifier:
    """Checks tokens. Tokens with a valid signature are cached by their digest, so that it is checked only once."""

    def __init__(self, clock: Clock, keys: KeyRing, rules: TokenRules) -> None:
        self._clock = clock
        self._keys = keys
        self._rules = rules
        self._jws = PyJWS(algorithms=[SHARED_ALGORITHM, *PUBLIC_ALGORITHMS])
        self._known: dict[bytes, Identity] = {}
        self._version = keys.version

    async def identify(self, token: str) -> Identity:
        """Return the identity of a token. Raises Unauthorized, or KeysUnavailable.

        The reason of a refusal is given only if the signature is valid.
        """
        if len(token) > limits.token_chars_max or _FORM.fullmatch(token) is None:
            raise Unauthorized
        self._keys.tend()
        if self._version != self._keys.version:  # a key may have been withdrawn
            self._known.clear()
            self._version = self._keys.version
        digest = hashlib.sha256(token.encode()).digest()
        identity = self._known.pop(digest, None)
        if identity is None:
            identity = self._identity_of(await self._claims(token))
        if identity.expired(self._clock.now_ms()):
            raise Unauthorized("The token has expired. Get a new one.")
        self._known[digest] = identity  # moved to the end: last used
        if len(self._known) > limits.known_tokens_max:
            del self._known[next(iter(self._known))]
        return identity

    async def close(self) -> None:
        """Stop the work in progress."""
        await self._keys.close()

    async def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token, if one of our keys has signed it."""
        try:
            header = self._jws.get_unverified_header(token)
            signature = token.rpartition(".")[2].encode()
            if base64url_encode(base64url_decode(signature)) != signature:  # bits beyond its end: a second spelling
                raise Unauthorized
        except (PyJWTError, ValueError):
            raise Unauthorized from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(kid, str | None) or "crit" in header or "b64" in header:
            raise Unauthorized
        # The token's algorithm only selects keys for it; each key is used with its own algorithm and no other.
        for key in await self._keys.find(algorithm, kid):
            try:
                return _decode(self._jws.decode(token, key.value, algorithms=[key.algorithm]))
            except (PyJWTError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
        raise Unauthorized

    def _identity_of(self, claims: dict[str, Any]) -> Identity:
        """Return the identity of the claims. The caller checks the expiry."""
        rules, now = self._rules, self._clock.now_ms()
        for name in rules.required:
            if claims.get(name) is None:
                raise Unauthorized(f"The token has no claim {name}. Request one from the issuer.")
        expires, begins, issued = (_moment(claims, name) for name in ("exp", "nbf", "iat"))
        if any(moment is not None and now + rules.leeway_ms < moment for moment in (begins, issued)):
            raise Unauthorized("The token is not valid yet. Check the clocks, or wait.")
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
        if rules.audience and rules.audience not in audiences:
            raise Unauthorized("The audience of the token is not jwt_audience.")
        if audience is not None and not rules.audience:
            raise Unauthorized(
                "The token is for an audience, and jwt_audience is not set. Set it to the name of this server."
            )
        if rules.issuer and claims.get("iss") != rules.issuer:
            raise Unauthorized("The issuer of the token is not jwt_issuer.")
        subject = claims.get("sub")
        if not isinstance(subject, str | None):
            raise Unauthorized("The token's claim sub must be a string. Request one from the issuer.")
        grants = grants_of(claims, rules.default_scopes)
        return Identity(subject or "", grants, None if expires is None else expires + rules.leeway_ms)


def _moment(claims: dict[str, Any], name: str) -> int | None:
    """Return a claim that is a time, in milliseconds."""
    value = claims.get(name)
    if value is None:
        return None
    is_finite = math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and not isinstance(value, bool)
    if not is_finite:
        raise Unauthorized(f"The token's claim {name} must be a number of seconds. Request one from the issuer.")
    return int(max(-_FOREVER_MS, min(value * 1_000, _FOREVER_MS)))
