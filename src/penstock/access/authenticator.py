"""The gate that all doors ask who somebody is, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.access.api_keys import NOT_READ
from penstock.access.identity import ANYWHERE, EVERYBODY, EVERYTHING, Identity
from penstock.access.tokens import TokenGate
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
    """``tokens`` open everything; ``verifier`` knows JSON Web Tokens (None: there are none). ``use`` brings API keys.

    Without any of them it is open, unless ``required``. It may close later, when the first key is made: then whatever was begun
    by those who had not been asked ends.
    """

    def __init__(
        self, clock: Clock, tokens: Iterable[str] = (), verifier: Verifier | None = None, *, required: bool = False
    ) -> None:
        self._clock = clock
        self._tokens = TokenGate(tokens)
        self._verifier = verifier
        self._keys: ApiKeys | None = None
        self._required = required
        self.anybody = Identity("", {ANYWHERE: EVERYTHING})  #: who comes in while nobody is asked
        self.is_open = self._asks_nobody()  #: nobody needs a token

    def use(self, keys: ApiKeys) -> None:
        """Let people in by API keys too, and go by what becomes of them."""
        self._keys = keys
        keys.when_changed = self._look
        self._look()

    def _asks_nobody(self) -> bool:
        if not self._tokens.is_open or self._verifier is not None or self._required:
            return False
        return self._keys is None or (self._keys.known and not self._keys.exist)

    def _look(self) -> None:
        was_open, self.is_open = self.is_open, self._asks_nobody()
        if was_open and not self.is_open and self._keys is not None and self._keys.exist:
            self.anybody.end()

    @property
    def keeps_apart(self) -> bool:
        """Tell whether there may be somebody who is let in for some namespaces only.

        Then what tells of all namespaces is not for everybody any more.
        """
        return self._verifier is not None or (self._keys is not None and (self._keys.exist or not self._keys.known))

    async def identify(self, shown: str) -> Identity:
        """Return who shows a token or a key, with or without ``Bearer`` in front. Raises Unauthorized, or KeysUnavailable."""
        if self.is_open:
            return self.anybody
        if not self._tokens.is_open and self._tokens.admits(shown):
            return EVERYBODY
        token = shown.removeprefix("Bearer ")
        if self._keys is not None and token.startswith(PREFIX):
            return self._keys.identify(token)
        if self._verifier is not None:
            return await self._verifier.identify(token)
        if self._tokens.is_open and not self._required and self._keys is not None and not self._keys.known:
            raise KeysUnavailable(NOT_READ)  # perhaps nobody needs one
        raise Unauthorized

    def check(self, identity: Identity | None, namespace: str, right: Right) -> None:
        """Raise Unauthorized unless somebody is known, and still is; raise Forbidden unless they may."""
        if identity is None or (identity is self.anybody and not self.is_open):
            raise Unauthorized("Not authenticated")
        if identity.expired(self._clock.now_ms()):
            raise Unauthorized("The token has expired. Get a new one, and show it with Auth.")
        identity.check(namespace, right)

    async def close(self) -> None:
        """Stop whatever is under way."""
        if self._verifier is not None:
            await self._verifier.close()
        if self._keys is not None:
            await self._keys.close()


#: The headers that a token or a key is shown in, the one that counts first: both ways to spell the last one are in use.
SHOWN_IN: Final = ("x-api-key", "authorization", "authorisation")


def shown_in(headers: CredentialHeaders) -> str:
    """Return what is shown in a request's headers, empty if nothing is."""
    get = headers.get
    return get("x-api-key", "") or get("authorization", "") or get("authorisation", "")
