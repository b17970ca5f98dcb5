"""The gate that all doors ask who somebody is, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.access.identity import EVERYBODY
from penstock.access.tokens import TokenGate
from penstock.core.errors import Unauthorized

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.access.identity import Identity, Right
    from penstock.access.jwt import Verifier
    from penstock.core.clock import Clock


class Headers(Protocol):
    """The headers of a request."""

    def get(self, name: str, default: str) -> str:
        """Return a header by its name in lower case."""


class Gate:
    """``tokens`` open everything; ``verifier`` knows JSON Web Tokens (None: there are none). Without either, it is open."""

    def __init__(self, clock: Clock, tokens: Iterable[str] = (), verifier: Verifier | None = None) -> None:
        self._clock = clock
        self._tokens = TokenGate(tokens)
        self._verifier = verifier
        self.is_open = self._tokens.is_open and verifier is None  #: nobody needs a token

    async def identify(self, shown: str) -> Identity:
        """Return who shows a token, with or without ``Bearer`` in front. Raises Unauthorized, or KeysUnavailable."""
        if self.is_open:
            return EVERYBODY
        if not self._tokens.is_open and self._tokens.admits(shown):
            return EVERYBODY
        if self._verifier is None:
            raise Unauthorized
        return await self._verifier.identify(shown.removeprefix("Bearer "))

    def check(self, identity: Identity | None, namespace: str, right: Right) -> None:
        """Raise Unauthorized unless somebody is known, and still is; raise Forbidden unless they may."""
        if identity is None:
            raise Unauthorized("Not authenticated")
        if identity.expired(self._clock.now_ms()):
            raise Unauthorized("The token has expired. Get a new one, and show it with Auth.")
        identity.check(namespace, right)

    async def close(self) -> None:
        """Stop whatever is under way."""
        if self._verifier is not None:
            await self._verifier.close()


#: The headers that a token is shown in: both ways to spell it are in use.
SHOWN_IN: Final = ("authorization", "authorisation")


def shown_in(headers: Headers) -> str:
    """Return what is shown in a request's headers, empty if nothing is."""
    return headers.get("authorization", "") or headers.get("authorisation", "")
