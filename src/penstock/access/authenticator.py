"""Authentication and authorization for all doors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.access.api_keys import NOT_READ
from penstock.access.identity import ANYWHERE, EVERYTHING, UNRESTRICTED, Identity
from penstock.access.tokens import StaticTokens
from penstock.core.apikey import PREFIX
from penstock.core.errors import KeysUnavailable, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.access.api_keys import ApiKeys
    from penstock.access.identity import Right
    from penstock.access.jwt import Verifier
    from penstock.core.clock import Clock


class CredentialHeaders(Protocol):
    """The headers of a request."""

    def get(self, name: str, default: str) -> str:
        """Return a header by its name in lower case."""


class Authenticator:
    """Authenticates clients. ``tokens`` have all rights; ``verifier`` checks JSON Web Tokens (None: there are none).

    ``use`` adds API keys. Without any of these the server is open, unless ``required``. It closes when the first key is
    created: then everything ends that unauthenticated clients have started.
    """

    def __init__(
        self, clock: Clock, tokens: Iterable[str] = (), verifier: Verifier | None = None, *, required: bool = False
    ) -> None:
        self._clock = clock
        self._tokens = StaticTokens(tokens)
        self._verifier = verifier
        self._keys: ApiKeys | None = None
        self._required = required
        self.open_identity = Identity("", {ANYWHERE: EVERYTHING})  #: the identity of every client while the server is open
        self.is_open = self._needs_no_token()  #: no token is needed

    def use(self, keys: ApiKeys) -> None:
        """Accept API keys too, and follow their changes."""
        self._keys = keys
        keys.when_changed = self._update_is_open
        self._update_is_open()

    def _needs_no_token(self) -> bool:
        if not self._tokens.is_open or self._verifier is not None or self._required:
            return False
        return self._keys is None or (self._keys.known and not self._keys.exist)

    def _update_is_open(self) -> None:
        was_open, self.is_open = self.is_open, self._needs_no_token()
        if was_open and not self.is_open and self._keys is not None and self._keys.exist:
            self.open_identity.end()

    @property
    def separates_namespaces(self) -> bool:
        """Return whether clients may exist that have access to some namespaces only.

        In that case information about all namespaces is not public.
        """
        return self._verifier is not None or (self._keys is not None and (self._keys.exist or not self._keys.known))

    async def identify(self, shown: str) -> Identity:
        """Return the identity of a token or key, also with ``Bearer`` before it. Raises Unauthorized, or KeysUnavailable."""
        if self.is_open:
            return self.open_identity
        if not self._tokens.is_open and self._tokens.admits(shown):
            return UNRESTRICTED
        token = shown.removeprefix("Bearer ")
        if self._keys is not None and token.startswith(PREFIX):
            return self._keys.identify(token)
        if self._verifier is not None:
            return await self._verifier.identify(token)
        if self._tokens.is_open and not self._required and self._keys is not None and not self._keys.known:
            raise KeysUnavailable(NOT_READ)  # perhaps no key is needed
        raise Unauthorized

    def check(self, identity: Identity | None, namespace: str, right: Right) -> None:
        """Raise Unauthorized if the identity is missing or has expired, and Forbidden if it lacks the right."""
        if identity is None or (identity is self.open_identity and not self.is_open):
            raise Unauthorized("Not authenticated")
        if identity.expired(self._clock.now_ms()):
            raise Unauthorized("The token has expired. Get a new one, and send it with Auth.")
        identity.check(namespace, right)

    async def close(self) -> None:
        """Stop the work in progress."""
        if self._verifier is not None:
            await self._verifier.close()
        if self._keys is not None:
            await self._keys.close()


#: The headers for a token or a key, in order of precedence. Clients use both spellings of the last one.
SHOWN_IN: Final = ("x-api-key", "authorization", "authorisation")


def shown_in(headers: CredentialHeaders) -> str:
    """Return the token or key in a request's headers; empty if there is none."""
    get = headers.get
    return get("x-api-key", "") or get("authorization", "") or get("authorisation", "")
