"""Bearer tokens: a fixed list of secrets, each of which has all rights."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class StaticTokens:
    """Accepts a client that sends one of the tokens. Without tokens, every client is accepted."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [token.encode() for token in tokens]
        if not all(self._tokens):
            raise ValueError("a token must not be empty")

    @property
    def is_open(self) -> bool:
        """Return whether no token is needed."""
        return not self._tokens

    def admits(self, authorization: str) -> bool:
        """Check the value of an ``Authorization`` header: ``Bearer <token>``, or the token alone.

        The comparison with every token takes constant time, so that it shows neither similarity nor the place in the list.
        """
        if self.is_open:
            return True
        shown = authorization.removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        found = False
        for token in self._tokens:
            found |= hmac.compare_digest(shown, token)
        return found
