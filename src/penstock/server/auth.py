"""Build the authenticator of all doors, and the quotas, from the configuration.

The cryptography for signed tokens is imported only when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.access.api_keys import ApiKeys
from penstock.access.authenticator import Authenticator
from penstock.access.identity import WORDS
from penstock.access.quotas import Counter, Quotas
from penstock.core import limits
from penstock.core.errors import ConfigInvalid, InvalidInput
from penstock.outbound.fetch import Fetcher

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.access.jwt_keys import Key
    from penstock.config import Config
    from penstock.core.clock import Clock
    from penstock.outbound.guard import Guard
    from penstock.store.contract import Store

T = TypeVar("T")


def jwt_keys(config: Config) -> list[Key]:
    """Return the keys for the signatures of tokens, except for those that have to be fetched. Raises ConfigInvalid."""
    if not (config.jwt_secret or config.jwt_key_file or config.jwt_jwks):
        return []
    from penstock.access.jwt_keys import jwks_keys, pem_key, secret_key  # noqa: PLC0415, see above

    keys: list[Key] = []
    if config.jwt_secret:
        keys += _usable("jwt_secret", lambda: [secret_key(config.jwt_secret)])
    if config.jwt_key_file is not None:
        keys += _usable(f"jwt_key_file ({config.jwt_key_file})", lambda: [pem_key(_read(config.jwt_key_file))])
    if config.jwt_jwks and "://" not in config.jwt_jwks:
        keys += _usable(f"jwt_jwks ({config.jwt_jwks})", lambda: jwks_keys(_read(config.jwt_jwks)))
    return keys


def authenticator_of(config: Config, clock: Clock, guard: Guard) -> Authenticator:
    """Return the authenticator of all doors. Raises ConfigInvalid for keys that cannot be used."""
    tokens = (*config.auth_tokens, config.api_key) if config.api_key else config.auth_tokens
    keys = jwt_keys(config)
    fetch: Fetcher | None = None
    if "://" in config.jwt_jwks:
        _usable(f"jwt_jwks ({config.jwt_jwks})", lambda: [guard.check(config.jwt_jwks)])
        size, wait = limits.jwks_bytes_max, limits.jwks_fetch_ms_max
        fetch = Fetcher(clock, guard, config.jwt_jwks, timeout_ms=wait, bytes_max=size)
    if not keys and fetch is None:
        return Authenticator(clock, tokens, required=config.auth_required)
    from penstock.access.jwt import TokenRules, Verifier  # noqa: PLC0415, see above
    from penstock.access.jwt_keys import KeyRing  # noqa: PLC0415

    key_ring = KeyRing(clock, keys, fetch)
    key_ring.tend()
    defaults = tuple(_usable("jwt_default_scopes", lambda: [_checked_scope(each) for each in config.jwt_default_scopes]))
    rules = TokenRules(config.jwt_leeway_ms, config.jwt_required_claims, config.jwt_audience, config.jwt_issuer, defaults)
    return Authenticator(clock, tokens, Verifier(clock, key_ring, rules), required=config.auth_required)


def _checked_scope(scope: str) -> str:
    """Return a scope. Raises ValueError for a scope without any permission."""
    namespace, colon, word = scope.rpartition(":")
    if word not in WORDS or (colon and not namespace):
        raise ValueError(f"{scope!r} is not a scope; expected NAMESPACE:WORD, with one of the words {', '.join(WORDS)}")
    return scope


async def keys_for(authenticator: Authenticator, store: Store, clock: Clock) -> ApiKeys:
    """Let an authenticator accept the API keys of a store, and follow their changes until it is closed."""
    keys = ApiKeys(store, clock)
    await keys.start()
    authenticator.use(keys)
    return keys


def _usable(setting: str, read: Callable[[], list[T]]) -> list[T]:
    try:
        return read()
    except OSError as error:
        raise ConfigInvalid(f"{setting} cannot be read: {error.strerror}.") from None
    except (ValueError, InvalidInput) as error:
        raise ConfigInvalid(f"{setting} cannot be used: {str(error).replace('Webhook URL', 'it')}.") from None


def _read(file: Path | str | None) -> bytes:
    assert file is not None
    with Path(file).open("rb") as opened:
        return opened.read(limits.jwks_bytes_max + 1)


def quotas_of(quotas: Mapping[str, int], stores: Sequence[Store], clock: Clock) -> Quotas | None:
    """Return the quotas of namespaces, in jobs per minute (``*``: each that is not listed). None: there are no quotas."""
    return Quotas(quotas, Counter(stores, clock)) if quotas else None
