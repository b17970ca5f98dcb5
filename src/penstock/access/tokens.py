"""Bearer tokens: a fixed list of secrets, each of which opens everything."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable


class Headers(Protocol):
    """The headers of a request."""

    def get(self, name: str, default: str) -> str:
        """Return a header by its name in lower case."""


def credentials(headers: Headers) -> str:
    """Return what a client shows to be let in: the header Authorization, in either spelling."""
    return headers.get("authorization", "") or headers.get("authorisation", "")


class TokenGate:
    """Lets in whoever shows one of the tokens. Without tokens everybody is let in."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [token.encode() for token in tokens]
        if not all(self._tokens):
            raise ValueError("a token must not be empty")

    @property
    def is_open(self) -> bool:
        """Tell whether nobody needs a token."""
        return not self._tokens

    def admits(self, authorization: str) -> bool:
        """Check the value of an ``Authorization`` header: ``Bearer <token>``, or the token alone.

        Compared with every token in constant time, so that neither a near miss nor its place in the list shows.
        """
        if self.is_open:
            return True
        shown = authorization.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        found = False
        for token in self._tokens:
            found |= hmac.compare_digest(shown, token)
        return found
