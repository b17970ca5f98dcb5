"""API keys: created and revoked by people, stored as hashes, known to every server within about a second.

All keys are in memory, so a request needs no query. Keys are in one store, the first shard. Other servers that share it may
change them, so the number of changes is read every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from penstock.access.identity import ANYWHERE, WORDS, Identity
from penstock.core import limits
from penstock.core.apikey import PREFIX, ApiKey
from penstock.core.clock import pause
from penstock.core.errors import InvalidInput, KeyNotFound, KeysUnavailable, ServerError, Unauthorized
from penstock.core.pool_shares import Shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.store.contract import Store

log = structlog.get_logger("penstock.access")

#: Interval of checks for changes by other servers. A revoked key may stay valid there for this time plus one query.
CHECK_EVERY_MS: Final = 1_000
NOT_READ: Final = "The API keys cannot be read now. The server's log has the reason. Retry in a moment."
ROLES: Final = ("produce", "consume", "admin")
_ID_BYTES: Final = 6
_SECRET_BYTES: Final = 20
_TEXT_CHARS: Final = len(PREFIX) + 2 * _ID_BYTES + 1 + 2 * _SECRET_BYTES
_NO_DIGEST: Final = bytes(32)


class KeyRequest(NamedTuple):
    """A request for a key: its namespaces, its roles, its label, and how long it is valid (None: until it is revoked)."""

    namespaces: tuple[str, ...]
    roles: tuple[str, ...]
    label: str = ""
    lasts_ms: int | None = None


class CreatedKey(NamedTuple):
    """A new key, and its text, which is shown only once."""

    key: ApiKey
    text: str


def check_request(
    namespaces: Sequence[str], roles: Sequence[str], label: str = "", lasts_ms: int | None = None
) -> KeyRequest:
    """Return a valid request, with each namespace and role once. Raises InvalidInput with the expected values.

    The doors check the names of namespaces.
    """
    if not namespaces or len(namespaces) > limits.api_key_namespaces_max:
        raise InvalidInput(f"namespaces must be a list of 1 to {limits.api_key_namespaces_max} names, or of '*' for all")
    if not roles or not set(roles) <= set(ROLES):
        raise InvalidInput(f"roles must be a list of one or more of: {', '.join(ROLES)}")
    if len(label) > limits.api_key_label_chars_max or not label.isprintable():
        raise InvalidInput(f"label must be one line of at most {limits.api_key_label_chars_max} characters")
    if lasts_ms is not None and not 0 < lasts_ms <= limits.api_key_ms_max:
        raise InvalidInput(f"a key must be valid for 1 to {limits.api_key_ms_max} ms")
    return KeyRequest(tuple(dict.fromkeys(namespaces)), tuple(dict.fromkeys(roles)), label, lasts_ms)


async def make_key(store: Store, wish: KeyRequest) -> CreatedKey:
    """Create a key and store it. Raises TooMany, StorageFailed."""
    key_id = secrets.token_hex(_ID_BYTES)
    text = f"{PREFIX}{key_id}_{secrets.token_hex(_SECRET_BYTES)}"
    now = store.clock.now_ms()
    expires_at = None if wish.lasts_ms is None else now + wish.lasts_ms
    key = ApiKey(key_id, _digest(text), wish.namespaces, wish.roles, wish.label, now, expires_at)
    await store.key_add(key, limits.api_keys_max)
    return CreatedKey(key, text)


class ApiKeys:
    """All keys of a store, and their identities. ``when_changed`` is called after every change that was read."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._keys: dict[str, ApiKey] = {}
        self._identities: dict[str, Identity] = {}
        self._revision = -1
        self._changing = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        self.pool_shares = Shares()  #: how many of the keys each namespace may have
        self.known = False  #: the keys have been read from the store
        self.when_changed: Callable[[], None] = lambda: None

    @property
    def exist(self) -> bool:
        """Return whether there are keys. Revoked and expired ones count: revoking the last one must not open the server."""
        return bool(self._keys)

    async def start(self) -> None:
        """Read the keys, and follow changes by other servers. If the store is down, retry until it is available."""
        try:
            await self.refresh()
        except ServerError as error:
            log.warning("the API keys cannot be read: they are refused until they can be read", reason=str(error))
        if not self.known or self._store.capabilities.is_shared:
            self._following = asyncio.get_running_loop().create_task(self._follow(), name="penstock-keys")

    async def close(self) -> None:
        """Stop following changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the keys if they were changed. Raises StorageFailed."""
        async with self._changing:  # keys that were read before a change of our own must not be used after it
            if not self.known or await self._store.key_revision() != self._revision:
                self._revision, keys = await self._store.key_list()
                self._take(keys)

    async def _follow(self) -> None:
        while not self.known or self._store.capabilities.is_shared:
            await pause(self._clock, CHECK_EVERY_MS)
            try:
                await self.refresh()
            except ServerError:  # the known keys stay valid; the next read logs the problem
                pass
            except Exception:
                log.exception("changes of API keys cannot be followed; trying again")

    def _take(self, keys: Sequence[ApiKey]) -> None:
        before, self._keys, self.known = self._keys, {key.id: key for key in keys}, True
        for key_id, key in before.items():
            now = self._keys.get(key_id)
            if key.revoked_at is None and (now is None or now.revoked_at is not None):
                self._end(key_id)
        self.when_changed()

    def _end(self, key_id: str) -> None:
        identity = self._identities.pop(key_id, None)
        if identity is not None:
            identity.end()

    def identify(self, shown: str) -> Identity:
        """Return the identity of a key. Raises Unauthorized, or KeysUnavailable.

        The time is the same whichever part of a bad key is wrong. Only a client with the right secret gets the reason.
        """
        if not self.known:
            raise KeysUnavailable(NOT_READ)
        if len(shown) != _TEXT_CHARS or not shown.isascii():
            raise Unauthorized
        key = self._keys.get(shown[len(PREFIX) :].partition("_")[0])
        is_it = hmac.compare_digest(_digest(shown), _NO_DIGEST if key is None else key.digest)
        if key is None or not is_it:
            raise Unauthorized
        if key.revoked_at is not None:
            raise Unauthorized("The key was revoked. Get a new one.")
        if key.expires_at is not None and self._clock.now_ms() >= key.expires_at:
            raise Unauthorized("The key has expired. Get a new one.")
        identity = self._identities.get(key.id)
        if identity is None:
            self._identities[key.id] = identity = _identity_of(key)
        return identity

    def listed(self) -> list[ApiKey]:
        """Return all keys, oldest first."""
        return list(self._keys.values())

    def find(self, key_id: str) -> ApiKey:
        """Return a key. Raises KeyNotFound."""
        key = self._keys.get(key_id)
        if key is None:
            raise KeyNotFound
        return key

    async def make(self, wish: KeyRequest) -> CreatedKey:
        """Create a key that is valid immediately. Raises TooMany, NamespaceLimit, StorageFailed."""
        async with self._changing:
            self._check_shares(wish.namespaces)
            made = await make_key(self._store, wish)
            self._keys[made.key.id] = made.key
        await self._refresh_after_change()
        return made

    def _check_shares(self, namespaces: Sequence[str]) -> None:
        """Raise NamespaceLimit if one of the namespaces has its share of the keys. Revoked and expired ones do not count."""
        now, held, taken = self._clock.now_ms(), dict.fromkeys(namespaces, 0), 0
        for key in self._keys.values():
            if key.revoked_at is None and (key.expires_at is None or now < key.expires_at):
                taken += 1
                for namespace in held.keys() & key.namespaces:
                    held[namespace] += 1
        for namespace, count in held.items():
            if namespace != ANYWHERE:
                self.pool_shares.check("API keys", namespace, most=limits.api_keys_max, taken=taken, held=count)

    async def revoke(self, key_id: str) -> None:
        """Revoke a key: here immediately, elsewhere within about a second. Raises KeyNotFound, StorageFailed."""
        async with self._changing:
            if not await self._store.key_revoke(key_id):
                raise KeyNotFound
            key = self._keys.get(key_id)
            if key is not None and key.revoked_at is None:
                self._keys[key_id] = msgspec.structs.replace(key, revoked_at=self._clock.now_ms())
            self._end(key_id)
        await self._refresh_after_change()

    async def _refresh_after_change(self) -> None:
        """Read the keys after a change of our own, which is stored and known. After a failure, a later check reads them."""
        with contextlib.suppress(ServerError):
            await self.refresh()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _identity_of(key: ApiKey) -> Identity:
    rights = 0
    for role in key.roles:
        rights |= WORDS[role]
    return Identity(f"key {key.id}", dict.fromkeys(key.namespaces, rights), key.expires_at)
